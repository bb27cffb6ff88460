"""The first milliseconds, solved near the stimulus alone, are those of the whole domain."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from problems import batch_of
from toy_surfaces import egg, strip

from gfunk.activation import ACTIVE_MV
from gfunk.batch import Batch
from gfunk.domain import Domain, cell_sizes, halved
from gfunk.first_waves import FirstWave, arrival_bounds, first_waves
from gfunk.physics.monodomain import Paced, coupling, simulate_many, solving
from gfunk.physics.stimulus import Stimulus
from gfunk.recipes.atrium_data import AtrialPacing

PACING = AtrialPacing(scheme="paper")
TIMES = np.array([2.0, 5.0, 10.0])
SCALE_MV = 105.0


@cache
def domain() -> Domain:
    return strip()


@cache
def packed() -> Batch:
    import torch

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


def test_stepping_all_of_the_domain_gives_the_same():
    asked = [stimulus(node_at(25, 6)), stimulus(node_at(5, 6), node_at(45, 6))]
    for near, whole in zip(
        solved_near(*asked), solved_near(*asked, everywhere=(domain(), coupling(domain(), PACING.scheme))), strict=True
    ):
        assert near.n_stepped < whole.n_stepped == domain().n_nodes
        assert np.abs(near.values_mV - whole.values_mV).max() < 1e-3 * SCALE_MV
        assert np.array_equal(np.isfinite(near.activation_ms), np.isfinite(whole.activation_ms))
        assert np.nanmax(np.abs(near.activation_ms - whole.activation_ms)) < 0.01


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
    def solved_without(*args: Any, **options: Any) -> list[Paced]:
        return simulate_many(*args, **options | {"shortcuts": False})

    asked, pacing = stimulus(node_at(25, 6)), AtrialPacing()
    (short,), (long,) = solved_near(asked, pacing=pacing), solved_near(asked, pacing=pacing, solve=solved_without)
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
