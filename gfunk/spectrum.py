"""The lowest modes of a Laplacian: S psi = lambda M psi."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from threadpoolctl import threadpool_limits

from gfunk.errors import InputError
from gfunk.lanczos import lowest_eigenpairs
from gfunk.laplacian import Laplacian

# Part of every cache key: raise it when the same input would give other modes.
SPECTRUM_VERSION = 3

SMALL = 500  # up to so many nodes all modes are found, in as little time


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Eigenvalues in rising order from 0, and their modes: M-orthonormal, signs fixed."""

    eigenvalues: Float[np.ndarray, " mode"]
    eigenvectors: Float[np.ndarray, "node mode"]


def lowest_modes(laplacian: Laplacian, n_modes: int, *, tolerance: float = 1e-6) -> Spectrum:
    """The n_modes lowest modes, found by block Lanczos, counted, and checked by their residuals."""
    check_connected(laplacian)
    if not 1 <= n_modes < laplacian.n_nodes:
        raise InputError(
            f"{n_modes} modes can't be had from {laplacian.n_nodes} nodes: ask for 1 to {laplacian.n_nodes - 1}"
        )
    # More BLAS threads than idle cores wait for each other: twenty times slower was seen.
    with threadpool_limits(1):
        if laplacian.n_nodes <= SMALL or n_modes > laplacian.n_nodes // 4:
            values, vectors = eigh(laplacian.stiffness.toarray(), laplacian.mass.toarray(), subset_by_index=(0, n_modes - 1))
        else:
            values, vectors = lowest_eigenpairs(laplacian, n_modes)
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
    size = np.abs(vectors)
    cubed = vectors * vectors * vectors  # as a power it takes four times as long
    lean, leaning = mass @ cubed, mass @ np.abs(cubed)
    nearly_largest = size > 0.999 * size.max(axis=0)
    first = vectors[nearly_largest.argmax(axis=0), np.arange(vectors.shape[1])]
    side = np.where(np.abs(lean) > 1e-6 * leaning, lean, first)
    return vectors * np.where(side < 0, -1.0, 1.0)
