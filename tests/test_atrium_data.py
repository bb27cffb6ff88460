"""Waves on atria as data: which atrium, which sites, what is kept."""

from dataclasses import replace

import numpy as np
import pytest
from toy_surfaces import strip

from gfunk.atria.synthetic import synthetic_atrium
from gfunk.errors import InputError
from gfunk.physics.schemes import diffusivity
from gfunk.recipes import atrium_data
from gfunk.recipes.atrium_data import AtrialPacing, AtriumProblem
from gfunk.recipes.book import recipe_named
from gfunk.store import read_sample, write_sample
from gfunk.surface import area_vectors

# Coarse, fast and simple, but still a wave.
TOY = AtriumProblem(
    pacing=AtrialPacing(cell="mitchell-schaeffer", scheme="paper", radius_mm=4.0, every_ms=10.0, n_saves=3),
    kept_edge_mm=1.5,
    n_halvings=0,
    n_sites=3,
)


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")


@pytest.fixture(scope="module")
def experiment():
    return replace(TOY, n_halvings=1).experiment(3)


def test_the_tissue_is_what_is_kept_with_every_triangle_cut_in_four(experiment):
    kept, tissue = experiment.kept, experiment.tissue
    np.testing.assert_array_equal(tissue.points[experiment.nearest], kept.points)
    assert len(tissue.cells) == 4 * len(kept.cells)
    assert experiment.n_nodes == 3 * tissue.n_nodes
    np.testing.assert_array_equal(tissue.diffusion.reshape(4, -1, 3, 3), np.tile(kept.diffusion, (4, 1, 1, 1)))
    # No part leaves its triangle's plane.
    vectors = area_vectors(tissue.points, tissue.cells).reshape(4, -1, 3)
    np.testing.assert_allclose(4 * vectors, np.tile(area_vectors(kept.points, kept.cells), (4, 1, 1)), atol=1e-9)


def test_fibres_diffuse_five_times_as_well_along_as_across(experiment):
    across = diffusivity(0.625)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(experiment.kept.diffusion), [[across, across, 5 * across]] * len(experiment.kept.cells)
    )


def test_sites_are_different_nodes_and_another_seed_has_another_atrium_and_sites(experiment):
    sites = np.array([stimulus.sites[0] for stimulus in experiment.stimuli])
    assert len(np.unique(sites, axis=0)) == 3
    gap = np.linalg.norm(experiment.kept.points[None] - sites[:, None], axis=2).min(axis=1)
    np.testing.assert_array_equal(gap, 0)
    other = TOY.experiment(4)
    assert other.kept.n_nodes != experiment.kept.n_nodes


def test_one_atrium_with_many_seeds_has_other_sites_on_the_same_tissue():
    problem = replace(TOY, atrium_seed=3)
    one, other = problem.experiment(10), problem.experiment(200_000)
    np.testing.assert_array_equal(one.kept.points, other.kept.points)
    np.testing.assert_array_equal(one.kept.diffusion, other.kept.diffusion)
    np.testing.assert_array_equal(one.kept.points, synthetic_atrium(3, 1.5).points_mm)
    assert {stimulus.sites for stimulus in one.stimuli} != {stimulus.sites for stimulus in other.stimuli}


def test_a_wave_leaves_each_site_and_a_sample_comes_back_from_disk(tmp_path):
    sample = TOY.sample(3)
    assert sample.values.shape == (3, 4, sample.domain.n_nodes)
    np.testing.assert_array_equal(sample.times, [0, 10, 20, 30])
    experiment = TOY.experiment(3)
    for values, stimulus in zip(sample.values, experiment.stimuli, strict=True):
        gap = np.linalg.norm(sample.domain.points - stimulus.sites[0], axis=1)
        is_active = values > -40
        assert is_active[0, gap < 3].all() and (np.diff(is_active.sum(axis=1)) > 0).all()
    write_sample(tmp_path, sample)
    again = read_sample(tmp_path, 3)
    np.testing.assert_array_equal(again.domain.points, sample.domain.points)
    np.testing.assert_array_equal(again.values, sample.values.astype(np.float32))


def test_a_converged_wave_starts_as_the_solver_has_it_and_goes_on_near_a_finer_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(atrium_data, "left_atrium", lambda *_args, **_settings: strip(20.0, 4.0, 1.0))
    problem = replace(TOY, pacing=replace(TOY.pacing, scheme="accurate", n_saves=2), n_sites=2)
    coarse, converged = problem.sample(3), replace(problem, is_converged=True).sample(3)
    np.testing.assert_array_equal(converged.times, coarse.times)
    np.testing.assert_array_equal(converged.domain.points, coarse.domain.points)
    np.testing.assert_allclose(converged.values[:, 0], coarse.values[:, 0], atol=1e-4)
    finer = replace(problem, n_halvings=2).sample(3)

    def apart(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.linalg.norm((one - other)[:, 1:]) / np.linalg.norm(other[:, 1:] + 85))

    assert 0 < apart(converged.values, finer.values) < apart(coarse.values, finer.values) / 2


def test_converged_waves_do_not_depend_on_what_is_solved_with_them(monkeypatch: pytest.MonkeyPatch):
    # The longer one takes longer to be everywhere, so both are solved further than the other needs.
    monkeypatch.setattr(atrium_data, "left_atrium", lambda seed, *_args, **_settings: strip(8.0 + 8 * seed, 3.0, 1.0))
    problem = replace(TOY, pacing=replace(TOY.pacing, scheme="accurate", n_saves=2), n_sites=2, is_converged=True)
    together = problem.solved([problem.experiment(seed) for seed in (0, 1)], "cpu")
    for seed, sample in enumerate(together):
        np.testing.assert_array_equal(sample.values, problem.sample(seed).values)


def test_recipes_have_as_many_atria_sites_and_times_as_the_paper():
    single, many, long = (recipe_named(name) for name in ("single-atrium", "atria", "atria-190"))
    assert all(
        isinstance(recipe.problem, AtriumProblem) and recipe.problem.n_sites == 100 for recipe in (single, many, long)
    )
    assert single.problem.atrium_seed is not None and many.problem.atrium_seed is None
    assert (single.n_train, many.n_train, long.n_train) == (10, 24, 24)
    assert [recipe.problem.pacing.n_saves for recipe in (single, many, long)] == [90, 90, 95]
    assert many.problem.pacing.base_conductivity == 0.625


@pytest.mark.parametrize("scheme", ["accurate", "balanced"])  # of a balanced wave one in its steps is not solved anew
def test_a_converged_wave_may_start_from_a_finer_state_and_goes_on_the_same(scheme: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(atrium_data, "left_atrium", lambda *_args, **_settings: strip(8.0, 2.0, 1.0))
    pacing = replace(TOY.pacing, scheme=scheme, first_ms=4.0, every_ms=2.0, n_saves=2)
    plain = replace(TOY, pacing=pacing, n_sites=1, is_converged=True)
    finer = replace(plain, n_halvings=1, coarser=1)
    one, other = plain.sample(3).values, finer.sample(3).values
    np.testing.assert_array_equal(other[:, 1:], one[:, 1:])
    first = replace(finer, is_converged=False, coarser=0).sample(3).values[:, 0]
    np.testing.assert_array_equal(other[:, 0], first)
    assert np.abs(first - one[:, 0]).max() > 1.0


def test_edges_of_converged_waves_cannot_be_longer_than_those_kept():
    with pytest.raises(InputError, match="coarser=1: edges are halved n_halvings=0 times"):
        replace(TOY, is_converged=True, coarser=1).coarse(strip(4.0, 2.0, 1.0))
