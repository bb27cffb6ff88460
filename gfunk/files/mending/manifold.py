"""A surface that meets itself nowhere: two triangles at every edge, or one, and one fan at every node."""

from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from gfunk.errors import InputError
from gfunk.files.mending.draft import Draft, with_cells, with_points
from gfunk.files.mending.words import counted, percent
from gfunk.surface import Sides, corner_fans, sides_of

LARGEST_FLAP_SHARE = 0.05  # of the area: what may be cut off at an edge of three triangles without asking
LARGEST_SEAM_SHARE = 0.005  # of the area: triangles at edges where walls touch, with no flap to blame
BOW_TIE_PULL = 0.1  # how far a split node is drawn towards the middle of its triangles


def manifold(draft: Draft) -> Draft:
    """Two triangles at every edge, or one, and one fan at every node."""
    sides = sides_of(draft.cells)
    if (sides.n_triangles > 2).any():
        draft = _without_crowded_edges(draft, sides)
        sides = sides_of(draft.cells)
    return _without_bow_ties(draft, sides)


def _without_crowded_edges(draft: Draft, sides: Sides) -> Draft:
    """Where three or more triangles meet at an edge: small flaps come off, and small seams between sheets are unpicked."""
    is_flap, n_flaps, is_crowded = _flaps(draft, sides)
    area = draft.sizes()
    if n_flaps:
        n_edges = (sides.n_triangles > 2).sum() - is_crowded.sum()
        draft = draft.saying(
            f"{counted(is_flap.sum(), 'triangle')} in {counted(n_flaps, 'flap')} "
            f"({percent(area[is_flap].sum() / area.sum())} of the area) removed at {counted(n_edges, 'edge')} "
            "of three or more triangles"
        )
    if not is_crowded.any():
        return with_cells(draft, ~is_flap)
    is_seam = is_crowded[sides.edge].reshape(-1, 3).any(axis=1) & ~is_flap
    is_kept = ~is_flap & ~is_seam
    lost = area[is_seam].sum() / area.sum()
    # The body must outlive it: else these are no spots where walls touch, but large sheets that end on each other.
    before, after = _largest_share(draft, ~is_flap), _largest_share(draft, is_kept)
    if lost > LARGEST_SEAM_SHARE or after < before - lost - LARGEST_FLAP_SHARE:
        edge = int(np.flatnonzero(is_crowded)[0])
        tail, head = sides.edges[edge]
        raise InputError(
            f"the edge from {draft.node_place(tail)} to {draft.node_place(head)} belongs to {sides.n_triangles[edge]} "
            f"triangles, and no small flap ends there ({counted(is_crowded.sum(), 'such edge')}): separate the sheets first"
        )
    return with_cells(draft, is_kept).saying(
        f"{counted(is_seam.sum(), 'triangle')} ({percent(lost)} of the area) removed where walls touch, "
        f"at {counted(is_crowded.sum(), 'edge')} of three or more triangles"
    )


def _flaps(draft: Draft, sides: Sides) -> tuple[np.ndarray, int, np.ndarray]:
    """Cells in the smallest pieces that end on crowded edges, how many pieces, and which edges stay crowded without them."""
    piece = _pieces(sides, len(draft.cells))
    area = np.bincount(piece, draft.sizes())
    is_small = area < LARGEST_FLAP_SHARE * area.sum()
    # A row for every side that lies on a crowded edge.
    row = np.flatnonzero(sides.n_triangles[sides.edge] > 2)
    row_edge, row_piece = sides.edge[row], piece[row // 3]
    n_left = sides.n_triangles.copy()
    is_flap = np.zeros(len(area), dtype=bool)
    by_piece = np.argsort(row_piece, kind="stable")
    pieces, first = np.unique(row_piece[by_piece], return_index=True)
    edges_of = np.split(row_edge[by_piece], first[1:])
    # From the smallest on: one without a crowded edge when its turn comes will have none later.
    for place in np.argsort(area[pieces], kind="stable").tolist():
        edges = edges_of[place]
        if is_small[pieces[place]] and (n_left[edges] > 2).any():
            is_flap[pieces[place]] = True
            np.subtract.at(n_left, edges, 1)
    return is_flap[piece], int(is_flap.sum()), n_left > 2


def _pieces(sides: Sides, n_cells: int) -> np.ndarray:
    """For every triangle the number of its piece, all crowded edges cut."""
    one, other = sides.meeting()
    is_plain = sides.n_triangles[sides.edge[one]] == 2
    links = coo_array((np.ones(is_plain.sum()), (one[is_plain] // 3, other[is_plain] // 3)), shape=(n_cells, n_cells))
    return connected_components(links, directed=False)[1]


def _largest_share(draft: Draft, is_kept: np.ndarray) -> float:
    """The largest part's share of the whole area when only these triangles are left; parts hang together by edges."""
    area = draft.sizes()
    sides = sides_of(draft.cells[is_kept])
    one, other = sides.meeting()
    links = coo_array((np.ones(len(one)), (one // 3, other // 3)), shape=(is_kept.sum(),) * 2)
    part = connected_components(links, directed=False)[1]
    return float(np.bincount(part, area[is_kept]).max(initial=0) / area.sum())


def _without_bow_ties(draft: Draft, sides: Sides) -> Draft:
    """A node where the surface only touches itself becomes one node for every fan of triangles; the largest keeps it."""
    fan, n_fans = corner_fans(draft.cells, sides)
    if n_fans == len(draft.points):
        return draft
    node = np.zeros(n_fans, dtype=np.int64)
    node[fan.ravel()] = draft.cells.ravel()
    order = np.lexsort([np.arange(n_fans), -np.bincount(fan.ravel()), node])
    is_extra = np.concatenate([[False], node[order[1:]] == node[order[:-1]]])
    place = np.empty(n_fans, dtype=np.int64)
    place[order] = np.where(is_extra, len(draft.points) + np.cumsum(is_extra) - 1, node[order])
    copied = node[order[is_extra]]
    grown = with_points(draft, np.concatenate([np.arange(len(draft.points)), copied]))
    # Two nodes on one place would be merged again by the next reader, and graphs of near points would join them.
    middle = draft.points[draft.cells].mean(axis=1)
    sums = [np.bincount(fan.ravel(), np.repeat(column, 3), minlength=n_fans) for column in middle.T]
    centre = (np.stack(sums, axis=1) / np.bincount(fan.ravel())[:, None])[order[is_extra]]
    points = grown.points.copy()
    points[len(draft.points) :] += BOW_TIE_PULL * (centre - points[len(draft.points) :])
    n_nodes = len(np.unique(copied))
    return replace(grown, points=points, cells=place[fan]).saying(
        f"{counted(n_nodes, 'node')} where the surface touches itself in a point only, split into "
        f"{n_nodes + len(copied):,}, the new drawn {percent(BOW_TIE_PULL)} of the way into their triangles"
    )
