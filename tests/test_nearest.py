import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from problems import random_rotation, sphere

from gfunk.nearest import nearest_on_triangles, nearest_triangles

seeds = st.integers(0, 2**32 - 1)


def soup(rng: np.random.Generator, n_triangles: int) -> tuple[np.ndarray, np.ndarray]:
    """Loose triangles of very different sizes, some next to a line."""
    corners = rng.normal(size=(n_triangles, 1, 3)) + np.exp(rng.normal(-2, 2, (n_triangles, 1, 1))) * rng.normal(
        size=(n_triangles, 3, 3)
    )
    corners[::5, 2] = (corners[::5, 0] + corners[::5, 1]) / 2 + 1e-5 * corners[::5, 2]
    return corners.reshape(-1, 3), np.arange(3 * n_triangles).reshape(-1, 3)


@given(seed=seeds, n_triangles=st.integers(1, 60))
def test_no_sample_of_any_triangle_is_nearer_than_the_place_found(seed: int, n_triangles: int):
    rng = np.random.default_rng(seed)
    points, cells = soup(rng, n_triangles)
    places = 2 * rng.normal(size=(20, 3))
    found = nearest_on_triangles(points, cells)(places)
    samples = np.einsum("sk,cki->sci", rng.dirichlet(np.full(3, 0.5), 200), points[cells]).reshape(-1, 3)
    nearest = np.linalg.norm(places[:, None] - samples, axis=2).min(axis=1)
    assert (np.linalg.norm(found - places, axis=1) <= nearest + 1e-9).all()


@given(seed=seeds)
def test_places_are_given_by_weights_of_corners_that_sum_to_one(seed: int):
    rng = np.random.default_rng(seed)
    points, cells = soup(rng, 30)
    # On the triangles themselves, so that the place is known.
    chosen, weights = rng.integers(0, 30, 50), rng.dirichlet(np.ones(3), 50)
    places = np.einsum("pk,pki->pi", weights, points[cells[chosen]])
    cell, found = nearest_triangles(points, cells)(places)
    assert (found >= 0).all() and np.allclose(found.sum(axis=1), 1)
    np.testing.assert_allclose(np.einsum("pk,pki->pi", found, points[cells[cell]]), places, atol=1e-9)


@given(seed=seeds)
def test_turning_and_relabelling_moves_what_is_found_along(seed: int):
    rng = np.random.default_rng(seed)
    mesh, turn = sphere(2), random_rotation(3, seed)
    places = 1.5 * rng.normal(size=(30, 3))
    found = nearest_on_triangles(mesh.points, mesh.cells)(places)
    name = rng.permutation(mesh.n_nodes)
    turned = nearest_on_triangles(
        (mesh.points @ turn.T)[np.argsort(name)], name[mesh.cells[rng.permutation(len(mesh.cells))]]
    )
    away, away_turned = (
        np.linalg.norm(f - p, axis=1) for f, p in ((found, places), (turned(places @ turn.T), places @ turn.T))
    )
    np.testing.assert_allclose(away_turned, away, atol=1e-12)


def test_what_is_on_the_surface_stays_there():
    mesh = sphere(3)
    onto = nearest_on_triangles(mesh.points, mesh.cells)
    np.testing.assert_allclose(onto(mesh.points), mesh.points, atol=1e-14)
    centre = mesh.points[mesh.cells].mean(axis=1)
    np.testing.assert_allclose(onto(centre), centre, atol=1e-14)
