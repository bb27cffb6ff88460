"""Points: finite, used, and one on each place."""

from dataclasses import replace

import numpy as np
from jaxtyping import Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from gfunk.errors import InputError
from gfunk.files.mending.draft import Draft, trimmed
from gfunk.files.mending.words import counted

MERGE_SHARE = 1e-6  # of the extent: far below any edge, above the rounding of text files
MOST_TOGETHER = 100  # copies of a point, on average: a node of a soup has as many as triangles
FARTHEST = 1e30  # in any unit; from here on areas and volumes lose all sense, and then overflow
SKEW_LINE = np.array([0.60, 0.64, 0.48])  # of length 1; along an axis the points of regular meshes would coincide


def with_checked_nodes(draft: Draft) -> Draft:
    is_used = np.zeros(len(draft.points), dtype=bool)
    is_used[draft.cells] = True
    broken = np.flatnonzero(is_used & ~(np.abs(draft.points) <= FARTHEST).all(axis=1))
    if broken.size:
        cell = np.flatnonzero((draft.cells == broken[0]).any(axis=1))[0]
        raise InputError(
            f"{draft.node_place(broken[0])} of cell {draft.file_cells[cell]} has no finite place, or one beyond all measure "
            f"({counted(broken.size, 'such node')}): remove it with its cells, or export the mesh again"
        )
    return draft


def without_unused_points(draft: Draft) -> Draft:
    kept = trimmed(draft)
    n_unused = len(draft.points) - len(kept.points)
    return kept.saying(f"{counted(n_unused, 'point')} that no cell uses removed") if n_unused else draft


def with_merged_points(draft: Draft) -> Draft:
    """Points on the same place become the first of them, as in STL, where every triangle brings its own corners."""
    tolerance = MERGE_SHARE * np.ptp(draft.points, axis=0).max(initial=0)
    near = _perhaps_together(draft.points, tolerance)
    if not near.size:
        return draft
    together = _first_together(draft.points[near], tolerance)
    if together is None:
        away = np.abs(draft.points - np.median(draft.points, axis=0)).max(axis=1).argmax()
        raise InputError(f"{draft.node_place(away)} is so far from the others that most seem to coincide: remove it")
    same = np.arange(len(draft.points))
    same[near] = near[together]
    n_merged = int((same != np.arange(len(same))).sum())
    if not n_merged:
        return draft
    return trimmed(replace(draft, cells=same[draft.cells])).saying(
        f"{counted(n_merged, 'point')} of {len(same):,} merged with another on the same place"
    )


def _perhaps_together(points: np.ndarray, tolerance: float) -> Int[np.ndarray, " place"]:
    """Points with another as far along one skew line: all that may have one on their place, and in most meshes few."""
    along = points @ SKEW_LINE
    order = np.argsort(along)
    is_close = np.diff(along[order]) <= tolerance + 1e-12 * np.abs(along).max(initial=0)
    is_near = np.zeros(len(points), dtype=bool)
    is_near[order[1:][is_close]] = is_near[order[:-1][is_close]] = True
    return np.flatnonzero(is_near)


def _first_together(points: np.ndarray, tolerance: float) -> Int[np.ndarray, " place"] | None:
    """For every point the first of those that hang together with it by steps within the tolerance; None if too many do."""
    same = _first_alike(points)
    lone = np.flatnonzero(same == np.arange(len(same)))
    # Exact copies first: a soup holds six of everything, and trees of copies are slow.
    tree = KDTree(points[lone])
    # Counting them takes no memory; each point is its own neighbour, too.
    if tree.count_neighbors(tree, tolerance) > MOST_TOGETHER * len(lone):
        return None
    pairs = tree.query_pairs(tolerance, output_type="ndarray")
    if not len(pairs):
        return same
    links = coo_array((np.ones(len(pairs)), pairs.T), shape=(len(lone), len(lone)))
    label = connected_components(links, directed=False)[1]
    _, first, group = np.unique(label, return_index=True, return_inverse=True)
    return lone[first[group]][np.searchsorted(lone, same)]


def _first_alike(points: np.ndarray) -> Int[np.ndarray, " node"]:
    """For every point the first with exactly its coordinates."""
    order = np.lexsort(points.T)  # stable: of equal points the first comes first
    along = points[order]
    is_first = np.concatenate([[True], (along[1:] != along[:-1]).any(axis=1)])
    first = np.empty(len(points), dtype=np.int64)
    first[order] = order[is_first][np.cumsum(is_first) - 1]
    return first
