"""Edges brought to about one length: longer ones cut, shorter ones closed."""

import numpy as np
from jaxtyping import Int

from gfunk.nearest import Cells, Points
from gfunk.sides_and_rims import Along, Mask, Pairs, Rims, ahead, are_turned, mask, rim_edges
from gfunk.surface import area_vectors, distances, opposite_sides, side_lengths


def long_edges_cut(points: Points, along: Along, cells: Cells, rims: Rims, longest: float) -> tuple[Points, Along, Cells]:
    """Each longer edge gets a node in its middle, until none is."""
    while True:
        is_long = side_lengths(points, cells).ravel() > longest
        if not is_long.any():
            return points, along, cells
        opposite, node = opposite_sides(cells), cells.ravel()
        cut = np.flatnonzero(is_long & (np.arange(len(node)) > opposite))
        # One more place at the end, for the sides that rims lack.
        middle = np.full(len(node) + 1, -1)
        middle[cut] = middle[opposite[cut]] = len(points) + np.arange(len(cut))
        tail, head, is_rim = node[cut], node[ahead(cut)], opposite[cut] < 0
        place, place_along = (points[tail] + points[head]) / 2, np.full(len(cut), -1.0)
        place_along[is_rim] = rims.between(along[tail[is_rim]], along[head[is_rim]])
        points, along = np.concatenate([points, place]), np.concatenate([along, place_along])
        cells = _with_middles(points, cells, middle[:-1].reshape(-1, 3))


def _with_middles(points: Points, cells: Cells, middles: Int[np.ndarray, "cell 3"]) -> Cells:
    """Triangles cut at the nodes in the middle of their edges (-1 where an edge has none)."""
    n_cuts = (middles >= 0).sum(axis=1)
    whole = cells[n_cuts == 0]
    cells, middles, n_cuts = (each[n_cuts > 0] for each in (cells, middles, n_cuts))
    # Turned so that one cut is on the first side, and of two cuts the whole side is the last.
    start = np.where(n_cuts == 2, (middles < 0).argmax(axis=1) + 1, (middles >= 0).argmax(axis=1)) % 3
    turn = (start[:, None] + np.arange(3)) % 3
    a, b, c = np.take_along_axis(cells, turn, 1).T
    ab, bc, ca = np.take_along_axis(middles, turn, 1).T
    one, two, three = n_cuts == 1, n_cuts == 2, n_cuts == 3
    # The quadrangle a, ab, bc, c is cut along its shorter diagonal.
    is_first = distances(points, np.stack([a, bc], 1)) < distances(points, np.stack([ab, c], 1))
    parts = (
        (one, (a, ab, c)),
        (one, (ab, b, c)),
        (two, (ab, b, bc)),
        (two & is_first, (a, ab, bc)),
        (two & is_first, (a, bc, c)),
        (two & ~is_first, (a, ab, c)),
        (two & ~is_first, (ab, bc, c)),
        (three, (a, ab, ca)),
        (three, (ab, b, bc)),
        (three, (ca, bc, c)),
        (three, (ab, bc, ca)),
    )
    return np.concatenate([whole, *(np.stack(part, 1)[is_cut] for is_cut, part in parts)])


def short_edges_closed(
    points: Points, along: Along, cells: Cells, rims: Rims, shortest: float, longest: float
) -> tuple[Points, Along, Cells]:
    """Each shorter edge becomes a node, where neither the topology nor a normal suffers and no edge grows too long."""
    points, along, n_nodes = points.copy(), along.copy(), len(points)
    rim = rim_edges(cells, opposite_sides(cells))
    edges = _edges(cells, rim)
    waiting = edges[distances(points, edges) < shortest]
    # In random order: by length, long chains of edges would wait for one another.
    rng = np.random.default_rng(0)
    while len(waiting):
        waiting = rng.permutation(waiting)
        near_cells = cells[_touched(mask(n_nodes, waiting), cells)]
        is_chosen = _far_apart(near_cells, waiting, n_nodes)
        closed, place, place_along = _closable(points, along, near_cells, edges, rim, waiting[is_chosen], rims, longest)
        kept, gone = closed.T
        points[kept], along[kept] = place, place_along
        target = np.arange(n_nodes)
        target[gone] = kept
        cells, rim = target.take(cells), target.take(rim)
        a, b, c = cells.T
        cells, rim = cells[(a != b) & (b != c) & (c != a)], rim[rim[:, 0] != rim[:, 1]]
        edges = _edges(cells, rim)
        # Next come those that still wait, and the short ones about what moved.
        is_moved = mask(n_nodes, closed)
        about = edges[_touched(is_moved, edges)]
        waiting = waiting[~is_chosen & ~_touched(is_moved, waiting)]
        waiting = np.concatenate([waiting, about[distances(points, about) < shortest]])
    is_used = mask(n_nodes, cells)
    return points[is_used], along[is_used], (np.cumsum(is_used) - 1).take(cells)


def _far_apart(cells: Cells, waiting: Pairs, n_nodes: int) -> Mask:
    """As many pairs as can be, the first first, such that no triangle touches two (a maximal independent set, Luby 1986)."""
    is_chosen = np.zeros(len(waiting), dtype=bool)
    is_near = np.zeros(n_nodes, dtype=bool)
    free, nobody = np.arange(len(waiting)), len(waiting)
    while len(free):
        first = np.full(n_nodes, nobody)
        np.minimum.at(first, waiting[free].ravel(), np.repeat(free, 2))
        at = [first.take(corner) for corner in cells.T]
        lowest = np.minimum(np.minimum(*at[:2]), at[2])
        wins = np.zeros(nobody + 1, dtype=bool)
        wins[free] = (first.take(waiting[free, 0]) == free) & (first.take(waiting[free, 1]) == free)
        for corner in at:
            wins[corner[corner > lowest]] = False
        is_chosen |= wins[:-1]
        won = mask(n_nodes, waiting[wins[:-1]])
        is_near |= won  # what is won may have lost all its triangles
        is_near[cells[_touched(won, cells)]] = True
        free = free[~_touched(is_near, waiting[free])]
    return is_chosen


def _closable(
    points: Points, along: Along, cells: Cells, edges: Pairs, rim: Pairs, pairs: Pairs, rims: Rims, longest: float
) -> tuple[Pairs, Points, Along]:
    """Those of the pairs that can become one node, and where."""
    n_nodes = len(points)
    is_walked, is_walked_back = (np.isin(ends @ [n_nodes, 1], rim @ [n_nodes, 1]) for ends in (pairs, pairs[:, ::-1]))
    is_rim = is_walked | is_walked_back
    pairs = np.where(is_walked_back[:, None], pairs[:, ::-1], pairs)
    # The topology stays if both ends share just the nodes across, and no hole is bridged.
    bridges = (along[pairs] >= 0).all(axis=1) & ~is_rim
    is_good = ~bridges & (_n_shared(edges, pairs, n_nodes) == np.where(is_rim, 1, 2))
    place, place_along = _middles(points, along, pairs, is_rim, rims)
    spoils = _spoils(points, cells, pairs, place, longest)
    # Where the middle won't do, one of the ends may; but no rim is drawn inwards.
    for end in pairs.T:
        again = np.flatnonzero(is_good & spoils & ((along[end] >= 0) == (place_along >= 0)))
        place[again], place_along[again] = points[end[again]], along[end[again]]
        spoils[again] = _spoils(points, cells, pairs[again], place[again], longest)
    is_good &= ~spoils
    return pairs[is_good], place[is_good], place_along[is_good]


def _middles(points: Points, along: Along, pairs: Pairs, is_rim: Mask, rims: Rims) -> tuple[Points, Along]:
    """Their middles, for rims on their line; but where one end is on a rim, that end."""
    on_rim = along[pairs] >= 0
    weight = np.where(on_rim == on_rim[:, ::-1], 0.5, on_rim)
    place, place_along = np.einsum("pe,pei->pi", weight, points[pairs]), along[pairs].max(axis=1)
    place_along[is_rim] = rims.between(*along[pairs[is_rim]].T)
    place[is_rim] = rims.at(place_along[is_rim])
    return place, place_along


def _n_shared(edges: Pairs, pairs: Pairs, n_nodes: int) -> Int[np.ndarray, " _"]:
    """How many neighbours both ends have."""
    pair_of = np.full(n_nodes, -1)
    pair_of[pairs] = np.arange(len(pairs))[:, None]
    here, there = np.concatenate([edges, edges[:, ::-1]]).T
    pair = pair_of.take(here)
    # A neighbour of both comes twice.
    beside = np.sort((pair * n_nodes + there)[pair >= 0])
    return np.bincount(beside[1:][beside[1:] == beside[:-1]] // n_nodes, minlength=len(pairs))


def _spoils(points: Points, cells: Cells, pairs: Pairs, place: Points, longest: float) -> Mask:
    """Which of the pairs, once closed there, turn a triangle over or make a side too long."""
    pair_of = np.full(len(points), -1)
    pair_of[pairs] = np.arange(len(pairs))[:, None]
    pair = np.stack([pair_of.take(corner) for corner in cells.T])
    # Triangles with both ends vanish.
    changes = (pair >= 0).sum(axis=0) == 1
    cells, pair = cells[changes], pair[:, changes].max(axis=0)
    moved = points.copy()
    moved[pairs] = place[:, None]
    is_long = side_lengths(moved, cells).max(axis=1) > np.maximum(longest, side_lengths(points, cells).max(axis=1))
    is_bad = is_long | are_turned(area_vectors(points, cells), area_vectors(moved, cells))
    return mask(len(pairs), pair[is_bad])


def _edges(cells: Cells, rim: Pairs) -> Pairs:
    """Each edge once."""
    tail, head = cells.ravel(), cells.take([1, 2, 0], axis=1).ravel()
    climbs = tail < head
    return np.concatenate([np.stack([tail[climbs], head[climbs]], 1), rim[rim[:, 0] > rim[:, 1]]])


def _touched(is_one: Mask, rows: Cells | Pairs) -> Mask:
    """Rows with such a node; by columns, as numpy is slow on rows of three."""
    return np.logical_or.reduce([is_one.take(column) for column in rows.T])
