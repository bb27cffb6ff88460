import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import box, random_rotation
from test_anatomy import atrium, shuffled

from gfunk.atria.anatomy import HOLES, Anatomy, found_anatomy, nodes_within
from gfunk.atria.fibres import Rule, node_fibres, rule_fibres, rule_fields, smoothly_turned
from gfunk.domain import make_domain, refined, unit_square
from gfunk.errors import InputError
from gfunk.files.reading import read_mesh
from gfunk.surface import sides_of, triangle_normals

REAL = Path(os.environ.get("GFUNK_REAL_ATRIA", "no such folder"))
seeds = st.integers(0, 2**32 - 1)


def degrees_between(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """f and -f are one fibre."""
    return np.rad2deg(np.arctan2(np.linalg.norm(np.cross(one, other), axis=1), np.abs((one * other).sum(axis=1))))


def sheet(n_side: int, width_mm: float) -> tuple[np.ndarray, np.ndarray]:
    square = unit_square(n_side)
    return width_mm * np.column_stack([square.points, np.zeros(square.n_nodes)]), square.cells


@pytest.mark.parametrize("rule", [Rule(), Rule(tau_mv=0.9, tau_lpv=0.3, tau_rpv=0.8, tip_radius_mm=12.0)])
def test_every_fibre_is_a_unit_vector_within_its_triangle(rule: Rule):
    points, cells = atrium()
    fibres = rule_fibres(points, cells, found_anatomy(points, cells), rule)
    np.testing.assert_allclose(np.linalg.norm(fibres, axis=1), 1)
    assert np.abs((fibres * triangle_normals(points, cells)).sum(axis=1)).max() < 1e-10


def test_fibres_run_along_every_rim():
    points, cells = atrium()
    anatomy = found_anatomy(points, cells)
    fibres = rule_fibres(points, cells, anatomy)
    sides = sides_of(cells)
    rim = np.flatnonzero(sides.n_triangles[sides.edge] == 1)
    cell, tail, head = rim // 3, *sides.nodes[rim].T
    corners_inside = ~np.isin(cells[cell], np.concatenate(list(anatomy.rims.values()))).all(axis=1)
    off = degrees_between(fibres[cell], points[head] - points[tail])
    assert off[corners_inside].max() < 1e-5
    assert corners_inside.mean() > 0.7


def test_the_field_of_a_bundle_does_not_change_along_its_fibres():
    points, cells = atrium()
    anatomy, rule = found_anatomy(points, cells), Rule()
    fibres, fields = rule_fibres(points, cells, anatomy), rule_fields(points, cells, anatomy)
    v, r = fields.v[cells].mean(axis=1), fields.r[cells].mean(axis=1)
    ring, vein = r >= rule.tau_mv, (v < rule.tau_lpv) | (v > rule.tau_rpv)
    for field, chosen in ((fields.r, ring), (fields.v, vein & ~ring), (fields.ab, ~ring & ~vein)):
        assert chosen.sum() > 100
        sides = points[cells[chosen]][:, 1:] - points[cells[chosen]][:, :1]
        rises = field[cells[chosen]][:, 1:] - field[cells[chosen]][:, :1]
        gradient = (np.linalg.pinv(sides) @ rises[:, :, None])[:, :, 0]
        steep = np.linalg.norm(gradient, axis=1)
        assert np.abs((gradient * fibres[chosen]).sum(axis=1))[steep > 1e-7].max() < 1e-9


@settings(max_examples=5)
@given(seed=seeds)
def test_fibres_turn_with_the_atrium_and_do_not_know_its_numbering(seed: int):
    rng = np.random.default_rng(seed)
    mesh = atrium()
    fibres = rule_fibres(*mesh, found_anatomy(*mesh))
    (points, cells), name = shuffled(mesh, rng)
    turn = random_rotation(3, seed)
    moved = points @ turn.T + rng.normal(0, 100, 3)
    found = rule_fibres(moved, cells, found_anatomy(moved, cells))
    place = {tuple(sorted(cell)): i for i, cell in enumerate(name[mesh[1]].tolist())}
    order = [place[tuple(sorted(cell))] for cell in cells.tolist()]
    assert np.quantile(degrees_between(found, fibres[order] @ turn.T), 0.999) < 1e-4


@pytest.mark.parametrize("n_refinements", [4, 5])
def test_each_field_takes_its_values_at_the_parts_and_lies_between_them_elsewhere(n_refinements: int):
    points, cells = atrium(n_refinements)
    anatomy = found_anatomy(points, cells)
    fields = rule_fields(points, cells, anatomy)
    patch = nodes_within(points, cells, np.array([anatomy.tip]), Rule().tip_radius_mm)
    for name, rim in anatomy.rims.items():
        is_valve, is_right = name == "MV", name[0] == "R"
        assert (fields.r[rim] == is_valve).all()
        assert (fields.ab[rim] == (1 if is_valve else 2 * is_right)).all()
        assert is_valve or (fields.v[rim] == is_right).all()
    assert (fields.r[patch] == 0).all() and (fields.ab[patch] == -1).all()
    rims = np.concatenate(list(anatomy.rims.values()))
    inside = np.setdiff1d(np.arange(len(points)), np.concatenate([rims, patch]))
    for field, low, high in ((fields.r, 0, 1), (fields.v, 0, 1), (fields.ab, -1, 2)):
        assert low < field[inside].min() and field[inside].max() < high


def test_fibres_converge_as_triangles_are_cut_in_four():
    mesh = atrium()
    tip = found_anatomy(*mesh).tip
    levels = [mesh]
    for _ in range(2):
        levels.append(refined(make_domain(*levels[-1])))
    found = [rule_fibres(*each, found_anatomy(*each, {"LAA": tip})) for each in levels]
    # The last quarter of the cells are the middles of those before, with the same centres.
    gaps = [float(degrees_between(coarse, fine[-len(coarse) :]).mean()) for coarse, fine in pairwise(found)]
    assert gaps[0] > 1.4 * gaps[1] and gaps[1] < 2


def test_where_the_field_is_flat_fibres_follow_those_around():
    points, cells = atrium(5)
    anatomy = found_anatomy(points, cells)
    patch = nodes_within(points, cells, np.array([anatomy.tip]), 6.0)
    fibres = rule_fibres(points, cells, anatomy, Rule(tip_radius_mm=6.0))
    flat = np.isin(cells, patch).all(axis=1)
    at_edge = flat & np.isin(cells, cells[~flat]).any(axis=1)
    assert flat.sum() > 10
    # Rings round the tip outside, so rings just inside.
    out = points[cells].mean(axis=1) - points[anatomy.tip]
    across = np.cross(triangle_normals(points, cells), out)
    assert np.median(degrees_between(fibres[at_edge], across[at_edge])) < 30


def test_wrong_rules_are_refused():
    for wrong in ({"tau_mv": 0.0}, {"tau_lpv": 0.7}, {"tau_rpv": 1.2}, {"tip_radius_mm": 0.0}, {"tau_mv": float("nan")}):
        with pytest.raises(InputError, match="tau_lpv below tau_rpv"):
            Rule(**wrong)
    points, cells = sheet(5, 10.0)
    for nodes, words in ((np.arange(len(points)), "every node is held"), (np.array([0]), "must lie apart")):
        with pytest.raises(InputError, match=words):
            rule_fibres(points, cells, Anatomy(rims=dict.fromkeys(HOLES, nodes), tip=0), Rule(tip_radius_mm=1.0))


def test_no_degrees_turn_nothing():
    points, cells = atrium()
    fibres = rule_fibres(points, cells, found_anatomy(points, cells))
    turned = smoothly_turned(points, cells, fibres, degrees=0.0, length_mm=10.0, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(turned, fibres)
    for wrong in ({"degrees": -1.0, "length_mm": 10.0}, {"degrees": 10.0, "length_mm": 0.0}):
        with pytest.raises(InputError, match="positive"):
            smoothly_turned(points, cells, fibres, rng=np.random.default_rng(0), **wrong)


def test_turned_fibres_stay_in_their_triangles_and_finer_meshes_turn_alike():
    coarse = atrium()
    points, cells = refined(make_domain(*coarse))
    fibres = rule_fibres(*coarse, found_anatomy(*coarse))
    turned, finer = (
        smoothly_turned(*mesh, own, degrees=30.0, length_mm=12.0, rng=np.random.default_rng(3))
        for mesh, own in ((coarse, fibres), ((points, cells), np.tile(fibres, (4, 1))))
    )
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), 1)
    assert np.abs((turned * triangle_normals(*coarse)).sum(axis=1)).max() < 1e-10
    # The last quarter of the finer cells has the centres of the coarse ones.
    np.testing.assert_allclose(finer[-len(fibres) :], turned, atol=1e-9)
    assert np.median(degrees_between(turned, fibres)) > 10


@pytest.mark.parametrize("n_side", [9, 17])
def test_random_angles_have_the_stated_spread_and_correlation_on_any_mesh(n_side: int):
    degrees, length_mm = 20.0, 8.0
    points, cells = sheet(n_side, 32.0)
    fibres = np.tile([1.0, 0.0, 0.0], (len(cells), 1))
    angles = np.array(
        [
            np.rad2deg(np.arctan2(turned[:, 1], turned[:, 0]))
            for rng in np.random.default_rng(0).spawn(400)
            for turned in [smoothly_turned(points, cells, fibres, degrees=degrees, length_mm=length_mm, rng=rng)]
        ]
    )
    # About 400 draws of twenty patches: their spread is known within 2 %.
    assert np.sqrt((angles**2).mean()) == pytest.approx(degrees, rel=0.05)
    centres = points[cells].mean(axis=1)
    gap = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    correlation = angles.T @ angles / len(angles) / degrees**2
    for low in (2.0, 6.0, 10.0, 18.0):
        chosen = (gap > low) & (gap < low + 2)
        assert correlation[chosen].mean() == pytest.approx(np.exp(-((gap[chosen] / length_mm) ** 2)).mean(), abs=0.06)


def test_fibres_at_nodes_are_those_of_the_cells_around_whatever_their_signs():
    points, cells = sheet(9, 10.0)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(cells), 1))
    along = np.array([0.6, 0.8, 0.0])
    found = node_fibres(points, cells, signs * along)
    assert degrees_between(found, np.tile(along, (len(points), 1))).max() < 1e-5
    block = box(4)
    found = node_fibres(block.points, block.cells, np.tile([0.0, 0.0, -1.0], (len(block.cells), 1)))
    np.testing.assert_allclose(np.abs(found[:, 2]), 1)


def test_larger_cells_count_for_more_at_a_node():
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [-9, 0, 0], [0, -9, 0]], dtype=float)
    cells = np.array([[0, 1, 2], [0, 3, 4]])
    fibres = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    np.testing.assert_allclose(np.abs(node_fibres(points, cells, fibres)[0]), [0, 1, 0], atol=1e-12)


@pytest.mark.skipif(not REAL.is_dir(), reason="GFUNK_REAL_ATRIA names no folder of real atria")
@pytest.mark.parametrize("name", ["heart1/heart1.pts", "heart3.vtp", "mixed_winding.vtp"])
def test_real_atria_get_a_fibre_everywhere(name: str):
    mesh = read_mesh(REAL / name)
    fibres = rule_fibres(mesh.points_mm, mesh.cells, found_anatomy(mesh.points_mm, mesh.cells))
    np.testing.assert_allclose(np.linalg.norm(fibres, axis=1), 1)
