import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_order
from problems import cloud, moved_square, relabelled, rotated_tensor, shaken_box, sphere, turning_square
from scipy.linalg import eigh, subspace_angles
from scipy.sparse import csr_array, dia_array

from gfunk.domain import Domain, make_domain, rectangle, unit_square
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, fem_laplacian, knn_laplacian, laplacian
from gfunk.spectrum import check_connected, lowest_modes

seeds = st.integers(0, 2**32 - 1)
lopsided = turning_square(0.0013)  # about 700 nodes, no symmetry: every eigenvalue is simple
domains = {
    "dense": turning_square(0.01),
    "plane": lopsided,
    "sphere": sphere(3),
    "tetrahedra": shaken_box(8, np.eye(3)),
    "cloud": cloud(500, rotated_tensor(0.4, 9.0, 1.0)),
}
each_domain = pytest.mark.parametrize("domain", domains.values(), ids=domains.keys())


@each_domain
def test_modes_are_orthonormal_in_the_mass_and_solve_the_eigenproblem(domain: Domain):
    matrices = laplacian(domain)
    modes = lowest_modes(matrices, 20)
    gram = modes.eigenvectors.T @ (matrices.mass @ modes.eigenvectors)
    np.testing.assert_allclose(gram, np.eye(20), atol=1e-10)
    weighted = matrices.mass @ modes.eigenvectors
    residual = matrices.stiffness @ modes.eigenvectors - weighted * modes.eigenvalues
    assert np.linalg.norm(residual) < 1e-8 * modes.eigenvalues[-1] * np.linalg.norm(weighted)


def test_consistent_mass_gives_orthonormal_modes_too():
    matrices = fem_laplacian(lopsided, "consistent")
    vectors = lowest_modes(matrices, 20).eigenvectors
    np.testing.assert_allclose(vectors.T @ (matrices.mass @ vectors), np.eye(20), atol=1e-10)


@each_domain
def test_eigenvalues_rise_from_zero_where_the_mode_is_constant(domain: Domain):
    matrices = laplacian(domain)
    modes = lowest_modes(matrices, 20)
    assert 0 <= modes.eigenvalues[0] < 1e-9 * modes.eigenvalues[-1]
    assert modes.eigenvalues[1] > 1e-3 * modes.eigenvalues[-1]
    assert (np.diff(modes.eigenvalues) >= 0).all()
    np.testing.assert_allclose(modes.eigenvectors[:, 0], matrices.mass.sum() ** -0.5, rtol=1e-6)


@pytest.mark.parametrize("n_more", [40, 300], ids=["Lanczos again", "dense"])
def test_asking_for_more_modes_leaves_the_first_ones_alone(n_more: int):
    matrices = laplacian(lopsided)
    few, more = lowest_modes(matrices, 15), lowest_modes(matrices, n_more)
    np.testing.assert_allclose(more.eigenvalues[:15], few.eigenvalues, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(more.eigenvectors[:, :15], few.eigenvectors, atol=1e-6)


def test_asking_for_more_modes_leaves_the_spaces_of_equal_eigenvalues_alone():
    matrices = laplacian(sphere(3))
    few, more = lowest_modes(matrices, 9).eigenvectors, lowest_modes(matrices, 25).eigenvectors
    for start, end in ((0, 1), (1, 4), (4, 9)):
        assert subspace_angles(few[:, start:end], more[:, start:end]).max() < 1e-6


def test_lanczos_agrees_with_a_dense_solver():
    matrices = laplacian(lopsided)
    found = lowest_modes(matrices, 30)
    values, vectors = eigh(matrices.stiffness.toarray(), matrices.mass.toarray(), subset_by_index=(0, 29))
    np.testing.assert_allclose(found.eigenvalues, values, rtol=1e-9, atol=1e-9)
    overlap = np.abs(np.sum(vectors * (matrices.mass @ found.eigenvectors), axis=0))
    np.testing.assert_allclose(overlap, 1, atol=1e-9)


@given(seed=seeds, name=st.sampled_from(["dense", "plane"]))
def test_signs_survive_relabelling_where_there_is_no_symmetry(seed: int, name: str):
    domain = domains[name]
    order = np.random.default_rng(seed).permutation(domain.n_nodes)
    before, after = (lowest_modes(laplacian(d), 12).eigenvectors for d in (domain, relabelled(domain, order)))
    np.testing.assert_allclose(after, before[order], atol=1e-6)


def test_two_calls_agree_to_the_last_bit():
    for domain in (lopsided, sphere(3)):
        first, second = (lowest_modes(laplacian(domain), 20) for _ in range(2))
        np.testing.assert_array_equal(first.eigenvalues, second.eigenvalues)
        np.testing.assert_array_equal(first.eigenvectors, second.eigenvectors)


def test_eigenvalues_of_a_rectangle_tend_to_the_exact_ones_at_order_two():
    width, height = 1.5, 1.0
    count = np.arange(6)
    exact = np.sort((np.pi**2 * ((count[:, None] / width) ** 2 + (count / height) ** 2)).ravel())[:8]
    edges = [1 / 8, 1 / 16, 1 / 32]
    found = [lowest_modes(fem_laplacian(rectangle(width, height, edge)), 8).eigenvalues for edge in edges]
    for mode in range(1, 8):
        assert_order([abs(values[mode] - exact[mode]) for values in found], edges, 2)
    np.testing.assert_allclose(found[-1], exact, rtol=0.01, atol=1e-9)


@pytest.mark.parametrize("n_modes", [-1, 0, 25, 26])
def test_no_modes_or_as_many_as_nodes_are_refused(n_modes: int):
    with pytest.raises(InputError, match=f"{n_modes} modes can't be had from 25 nodes: ask for 1 to 24"):
        lowest_modes(laplacian(unit_square(5)), n_modes)


def test_one_mode_and_all_but_one_can_be_had():
    matrices = laplacian(moved_square(0.05, np.eye(2)))
    assert lowest_modes(matrices, 1).eigenvalues.shape == (1,)
    assert lowest_modes(laplacian(lopsided), 1).eigenvalues.shape == (1,)
    assert lowest_modes(matrices, matrices.n_nodes - 1).eigenvalues.shape == (matrices.n_nodes - 1,)


def side_by_side(*n_sides: int) -> Domain:
    """Squares that do not touch."""
    squares = [unit_square(n) for n in n_sides]
    first = np.cumsum([0, *(square.n_nodes for square in squares)])
    return make_domain(
        np.concatenate([square.points + np.array([2.0 * i, 0]) for i, square in enumerate(squares)]),
        np.concatenate([square.cells + first[i] for i, square in enumerate(squares)]),
    )


def test_a_domain_in_pieces_is_refused_with_their_number_and_a_node_of_the_smallest():
    with pytest.raises(InputError, match="3 pieces; node 25 lies in one of 9 of 50 nodes"):
        lowest_modes(laplacian(side_by_side(5, 3, 4)), 3)


def test_a_cloud_in_pieces_is_refused():
    points = np.random.default_rng(0).uniform(size=(60, 2))
    points[40:, 0] += 50
    with pytest.raises(InputError, match="2 pieces; node 40 lies in one of 20 of 60 nodes"):
        lowest_modes(knn_laplacian(make_domain(points), n_neighbors=5), 3)


def test_an_isolated_node_is_refused_by_number():
    path = laplacian(unit_square(3)).stiffness.toarray()
    weights = np.triu(-path, 1)
    weights[4], weights[:, 4] = 0, 0
    weights = csr_array(weights + weights.T)
    weights.eliminate_zeros()
    degree = csr_array(dia_array((weights.sum(axis=1).reshape(1, -1), [0]), shape=weights.shape))
    with pytest.raises(InputError, match="node 4 is isolated"):
        check_connected(Laplacian(stiffness=csr_array(degree - weights), mass=csr_array(np.eye(9))))


def test_a_square_whose_matrix_couples_only_along_sides_is_still_one_piece():
    # The right angles of a regular square give zeros across the diagonals; they must not count as cuts.
    check_connected(laplacian(unit_square(6)))


@pytest.mark.slow
@pytest.mark.parametrize(("n_side", "n_modes", "limit_s"), [(317, 50, 30), (142, 500, 120), (448, 50, 120)])
def test_large_squares_are_solved_in_time(n_side: int, n_modes: int, limit_s: float):
    matrices = laplacian(unit_square(n_side))
    start = time.perf_counter()
    found = lowest_modes(matrices, n_modes).eigenvalues
    assert time.perf_counter() - start < limit_s
    count = np.arange(60)
    exact = np.sort((np.pi**2 * (count[:, None] ** 2 + count**2)).ravel())[:n_modes]
    np.testing.assert_allclose(found, exact, rtol=0.05, atol=1e-6)


@pytest.mark.parametrize("seed", [20, 64, 75, 86, 111, 138, 147])
def test_none_of_many_equal_eigenvalues_is_missed(seed: int):
    # Degrees 0 to 3 of the sphere. In these numberings, 7 of the first 150, Lanczos alone missed one.
    order = np.random.default_rng(seed).permutation(sphere(3).n_nodes)
    found = lowest_modes(fem_laplacian(relabelled(sphere(3), order)), 16).eigenvalues
    np.testing.assert_allclose(found, np.repeat([0, 2, 6, 12], [1, 3, 5, 7]), rtol=0.02, atol=1e-9)
