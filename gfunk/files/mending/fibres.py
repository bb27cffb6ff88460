"""Fibres under the many names tools give them: unit vectors per cell, in the surface, without gaps."""

import numpy as np
from jaxtyping import Float
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import dijkstra

from gfunk.files.mending.draft import Draft
from gfunk.files.mending.words import counted, percent
from gfunk.surface import main_tangents, triangle_normals

# In this order; meshtool, AugmentA, Roney, FiberNet, openep, lifeX, pyansys and our openCARP reader.
FIBRE_NAMES = ("fibre", "fibres", "fiber", "fibers", "longitudinal_fibres", "f0", "e_l", "lon")
N_SMOOTHINGS = 20  # of fibres in gaps: blends the neighbourhoods of different known cells
CROOKED = 0.3  # mean |f.n| from which fibres and surface can hardly belong together; chance is 0.5


def fibres_of(draft: Draft) -> tuple[Float[np.ndarray, "cell 3"] | None, Draft]:
    """Unit fibres per cell, in the plane of the triangle on surfaces, from the first array with a fibre's name."""
    found = _fibre_array(draft)
    if found is None:
        return None, draft
    site, name, vectors = found
    largest = np.abs(vectors).max(axis=1)
    is_given = np.isfinite(largest) & (largest > 0)
    # In two steps, as the squares of any finite numbers may not be.
    unit = np.where(is_given[:, None], vectors, [1, 0, 0]) / np.where(is_given, largest, 1)[:, None]
    unit *= is_given[:, None] / np.linalg.norm(unit, axis=1, keepdims=True)
    at_cells = draft.cells if site == "point" else np.arange(len(draft.cells))[:, None]
    vectors = unit[at_cells]
    said = f"fibres from the {site} data '{name}', {percent(1 - is_given.mean())} of them zero or NaN"
    normals = triangle_normals(draft.points, draft.cells) if draft.is_surface else None
    if normals is not None:
        lean = np.einsum("nci,ni->nc", vectors, normals)
        vectors = vectors - lean[:, :, None] * normals[:, None]
        steep = np.abs(lean[is_given[at_cells]])
        slope = float(steep.mean()) if steep.size else 0.0
        said += f", mean |f.n| {slope:.3f}: laid into the surface and normalised"
        if slope > CROOKED:
            said += "; so steep that fibres and points may be in different frames"
    draft = draft.saying(said)
    # f f^T, never f: f and -f are the same fibre.
    tensors = np.einsum("nci,ncj->nij", vectors, vectors)
    # A fibre along the normal has no direction in the surface.
    is_known = np.trace(tensors, axis1=1, axis2=2) > 0.01
    if (~is_known).mean() > 0.5:
        return None, draft.saying(f"fibres discarded, as {percent((~is_known).mean())} of the cells have none")
    filled, n_lost = _with_gaps_filled(tensors, is_known, draft)
    if n_lost:
        return None, draft.saying(
            f"fibres discarded, as {counted(n_lost, 'cell')} without one hang together with none that has"
        )
    if not is_known.all():
        draft = draft.saying(f"{counted((~is_known).sum(), 'cell')} without a fibre took the direction of their neighbours")
    fibres = main_tangents(filled, normals) if normals is not None else np.linalg.eigh(filled)[1][..., -1]
    return _signed_as(fibres, unit[at_cells[:, 0]]), draft


def _fibre_array(draft: Draft) -> tuple[str, str, Float[np.ndarray, "site 3"]] | None:
    for known in FIBRE_NAMES:
        for site, data in (("cell", draft.cell_data), ("point", draft.point_data)):
            for name, values in data.items():
                # Six columns are fibre and sheet.
                if name.lower() == known and values.ndim == 2 and values.shape[1] in (3, 6):
                    return site, name, np.asarray(values[:, :3], dtype=np.float64)
    return None


def _laid_flat(tensors: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """P T P with P = I - n n^T."""
    flat = np.eye(3) - normals[:, :, None] * normals[:, None, :]
    return flat @ tensors @ flat


def _signed_as(fibres: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Each fibre on the side of the one given: the sign says nothing, but pictures and rivals see it."""
    return np.where(np.einsum("ni,ni->n", fibres, given)[:, None] < 0, -fibres, fibres)


def _with_gaps_filled(tensors: np.ndarray, is_known: np.ndarray, draft: Draft) -> tuple[np.ndarray, int]:
    """Unknown tensors from the nearest known cell over the mesh, then smoothed; and how many none could reach."""
    if is_known.all():
        return tensors, 0
    n_cells, n_corners = draft.cells.shape
    row = np.repeat(np.arange(n_cells), n_corners)
    touches = csr_array((np.ones(row.size), (row, draft.cells.ravel())), shape=(n_cells, len(draft.points)))
    # Only the gaps and the cells about them take part.
    near = np.flatnonzero(touches @ (touches.T @ (~is_known).astype(float)) > 0)
    local = touches[near]
    is_gap = ~is_known[near]
    # From cell to corner to cell: one graph for triangles and tetrahedra.
    links = block_array([[None, local], [local.T, None]], format="csr")
    away, _, source = dijkstra(
        links, indices=np.flatnonzero(~is_gap), min_only=True, unweighted=True, return_predecessors=True
    )
    n_lost = int(np.isinf(away[: len(near)]).sum()) if (~is_gap).any() else len(near)
    if n_lost:
        return tensors, n_lost
    flat = tensors[near[source[: len(near)]]].reshape(-1, 9)
    into_gap = local[np.flatnonzero(is_gap)]
    to_nodes = csr_array(local.T / local.sum(axis=0).clip(1)[:, None])
    for _ in range(N_SMOOTHINGS):
        flat[is_gap] = into_gap @ (to_nodes @ flat) / n_corners
    filled = tensors.copy()
    gap = near[is_gap]
    filled[gap] = flat[is_gap].reshape(-1, 3, 3)
    if draft.is_surface:
        filled[gap] = _laid_flat(filled[gap], triangle_normals(draft.points, draft.cells[gap]))
    return filled, 0
