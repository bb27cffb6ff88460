"""The first milliseconds, solved near the stimulus alone, are those of the whole domain."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import batch_of
from toy_surfaces import egg, strip

from gfunk import first_waves as module
from gfunk.activation import ACTIVE_MV
from gfunk.batch import Batch
from gfunk.domain import Domain, cell_sizes, halved
from gfunk.errors import InputError
from gfunk.first_waves import (
    MARGIN_MS,
    QUIET_MV,
    FirstWave,
    Tissue,
    _cut_out,
    _patch,
    _whole_triangles,
    arrival_bounds,
    first_waves,
    first_waves_together,
    tissue_on,
)
from gfunk.physics.diffusion import begun
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import coupling, solving
from gfunk.physics.stimulus import Stimulus
from gfunk.physics.waves import Paced
from gfunk.recipes.atrium_data import AtrialPacing

PACING = AtrialPacing(scheme="paper")
TIMES = np.array([2.0, 5.0, 10.0])
SCALE_MV = 105.0


@cache
def domain() -> Domain:
    return strip()


@cache
def packed() -> Batch:
    return batch_of(domain(), n_modes=2, dtype=torch.float32)


def stimulus(*nodes: int) -> Stimulus:
    sites = tuple((x, y, z) for x, y, z in domain().points[list(nodes)].tolist())
    return Stimulus(sites=sites, radius_mm=PACING.radius_mm, strength=PACING.strength)


def solved_whole(of: Stimulus, n_halvings: int, pacing: AtrialPacing = PACING) -> Paced:
    tissue = halved(domain(), n_halvings)
    (wave,) = simulate_many(
        [tissue], [[[of]]], TIMES, cell=pacing.cell, scheme=pacing.scheme, compiles=False, activated_mV=ACTIVE_MV
    )
    return wave


def solved_near(*of: Stimulus, n_halvings: int = 0, pacing: AtrialPacing = PACING, **options: Any) -> list[FirstWave]:
    whole = solving(domain(), pacing.scheme, n_halvings)
    return first_waves(domain(), packed(), of, TIMES, pacing, n_halvings, whole=whole, compiles=False, **options)


@cache
def tissue(n_halvings: int = 0, scheme: str = PACING.scheme) -> Tissue:
    halves = halved(domain(), n_halvings)
    return tissue_on(torch.device("cpu"), domain(), halves, coupling(halves, scheme))


def solved_together(*of: Stimulus, n_halvings: int = 0, pacing: AtrialPacing = PACING, **options: Any) -> list[FirstWave]:
    there = tissue(n_halvings, pacing.scheme)
    return first_waves_together(domain(), packed(), of, TIMES, pacing, there, compiles=False, **options)


def solved_without_shortcuts(*args: Any, **options: Any) -> list[Paced]:
    return simulate_many(*args, **options | {"shortcuts": False})


def node_at(x: float, y: float) -> int:
    """Of the strip, as if it were flat."""
    angle = x / 20.0
    return int(np.linalg.norm(domain().points - [20 * np.sin(angle), y, 20 * np.cos(angle)], axis=1).argmin())


@pytest.mark.parametrize("places", [[(25, 6)], [(0, 0)], [(8, 12)], [(5, 6), (45, 6)]])
def test_the_wave_near_the_stimulus_is_that_of_the_whole_domain(places: list[tuple[float, float]]):
    asked = stimulus(*(node_at(x, y) for x, y in places))
    (near,) = solved_near(asked)
    whole = solved_whole(asked, 0)
    assert near.n_stepped < domain().n_nodes
    assert np.abs(near.values_mV - whole.values_mV[0]).max() < 1e-3 * SCALE_MV
    assert np.array_equal(np.isfinite(near.activation_ms), np.isfinite(whole.activation_ms[0]))
    assert np.nanmax(np.abs(near.activation_ms - whole.activation_ms[0])) < 0.01


def test_it_is_also_with_the_accurate_scheme_on_halved_triangles():
    pacing = AtrialPacing()
    asked = stimulus(node_at(10, 5))
    (near,) = solved_near(asked, n_halvings=1, pacing=pacing)
    whole = solved_whole(asked, 1, pacing)
    assert near.n_stepped < len(whole.values_mV[0, 0]) / 1.5
    assert np.abs(near.values_mV - whole.values_mV[0, :, : domain().n_nodes]).max() < 1e-3 * SCALE_MV


def three() -> list[Stimulus]:
    return [stimulus(node_at(25, 6)), stimulus(node_at(5, 6), node_at(45, 6)), stimulus(node_at(0, 0))]


def test_patches_cut_out_together_give_the_waves_of_the_whole_domain():
    for asked, found in zip(three(), solved_together(*three()), strict=True):
        whole = solved_whole(asked, 0)
        assert found.n_stepped < domain().n_nodes
        assert np.abs(found.values_mV - whole.values_mV[0]).max() < QUIET_MV
        assert np.array_equal(np.isfinite(found.activation_ms), np.isfinite(whole.activation_ms[0]))
        assert np.nanmax(np.abs(found.activation_ms - whole.activation_ms[0])) < 1e-4


@pytest.mark.parametrize(("margin_ms", "close_mV"), [(MARGIN_MS, 1e-3), (6.0, 1e-4)])
@pytest.mark.parametrize("n_halvings", [0, 1])
def test_patches_cut_out_together_give_the_waves_of_patches_made_one_by_one(
    n_halvings: int, margin_ms: float, close_mV: float
):
    # Around the ones all is at rest, from the others nothing flows out: far from the wave that is the same.
    how = {"n_halvings": n_halvings, "margin_ms": margin_ms}
    made = solved_near(*three(), solve=solved_without_shortcuts, **how)
    for expected, found in zip(made, solved_together(*three(), shortcuts=False, **how), strict=True):
        assert found.n_stepped == expected.n_stepped
        assert np.abs(found.values_mV - expected.values_mV).max() < close_mV
        np.testing.assert_allclose(found.activation_ms, expected.activation_ms, atol=1e-5)


def test_a_wave_cut_out_does_not_depend_on_its_company_nor_on_the_order(monkeypatch: pytest.MonkeyPatch):
    asked = three()
    together, turned = solved_together(*asked), solved_together(*asked[::-1])[::-1]
    alone = [solved_together(each)[0] for each in asked]
    # One group a patch.
    monkeypatch.setattr(module, "STEPPED_AT_ONCE", 1)
    monkeypatch.setattr(module, "MARCHED_AT_ONCE", 1)
    apart = solved_together(*asked)
    for expected, *others in zip(together, turned, alone, apart, strict=True):
        for found in others:
            np.testing.assert_array_equal(found.values_mV, expected.values_mV)
            np.testing.assert_array_equal(found.activation_ms, expected.activation_ms)


def test_of_patches_cut_out_those_that_the_wave_would_leave_are_widened():
    asked, reach_ms = three(), TIMES[-1] - 6.0
    first = torch.from_numpy(arrival_bounds(domain(), packed(), asked) <= reach_ms)
    too_small = _whole_triangles(first, tissue()).sum(1).tolist()
    for expected, found, n_first in zip(
        solved_together(*asked), solved_together(*asked, margin_ms=-6.0), too_small, strict=True
    ):
        assert found.n_stepped > n_first
        assert np.abs(found.values_mV - expected.values_mV).max() < QUIET_MV


masks = st.lists(st.sets(st.integers(0, 662), min_size=1, max_size=40), min_size=1, max_size=3)


def inside(chosen: list[set[int]]) -> torch.Tensor:
    found = torch.zeros(len(chosen), domain().n_nodes, dtype=torch.bool)
    for row, nodes in zip(found, chosen, strict=True):
        row[list(nodes)] = True
    return found


@settings(max_examples=20)
@given(chosen=masks, n_halvings=st.integers(0, 2))
def test_what_is_cut_out_is_what_a_patch_of_its_own_holds(chosen: list[set[int]], n_halvings: int):
    for is_inside, is_kept in zip(inside(chosen), _whole_triangles(inside(chosen), tissue(n_halvings)), strict=True):
        own = _patch(domain(), is_inside.numpy(), n_halvings).tissue.points
        cut = tissue(n_halvings).points[is_kept].numpy()
        cut, own = (each[np.lexsort(each.round(6).T)] for each in (cut, own))
        np.testing.assert_allclose(cut, own, atol=1e-9)


@settings(max_examples=20)
@given(chosen=masks, seed=st.integers(0, 1000))
def test_a_field_at_rest_around_diffuses_in_patches_as_in_the_whole(chosen: list[set[int]], seed: int):
    whole, is_inside, rng = tissue(1), _whole_triangles(inside(chosen), tissue(1)), np.random.default_rng(seed)
    patches, weight = _cut_out(whole, is_inside), whole.step.weights(1)[0]
    n_more = patches.step.neighbors.shape[1] - len(patches.node)
    for number, each in enumerate(is_inside):
        v, guess = (torch.from_numpy(rng.normal(size=len(each)).astype(np.float32)) * each for _ in range(2))
        expected = begun(v[:, None], guess[:, None], whole.step, weight)[0][each]
        v, guess = (torch.nn.functional.pad(field[patches.node], (0, n_more))[:, None] for field in (v, guess))
        found = begun(v, guess, patches.step, weight)[0][: len(patches.node)][patches.patch_of == number]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_site_away_from_all_nodes_is_refused_by_its_distance():
    away = Stimulus(sites=((0.0, 0.0, 0.0),), radius_mm=1.0)
    with pytest.raises(InputError, match=r"no node within 1 mm of site \(0.0, 0.0, 0.0\): the nearest is 20 mm away"):
        solved_together(stimulus(0), away)


def test_bounds_up_to_a_time_are_the_same_up_to_it():
    asked = [stimulus(node_at(25, 6)), stimulus(node_at(2, 3))]
    bounds, early = arrival_bounds(domain(), packed(), asked), arrival_bounds(domain(), packed(), asked, 15.0)
    assert np.abs(early - np.minimum(bounds, 15.0)).max() < 0.05 and early.max() <= 15.0 < bounds.max()


def test_a_patch_that_the_wave_would_leave_is_widened():
    asked = stimulus(node_at(25, 6))
    (near,), (narrow,) = solved_near(asked), solved_near(asked, margin_ms=-6.0)
    assert np.abs(near.values_mV - narrow.values_mV).max() < 1e-3 * SCALE_MV


def test_waves_solved_together_are_those_solved_one_by_one():
    asked = [stimulus(node_at(25, 6)), stimulus(node_at(2, 3)), stimulus(node_at(40, 9))]
    for alone, together in zip((solved_near(each)[0] for each in asked), solved_near(*asked), strict=True):
        assert np.array_equal(alone.values_mV, together.values_mV)


def test_shortcuts_are_taken_and_hardly_change_the_wave():
    asked, pacing = stimulus(node_at(25, 6)), AtrialPacing()
    (short,), (long,) = solved_near(asked, pacing=pacing), solved_near(asked, pacing=pacing, solve=solved_without_shortcuts)
    assert 0 < np.abs(short.values_mV - long.values_mV).max() < 0.01
    assert np.array_equal(np.isfinite(short.activation_ms), np.isfinite(long.activation_ms))
    assert np.nanmax(np.abs(short.activation_ms - long.activation_ms)) < 1e-3


def test_no_wave_comes_sooner_than_its_bound():
    asked = [stimulus(node_at(25, 6)), stimulus(node_at(2, 3))]
    for bound, wave in zip(arrival_bounds(domain(), packed(), asked), solved_near(*asked), strict=True):
        reached = np.isfinite(wave.activation_ms)
        # The current itself takes 0.8 ms to bring rest to -40 mV.
        assert reached.sum() > 50 and (bound[reached] <= wave.activation_ms[reached]).all()


def test_the_bound_grows_with_the_distance_over_the_root_of_diffusion():
    # Along the strip, where K is that across fibres.
    bound = arrival_bounds(domain(), packed(), [stimulus(node_at(0, 6))])[0]
    near, far = (bound[node_at(x, 6)] for x in (20, 40))
    across = domain().cell_diffusion()[0, 0, 0]
    assert far - near == pytest.approx(20 / (1.47 * np.sqrt(across)), rel=0.01)


def test_halves_keep_the_old_nodes_and_all_of_the_diffusion():
    coarse = egg(n_refinements=1)
    fine = halved(coarse, 2)
    assert np.array_equal(fine.points[: coarse.n_nodes], coarse.points) and len(fine.cells) == 16 * len(coarse.cells)

    def total(of: Domain) -> np.ndarray:
        return np.einsum("c,cij->ij", cell_sizes(of.points, of.cells), of.cell_diffusion())

    assert np.allclose(total(fine), total(coarse), rtol=1e-9)
