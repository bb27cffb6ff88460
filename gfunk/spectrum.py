"""The lowest modes of a Laplacian: S psi = lambda M psi."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from threadpoolctl import threadpool_limits

from gfunk.errors import InputError
from gfunk.laplacian import Laplacian
from gfunk.sparse_solver import symmetric_solver

# Part of every cache key: raise it when the same input would give other modes.
SPECTRUM_VERSION = 2


MORE_MODES = 4  # to look for at a time where some were missed


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Eigenvalues in rising order from 0, and their modes: M-orthonormal, signs fixed."""

    eigenvalues: Float[np.ndarray, " mode"]
    eigenvectors: Float[np.ndarray, "node mode"]


def lowest_modes(laplacian: Laplacian, n_modes: int, *, tolerance: float = 1e-6) -> Spectrum:
    """The n_modes lowest modes, found by shift-invert Lanczos and checked by their residuals."""
    check_connected(laplacian)
    if not 1 <= n_modes < laplacian.n_nodes:
        raise InputError(
            f"{n_modes} modes can't be had from {laplacian.n_nodes} nodes: ask for 1 to {laplacian.n_nodes - 1}"
        )
    if laplacian.n_nodes <= 300 or n_modes > laplacian.n_nodes // 3:
        values, vectors = eigh(laplacian.stiffness.toarray(), laplacian.mass.toarray(), subset_by_index=(0, n_modes - 1))
    else:
        values, vectors = _lanczos(laplacian, n_modes)
    _check_residuals(laplacian, values, vectors, tolerance)
    return Spectrum(eigenvalues=np.maximum(values, 0), eigenvectors=_with_fixed_signs(vectors, laplacian.lumped_mass()))


def check_connected(laplacian: Laplacian):
    """Refuse isolated nodes and domains in several pieces: each piece would add another zero eigenvalue."""
    pattern = csr_array(laplacian.stiffness, copy=True)
    pattern.data = np.ones_like(pattern.data)
    n_parts, part = connected_components(pattern, directed=False)
    if n_parts == 1:
        return
    size = np.bincount(part)
    smallest = int(size.argmin())
    node = int(np.flatnonzero(part == smallest)[0])
    if size[smallest] == 1:
        raise InputError(f"node {node} is isolated: no cell or edge joins it to another node")
    raise InputError(
        f"the domain falls into {n_parts} pieces; node {node} lies in one of {size[smallest]} of {len(part)} nodes: "
        "keep one piece, or raise n_neighbors if it is a cloud"
    )


def _lanczos(laplacian: Laplacian, n_modes: int) -> tuple[np.ndarray, np.ndarray]:
    stiffness, mass = csc_array(laplacian.stiffness), csc_array(laplacian.mass)
    # Shift just below zero: S is singular (constants), so it can't be factored itself.
    shift = 1e-6 * stiffness.diagonal().sum() / mass.diagonal().sum()
    inverse = LinearOperator(stiffness.shape, matvec=symmetric_solver(stiffness + shift * mass), dtype=np.float64)  # pyright: ignore
    # A fixed start makes two calls agree; a random one would give other signs each time.
    rng = np.random.default_rng(0)

    def lowest(n: int, found: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
        """The lowest modes M-orthogonal to those found."""

        def rest(x: np.ndarray) -> np.ndarray:
            return x - found @ (found.T @ (mass @ x))

        solve = LinearOperator(stiffness.shape, matvec=lambda x: rest(inverse.matvec(x)), dtype=np.float64)  # pyright: ignore
        start = rest(rng.standard_normal(laplacian.n_nodes))
        values, vectors = eigsh(stiffness, n, M=mass, sigma=-shift, OPinv=solve, v0=start, tol=tolerance)  # pyright: ignore
        return values, vectors

    try:
        # More BLAS threads than idle cores wait for each other: twenty times slower was seen.
        with threadpool_limits(1):
            values, vectors = lowest(n_modes, np.empty((laplacian.n_nodes, 0)), 0.0)
            # Of equal eigenvalues, as on a sphere, Lanczos sees but one, others by rounding alone: it may have missed some.
            while lowest(1, vectors, 1e-3)[0][0] < 0.999 * values.max():
                more = lowest(MORE_MODES, vectors, 0.0)
                values, vectors = np.concatenate([values, more[0]]), np.concatenate([vectors, more[1]], axis=1)
                kept = np.argsort(values)[:n_modes]
                values, vectors = values[kept], vectors[:, kept]
    except ArpackNoConvergence as error:
        raise InputError(
            f"only {len(error.eigenvalues)} of {n_modes} modes converged: ask for fewer, or look for very thin cells"
        ) from error
    order = np.argsort(values)
    return values[order], vectors[:, order]


def _check_residuals(laplacian: Laplacian, values: np.ndarray, vectors: np.ndarray, tolerance: float):
    weighted = laplacian.mass @ vectors
    residual = np.linalg.norm(laplacian.stiffness @ vectors - weighted * values, axis=0)
    scale = max(abs(values[-1]), np.finfo(float).tiny) * np.linalg.norm(weighted, axis=0)
    worst = int(np.argmax(residual / scale))
    if len(values) > 1 and not residual[worst] <= tolerance * scale[worst]:
        raise InputError(
            f"mode {worst} is inaccurate (relative residual {residual[worst] / scale[worst]:.1e}): "
            "the mesh or K spans too many orders of magnitude"
        )


def _with_fixed_signs(
    vectors: Float[np.ndarray, "node mode"], mass: Float[np.ndarray, " node"]
) -> Float[np.ndarray, "node mode"]:
    """Each mode leans to its positive side: sum of m psi^3 > 0, whatever the order of the nodes.

    A mode as much up as down has no such side; its first entry of nearly the largest size is made positive instead.
    """
    lean = mass @ vectors**3
    size = mass @ np.abs(vectors) ** 3
    nearly_largest = np.abs(vectors) > 0.999 * np.abs(vectors).max(axis=0)
    first = vectors[nearly_largest.argmax(axis=0), np.arange(vectors.shape[1])]
    side = np.where(np.abs(lean) > 1e-6 * size, lean, first)
    return vectors * np.where(side < 0, -1.0, 1.0)
