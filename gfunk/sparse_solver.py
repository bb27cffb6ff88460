"""Solving with one symmetric positive matrix many times."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.sparse import csc_array, csr_array, sparray
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu


def symmetric_solver(matrix: sparray) -> Callable[[Float[np.ndarray, " node"]], Float[np.ndarray, " node"]]:
    """Factor the matrix once; the function returned solves for one right-hand side."""
    # Minimum degree takes minutes on some numberings (a mesh refined once is one); after Cuthill-McKee it never did.
    order = reverse_cuthill_mckee(csr_array(matrix), symmetric_mode=True)
    factor = splu(
        csc_array(csr_array(matrix)[order][:, order]),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )

    def solve(right: Float[np.ndarray, " node"]) -> Float[np.ndarray, " node"]:
        solution = np.empty_like(right)
        solution[order] = factor.solve(right[order])
        return solution

    return solve
