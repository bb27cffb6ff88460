import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfunk.small_matrices import are_positive, inverses

seeds = st.integers(0, 2**32 - 1)
each_size = pytest.mark.parametrize("n_rows", [2, 3])


def symmetric(eigenvalues: np.ndarray, seed: int) -> np.ndarray:
    """Matrices of these eigenvalues, a row each, in random directions."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(*eigenvalues.shape, eigenvalues.shape[1])))[0]
    found = (axes * eigenvalues[:, None, :]) @ axes.swapaxes(1, 2)
    return (found + found.swapaxes(1, 2)) / 2


@each_size
@given(seed=seeds, condition=st.floats(0, 6), scale=st.floats(-100, 100))
def test_a_matrix_times_its_inverse_is_one_but_for_rounding(n_rows: int, seed: int, condition: float, scale: float):
    eigenvalues = 10 ** (scale + np.random.default_rng(seed).uniform(-condition, 0, (20, n_rows)))
    matrices = symmetric(eigenvalues, seed)
    found = inverses(matrices)
    np.testing.assert_array_equal(found, found.swapaxes(1, 2))
    np.testing.assert_allclose(
        matrices @ found, np.tile(np.eye(n_rows), (20, 1, 1)), atol=1e-15 * 100 * 10 ** (2 * condition)
    )


@each_size
@given(seed=seeds, condition=st.floats(0, 8))
def test_a_matrix_is_positive_where_all_its_eigenvalues_are(n_rows: int, seed: int, condition: float):
    rng = np.random.default_rng(seed)
    eigenvalues = 10 ** rng.uniform(-condition, 0, (50, n_rows))
    signs = rng.choice([-1.0, 1.0], size=(50, n_rows), p=[0.3, 0.7])
    found = are_positive(symmetric(signs * eigenvalues, seed))
    np.testing.assert_array_equal(found, (signs > 0).all(axis=1))


def test_singular_and_zero_matrices_are_not_positive():
    assert not are_positive(np.array([[[0.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])).any()
    assert not are_positive(np.array([np.zeros((3, 3)), np.ones((3, 3)), np.diag([1.0, 0.0, 1.0])])).any()
