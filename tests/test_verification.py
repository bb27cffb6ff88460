import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from problems import with_diffusion
from torch import Tensor

from gfunk import figures, verification
from gfunk.cli import main
from gfunk.domain import Domain, rectangle
from gfunk.errors import InputError
from gfunk.physics import stepping
from gfunk.physics.diffusion import diffused
from gfunk.verification import Advance, Beat, Check, Evidence, Finding, checks
from gfunk.verification_pictures import activation_picture, convergence_picture, potentials_picture

CPU = torch.device("cpu")


def silent():
    pass


def found_by(check: Callable[[torch.device, Advance], Evidence]) -> dict[str, Finding]:
    return {finding.law: finding for finding in check(CPU, silent).findings}


def failed(check: Callable[[torch.device, Advance], Evidence]) -> list[str]:
    return [law for law, finding in found_by(check).items() if not finding.passed]


@cache
def counted(about: str) -> tuple[Check, Evidence, int]:
    """A check, what it gathered, and how many parts it said were done."""
    (check,) = [each for each in checks(is_quick=True) if each.about == about]
    n_done = 0

    def advance():
        nonlocal n_done
        n_done += 1

    return check, check.gather(CPU, advance), n_done


# With every signature checked, as tests do, the others take a minute; they are in the slow test of the whole command.
FAST = ["speeds along and across fibres", "charge and rotation", "a sheet rolled up"]


@pytest.mark.parametrize("about", FAST)
def test_the_solver_here_passes_and_says_how_far_it_is(about: str):
    check, evidence, n_done = counted(about)
    assert evidence.findings and [finding.law for finding in evidence.findings if not finding.passed] == []
    assert n_done == check.n_parts


def drawings() -> dict[str, Callable[[Path], None]]:
    """Each picture, of something made up but for the last."""
    sheet = rectangle(4.0, 2.0, 0.25)
    arrival, places = sheet.points @ np.array([1.0, 2.0]), {(0.0, 2.0): 4.0, (4.0, 0.0): 4.0, (2.0, 1.0): 4.1}
    sizes = (0.4, 0.2, 0.1)
    times = np.linspace(0, 400, 801)
    return {
        "potentials": partial(potentials_picture, curves={"one": (times, -times / 5), "two": (times, -times / 6)}),
        "convergence": partial(
            convergence_picture, steps_ms=sizes, errors_mV={1: sizes, 2: [size**2 for size in sizes]},
            edges_mm=sizes, speed_errors={"consistent": [0.04, 0.01, 0.0025], "lumped": [0.05, 0.013, 0.003]}, limit=0.5,
        ),
        "activation": partial(activation_picture, domain=sheet, activation_ms=arrival, places=places, known_ms=places),
        "rolled": lambda path: counted("a sheet rolled up")[1].pictures["verification-rolled.png"](path),
    }  # fmt: skip


@pytest.mark.parametrize("name", drawings())
def test_pictures_are_small_png_files_with_something_on_them(name: str, tmp_path: Path):
    picture = tmp_path / "new" / "one.png"
    drawings()[name](picture)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 150_000
    assert imread(picture)[..., :3].std() > 0.05


def test_the_benchmark_is_left_out_of_the_quick_checks_only():
    quick, full = ([check.about for check in checks(is_quick)] for is_quick in (True, False))
    assert full[: len(quick)] == quick and full[len(quick) :] == ["the 2-D benchmark"]


# What counts as passed.


@pytest.mark.parametrize(("found", "passes"), [(1.0, True), (1.1, True), (0.9, True), (1.11, False), (0.89, False)])
def test_a_law_passes_within_its_tolerance_on_both_sides(found: float, passes: bool):
    assert Finding(law="one", found=found, known=1.0, tolerance=0.1 + 1e-12).passed == passes


def test_what_was_not_found_has_not_passed():
    assert not Finding(law="none", found=float("nan"), known=0.0, tolerance=1e9).passed


# A broken solver is found out.


@pytest.mark.slow
def test_steps_of_order_one_are_not_taken_for_order_two(monkeypatch: pytest.MonkeyPatch):
    whole = stepping.stepped
    monkeypatch.setattr(stepping, "stepped", lambda cell, state, dt, current, order: whole(cell, state, dt, current, 1))
    assert "order in time, order-2 cells" in failed(verification.orders)


def test_diffusion_that_leaks_is_found(monkeypatch: pytest.MonkeyPatch):
    def leaking(v: Tensor, *others: Any) -> Tensor:
        return diffused(v, *others) - 1e-5 * v

    monkeypatch.setattr(stepping, "diffused", leaking)
    assert failed(verification.invariants) == ["charge lost by diffusion, part of all"]


def test_fibres_that_do_not_turn_with_the_mesh_are_found(monkeypatch: pytest.MonkeyPatch):
    def half_turned(domain: Domain, degrees: float) -> Domain:
        return replace(domain, points=turned(domain, degrees).points)

    turned = verification.rotated
    monkeypatch.setattr(verification, "rotated", half_turned)
    assert failed(verification.invariants) == ["mesh and fibres turned: arrivals apart"]


@pytest.mark.slow
def test_a_wrong_conductivity_shows_in_every_speed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verification, "_tissue", slowed(verification._tissue))
    assert failed(verification.plane_waves) == [f"plane wave at {each} mS/mm" for each in verification.KNOWN_SPEEDS]


def slowed(tissue: Callable[..., Domain]) -> Callable[..., Domain]:
    def with_less_diffusion(*sides: Any) -> Domain:
        domain = tissue(*sides)
        return replace(domain, diffusion=domain.diffusion * 0.9)

    return with_less_diffusion


def test_isotropic_tissue_is_not_taken_for_anisotropic(monkeypatch: pytest.MonkeyPatch):
    def isotropic(width: float, height: float, edge: float, along: float, across: float | None = None) -> Domain:
        return with_diffusion(rectangle(width, height, edge), along * np.eye(2))

    monkeypatch.setattr(verification, "_tissue", isotropic)
    assert failed(verification.fibre_ratio) == ["speed along / across fibres at 5:1 (root of 5)"]


@pytest.mark.slow
def test_cells_stepped_too_coarsely_miss_their_upstroke_but_not_their_duration(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verification, "STRETCHES", ((0.1, 5.0), (0.5, 350.0), (2.0, 1000.0)))
    missed = failed(verification.single_cells)
    assert {"Courtemanche's cell, beat 1: peak", "Courtemanche's cell, beat 1: steepest rise"} <= set(missed)
    assert "Courtemanche's cell, beat 1: APD90" not in missed


def test_durations_of_a_beat_of_known_shape():
    # Up by 100 mV from 1 to 2 ms, down by 1 mV a ms from there.
    times = np.concatenate([[0.0, 1.0], np.arange(2.0, 203.0, 2.0)])
    v = np.interp(times, [0, 1, 2, 102, 202], [-80, -80, 20, -80, -80])
    beat = Beat(times_ms=times, v_mV=v).features()
    assert beat == pytest.approx({"peak": 20.0, "steepest rise": 100.0, "APD50": 50.5, "APD90": 90.5})
    still_up = Beat(times_ms=times[:40], v_mV=v[:40]).features()
    assert still_up["APD50"] == pytest.approx(50.5) and np.isnan(still_up["APD90"])


# The command.


def pretend(monkeypatch: pytest.MonkeyPatch, *found: float):
    """One check whose findings should all be 1."""

    def gather(device: torch.device, advance: Advance) -> Evidence:
        advance()
        findings = tuple(Finding(law=f"law {n}", found=f, known=1.0, tolerance=0.1) for n, f in enumerate(found))
        return Evidence(findings=findings, pictures={"one.png": lambda path: path.write_bytes(b"a picture") and None})

    monkeypatch.setattr(verification, "checks", lambda is_quick: [Check(about="one", n_parts=1, gather=gather)])


@pytest.mark.parametrize(("found", "status"), [((1.0, 1.05), 0), ((1.0, 1.2), 1), ((float("nan"), 1.0), 1)])
def test_the_command_ends_with_status_one_if_any_law_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, found: tuple[float, ...], status: int
):
    pretend(monkeypatch, *found)
    assert main(["verify", "--device", "cpu", "--json"]) == status
    answer = json.loads(capsys.readouterr().out)
    assert answer["passed"] == (status == 0) and answer["pictures"] == []
    assert [row["passed"] for row in answer["rows"]] == [abs(each - 1) <= 0.1 for each in found]
    assert {"law", "found", "known", "tolerance", "unit", "passed"} == answer["rows"][0].keys()


def test_pictures_go_where_the_user_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    pretend(monkeypatch, 1.0)
    out = tmp_path / "a" / "b"
    assert main(["verify", "--device", "cpu", "--out", str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["one.png"]
    table = capsys.readouterr().out
    assert all(word in table for word in ("law 0", "found", "known", "tolerance", "passed", "True"))


@pytest.mark.parametrize("why", ["no matplotlib", "out is a file"])
def test_pictures_that_cannot_be_drawn_are_refused_before_anything_is_computed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
):
    def never(is_quick: bool) -> list[Check]:
        raise AssertionError("too late")

    def missing():
        raise InputError("pictures need matplotlib: pip install 'gfunk[pictures]'")

    monkeypatch.setattr(verification, "checks", never)
    if why == "no matplotlib":
        monkeypatch.setattr(figures, "pyplot", missing)
    (tmp_path / "file").write_text("in the way")
    assert main(["verify", "--device", "cpu", "--out", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and ("matplotlib" if why == "no matplotlib" else "file") in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "--device", "cuda"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_everything_is_verified_by_one_command(tmp_path: Path):
    command = [sys.executable, "-m", "gfunk.cli", "verify", "--device", "cpu", "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["passed"], [row for row in answer["rows"] if not row["passed"]]
    assert len(answer["rows"]) == 26
    names = {f"verification-{name}.png" for name in ("cells", "convergence", "rolled", "benchmark")}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.stat().st_size < 150_000 for path in tmp_path.iterdir())


@pytest.mark.gpu
def test_a_gpu_passes_the_quick_checks(capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "--quick", "--device", "cuda", "--json"]) == 0, capsys.readouterr().out
