import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import sphere

from gfunk.errors import InputError
from gfunk.remeshing import carried_fibres, nearest_on_triangles, remeshed
from gfunk.surface import (
    boundary_loops,
    edge_lengths,
    enclosed_volume,
    euler_characteristic,
    nonmanifold_edges,
    oriented,
    perimeters,
    triangle_angles,
    triangle_areas,
    triangle_normals,
)


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
    assert np.rad2deg(triangle_angles(points, cells).min()) > 15
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


def test_fibres_are_carried_there_and_back():
    def around_z(points: np.ndarray, cells: np.ndarray) -> np.ndarray:
        centre = points[cells].mean(axis=1)
        along = np.cross([0.0, 0.0, 1.0], centre)
        normal = triangle_normals(points, cells)
        along -= (along * normal).sum(axis=1, keepdims=True) * normal
        return along / np.linalg.norm(along, axis=1, keepdims=True)

    points, cells = ball(n_cuts=4)
    fibres = around_z(points, cells)
    # f and -f are one fibre.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(fibres), 1))
    new_points, new_cells = remeshed(points, cells, 2.0)
    carried = carried_fibres(points, cells, signs * fibres, new_points, new_cells)
    np.testing.assert_allclose(np.linalg.norm(carried, axis=1), 1)
    assert np.abs((carried * triangle_normals(new_points, new_cells)).sum(axis=1)).max() < 1e-9
    back = carried_fibres(new_points, new_cells, carried, points, cells)
    for found, exact, where in (
        (carried, around_z(new_points, new_cells), (new_points, new_cells)),
        (back, fibres, (points, cells)),
    ):
        off_axis = np.linalg.norm(where[0][where[1]].mean(axis=1)[:, :2], axis=1) > 6
        degrees = np.rad2deg(np.arccos(np.clip(np.abs((found * exact).sum(axis=1)), 0, 1)))[off_axis]
        assert np.median(degrees) < 2 and np.quantile(degrees, 0.95) < 8


def test_bad_input_is_refused():
    points, cells = ball(n_cuts=1)
    with pytest.raises(InputError, match="must be positive"):
        remeshed(points, cells, 0.0)
    with pytest.raises(InputError, match="3 triangles meet"):
        remeshed(np.vstack([points, [0, 0, 0]]), np.vstack([cells, [*cells[0, :2], len(points)]]), 5.0)
