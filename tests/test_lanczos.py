import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import cloud, rotated_tensor, shaken_box, sphere, turning_square
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array, eye_array

from gfunk import lanczos
from gfunk.errors import InputError
from gfunk.lanczos import BLOCK, lowest_eigenpairs
from gfunk.laplacian import Laplacian, fem_laplacian, knn_laplacian
from gfunk.sparse_solver import factored

matrices = {
    "plane": fem_laplacian(turning_square(0.0013)),
    "consistent mass": fem_laplacian(turning_square(0.0013), "consistent"),
    "sphere": fem_laplacian(sphere(3)),
    "tetrahedra": fem_laplacian(shaken_box(9, np.diag([1.0, 30.0, 900.0]))),
    "cloud": knn_laplacian(cloud(600, rotated_tensor(0.4, 9.0, 1.0)), n_neighbors=12),
}
exact = {name: eigh(each.stiffness.toarray(), each.mass.toarray(), eigvals_only=True) for name, each in matrices.items()}


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(list(matrices)), n=st.integers(2, 140))
def test_however_many_are_asked_for_they_are_those_of_a_dense_solver(name: str, n: int):
    stiffness, mass = matrices[name].stiffness, matrices[name].mass
    values, vectors = lowest_eigenpairs(matrices[name], n)
    np.testing.assert_allclose(values, exact[name][:n], atol=1e-9 * exact[name][n])
    np.testing.assert_allclose(vectors.T @ (mass @ vectors), np.eye(n), atol=1e-10)
    residual = stiffness @ vectors - mass @ vectors * values
    assert np.linalg.norm(residual) < 1e-8 * values[-1] * np.linalg.norm(mass @ vectors)


@given(name=st.sampled_from(list(matrices)), number=st.integers(0, 400), share=st.floats(0.2, 0.8))
def test_as_many_pivots_are_negative_as_eigenvalues_lie_below_the_shift(name: str, number: int, share: float):
    below, above = exact[name][number : number + 2]
    if above - below > 1e-6 * above:
        shift = below + share * (above - below)
        assert factored(matrices[name].stiffness - shift * matrices[name].mass)[1] == number + 1


def test_several_right_hand_sides_are_solved_as_one_by_one():
    matrix = matrices["plane"].stiffness + matrices["plane"].mass
    solve, _ = factored(matrix)
    right = np.random.default_rng(0).standard_normal((matrix.shape[0], 3))
    np.testing.assert_allclose(solve(right), np.stack([solve(each) for each in right.T], axis=1), rtol=1e-12)
    np.testing.assert_allclose(matrix @ solve(right), right, atol=1e-10)


def graph_laplacian(edges: np.ndarray, n_nodes: int) -> Laplacian:
    ones = np.ones(2 * len(edges))
    weights = csr_array((ones, (np.concatenate(edges.T), np.concatenate(edges.T[::-1]))), shape=(n_nodes, n_nodes))
    return Laplacian(stiffness=csr_array(diags_array(weights.sum(axis=1)) - weights), mass=csr_array(eye_array(n_nodes)))


@pytest.mark.parametrize("n", [20, 56, 57, 100])
def test_equal_eigenvalues_are_all_found_though_they_are_more_than_a_block_holds(n: int):
    # A cube of ten dimensions: eigenvalue 2 k, binomial(10, k) times.
    nodes = np.arange(1024)
    edges = np.concatenate([np.stack([nodes, nodes ^ 1 << bit], axis=1)[nodes & 1 << bit == 0] for bit in range(10)])
    values, _ = lowest_eigenpairs(graph_laplacian(edges, 1024), n)
    np.testing.assert_allclose(values, np.repeat([0, 2, 4, 6], [1, 10, 45, 120])[:n], atol=1e-9)


def test_a_basis_that_holds_all_of_its_image_goes_on_elsewhere():
    # A star has three eigenvalues: after three blocks T leads nowhere new.
    n_nodes = 700
    edges = np.stack([np.zeros(n_nodes - 1, dtype=int), np.arange(1, n_nodes)], axis=1)
    values, vectors = lowest_eigenpairs(graph_laplacian(edges, n_nodes), 60)
    np.testing.assert_allclose(values, [0] + [1] * 59, atol=1e-9)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(60), atol=1e-10)


def test_a_basis_without_room_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanczos, "ACCURACY", 0.0)
    with pytest.raises(InputError, match=r"modes had not converged in .* vectors: ask for fewer"):
        lowest_eigenpairs(matrices["plane"], 5)


def test_what_is_missed_for_good_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanczos, "MAX_WIDENINGS", 1)
    monkeypatch.setattr(lanczos, "factored", lambda matrix: (factored(matrix)[0], 10 * BLOCK))
    with pytest.raises(InputError, match="some of the 5 lowest modes were missed"):
        lowest_eigenpairs(matrices["plane"], 5)
