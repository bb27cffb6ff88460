"""Symmetric matrices of two or three rows, very many at once: written out, as a library takes several times as long."""

import numpy as np
from jaxtyping import Bool, Float


def inverses(matrices: Float[np.ndarray, "site row row"]) -> Float[np.ndarray, "site row row"]:
    """By cofactors; of positive matrices."""
    n_rows = matrices.shape[-1]
    found = np.empty(matrices.shape)
    if n_rows == 2:
        (a, b), (_, d) = _entries(matrices)
        determinant = a * d - b * b
        cofactors = [(0, 0, d), (0, 1, -b), (1, 1, a)]
    else:
        (a, b, c), (_, d, e), (_, _, f) = _entries(matrices)
        first, second, third = d * f - e * e, c * e - b * f, b * e - c * d
        determinant = a * first + b * second + c * third
        cofactors = [
            (0, 0, first), (0, 1, second), (0, 2, third),
            (1, 1, a * f - c * c), (1, 2, b * c - a * e), (2, 2, a * d - b * b),
        ]  # fmt: skip
    for row, column, cofactor in cofactors:
        found[:, row, column] = found[:, column, row] = cofactor / determinant
    return found


def are_positive(matrices: Float[np.ndarray, "site row row"]) -> Bool[np.ndarray, " site"]:
    """Whether all eigenvalues are, by the pivots of elimination: as many of these are positive (Sylvester)."""
    entries = _entries(matrices)
    positive = np.ones(len(matrices), dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        while entries:
            (pivot, *beside), *below = entries
            positive &= pivot > 0
            entries = [
                [entry - beside[row] * beside[column] / pivot for column, entry in enumerate(entries_below[1:])]
                for row, entries_below in enumerate(below)
            ]
    return positive


def _entries(matrices: Float[np.ndarray, "site row row"]) -> list[list[Float[np.ndarray, " site"]]]:
    # Each for all sites next to each other.
    return [list(row) for row in np.ascontiguousarray(matrices.transpose(1, 2, 0))]
