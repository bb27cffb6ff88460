"""Cells one by one: none collapsed, given twice, flat or inside out."""

from dataclasses import replace
from itertools import combinations

import numpy as np

from gfunk.files.mending.draft import Draft, rows_of, tetra_volumes, with_cells
from gfunk.files.mending.words import counted
from gfunk.surface import sides_of

# Flatter than this (area over longest edge squared, volume over its cube) the later sums lose all digits.
FLAT = {3: 1e-6, 4: 1e-7}
MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], dtype=np.uint64)


def without_collapsed_cells(draft: Draft) -> Draft:
    ordered = np.sort(draft.cells, axis=1)
    is_sound = (ordered[:, 1:] != ordered[:, :-1]).all(axis=1)
    if is_sound.all():
        return draft
    return with_cells(draft, is_sound).saying(f"{counted((~is_sound).sum(), draft.kind)} with a corner named twice removed")


def without_repeated_cells(draft: Draft) -> Draft:
    ordered = np.sort(draft.cells, axis=1)
    # One number a cell, the same for the same corners: where all differ, no cell is a repeat, and sorting rows is slow.
    mixed = np.sort(ordered.astype(np.uint64) @ MIX[: ordered.shape[1]])
    if (mixed[1:] != mixed[:-1]).all():
        return draft
    order = np.lexsort(ordered.T)
    is_repeat = np.zeros(len(ordered), dtype=bool)
    is_repeat[order[1:]] = (ordered[order[1:]] == ordered[order[:-1]]).all(axis=1)
    if not is_repeat.any():
        return draft
    return with_cells(draft, ~is_repeat).saying(f"{counted(is_repeat.sum(), draft.kind)} given more than once, kept once")


def without_flat_triangles(draft: Draft) -> Draft:
    """Triangles without area taken out so that no crack opens: the neighbour at the long edge is cut at the middle node."""
    n_cut, n_removed = 0, 0
    for _ in range(10):  # a cut may leave another flat one; endless chains are not worth more rounds
        flat = np.flatnonzero(_is_flat(draft))
        if not flat.size:
            break
        draft, n_done = _with_flat_ones_cut(draft, flat)
        if not n_done:
            draft, n_removed = with_cells(draft, ~_is_flat(draft)), n_removed + len(flat)
        n_cut += n_done
    if n_cut:
        draft = draft.saying(f"{counted(n_cut, 'triangle')} without area removed, the neighbour cut to fit")
    return draft.saying(f"{counted(n_removed, 'triangle')} without area removed") if n_removed else draft


def _with_flat_ones_cut(draft: Draft, flat: np.ndarray) -> tuple[Draft, int]:
    sides = sides_of(draft.cells)
    lengths = np.linalg.norm(draft.points[sides.nodes[:, 1]] - draft.points[sides.nodes[:, 0]], axis=1).reshape(-1, 3)
    by_edge: dict[int, list[int]] = {}
    near = np.isin(sides.edge, sides.edge.reshape(-1, 3)[flat])
    for side in np.flatnonzero(near).tolist():
        by_edge.setdefault(int(sides.edge[side]), []).append(side)
    known = set(map(tuple, sides.edges[np.isin(sides.edges, draft.cells[flat]).any(axis=1)].tolist()))
    cells, source, busy = draft.cells.copy(), np.arange(len(draft.cells)), set()
    for cell in flat.tolist():
        side = 3 * cell + int(lengths[cell].argmax())
        others = [s for s in by_edge[int(sides.edge[side])] if s != side]
        if len(others) != 1 or {cell, others[0] // 3} & busy:
            continue
        tail, head = sides.nodes[side].tolist()
        neighbour = others[0] // 3
        middle = int(draft.cells[cell].sum()) - tail - head
        apex = int(draft.cells[neighbour].sum()) - tail - head
        if middle == apex or (min(middle, apex), max(middle, apex)) in known:
            continue
        # The neighbour's two halves wind as it did.
        whole = draft.cells[neighbour]
        cells[neighbour] = np.where(whole == tail, middle, whole)
        cells[cell] = np.where(whole == head, middle, whole)
        source[cell] = neighbour
        busy |= {cell, neighbour}
        known.add((min(middle, apex), max(middle, apex)))
    cut = replace(draft, cells=cells, cell_data=rows_of(draft.cell_data, source), file_cells=draft.file_cells[source])
    return cut, len(busy) // 2


def without_flat_tetrahedra(draft: Draft) -> Draft:
    is_flat = _is_flat(draft)
    if not is_flat.any():
        return draft
    return with_cells(draft, ~is_flat).saying(f"{counted(is_flat.sum(), 'tetrahedron')} without volume removed")


def _is_flat(draft: Draft) -> np.ndarray:
    # By columns: several times as fast as norms of rows.
    corners = [draft.points[corner].T for corner in draft.cells.T]
    squares = [((one - other) ** 2).sum(axis=0) for one, other in combinations(corners, 2)]
    n_corners = len(corners)
    return ~(draft.sizes() > FLAT[n_corners] * np.max(squares, axis=0) ** ((n_corners - 1) / 2))


def with_positive_volumes(draft: Draft) -> Draft:
    is_turned = tetra_volumes(draft.points, draft.cells) < 0
    if not is_turned.any():
        return draft
    cells = np.where(is_turned[:, None], draft.cells[:, [0, 1, 3, 2]], draft.cells)
    return replace(draft, cells=cells).saying(f"{counted(is_turned.sum(), 'tetrahedron')} of negative volume turned")
