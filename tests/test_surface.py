import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float, Int
from problems import random_rotation, sphere

from gfunk.errors import InputError
from gfunk.surface import (
    area_vectors,
    boundary_loops,
    connected_parts,
    cross,
    edge_lengths,
    enclosed_volume,
    euler_characteristic,
    genus,
    longest_first,
    nonmanifold_edges,
    nonmanifold_nodes,
    opposite_sides,
    oriented,
    outward,
    perimeters,
    side_lengths,
    sides_of,
    triangle_angles,
    triangle_areas,
    triangle_normals,
    unique_edges,
    vertex_normals,
)

Mesh = tuple[Float[np.ndarray, "node 3"], Int[np.ndarray, "cell 3"]]
seeds = st.integers(0, 2**32 - 1)


def outward_sphere(n_refinements: int) -> Mesh:
    ball = sphere(n_refinements)
    return ball.points, outward(ball.points, oriented(ball.cells)[0])[0]


def holed_sphere(n_holes: int) -> Mesh:
    """The first nodes of a sphere, an icosahedron's corners and so far apart, cut out with the triangles about them."""
    points, cells = outward_sphere(3)
    return points, cells[~np.isin(cells, np.arange(n_holes)).any(axis=1)]


def torus(n_around: int = 24, n_through: int = 12) -> Mesh:
    """Radii 2 and 0.7."""
    around, through = np.meshgrid(np.arange(n_around), np.arange(n_through), indexing="ij")
    u, v = 2 * np.pi * around.ravel() / n_around, 2 * np.pi * through.ravel() / n_through
    points = np.stack([(2 + 0.7 * np.cos(v)) * np.cos(u), (2 + 0.7 * np.cos(v)) * np.sin(u), 0.7 * np.sin(v)], axis=1)
    number = np.arange(n_around * n_through).reshape(n_around, n_through)
    right, up = np.roll(number, -1, axis=0), np.roll(number, -1, axis=1)
    across = np.roll(right, -1, axis=1)
    cells = [np.stack([number, right, across], -1), np.stack([number, across, up], -1)]
    return points, np.concatenate(cells).reshape(-1, 3)


def strip(n_quads: int, *, is_twisted: bool) -> Int[np.ndarray, "cell 3"]:
    """A closed band of nodes 2i, 2i + 1; twisted, its ends meet upside down."""
    ladder = np.arange(2 * n_quads).reshape(-1, 2)
    close = ladder[:1, ::-1] if is_twisted else ladder[:1]
    ladder = np.concatenate([ladder, close])
    a, b, c, d = ladder[:-1, 0], ladder[:-1, 1], ladder[1:, 0], ladder[1:, 1]
    return np.concatenate([np.stack([a, c, b], 1), np.stack([b, c, d], 1)])


def with_random_turns(cells: Int[np.ndarray, "cell 3"], rng: np.random.Generator) -> Int[np.ndarray, "cell 3"]:
    return np.where(rng.random(len(cells))[:, None] < 0.4, cells[:, ::-1], cells)


def same_up_to_rolling(one: np.ndarray, other: np.ndarray) -> bool:
    """The same triangles in the same order, wound alike; which corner comes first is no matter."""
    start = [np.take_along_axis(t, (t.argmin(axis=1)[:, None] + np.arange(3)) % 3, axis=1) for t in (one, other)]
    return np.array_equal(start[0], start[1])


@pytest.mark.parametrize("n_holes", [0, 1, 3, 5, 7])
def test_a_sphere_with_holes_has_no_handle_and_a_rim_for_every_hole(n_holes: int):
    _, cells = holed_sphere(n_holes)
    assert genus(cells) == 0
    assert len(boundary_loops(cells)) == n_holes
    assert euler_characteristic(cells) == 2 - n_holes


def test_a_torus_has_one_handle_and_no_rim():
    points, cells = torus()
    assert (genus(cells), len(boundary_loops(cells)), euler_characteristic(cells)) == (1, 0, 0)
    assert genus(cells[1:]) == 1
    assert abs(enclosed_volume(points, cells)) == pytest.approx(2 * np.pi**2 * 2 * 0.7**2, rel=0.06)


def test_handles_of_separate_parts_add_up():
    _, ring = torus()
    _, ball = holed_sphere(2)
    both = np.concatenate([ring, ball + ring.max() + 1, ring + 5000])
    assert genus(both) == 2
    assert np.array_equal(connected_parts(both, 6000), np.repeat([0, 1, 2], [len(ring), len(ball), len(ring)]))


@given(seed=seeds)
def test_relabelling_nodes_and_shuffling_triangles_changes_no_count_and_no_length(seed: int):
    rng = np.random.default_rng(seed)
    points, cells = holed_sphere(4)
    name = rng.permutation(len(points))
    moved, shuffled = points[np.argsort(name)], name[cells[rng.permutation(len(cells))]]
    assert genus(shuffled) == 0
    mine, other = (np.sort(perimeters(p, boundary_loops(c))) for p, c in ((points, cells), (moved, shuffled)))
    assert np.allclose(mine, other)
    assert np.allclose(np.sort(edge_lengths(points, cells)), np.sort(edge_lengths(moved, shuffled)))
    assert np.isclose(enclosed_volume(points, cells), enclosed_volume(moved, shuffled))
    assert np.allclose(vertex_normals(points, cells)[np.argsort(name)], vertex_normals(moved, shuffled))


@given(seed=seeds)
def test_turning_and_shifting_the_surface_turns_its_normals_and_keeps_its_volume(seed: int):
    points, cells = holed_sphere(3)
    turn = random_rotation(3, seed)
    moved = points @ turn.T + np.array([1000.0, -300, 50])
    assert np.isclose(enclosed_volume(points, cells), enclosed_volume(moved, cells))
    assert np.allclose(triangle_normals(points, cells) @ turn.T, triangle_normals(moved, cells))
    assert np.allclose(vertex_normals(points, cells) @ turn.T, vertex_normals(moved, cells))
    assert np.allclose(triangle_angles(points, cells), triangle_angles(moved, cells))


@given(seed=seeds)
def test_random_turns_of_windings_are_undone(seed: int):
    rng = np.random.default_rng(seed)
    for points, cells in (holed_sphere(5), torus()):
        right, _ = outward(points, cells)
        turned = with_random_turns(right, rng)
        alike, n_flipped = oriented(turned)
        assert n_flipped == (alike != turned).any(axis=1).sum() <= len(cells) / 2
        assert same_up_to_rolling(outward(points, alike)[0], right)


def test_each_part_is_turned_outwards_by_itself():
    points, cells = outward_sphere(2)
    both = np.concatenate([cells, cells[:, ::-1] + len(points)])
    places = np.concatenate([points, points + 5])
    turned, n_turned = outward(places, oriented(both)[0])
    assert n_turned == len(cells)
    assert np.isclose(enclosed_volume(places, turned), 2 * enclosed_volume(points, cells))


def test_a_flat_sheet_has_no_outside_and_stays_as_it_is():
    points = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=float)
    for cells in (np.array([[0, 1, 2], [0, 2, 3]]), np.array([[0, 2, 1], [0, 3, 2]])):
        assert outward(points, cells)[1] == 0


def test_a_moebius_strip_is_refused_with_an_edge_of_it_and_a_plain_band_is_not():
    assert oriented(strip(7, is_twisted=False))[1] == 0
    cells = strip(7, is_twisted=True)
    with pytest.raises(InputError, match="one side only") as error:
        oriented(cells)
    words = str(error.value).replace(";", "").split()
    edge = sorted(int(words[i + 1]) for i, word in enumerate(words) if word == "node")
    assert edge in unique_edges(cells).tolist()


def test_an_edge_of_three_triangles_is_found_and_cannot_be_oriented():
    cells = np.array([[0, 1, 2], [1, 0, 3], [0, 1, 4]])
    assert nonmanifold_edges(cells).tolist() == [[0, 1]]
    with pytest.raises(InputError, match="node 0 to node 1 belongs to 3 triangles"):
        oriented(cells)
    with pytest.raises(InputError, match="forks"):
        boundary_loops(cells)


def test_a_bow_tie_is_found_and_both_rims_pass_through_it():
    cells = np.array([[0, 1, 2], [2, 3, 4]])
    assert nonmanifold_nodes(cells).tolist() == [2]
    assert sorted(sorted(loop.tolist()) for loop in boundary_loops(cells)) == [[0, 1, 2], [2, 3, 4]]
    assert nonmanifold_nodes(holed_sphere(3)[1]).size == 0


def test_rims_are_found_whichever_way_the_triangles_wind():
    points, cells = holed_sphere(5)
    mixed = with_random_turns(cells, np.random.default_rng(0))
    mine, other = ([set(loop.tolist()) for loop in boundary_loops(c)] for c in (cells, mixed))
    assert sorted(map(sorted, mine)) == sorted(map(sorted, other))
    assert np.allclose(
        np.sort(perimeters(points, boundary_loops(cells))), np.sort(perimeters(points, boundary_loops(mixed)))
    )


def test_a_rim_goes_from_neighbour_to_neighbour_the_way_its_triangles_wind():
    _, cells = holed_sphere(5)
    directed = {(a, b) for triangle in cells.tolist() for a, b in zip(triangle, triangle[1:] + triangle[:1], strict=True)}
    for loop in boundary_loops(cells):
        assert all(step in directed for step in zip(loop.tolist(), np.roll(loop, -1).tolist(), strict=True))


def test_the_longest_rim_leads():
    points, cells = outward_sphere(3)
    tall = cells[(points[cells, 2] > -0.5).all(axis=1) & (points[cells, 2] < 0.9).all(axis=1)]
    length = perimeters(points, longest_first(points, boundary_loops(tall)))
    assert len(length) == 2 and length[0] > length[1]


def test_angles_of_every_triangle_add_up_to_half_a_turn_and_areas_to_the_sphere():
    points, cells = outward_sphere(4)
    assert np.allclose(triangle_angles(points, cells).sum(axis=1), np.pi)
    assert triangle_areas(points, cells).sum() == pytest.approx(4 * np.pi, rel=3e-3)
    assert enclosed_volume(points, cells) == pytest.approx(4 * np.pi / 3, rel=5e-3)
    assert np.abs(vertex_normals(points, cells) - points).max() < 0.01


def test_closing_a_hole_by_a_fan_takes_off_the_cap():
    points, cells = outward_sphere(5)
    cut = cells[(points[cells, 2] < 0.5).all(axis=1)]
    height = 1 - points[boundary_loops(cut)[0], 2].mean()
    cap = np.pi * height**2 * (3 - height) / 3
    assert enclosed_volume(points, cut) == pytest.approx(4 * np.pi / 3 - cap, rel=0.01)


@given(seed=seeds)
def test_opposite_sides_walk_the_same_edge_the_other_way(seed: int):
    rng = np.random.default_rng(seed)
    points, cells = holed_sphere(4)
    cells = cells[rng.permutation(len(cells))]
    opposite, walked = opposite_sides(cells), sides_of(cells).nodes
    inner = np.flatnonzero(opposite >= 0)
    assert np.array_equal(opposite[opposite[inner]], inner)
    assert np.array_equal(walked[opposite[inner]], walked[inner, ::-1])
    assert (opposite < 0).sum() == sum(len(loop) for loop in boundary_loops(cells))
    # Every side has the length of its edge.
    assert np.allclose(side_lengths(points, cells).ravel(), edge_lengths(points, cells)[sides_of(cells).edge])


def test_area_vectors_of_a_closed_surface_sum_to_nothing():
    points, cells = torus()
    vectors = area_vectors(points, cells)
    assert np.abs(vectors.sum(axis=0)).max() < 1e-12
    assert np.allclose(np.linalg.norm(vectors, axis=1), 2 * triangle_areas(points, cells))
    assert np.allclose(cross(points[cells[:, 0]], points[cells[:, 1]]), np.cross(points[cells[:, 0]], points[cells[:, 1]]))
