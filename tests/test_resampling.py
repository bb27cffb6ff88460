import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_order
from problems import random_rotation, sphere

from gfunk.domain import fibre_tensors, make_domain, rectangle, voxel_means
from gfunk.remeshing import remeshed
from gfunk.resampling import carried_fibres, carried_tensors, mixed_fibres, surface_interpolation, voxel_sampled
from gfunk.surface import oriented, triangle_normals, vertex_normals

RADIUS = 20.0
seeds = st.integers(0, 2**32 - 1)


def even_ball(edge: float) -> tuple[np.ndarray, np.ndarray]:
    def onto(places: np.ndarray) -> np.ndarray:
        return RADIUS * places / np.linalg.norm(places, axis=1, keepdims=True)

    mesh = sphere(4)
    return remeshed(RADIUS * mesh.points, oriented(mesh.cells)[0], edge, onto=onto)


def smooth(points: np.ndarray) -> np.ndarray:
    """Waves of 38 and 50 mm."""
    x, y, z = points.T
    return np.sin(x / 6) * np.cos(y / 8) + z / 20


def around_axis(points: np.ndarray, normals: np.ndarray) -> np.ndarray:
    along = np.cross([0.2, 0.3, 1.0], points)
    along -= (along * normals).sum(axis=1, keepdims=True) * normals
    return along / np.linalg.norm(along, axis=1, keepdims=True)


def off_axis(points: np.ndarray) -> np.ndarray:
    """Away from the poles, where fibres turn at once."""
    return np.linalg.norm(np.cross([0.2, 0.3, 1.0], points), axis=1) > 6


def degrees_between(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.rad2deg(np.arccos(np.clip(np.abs((one * other).sum(axis=1)), 0, 1)))


@given(seed=seeds)
def test_values_are_mixed_of_those_around(seed: int):
    rng = np.random.default_rng(seed)
    mesh = sphere(2)
    matrix = surface_interpolation(mesh.points, mesh.cells, rng.normal(size=(40, 3)))
    assert matrix.data.min() >= 0
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    # Loads taken back to the nodes keep their sum.
    loads = rng.normal(size=40)
    assert (matrix.T @ loads).sum() == pytest.approx(loads.sum())


@given(seed=seeds)
def test_linear_fields_on_a_flat_sheet_are_carried_exactly(seed: int):
    rng = np.random.default_rng(seed)
    flat, turn = rectangle(5.0, 4.0, 0.7), random_rotation(3, seed)
    points = np.column_stack([flat.points, np.zeros(flat.n_nodes)]) @ turn.T
    slope = rng.normal(size=3)
    places = np.column_stack([rng.uniform(0, [5, 4], (30, 2)), np.zeros(30)]) @ turn.T
    matrix = surface_interpolation(points, flat.cells, places)
    np.testing.assert_allclose(matrix @ (points @ slope + 2), places @ slope + 2, atol=1e-12)


def test_at_its_own_nodes_a_field_is_itself():
    mesh = sphere(3)
    field = np.random.default_rng(0).normal(size=mesh.n_nodes)
    np.testing.assert_allclose(surface_interpolation(mesh.points, mesh.cells, mesh.points) @ field, field, atol=1e-12)


def test_there_and_back_a_smooth_field_changes_with_the_square_of_the_edge_length():
    edges, errors = (4.0, 2.0, 1.0), []
    for edge in edges:
        fine, coarse = even_ball(edge), even_ball(2 * edge)
        field = smooth(fine[0])
        down, up = surface_interpolation(*fine, coarse[0]), surface_interpolation(*coarse, fine[0])
        errors.append(np.linalg.norm(up @ (down @ field) - field) / np.linalg.norm(field))
    assert_order(errors, edges, 2)
    # From 1 mm to 2 mm and back.
    assert errors[-1] < 0.01


def test_fibres_of_triangles_are_carried_there_and_back():
    fine, coarse = even_ball(1.0), even_ball(2.0)
    centre, new_centre = (points[cells].mean(axis=1) for points, cells in (fine, coarse))
    fibres = around_axis(centre, triangle_normals(*fine))
    # f and -f are one fibre.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(fibres), 1))
    carried = carried_fibres(*fine, signs * fibres, *coarse)
    np.testing.assert_allclose(np.linalg.norm(carried, axis=1), 1)
    assert np.abs((carried * triangle_normals(*coarse)).sum(axis=1)).max() < 1e-9
    exact = around_axis(new_centre, triangle_normals(*coarse))
    assert np.quantile(degrees_between(carried, exact)[off_axis(new_centre)], 0.95) < 1
    back = carried_fibres(*coarse, carried, *fine)
    assert np.quantile(degrees_between(back, fibres)[off_axis(centre)], 0.95) < 2.5


def test_tensors_turn_with_the_surface():
    fine, coarse = even_ball(1.0), even_ball(2.0)
    normals = triangle_normals(*coarse)
    tensors = fibre_tensors(around_axis(fine[0][fine[1]].mean(axis=1), triangle_normals(*fine)), 1.2, 0.3)
    carried = carried_tensors(*fine, tensors, *coarse)
    # Across the wall nothing changes, and along it no value leaves the range of those given.
    np.testing.assert_allclose(np.einsum("cij,cj->ci", carried, normals), 0.3 * normals, atol=1e-12)
    values = np.linalg.eigvalsh(carried)
    assert values.min() > 0.3 - 1e-9 and values.max() < 1.2 + 1e-9
    centre = coarse[0][coarse[1]].mean(axis=1)
    exact = fibre_tensors(around_axis(centre, normals), 1.2, 0.3)
    gap = np.linalg.norm(carried - exact, axis=(1, 2))[off_axis(centre)]
    assert np.sqrt((gap**2).mean()) < 0.01


def test_one_tensor_everywhere_stays_on_any_triangles():
    flat, other = rectangle(5.0, 4.0, 0.5), rectangle(5.0, 4.0, 1.1)
    points, new_points = (np.column_stack([each.points, np.zeros(each.n_nodes)]) for each in (flat, other))
    tensor = np.array([[2.0, 0.5, 0], [0.5, 1.0, 0], [0, 0, 0.7]])
    carried = carried_tensors(points, flat.cells, np.tile(tensor, (len(flat.cells), 1, 1)), new_points, other.cells)
    np.testing.assert_allclose(carried, np.tile(tensor, (len(other.cells), 1, 1)), atol=1e-12)


def test_of_two_walls_close_together_each_keeps_its_own_fibres():
    flat = rectangle(6.0, 6.0, 0.5)
    lower, upper = (np.column_stack([flat.points, np.full(flat.n_nodes, height)]) for height in (0.0, 0.05))
    points, cells = np.concatenate([lower, upper]), np.concatenate([flat.cells[:, ::-1], flat.cells + flat.n_nodes])
    fibres = np.repeat([[1.0, 0, 0], [0, 1.0, 0]], len(flat.cells), axis=0)
    np.testing.assert_allclose(np.abs(carried_fibres(points, cells, fibres, points, cells)), fibres, atol=1e-9)


@given(seed=seeds)
def test_fibres_at_nodes_are_mixed_blind_to_their_sign(seed: int):
    rng = np.random.default_rng(seed)
    mesh = sphere(3)
    points, cells = mesh.points, oriented(mesh.cells)[0]
    places = rng.normal(size=(40, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    matrix = surface_interpolation(points, cells, places)
    fibres = around_axis(points, vertex_normals(points, cells))
    signs = rng.choice([-1.0, 1.0], (len(fibres), 1))
    found = mixed_fibres(matrix, signs * fibres, places)
    assert np.abs((found * places).sum(axis=1)).max() < 1e-9
    far = off_axis(20 * places)
    assert degrees_between(found, around_axis(places, places))[far].max(initial=0) < 3


def test_a_voxel_keeps_what_the_nearest_node_has():
    points, cells = even_ball(1.0)
    fibres = around_axis(points, vertex_normals(points, cells))
    domain = make_domain(points, cells, fibre_tensors(fibres, 1.0, 0.2), fibres=fibres)
    thin, nearest = voxel_sampled(domain, 2.0)
    means, expected = voxel_means(points, 2.0)
    np.testing.assert_array_equal(thin.points, means)
    np.testing.assert_array_equal(nearest, expected)
    np.testing.assert_array_equal(thin.diffusion, domain.diffusion[nearest])
    np.testing.assert_array_equal(thin.fibres, domain.fibres[nearest])
    assert not thin.has_cells
    # About one point for each voxel that the sphere passes through, each near the surface.
    assert np.abs(np.linalg.norm(thin.points, axis=1) - RADIUS).max() < 0.2
