import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import sphere

from gfunk.errors import InputError
from gfunk.files.reading import read_mesh
from gfunk.intersections import self_intersections
from gfunk.nearest import nearest_on_triangles
from gfunk.remeshing import FEWEST, remeshed
from gfunk.surface import (
    boundary_loops,
    edge_lengths,
    enclosed_volume,
    euler_characteristic,
    nonmanifold_edges,
    opposite_sides,
    oriented,
    perimeters,
    triangle_angles,
    triangle_areas,
    triangle_normals,
)

REAL = Path(os.environ.get("GFUNK_REAL_ATRIA", "no such folder"))


def ball(n_holes: int = 0, n_cuts: int = 3, radius: float = 20.0) -> tuple[np.ndarray, np.ndarray]:
    """A sphere with round holes, their rims smooth circles."""
    mesh = sphere(n_cuts)
    points = radius * mesh.points / np.linalg.norm(mesh.points, axis=1, keepdims=True)
    cells = oriented(mesh.cells)[0]
    for axis in np.eye(3)[:n_holes]:
        height = points[:, :3] @ axis
        is_kept = (height[cells] < 0.85 * radius).all(axis=1)
        used, renamed = np.unique(cells[is_kept], return_inverse=True)
        points, cells = points[used], renamed.reshape(-1, 3)
    # Rim nodes onto their circle.
    for loop in boundary_loops(cells):
        centre = points[loop].mean(axis=0)
        axis = np.eye(3)[np.abs(centre).argmax()]
        around = points[loop] - (points[loop] @ axis)[:, None] * axis
        around *= radius * np.sqrt(1 - 0.82**2) / np.linalg.norm(around, axis=1, keepdims=True)
        points[loop] = around + 0.82 * radius * axis
    return points, cells


def bent_tube(n_around: int = 24, n_along: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """A quarter of a torus, open at both ends: curved both ways, with uneven triangles."""
    around, along = np.meshgrid(np.arange(n_around), np.linspace(0, 1, n_along) ** 1.5, indexing="ij")
    angle, turn = 2 * np.pi * around / n_around, np.pi / 2 * along
    far = 30 + 8 * np.cos(angle)
    points = np.stack([far * np.cos(turn), far * np.sin(turn), 8 * np.sin(angle)], -1).reshape(-1, 3)
    number = np.arange(n_around * n_along).reshape(n_around, n_along)
    a, b = number[:, :-1], np.roll(number, -1, axis=0)[:, :-1]
    c, d = np.roll(number, -1, axis=0)[:, 1:], number[:, 1:]
    cells = np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([a, c, d], -1).reshape(-1, 3)])
    return points, cells


def assert_even(points: np.ndarray, cells: np.ndarray, edge: float):
    length = edge_lengths(points, cells) / edge
    assert length.min() > 0.6 and length.max() < 1.5
    assert np.rad2deg(triangle_angles(points, cells).min()) > 25
    assert not len(nonmanifold_edges(cells))
    assert oriented(cells)[1] == 0


@pytest.mark.parametrize("edge", [1.5, 2.5, 4.0, 6.0])
@pytest.mark.parametrize("shape", [ball, bent_tube], ids=["ball", "tube"])
def test_finer_or_coarser_triangles_are_even_and_the_surface_stays(shape, edge: float):
    points, cells = shape()
    new_points, new_cells = remeshed(points, cells, edge)
    assert_even(new_points, new_cells, edge)
    assert euler_characteristic(new_cells) == euler_characteristic(cells)
    area, new_area = triangle_areas(points, cells).sum(), triangle_areas(new_points, new_cells).sum()
    # Corners lie on the old triangles, so only what chords cut off is lost.
    assert new_area == pytest.approx(area, rel=0.02 + (edge / 20) ** 2)
    away = np.linalg.norm(nearest_on_triangles(points, cells)(new_points) - new_points, axis=1)
    assert away.max() < 1e-9


@pytest.mark.parametrize("n_holes", [1, 2, 3])
def test_holes_stay_where_they_were(n_holes: int):
    points, cells = ball(n_holes, 4)
    new_points, new_cells = remeshed(points, cells, 2.0)
    assert_even(new_points, new_cells, 2.0)
    before, after = boundary_loops(cells), boundary_loops(new_cells)
    assert len(after) == len(before) == n_holes
    np.testing.assert_allclose(perimeters(new_points, after), perimeters(points, before), rtol=0.02)
    assert enclosed_volume(new_points, new_cells) == pytest.approx(enclosed_volume(points, cells), rel=0.01)


def test_a_given_surface_is_met_better_than_its_triangles():
    def onto(places: np.ndarray) -> np.ndarray:
        return 20 * places / np.linalg.norm(places, axis=1, keepdims=True)

    points, cells = remeshed(*ball(n_cuts=2), 1.5, onto=onto)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 20)
    assert_even(points, cells, 1.5)


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1))
def test_turning_the_surface_turns_the_answer(seed: int):
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    points, cells = ball(1, 2)
    found, turned = remeshed(points, cells, 5.0), remeshed(points @ turn.T, cells, 5.0)
    # Ties are broken by the last digits, so as surfaces, not node by node.
    assert len(turned[0]) == pytest.approx(len(found[0]), rel=0.05)
    area = [triangle_areas(*mesh).sum() for mesh in (found, turned)]
    assert area[1] == pytest.approx(area[0], rel=0.01)


def test_the_same_surface_gives_the_same_mesh():
    first, second = remeshed(*ball(2), 3.0), remeshed(*ball(2), 3.0)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


def test_slivers_and_edges_of_all_lengths_become_even():
    points, cells = ball(2, 4)
    rng = np.random.default_rng(0)
    # Every third triangle cut at a random place inside, and those pieces again: angles down to a tenth of a degree.
    for _ in range(3):
        cut = rng.permutation(len(cells))[: len(cells) // 3]
        weights = rng.dirichlet(np.ones(3), len(cut))
        new = len(points) + np.arange(len(cut))
        points = np.concatenate([points, np.einsum("ck,cki->ci", weights, points[cells[cut]])])
        a, b, c = cells[cut].T
        cells = np.concatenate(
            [np.delete(cells, cut, axis=0), *(np.stack(t, 1) for t in ((a, b, new), (b, c, new), (c, a, new)))]
        )
    assert np.rad2deg(triangle_angles(points, cells).min()) < 0.5
    for edge in (1.2, 3.0):
        found = remeshed(points, cells, edge)
        assert_even(*found, edge)
        assert euler_characteristic(found[1]) == euler_characteristic(cells)


@pytest.mark.parametrize("edge", [1.0, 2.5])
def test_a_rim_that_zigzags_becomes_even_too(edge: float):
    points, cells = ball(0, 5)
    # No more than a wedge of each tooth is left of the second row of triangles.
    cells = cells[(points[cells][:, :, 2].mean(axis=1) < 8.0)]
    used, cells = np.unique(cells, return_inverse=True)
    points, cells = points[used], cells.reshape(-1, 3)
    rim = boundary_loops(cells)[0]
    assert perimeters(points, [rim])[0] > 1.1 * 2 * np.pi * np.sqrt(20**2 - 8**2)
    new_points, new_cells = remeshed(points, cells, edge)
    assert_even(new_points, new_cells, edge)
    away = np.linalg.norm(nearest_on_triangles(points, cells)(new_points) - new_points, axis=1)
    assert away.max() < 1e-9


@pytest.mark.parametrize("shape", [ball, bent_tube], ids=["ball", "tube"])
def test_no_triangle_is_turned_over(shape):
    points, cells = remeshed(*shape(), 1.5)
    opposite = opposite_sides(cells)
    inner = np.flatnonzero(opposite >= 0)
    normals = triangle_normals(points, cells)
    cosine = (normals[inner // 3] * normals[opposite[inner] // 3]).sum(axis=1)
    # Over an edge of 1.5 mm a bend of radius 8 mm turns by about 11 degrees.
    assert np.rad2deg(np.arccos(cosine.min())) < 30
    assert not len(self_intersections(points, cells))


@pytest.mark.skipif(not REAL.is_dir(), reason="GFUNK_REAL_ATRIA names no folder of real atria")
@pytest.mark.parametrize("name", ["heart1/heart1.pts", "heart3.vtp", "two_components.vtk"])
@pytest.mark.parametrize("edge", [1.0, 2.0])
def test_real_atria_become_even(name: str, edge: float):
    atrium = read_mesh(REAL / name)
    points, cells = remeshed(atrium.points_mm, atrium.cells, edge)
    assert_even(points, cells, edge)
    assert euler_characteristic(cells) == euler_characteristic(atrium.cells)
    assert len(boundary_loops(cells)) == len(boundary_loops(atrium.cells))


@settings(max_examples=5)
@given(share=st.floats(0.1, 0.999), n_holes=st.integers(0, 3))
def test_edges_as_long_as_the_surface_has_room_for_leave_it_what_it_is_and_longer_ones_are_refused(
    share: float, n_holes: int
):
    points, cells = ball(n_holes)
    longest = np.sqrt(triangle_areas(points, cells).sum() / (FEWEST * np.sqrt(3) / 4))
    _, coarse = remeshed(points, cells, share * longest)
    assert euler_characteristic(coarse) == euler_characteristic(cells)
    with pytest.raises(InputError, match=r"are too long for this surface"):
        remeshed(points, cells, longest / share)


def test_more_nodes_than_a_machine_holds_are_refused_before_any_work():
    points, cells = ball()
    with pytest.raises(InputError, match=r"make 5,8\d\d,\d\d\d nodes, more than 5,000,000, of this surface, 40 mm wide"):
        remeshed(points, cells, 0.0315)


def test_bad_input_is_refused():
    points, cells = ball(n_cuts=1)
    with pytest.raises(InputError, match="must be positive"):
        remeshed(points, cells, 0.0)
    with pytest.raises(InputError, match="3 triangles meet"):
        remeshed(np.vstack([points, [0, 0, 0]]), np.vstack([cells, [*cells[0, :2], len(points)]]), 5.0)
    with pytest.raises(InputError, match="wind against each other"):
        remeshed(points, np.vstack([cells[:-1], cells[-1, ::-1]]), 5.0)
    bow_tie = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [-1, 0, 0], [-1, -1, 0]])
    with pytest.raises(InputError, match="two rims meet in node 0"):
        remeshed(bow_tie, np.array([[0, 1, 2], [0, 3, 4]]), 0.2)
