import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from gfunk import race, solver_cost
from gfunk.cli import main
from gfunk.race import Race
from gfunk.solver_cost import bytes_a_node_step, sheets, tube

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_compiles(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")


def test_a_tube_is_one_piece_of_surface_with_fibres_around_it():
    [domain] = tube(900, 5, 6.0).domains
    assert domain.n_nodes == 900
    radius = np.linalg.norm(domain.points[:, :2], axis=1)
    np.testing.assert_allclose(radius, radius[0])
    # Unit vectors, level, at right angles to the axis of the tube.
    np.testing.assert_allclose(np.linalg.norm(domain.fibres, axis=1), 1)
    assert np.abs(domain.fibres[:, 2]).max() == 0
    assert np.abs((domain.fibres * domain.points)[:, :2].sum(axis=1)).max() < 1e-9
    # The ends don't meet: it is still a sheet.
    first, last = domain.points[0], domain.points[-1]
    assert np.linalg.norm((first - last)[:2]) > 0.5 / 2


def test_every_stimulus_of_a_tube_sits_on_a_node_of_its_own():
    case = tube(400, 7, 6.0)
    sites = [protocol[0].sites[0] for protocol in case.protocols[0]]
    assert len(set(sites)) == 7
    distance = np.linalg.norm(case.domains[0].points[:, None] - np.array(sites), axis=2).min(axis=0)
    assert distance.max() == 0


def test_sheets_are_the_same_whenever_they_are_made():
    again, before = sheets(2, 6.0), sheets(2, 6.0)
    for one, other in zip(again.domains, before.domains, strict=True):
        np.testing.assert_array_equal(one.points, other.points)


def test_bytes_of_matrices_are_shared_by_trajectories_and_those_of_fields_are_not():
    alone, many = (bytes_a_node_step(21, 6, 4, n_trajectories) for n_trajectories in (1, 10**9))
    assert alone - many == pytest.approx(4 * 6 * (3 + 2 * 3))
    assert bytes_a_node_step(22, 6, 4, 1) - alone == 8
    # An iteration more: three fields in and out, a neighbour's number and weight for each slot.
    assert bytes_a_node_step(21, 6, 5, 1) - alone == 4 * (6 + 2 * 6)


def test_the_cost_says_how_many_node_steps_a_second_were_done():
    cost = solver_cost.solver_cost(tube(400, 3, 8.0), CPU)
    assert (cost.domains, cost.nodes, cost.trajectories) == (1, 400, 3)
    assert cost.iterations >= 1 and cost.first_seconds > 0 and cost.floor_fraction > 0
    # 8 ms of 400 nodes and 3 trajectories took all but the set-up.
    work = 400 * 3 * cost.until_ms / cost.dt_ms
    assert work / cost.node_steps_per_second == pytest.approx(cost.seconds - cost.setup_seconds, rel=1e-6)


def test_the_command_prints_our_cost_and_the_race_and_says_who_was_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    left_out = {"torchcor": "there is no such thing: `make rivals` installs it"}
    ratios = ("ratio_torchcor", "ratio_torchcor_float64", "accurate_ratio_torchcor")
    found = Race(rows=(), **dict.fromkeys(ratios), ratio_finitewave=5.0, accurate_ratio_finitewave=14.0, left_out=left_out)
    asked = {}
    monkeypatch.setattr(race, "raced", lambda rivals, **how: asked.update(rivals=rivals, **how) or found)
    monkeypatch.setattr(solver_cost, "sheets", lambda n, until: tube(100, 1, 6.0))
    monkeypatch.setattr(solver_cost, "tube", lambda n, k, until: tube(100, 1, 6.0))
    assert main(["bench", "solver", "--device", "cpu", "--rivals", "elsewhere", "--no-errors", "--json"]) == 0
    out = capsys.readouterr()
    answer = json.loads(out.out)
    assert answer["ratio_finitewave"] == 5.0 and answer["ratio_torchcor"] is None and len(answer["rows"]) == 2
    assert answer["rows"][0].keys() == asdict(solver_cost.solver_cost(tube(100, 1, 6.0), CPU)).keys()
    assert "make rivals" in out.err
    assert str(asked["rivals"]["torchcor float64"]) == "elsewhere/torchcor/bin/python" and not asked["with_errors"]
