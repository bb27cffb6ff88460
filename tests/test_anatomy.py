import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int
from problems import random_rotation, sphere

from gfunk.atria.anatomy import HOLES, REGIONS, VEINS, Anatomy, along_levels, found_anatomy, harmonic, nodes_within, regions
from gfunk.domain import make_domain, rectangle, refined, unit_square
from gfunk.errors import InputError
from gfunk.files.reading import read_mesh
from gfunk.laplacian import fem_laplacian
from gfunk.surface import boundary_loops, connected_parts, oriented, outward, triangle_areas

Mesh = tuple[Float[np.ndarray, "node 3"], Int[np.ndarray, "cell 3"]]
REAL = Path(os.environ.get("GFUNK_REAL_ATRIA", "no such folder"))
seeds = st.integers(0, 2**32 - 1)

# x to the left, y to the back, z up. Where each hole is cut, and the cosine of the cone that is cut out.
AXES = {
    "MV": ((0.2, -0.45, -0.87), 0.8),
    "LSPV": ((0.75, 0.45, 0.48), 0.975),
    "LIPV": ((0.8, 0.6, -0.1), 0.98),
    "RSPV": ((-0.75, 0.45, 0.48), 0.97),
    "RIPV": ((-0.8, 0.6, -0.1), 0.978),
}
TIP = np.array([0.7, -0.68, 0.22])


def atrium(
    n_refinements: int = 4, cuts: dict[str, tuple[tuple[float, ...], float]] = AXES, *, has_appendage: bool = True
) -> Mesh:
    """A ball 60 mm wide with holes and a pouch as an appendage, about 30 mm deep."""
    ball = sphere(n_refinements)
    points, cells = ball.points, outward(ball.points, oriented(ball.cells)[0])[0]
    for axis, cosine in cuts.values():
        cells = cells[(points @ axis / np.linalg.norm(axis))[cells].mean(axis=1) < cosine]
    used, cells = np.unique(cells, return_inverse=True)
    points, cells = points[used], cells.reshape(-1, 3)
    away = np.arccos(np.clip(points @ TIP / np.linalg.norm(TIP), -1, 1))
    height = 28 * np.exp(-((away / 0.35) ** 4)) if has_appendage else 0 * away
    return (30 + height)[:, None] * points, cells


def shuffled(mesh: Mesh, rng: np.random.Generator) -> tuple[Mesh, Int[np.ndarray, " node"]]:
    """The mesh with other node numbers and cells in another order, and the new number of each node."""
    points, cells = mesh
    name = rng.permutation(len(points))
    return (points[np.argsort(name)], name[cells[rng.permutation(len(cells))]]), name


def as_sets(anatomy: Anatomy, name: Int[np.ndarray, " node"] | None = None) -> dict[str, set[int]]:
    nodes = {**anatomy.rims, "LAA": np.array([anatomy.tip])}
    return {part: set((own if name is None else name[own]).tolist()) for part, own in nodes.items()}


def direction(places: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, " 3"]:
    middle = places.mean(axis=0)
    return middle / np.linalg.norm(middle)


@pytest.mark.parametrize("n_refinements", [4, 5])
def test_every_part_gets_its_name(n_refinements: int):
    points, cells = atrium(n_refinements)
    anatomy = found_anatomy(points, cells)
    for name, (axis, _) in AXES.items():
        assert direction(points[anatomy.rims[name]]) @ direction(np.array([axis])) > 0.98, name
    assert direction(points[[anatomy.tip]]) @ direction(TIP[None]) > 0.98


@settings(max_examples=10)
@given(seed=seeds)
def test_turning_shifting_scaling_and_relabelling_change_no_name(seed: int):
    rng = np.random.default_rng(seed)
    mesh = atrium()
    (points, cells), name = shuffled(mesh, rng)
    moved = rng.uniform(0.7, 1.5) * points @ random_rotation(3, seed).T + rng.normal(0, 300, 3)
    assert as_sets(found_anatomy(moved, cells)) == as_sets(found_anatomy(*mesh), name)


def test_rims_keep_their_order():
    points, cells = atrium()
    loops = [loop.tolist() for loop in boundary_loops(cells)]
    assert all(rim.tolist() in loops for rim in found_anatomy(points, cells).rims.values())


def test_in_a_mirror_image_upper_and_lower_veins_swap():
    points, cells = atrium()
    found, mirrored = found_anatomy(points, cells), found_anatomy(points * [-1, 1, 1], cells)
    swapped = {"MV": "MV", "LSPV": "LIPV", "LIPV": "LSPV", "RSPV": "RIPV", "RIPV": "RSPV"}
    assert all(np.array_equal(found.rims[name], mirrored.rims[other]) for name, other in swapped.items())


@pytest.mark.parametrize("name", VEINS)
@pytest.mark.parametrize("place_of", VEINS)
def test_a_given_name_wins_and_its_neighbour_stays_on_its_side(name: str, place_of: str):
    points, cells = atrium()
    free = found_anatomy(points, cells).rims
    node = int(free[place_of][0])
    rims = found_anatomy(points, cells, {name: node}).rims
    neighbour = {side + height: side + other for side in "LR" for height, other in (("SPV", "IPV"), ("IPV", "SPV"))}
    assert np.array_equal(rims[name], free[place_of])
    assert np.array_equal(rims[neighbour[name]], free[neighbour[place_of]])
    assert {tuple(rim) for rim in rims.values()} == {tuple(rim) for rim in free.values()}


def test_the_valve_and_the_tip_can_be_given_by_a_place_beside_the_surface():
    points, cells = atrium()
    free = found_anatomy(points, cells)
    rims = found_anatomy(points, cells, {"MV": points[free.rims["RSPV"]].mean(axis=0), "RSPV": (0, -20, -30)}).rims
    assert np.array_equal(rims["MV"], free.rims["RSPV"]) and np.array_equal(rims["RSPV"], free.rims["MV"])
    tip = found_anatomy(points, cells, {"LAA": (0.0, 0.0, 100.0)}).tip
    assert tip == points[:, 2].argmax()
    # Beside the right veins, the tip makes them the left ones.
    other = found_anatomy(points, cells, {"LAA": points[free.tip] * [-1, 1, 1]}).rims
    assert set(other["LIPV"]) | set(other["LSPV"]) == set(free.rims["RIPV"]) | set(free.rims["RSPV"])


def test_a_middle_vein_joins_the_nearer_one_and_a_stray_hole_none():
    cuts = {**AXES, "middle": ((-0.97, 0.05, 0.2), 0.985)}
    points, cells = atrium(4, cuts)
    rims = found_anatomy(points, np.delete(cells, points[cells, 2].sum(axis=1).argmax(), axis=0)).rims
    loops = [set(loop.tolist()) for loop in boundary_loops(cells)]
    assert [sum(loop <= set(rims[name].tolist()) for loop in loops) for name in HOLES] == [1, 1, 1, 2, 1]
    assert sum(map(len, rims.values())) == sum(map(len, loops))


@settings(max_examples=6)
@given(seed=seeds)
def test_with_five_veins_the_order_of_nodes_changes_no_name(seed: int):
    mesh = atrium(4, {**AXES, "middle": ((-0.97, 0.05, 0.2), 0.985)})
    moved, name = shuffled(mesh, np.random.default_rng(seed))
    assert as_sets(found_anatomy(*moved)) == as_sets(found_anatomy(*mesh), name)


def test_too_few_holes_are_refused_with_what_was_found():
    for n_cuts in (0, 4):
        points, cells = atrium(4, dict(list(AXES.items())[:n_cuts]))
        with pytest.raises(InputError, match=rf"found {n_cuts} holes.*given by its place"):
            found_anatomy(points, cells)


def test_a_ball_without_an_appendage_is_refused_unless_its_tip_is_given():
    points, cells = atrium(has_appendage=False)
    with pytest.raises(InputError, match="no appendage"):
        found_anatomy(points, cells)
    rims = found_anatomy(points, cells, {"LAA": 40 * TIP}).rims
    assert direction(points[rims["LSPV"]]) @ direction(np.array([AXES["LSPV"][0]])) > 0.98


def test_wrong_places_are_refused():
    points, cells = atrium()
    node = int(found_anatomy(points, cells).rims["MV"][0])
    for given_parts, words in (
        ({"RAA": 3}, "'RAA' is no part"),
        ({"LSPV": len(points)}, "nodes run from 0"),
        ({"LSPV": (1.0, 2.0)}, "three finite"),
        ({"LSPV": (1.0, 2.0, np.nan)}, "three finite"),
        ({"LSPV": node, "MV": node}, "same rim"),
    ):
        with pytest.raises(InputError, match=words):
            found_anatomy(points, cells, given_parts)
    with pytest.raises(InputError, match="several parts"):
        found_anatomy(np.concatenate([points, points + 100]), np.concatenate([cells, cells + len(points)]))
    with pytest.raises(InputError, match="needs the rims of MV"):
        Anatomy(rims={}, tip=0)


@pytest.mark.parametrize("n_refinements", [4, 5])
def test_every_node_lies_in_one_region_in_one_piece_round_its_rim(n_refinements: int):
    points, cells = atrium(n_refinements)
    anatomy = found_anatomy(points, cells)
    parts = regions(points, cells, anatomy)
    assert tuple(parts) == REGIONS
    assert np.array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(len(points)))
    assert all(np.isin(anatomy.rims[name], parts[name]).all() for name in HOLES)
    assert anatomy.tip in parts["LAA"]
    for nodes in parts.values():
        assert connected_parts(cells[np.isin(cells, nodes).all(axis=1)], len(points)).max() == 0


def test_the_appendage_begins_where_the_ball_ends():
    points, cells = atrium(5)
    own = regions(points, cells, found_anatomy(points, cells))["LAA"]
    area = triangle_areas(points, cells)
    in_region = np.isin(cells, own).mean(axis=1) > 0.5
    stands_out = (np.linalg.norm(points, axis=1)[cells] > 30 + 28 / 4).all(axis=1)
    assert area[in_region & stands_out].sum() > 0.95 * area[stands_out].sum()
    assert area[in_region].sum() < 1.6 * area[stands_out].sum()


def test_a_harmonic_field_between_two_sides_is_linear_and_its_level_lines_straight():
    sheet = rectangle(3.0, 1.0, 0.2)
    x = sheet.points[:, 0]
    field = harmonic(fem_laplacian(sheet), {2.0: np.flatnonzero(x == 0), 5.0: np.flatnonzero(x == x.max())})
    np.testing.assert_allclose(field, 2 + x, atol=1e-12)
    points = np.column_stack([sheet.points, np.zeros(len(x))])
    lines = along_levels(points, sheet.cells, field[sheet.cells])
    # grad u = (1, 0, 0), n = (0, 0, 1).
    np.testing.assert_allclose(lines, 2 * triangle_areas(points, sheet.cells)[:, None] * [0.0, -1.0, 0.0], atol=1e-12)


def test_nodes_within_a_radius_are_those_of_a_disc_and_not_of_the_wall_behind():
    square = unit_square(41)
    points = np.column_stack([square.points, np.zeros(square.n_nodes)])
    centre = int(np.linalg.norm(square.points - 0.5, axis=1).argmin())
    disc = np.flatnonzero(np.linalg.norm(square.points - 0.5, axis=1) <= 0.2)
    assert np.array_equal(nodes_within(points, square.cells, np.array([centre]), 0.2), disc)
    # Two sheets, 0.05 apart and joined at one side far away.
    ladder = np.flatnonzero(points[:, 0] == 0)
    a, b = ladder[:-1], ladder[1:]
    n = len(points)
    joint = np.concatenate([np.stack([a, b, a + n], 1), np.stack([b, b + n, a + n], 1)])
    both, cells = (
        np.concatenate([points, points + np.array([0, 0, 0.05])]),
        np.concatenate([square.cells, square.cells + n, joint]),
    )
    assert np.array_equal(nodes_within(both, cells, np.array([centre]), 0.2), disc)


def test_cutting_every_triangle_in_four_changes_no_name():
    points, cells = atrium()
    before = found_anatomy(points, cells)
    finer = refined(make_domain(points, cells))
    after = found_anatomy(*finer)
    assert all(set(before.rims[name]) <= set(after.rims[name]) for name in HOLES)
    assert np.linalg.norm(points[before.tip] - finer[0][after.tip]) < 5


@pytest.mark.skipif(not REAL.is_dir(), reason="GFUNK_REAL_ATRIA names no folder of real atria")
@pytest.mark.parametrize(("name", "tags"), [("heart1/heart1.pts", (21, 23, 25, 27, 13)), ("heart3.vtp", (2, 3, 4, 5, 1))])
def test_parts_of_real_atria_are_those_of_their_tags(name: str, tags: tuple[int, ...]):
    mesh = read_mesh(REAL / name)
    assert mesh.tags is not None
    anatomy = found_anatomy(mesh.points_mm, mesh.cells)
    ends = [*(anatomy.rims[vein] for vein in VEINS), np.array([anatomy.tip])]
    for nodes, tag in zip(ends, tags, strict=True):
        assert (mesh.tags[np.isin(mesh.cells, nodes).any(axis=1)] == tag).mean() > 0.9
    parts = regions(mesh.points_mm, mesh.cells, anatomy)
    area = triangle_areas(mesh.points_mm, mesh.cells)
    share = {part: area[np.isin(mesh.cells, nodes).all(axis=1)].sum() / area.sum() for part, nodes in parts.items()}
    assert 0.08 < share["LAA"] < 0.25 and 0.5 < share["body"] < 0.8
