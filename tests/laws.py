"""What a test may claim: orders of convergence, equal matrices, equal modes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.sparse import sparray

from gfunk.laplacian import Laplacian


def observed_orders(errors: Sequence[float], sizes: Sequence[float]) -> Float[np.ndarray, " step"]:
    """The power of the size each error follows, between one size and the next."""
    return np.diff(np.log(errors)) / np.diff(np.log(sizes))


def assert_order(errors: Sequence[float], sizes: Sequence[float], expected: float, within: float = 0.2):
    """Errors fall like size^expected: every pair of neighbouring sizes says so."""
    orders = observed_orders(errors, sizes)
    assert np.abs(orders - expected).max() <= within, f"orders {orders}, not {expected}: errors {errors} at sizes {sizes}"


def assert_same_matrix(got: sparray, expected: sparray, tolerance: float):
    """No entry differs by more than `tolerance` of the largest."""
    gap, scale = abs(got - expected).max(), abs(expected).max()
    assert gap <= tolerance * scale, f"entries differ by {gap / scale:.2e} of the largest"


def assert_same_laplacian(got: Laplacian, expected: Laplacian, tolerance: float):
    assert_same_matrix(got.stiffness, expected.stiffness, tolerance)
    assert_same_matrix(got.mass, expected.mass, tolerance)


def assert_is_laplacian(laplacian: Laplacian):
    """S is symmetric to the last bit, has rows that sum to 0 and no negative eigenvalue; M is symmetric and positive."""
    stiffness, mass = laplacian.stiffness, laplacian.mass
    assert (stiffness != stiffness.T).nnz == 0
    assert (mass != mass.T).nnz == 0
    assert np.abs(stiffness.sum(axis=1)).max() <= 1e-13 * abs(stiffness).max() * np.diff(stiffness.indptr).max()
    assert np.linalg.eigvalsh(stiffness.toarray())[0] >= -1e-12 * abs(stiffness).max()
    assert np.linalg.eigvalsh(mass.toarray())[0] > 0


def relative_gap(got: np.ndarray, expected: np.ndarray) -> float:
    """Euclidean size of the difference, relative to what was expected."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
