import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gfunk.errors import InputError
from gfunk.race import OURS, RIVALS, converged, interpreters, raced
from gfunk.rivals.sheet import Sheet

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable  # the true one: tests put another in its place
TOY = Sheet(dt_ms=0.02, side_mm=2.0, until_ms=4.0)

# Stands in for an interpreter: whatever the script, it prints this result for the sheet it is given.
SOLVER = """#!{python}
import json, sys
sheet = json.loads(sys.argv[2])
n_side = round(sheet["side_mm"] / sheet["edge_mm"]) + 1
line = [sheet["edge_mm"] * number for number in range(n_side)]
points = [[x, y] for x in line for y in line]
activation = [{activation} for x, y in points]
print("chatter")
print(json.dumps(dict(
    version="9", nodes=len(points), steps=round(sheet["until_ms"] / sheet["dt_ms"]), setup_seconds=7.0,
    wall_seconds=2.0, cpu_seconds={cpu}, activation_ms=activation, points_mm=points)))
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def solver(folder: Path, name: str, cpu: str = "1.0", activation: str = "x + y") -> Path:
    return written(folder / name, SOLVER.format(python=PYTHON, cpu=cpu, activation=activation))


@pytest.fixture
def ours_takes_half_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", str(solver(tmp_path, "ours", cpu="0.5")))


@pytest.mark.usefixtures("ours_takes_half_a_second")
def test_ratios_are_of_work_per_processor_second(tmp_path: Path):
    rivals = {"torchcor": solver(tmp_path, "torchcor", cpu="2.0"), "finitewave": solver(tmp_path, "finitewave", cpu="3.0")}
    race = raced(rivals, sheet=TOY, n_runs=1, with_errors=False)
    assert [row.solver for row in race.rows] == ["gfunk", "gfunk accurate", "torchcor", "finitewave"]
    # The same steps in a quarter of the time; half as many steps, of twice the length, in a sixth.
    assert race.ratio_torchcor == pytest.approx(4) and race.ratio_finitewave == pytest.approx(3)
    assert race.accurate_ratio_torchcor == pytest.approx(4) and race.accurate_ratio_finitewave == pytest.approx(6)
    assert [row.node_steps_per_cpu_second for row in race.rows] == pytest.approx(
        [121 * steps / cpu for steps, cpu in ((200, 0.5), (80, 0.5), (200, 2), (400, 3))]
    )
    assert race.left_out == {} and all(row.error_ms is None for row in race.rows)


@pytest.mark.usefixtures("ours_takes_half_a_second")
def test_a_slow_run_does_not_move_the_median(tmp_path: Path):
    # 1, 9 and 2 seconds, by how often it was called.
    calls = tmp_path / "calls"
    cpu = f"[1.0, 9.0, 2.0][open({str(calls)!r}, 'a').write('x') and len(open({str(calls)!r}).read()) - 1]"
    calls.write_text("")
    race = raced({"torchcor": solver(tmp_path, "torchcor", cpu=cpu)}, sheet=TOY, n_runs=3, with_errors=False)
    assert race.rows[-1].cpu_seconds == 2.0
    assert race.ratio_torchcor == pytest.approx(4)


@pytest.mark.usefixtures("ours_takes_half_a_second")
def test_solvers_take_turns(tmp_path: Path):
    turns = []
    raced({"torchcor": solver(tmp_path, "torchcor")}, sheet=TOY, n_runs=2, with_errors=False, on_run=turns.append)
    assert [turn.split(",")[0] for turn in turns] == 2 * ["gfunk", "gfunk accurate", "torchcor"]


@pytest.mark.usefixtures("ours_takes_half_a_second")
def test_a_rival_that_is_not_installed_is_left_out_and_says_how_to_install_it(tmp_path: Path):
    race = raced({"torchcor": tmp_path / "nowhere"}, sheet=TOY, n_runs=1, with_errors=False)
    assert race.ratio_torchcor is None and race.accurate_ratio_torchcor is None and race.ratio_finitewave is None
    assert "make rivals" in race.left_out["torchcor"]
    assert [row.solver for row in race.rows] == ["gfunk", "gfunk accurate"]


@pytest.mark.usefixtures("ours_takes_half_a_second")
@pytest.mark.parametrize(
    "ending, said",
    [
        ("echo step 1\necho Traceback >&2\necho 'ValueError: no mesh' >&2\nexit 1", "it failed: ValueError: no mesh"),
        ("exit 3", "it failed: exit status 3"),
        ("echo done", "it failed: its last line is no result: 'done'"),
    ],
)
def test_a_rival_that_fails_is_left_out_with_the_last_line_it_said(tmp_path: Path, ending: str, said: str):
    failing = written(tmp_path / "torchcor", f"#!/bin/sh\n{ending}\n")
    race = raced({"torchcor": failing, "finitewave": solver(tmp_path, "fw")}, sheet=TOY, n_runs=2, with_errors=False)
    assert race.ratio_torchcor is None and race.left_out == {"torchcor": said}
    assert race.ratio_finitewave == pytest.approx(1)


@pytest.mark.usefixtures("ours_takes_half_a_second")
def test_errors_are_of_nodes_the_wave_reaches_in_time_outside_the_stimulus(tmp_path: Path):
    # Ours is exact: x + y. The rival is 0.25 ms late, and never reaches the far corner.
    late = solver(tmp_path, "torchcor", activation="x + y + 0.25 if x + y < 2.9 else None")
    *_, row = raced({"torchcor": late}, sheet=TOY, n_runs=1).rows
    x, y = TOY.points_mm().T
    n_chosen = int((((x > 1.5) | (y > 1.5)) & (x + y <= 0.8 * 4 + 1e-9)).sum())
    assert row.error_ms == pytest.approx(0.25) and row.late_ms == pytest.approx(0.25)
    assert row.n_missed and row.n_compared and row.n_missed + row.n_compared == n_chosen


def test_errors_of_second_order_in_mesh_and_step_are_extrapolated_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = "x + y + 2 * sheet['edge_mm'] ** 2 + 30 * sheet['dt_ms'] ** 2"
    monkeypatch.setattr(sys, "executable", str(solver(tmp_path, "ours", activation=seen)))
    found = converged(TOY, str(tmp_path))
    exact = TOY.points_mm().sum(axis=1)
    is_early = exact < 3.1
    np.testing.assert_allclose(found[is_early], exact[is_early], atol=1e-9)
    assert np.isnan(found[exact > 3.3]).all()


def test_an_unknown_rival_or_no_run_is_refused():
    with pytest.raises(InputError, match="torchcor, torchcor float64, finitewave, not"):
        raced({"opencarp": Path("python")})
    with pytest.raises(InputError, match="not 0"):
        raced({}, n_runs=0)


def test_the_stimulated_area_is_the_same_on_every_mesh():
    for edge in (0.2, 0.1, 0.05):
        sheet = Sheet(dt_ms=0.02, side_mm=4.0, edge_mm=edge)
        # Nodes at the rim have half the surroundings, those at the corner a quarter.
        x, y = sheet.points_mm().T
        area = edge**2 * np.where(x == 0, 0.5, 1) * np.where(y == 0, 0.5, 1)
        assert (area * sheet.stimulated_shares()).sum() == pytest.approx(1.5**2)
    assert set(TOY.stimulated_shares()) == {0.0, 1.0}


def test_our_own_run_reports_the_wave_and_what_it_took(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    race = raced({}, sheet=replace(TOY, until_ms=0.5), n_runs=1, with_errors=False)
    assert race.left_out == {}
    first, accurate = race.rows
    assert (first.nodes, first.steps, accurate.steps) == (121, 25, 10)
    for row in race.rows:
        assert min(row.cpu_seconds, row.wall_seconds, row.setup_seconds) > 0
        assert row.simulated_ms_per_cpu_second == pytest.approx(0.5 / row.cpu_seconds)
    assert json.loads(json.dumps(race.table))[0]["solver"] == OURS.name


@pytest.mark.slow
@pytest.mark.parametrize("name", RIVALS)
def test_rivals_solve_the_same_problem(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    interpreter = interpreters(ROOT / ".rivals")[name]
    if not interpreter.exists():
        pytest.skip("make rivals installs it")
    race = raced({name: interpreter}, sheet=Sheet(dt_ms=0.02, side_mm=5.0, until_ms=10.0), n_runs=1)
    ours, _, theirs = race.rows
    # Finite differences have a lumped mass: waves across fibres are a sixth slower at this edge.
    assert theirs.n_missed == 0 and theirs.n_compared and theirs.n_compared > 100
    assert theirs.error_ms is not None and theirs.error_ms < 0.7
    assert ours.error_ms is not None and ours.error_ms < 0.4
