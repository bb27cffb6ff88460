"""Solving with one symmetric matrix many times."""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csc_array, csr_array, sparray
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu

Solve = Callable[[np.ndarray], np.ndarray]  # one right-hand side (node), or several side by side (node, side)


def symmetric_solver(matrix: sparray) -> Solve:
    """Factor the matrix once; the function returned solves."""
    return factored(matrix)[0]


def factored(matrix: sparray) -> tuple[Solve, int]:
    """What solves with the matrix, and how many of its eigenvalues are negative.

    Pivots stay on the diagonal, so there are as many negative ones as negative eigenvalues (Sylvester).
    """
    # Minimum degree takes minutes on some numberings (a mesh refined once is one); after Cuthill-McKee it never did.
    order = reverse_cuthill_mckee(csr_array(matrix), symmetric_mode=True)
    factor = splu(
        csc_array(csr_array(matrix)[order][:, order]),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )

    def solve(right: np.ndarray) -> np.ndarray:
        solution = np.empty_like(right)
        solution[order] = factor.solve(right[order])
        return solution

    return solve, int((factor.U.diagonal() < 0).sum())
