"""Synthetic left atria: what holds for every seed."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gfunk.atria.anatomy import HOLES, REGIONS, VALVE_BAND_MM, found_anatomy
from gfunk.atria.synthetic import Atrium, atrium_fibres, halved, left_atrium, roughened, synthetic_atrium
from gfunk.doubts import fibre_turn
from gfunk.errors import InputError
from gfunk.intersections import self_intersections
from gfunk.surface import (
    boundary_loops,
    connected_parts,
    edge_lengths,
    enclosed_volume,
    genus,
    perimeters,
    triangle_angles,
    triangle_areas,
    triangle_normals,
)

EDGE_MM = 1.5
SEEDS = (0, 1, 2)


@cache
def atrium_of(seed: int, edge_mm: float = EDGE_MM) -> Atrium:
    return synthetic_atrium(seed, edge_mm)


def assert_valid(atrium: Atrium, edge_mm: float):
    points, cells = atrium.points_mm, atrium.cells
    assert (len(boundary_loops(cells)), genus(cells), connected_parts(cells, len(points)).max()) == (5, 0, 0)
    relative = edge_lengths(points, cells) / edge_mm
    assert relative.min() > 0.6 and relative.max() < 1.5
    assert np.rad2deg(triangle_angles(points, cells).min()) > 15
    assert len(self_intersections(points, cells)) == 0
    assert enclosed_volume(points, cells) > 0  # normals point outwards


@settings(max_examples=4)
@given(seed=st.integers(0, 10**9), edge_mm=st.floats(1.0, 1.5))
def test_every_seed_gives_an_even_surface_with_five_holes_and_no_handle(seed: int, edge_mm: float):
    assert_valid(synthetic_atrium(seed, edge_mm), edge_mm)


def test_short_edges_are_even_too():
    assert_valid(atrium_of(5, 0.6), 0.6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_seeds_in_a_row_are_valid(seed: int):
    assert_valid(synthetic_atrium(seed, 1.0), 1.0)


def test_a_seed_gives_the_same_bits_again():
    again = synthetic_atrium(1, EDGE_MM)
    np.testing.assert_array_equal(again.points_mm, atrium_of(1).points_mm)
    np.testing.assert_array_equal(again.cells, atrium_of(1).cells)


def test_the_shape_does_not_depend_on_the_edge_length():
    coarse, fine = atrium_of(5), atrium_of(5, 0.6)
    for measure in (lambda p, c: triangle_areas(p, c).sum(), enclosed_volume):
        np.testing.assert_allclose(measure(coarse.points_mm, coarse.cells), measure(fine.points_mm, fine.cells), rtol=0.01)
    for name in HOLES:
        long, short = (perimeters(atrium.points_mm, [atrium.anatomy.rims[name]]) for atrium in (coarse, fine))
        np.testing.assert_allclose(long, short, rtol=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_lie_on_the_shape_and_rims_in_the_planes_that_cut_it(seed: int):
    atrium = atrium_of(seed)
    np.testing.assert_allclose(atrium.shape.distance(atrium.points_mm), 0, atol=0.02)
    for name, (plane, _) in atrium.shape.cuts().items():
        np.testing.assert_allclose(plane.height(atrium.points_mm[atrium.anatomy.rims[name]]), 0, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_node_belongs_to_one_region_and_every_rim_to_its_own(seed: int):
    atrium = atrium_of(seed)
    assert tuple(atrium.regions) == REGIONS
    np.testing.assert_array_equal(np.sort(np.concatenate(list(atrium.regions.values()))), np.arange(len(atrium.points_mm)))
    for name, rim in atrium.anatomy.rims.items():
        assert np.isin(rim, atrium.regions[name]).all(), name
    assert atrium.anatomy.tip in atrium.regions["LAA"]
    valve = atrium.points_mm[atrium.anatomy.rims["MV"]]
    far = np.linalg.norm(atrium.points_mm[atrium.regions["MV"]][:, None] - valve, axis=2).min(axis=1)
    assert far.max() < VALVE_BAND_MM


@pytest.mark.parametrize("seed", SEEDS)
def test_the_parts_found_by_shape_are_those_it_was_made_of(seed: int):
    atrium = atrium_of(seed)
    try:
        found = found_anatomy(atrium.points_mm, atrium.cells)
    except InputError as error:
        # A stump that can't be told from a bump: the rest follows from where it is.
        assert "give the place of its tip" in str(error)
        found = found_anatomy(atrium.points_mm, atrium.cells, {"LAA": atrium.anatomy.tip})
    for name in HOLES:
        assert set(found.rims[name]) == set(atrium.anatomy.rims[name]), name
    gap = np.linalg.norm(atrium.points_mm[found.tip] - atrium.points_mm[atrium.anatomy.tip])
    assert gap < 8


@pytest.mark.parametrize("seed", SEEDS)
def test_halving_keeps_the_old_nodes_and_cuts_every_triangle_into_four(seed: int):
    atrium = atrium_of(seed)
    fine = halved(atrium)
    np.testing.assert_array_equal(fine.points_mm[: len(atrium.points_mm)], atrium.points_mm)
    assert len(fine.cells) == 4 * len(atrium.cells)
    np.testing.assert_allclose(fine.shape.distance(fine.points_mm), 0, atol=0.02)
    # A triangle's parts come a quarter of all apart.
    parts = fine.points_mm[fine.cells].mean(axis=1).reshape(4, -1, 3).mean(axis=0)
    np.testing.assert_allclose(parts, atrium.points_mm[atrium.cells].mean(axis=1), atol=0.2)
    assert {name: len(rim) for name, rim in fine.anatomy.rims.items()} == {
        name: 2 * len(rim) for name, rim in atrium.anatomy.rims.items()
    }


def test_a_left_atrium_has_unit_fibres_along_its_surface_and_diffuses_along_them():
    domain, atrium = left_atrium(1, EDGE_MM, across=0.3, ratio=7.0), atrium_of(1)
    np.testing.assert_array_equal(domain.points, atrium.points_mm)
    np.testing.assert_allclose(np.linalg.norm(domain.fibres, axis=1), 1, rtol=1e-9)
    fibres = atrium_fibres(atrium, 1, 20.0)
    np.testing.assert_allclose((fibres * triangle_normals(domain.points, domain.cells)).sum(axis=1), 0, atol=1e-9)
    np.testing.assert_allclose(np.einsum("cij,cj->ci", domain.diffusion, fibres), 2.1 * fibres, atol=1e-9)
    np.testing.assert_allclose(np.linalg.eigvalsh(domain.diffusion), np.tile([0.3, 0.3, 2.1], (len(fibres), 1)), rtol=1e-9)
    assert set(domain.regions) == set(REGIONS)


def test_turning_fibres_leaves_the_shape_and_another_seed_turns_otherwise():
    atrium = atrium_of(1)
    straight, turned, otherwise = (
        atrium_fibres(atrium, seed, degrees) for seed, degrees in ((1, 0.0), (1, 20.0), (2, 20.0))
    )
    angles = [np.rad2deg(np.arccos(np.abs((straight * other).sum(axis=1)).clip(0, 1))) for other in (turned, otherwise)]
    assert all(5 < np.median(angle) < 30 for angle in angles)
    assert np.abs(angles[0] - angles[1]).max() > 10


def test_rough_fibres_turn_more_than_smooth_ones_each_seed_by_its_own():
    smooth, *rough = (
        left_atrium(seed, EDGE_MM, rough_degrees=degrees) for seed, degrees in ((1, 0.0), (1, 40.0), (2, 40.0))
    )
    np.testing.assert_array_equal(smooth.cell_diffusion(), left_atrium(1, EDGE_MM).cell_diffusion())
    np.testing.assert_array_equal(smooth.points, rough[0].points)
    assert fibre_turn(smooth) < 5
    turns = [fibre_turn(each) for each in rough]
    assert min(turns) > 8
    assert abs(turns[0] - turns[1]) > 1


def test_rough_fibres_stay_unit_vectors_in_their_triangles():
    atrium = atrium_of(1)
    fibres = roughened(atrium, 1, atrium_fibres(atrium, 1, 20.0), 40.0)
    np.testing.assert_allclose(np.linalg.norm(fibres, axis=1), 1, rtol=1e-12)
    normals = triangle_normals(atrium.points_mm, atrium.cells)
    np.testing.assert_allclose((fibres * normals).sum(axis=1), 0, atol=1e-12)


@pytest.mark.parametrize("edge_mm", [0.1, 2.0, float("nan")])
def test_edges_too_short_or_too_long_are_refused(edge_mm: float):
    with pytest.raises(InputError, match=r"edges of 0\.25 to 1\.5 mm"):
        synthetic_atrium(0, edge_mm)
