"""Even triangles of a wished edge length on any surface: long edges cut, short ones closed, others flipped and relaxed.

A side is a triangle's walk from one corner to the next, side s of triangle s // 3: inside, every edge is walked both ways.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array

from gfunk.errors import InputError
from gfunk.nearest import Cells, OntoSurface, Points, nearest_on_triangles
from gfunk.surface import (
    area_vectors,
    boundary_loops,
    cross,
    distances,
    dot,
    opposite_sides,
    side_lengths,
    sides_of,
    triangle_areas,
)

# As many as there are at that moment.
Pairs = Int[np.ndarray, "_ 2"]
Sides = Int[np.ndarray, " _"]
Mask = Bool[np.ndarray, " _"]
# Where on the rims a node is; -1 inside.
Along = Float[np.ndarray, " _"]
_NOWHERE = np.zeros((0, 3))

# Of the wished length (Botsch and Kobbelt 2004): an edge cut there, or closed, leaves none that would be treated again.
SHORTEST, LONGEST = 4 / 5, 4 / 3
# Relaxing stretches and squeezes what was just cut and closed; at the end all edges should be within these.
EVEN = 0.6, 1.5
# After so many rounds only edges about to leave these are treated, as every treatment disturbs its neighbours.
N_FULL_ROUNDS, LATE_SHORTEST, LATE_LONGEST = 3, 0.65, 1.45
N_RELAXINGS = 3
# Triangles of the wished length that the surface must have room for: with fewer it would close upon itself.
FEWEST = 40
MOST_NODES = 5_000_000  # some gigabytes on the way; whoever asks for more has another unit in mind


@dataclass(frozen=True, kw_only=True)
class _Rims:
    """The lines of the given rims, on which nodes slide: a node is where so many mm of them lie behind it.

    One rim comes after the other, with a gap between them, so that rounding never takes a node to the next.
    """

    knots: Float[np.ndarray, " _"]
    places: Points
    starts: Float[np.ndarray, " _"]
    lengths: Float[np.ndarray, " _"]

    def at(self, along: Along) -> Points:
        return np.stack([np.interp(along, self.knots, column) for column in self.places.T], 1) if len(along) else _NOWHERE

    def gap(self, tail: Along, head: Along) -> Along:
        """How far a node lies ahead of another on the same rim, as its triangles walk."""
        return (head - tail) % self.lengths[self._rim_of(tail)]

    def moved(self, along: Along, step: Along) -> Along:
        start, length = (of_rim[self._rim_of(along)] for of_rim in (self.starts, self.lengths))
        return start + (along - start + step) % length

    def between(self, tail: Along, head: Along) -> Along:
        return self.moved(tail, self.gap(tail, head) / 2)

    def _rim_of(self, along: Along) -> Int[np.ndarray, " _"]:
        return np.searchsorted(self.starts, along, side="right") - 1


def remeshed(
    points: Points, cells: Cells, edge_mm: float, *, onto: OntoSurface | None = None, n_rounds: tuple[int, int] = (3, 30)
) -> tuple[Points, Cells]:
    """Points and triangles of the same surface, with edges of about edge_mm; its holes and handles stay.

    onto: takes points near the surface to it; by default to the nearest places of the given triangles. Rims stay on their
    lines, where their nodes slide. The surface must be consistently wound, each edge with one or two triangles.
    n_rounds: at least the first, then until all edges are even, but no more than the second.
    """
    if not edge_mm > 0:
        raise InputError(f"the edge length must be positive, not {edge_mm}")
    check_room(points, cells, edge_mm, MOST_NODES)
    _check_winding(cells)
    onto_surface = nearest_on_triangles(points, cells) if onto is None else onto
    rims, along = _rims(points, cells)
    for number in range(n_rounds[1]):
        is_full = number < max(N_FULL_ROUNDS, n_rounds[0])
        shortest, longest = (SHORTEST, LONGEST) if is_full else (LATE_SHORTEST, LATE_LONGEST)
        points, along, cells = _long_edges_cut(points, along, cells, rims, longest * edge_mm)
        points, along, cells = _short_edges_closed(points, along, cells, rims, shortest * edge_mm, longest * edge_mm)
        cells, opposite = _flipped(points, cells, opposite_sides(cells))
        for _ in range(N_RELAXINGS):
            points, along = _relaxed(points, along, cells, opposite, rims)
            cells, opposite = _flipped(points, cells, opposite)
        may_end, is_last = number + 1 >= n_rounds[0], number + 1 == n_rounds[1]
        # As this may be slow: once early, lest narrow places shrink, and again at the end.
        if number == 0 or is_last or (may_end and _is_even(points, cells, edge_mm)):
            points = _put_onto(points, along, cells, onto_surface)
            cells, opposite = _flipped(points, cells, opposite)
            if may_end and _is_even(points, cells, edge_mm):
                break
    return points, cells


def check_room(points: Points, cells: Cells, edge_mm: float, most_nodes: int):
    """Edges of this length are neither too long for the surface, nor so short that it would take more than most_nodes."""
    area, width_mm = triangle_areas(points, cells).sum(), np.ptp(points, axis=0).max()
    n_triangles = area / (np.sqrt(3) / 4 * edge_mm**2)
    what = f"this surface, {width_mm:.3g} mm wide: is its unit right?"
    if n_triangles < FEWEST:
        raise InputError(f"edges of {edge_mm:g} mm are too long for {what}")
    if n_triangles / 2 > most_nodes:
        raise InputError(f"edges of {edge_mm:g} mm make {n_triangles / 2:,.0f} nodes, more than {most_nodes:,}, of {what}")


def _check_winding(cells: Cells):
    sides = sides_of(cells)
    crowded = np.flatnonzero(sides.n_triangles > 2)
    if crowded.size:
        tail, head = sides.edges[crowded[0]]
        raise InputError(f"{sides.n_triangles[crowded[0]]} triangles meet at the edge of nodes {tail} and {head}")
    one, other = sides.meeting()
    unlike = np.flatnonzero(sides.nodes[one, 0] == sides.nodes[other, 0])
    if unlike.size:
        first, second = one[unlike[0]] // 3, other[unlike[0]] // 3
        raise InputError(f"triangles {first} and {second} wind against each other: orient the surface first")


def _rims(points: Points, cells: Cells) -> tuple[_Rims, Along]:
    """The rims, and where on them each node is."""
    along, start = np.full(len(points), -1.0), 0.0
    knots, places, starts = [np.zeros(0)], [_NOWHERE], []
    for loop in boundary_loops(cells):
        if (along[loop] >= 0).any() or len(np.unique(loop)) < len(loop):
            twice = loop[(along[loop] >= 0) | (np.bincount(loop)[loop] > 1)][0]
            raise InputError(f"two rims meet in node {twice}, where the surface only touches itself: split that node first")
        places.append(points[np.append(loop, loop[0])])
        knots.append(start + np.append(0, np.cumsum(np.linalg.norm(np.diff(places[-1], axis=0), axis=1))))
        along[loop] = knots[-1][:-1]
        starts.append(start)
        start = knots[-1][-1] + 1
    lengths = np.array([line[-1] - line[0] for line in knots[1:]])
    return _Rims(knots=np.concatenate(knots), places=np.concatenate(places), starts=np.array(starts), lengths=lengths), along


def _is_even(points: Points, cells: Cells, edge_mm: float) -> bool:
    length = side_lengths(points, cells) / edge_mm
    return bool(EVEN[0] < length.min() and length.max() < EVEN[1])


def _ahead(side: Sides) -> Sides:
    """The next side of the same triangle; its node is where the side ends."""
    return side + 1 - 3 * (side % 3 == 2)


def _behind(side: Sides) -> Sides:
    """The side before; its node is the corner across."""
    return side - 1 + 3 * (side % 3 == 0)


def _rim(cells: Cells, opposite: Sides) -> Pairs:
    """The edges of one triangle, as it walks them."""
    side, node = np.flatnonzero(opposite < 0), cells.ravel()
    return np.stack([node[side], node[_ahead(side)]], 1)


def _edges(cells: Cells, rim: Pairs) -> Pairs:
    """Each edge once."""
    tail, head = cells.ravel(), cells.take([1, 2, 0], axis=1).ravel()
    climbs = tail < head
    return np.concatenate([np.stack([tail[climbs], head[climbs]], 1), rim[rim[:, 0] > rim[:, 1]]])


def _mask(n_nodes: int, nodes: np.ndarray) -> Mask:
    is_one = np.zeros(n_nodes, dtype=bool)
    is_one[nodes] = True
    return is_one


def _touched(is_one: Mask, rows: Cells | Pairs) -> Mask:
    """Rows with such a node; by columns, as numpy is slow on rows of three."""
    return np.logical_or.reduce([is_one.take(column) for column in rows.T])


def _turns(before: Float[np.ndarray, "_ 3"], after: Float[np.ndarray, "_ 3"]) -> Mask:
    """Which normals face elsewhere afterwards, by more than 60 degrees, or are lost with their area."""
    squared = dot(before, before)
    return (dot(before, after) <= 0.5 * np.sqrt(squared * dot(after, after))) & (squared > 0)


def _long_edges_cut(points: Points, along: Along, cells: Cells, rims: _Rims, longest: float) -> tuple[Points, Along, Cells]:
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
        tail, head, is_rim = node[cut], node[_ahead(cut)], opposite[cut] < 0
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


def _short_edges_closed(
    points: Points, along: Along, cells: Cells, rims: _Rims, shortest: float, longest: float
) -> tuple[Points, Along, Cells]:
    """Each shorter edge becomes a node, where neither the topology nor a normal suffers and no edge grows too long."""
    points, along, n_nodes = points.copy(), along.copy(), len(points)
    rim = _rim(cells, opposite_sides(cells))
    edges = _edges(cells, rim)
    waiting = edges[distances(points, edges) < shortest]
    # In random order: by length, long chains of edges would wait for one another.
    rng = np.random.default_rng(0)
    while len(waiting):
        waiting = rng.permutation(waiting)
        near_cells = cells[_touched(_mask(n_nodes, waiting), cells)]
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
        is_moved = _mask(n_nodes, closed)
        about = edges[_touched(is_moved, edges)]
        waiting = waiting[~is_chosen & ~_touched(is_moved, waiting)]
        waiting = np.concatenate([waiting, about[distances(points, about) < shortest]])
    is_used = _mask(n_nodes, cells)
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
        won = _mask(n_nodes, waiting[wins[:-1]])
        is_near |= won  # what is won may have lost all its triangles
        is_near[cells[_touched(won, cells)]] = True
        free = free[~_touched(is_near, waiting[free])]
    return is_chosen


def _closable(
    points: Points, along: Along, cells: Cells, edges: Pairs, rim: Pairs, pairs: Pairs, rims: _Rims, longest: float
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


def _middles(points: Points, along: Along, pairs: Pairs, is_rim: Mask, rims: _Rims) -> tuple[Points, Along]:
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
    is_bad = is_long | _turns(area_vectors(points, cells), area_vectors(moved, cells))
    return _mask(len(pairs), pair[is_bad])


def _flipped(points: Points, cells: Cells, opposite: Sides) -> tuple[Cells, Sides]:
    """Edges turned within their two triangles until the angles opposite to each sum to no more than 180 degrees."""
    node, opposite = cells.flatten(), opposite.copy()
    side = np.flatnonzero(np.arange(len(node)) < opposite)
    for _ in range(30):
        side = side[_wished_flips(points, node, side, opposite)]
        c, d = node[_behind(side)], node[_behind(opposite[side])]
        is_new = ~_are_neighbors(node, opposite, _behind(side), d)
        # Two flips far apart may wish for the same new edge.
        is_new &= _mask(len(side), np.unique(np.minimum(c, d) * len(points) + np.maximum(c, d), return_index=True)[1])
        side = side[is_new]
        if not len(side):
            break
        changed = _flip(node, opposite, side)
        # Only what lies about may wish next.
        side = (3 * changed[:, None] + np.arange(3)).ravel()
        side = side[opposite[side] >= 0]
        side = np.unique(np.minimum(side, opposite[side]))
    return node.reshape(-1, 3), opposite


def _wished_flips(points: Points, node: Sides, side: Sides, opposite: Sides) -> Int[np.ndarray, " _"]:
    """The sides that should be turned and can be at once: no two in one triangle."""
    other = opposite[side]
    a, b, c, d = (points.take(node[of], axis=0) for of in (side, other, _behind(side), _behind(other)))
    (sine, cosine), (other_sine, other_cosine) = (_sine_and_cosine(a - tip, b - tip) for tip in (c, d))
    excess = -(sine * other_cosine + cosine * other_sine)
    wished = np.flatnonzero(excess > 1e-6)
    a, b, c, d = (corner[wished] for corner in (a, b, c, d))
    # On a surface the new pair of triangles must face where the old one did.
    before = cross(b - a, c - a) + cross(d - a, b - a)
    turns = _turns(before, cross(a - c, d - c)) | _turns(before, cross(d - c, b - c))
    wished = wished[~turns]
    # The worst first.
    wished = wished[np.argsort(-excess[wished], kind="stable")]
    pair, rank = np.stack([side[wished], other[wished]], 1) // 3, np.arange(len(wished))[:, None]
    first = np.full(len(node) // 3, len(wished))
    np.minimum.at(first, pair, rank)
    return wished[(first[pair] == rank).all(axis=1)]


def _sine_and_cosine(one: Points, other: Points) -> tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]:
    """Of the angle between two vectors each."""
    normal = cross(one, other)
    size = np.sqrt(dot(one, one) * dot(other, other))
    return np.sqrt(dot(normal, normal)) / size, dot(one, other) / size


def _flip(node: Sides, opposite: Sides, side: Sides) -> Int[np.ndarray, " _"]:
    """Turns these sides, in place; gives the triangles that changed."""
    other = opposite[side]
    first, second = 3 * (side // 3), 3 * (other // 3)
    a, b, c, d = (node[of] for of in (side, other, _behind(side), _behind(other)))
    # From a, b, c and b, a, d to c, a, d and c, d, b: where the four outer sides were, and where they are now.
    old = np.concatenate([_behind(side), _ahead(other), _behind(other), _ahead(side)])
    new = np.concatenate([first, first + 1, second + 1, second + 2])
    now = np.append(np.arange(len(node)), -1)
    now[old] = new
    beyond = now[opposite[old]]
    opposite[new] = beyond
    opposite[beyond[beyond >= 0]] = new[beyond >= 0]
    opposite[first + 2], opposite[second] = second, first + 2
    for start, corners in ((first, (c, a, d)), (second, (c, d, b))):
        for k, corner in enumerate(corners):
            node[start + k] = corner
    return np.concatenate([first, second]) // 3


def _are_neighbors(node: Sides, opposite: Sides, spoke: Sides, wanted: Sides) -> Mask:
    """Whether an edge leads to the wanted node from the one where the spoke starts: by a walk around it, both ways."""
    found = np.zeros(len(spoke), dtype=bool)
    for is_left in (True, False):
        at, walker = spoke, np.arange(len(spoke))
        while walker.size:
            found[walker] |= (node[_ahead(at)] == wanted[walker]) | (node[_behind(at)] == wanted[walker])
            at = opposite[_behind(at)] if is_left else opposite[at]
            walker, at = walker[at >= 0], at[at >= 0]
            at = at if is_left else _ahead(at)
            goes_on = (at != spoke[walker]) & ~found[walker]
            walker, at = walker[goes_on], at[goes_on]
    return found


def _relaxed(points: Points, along: Along, cells: Cells, opposite: Sides, rims: _Rims) -> tuple[Points, Along]:
    """Every node nearer to the middle of its neighbours, in its tangent plane; nodes of rims on their lines."""
    of_corners = csr_array((np.ones(cells.size), cells.ravel(), np.arange(0, cells.size + 1, 3)), (len(cells), len(points)))
    vectors = area_vectors(points, cells)
    # Weighted by area around, nodes spread evenly.
    around = of_corners.T @ np.sqrt(dot(vectors, vectors))
    weighted = np.column_stack([around, around[:, None] * points])
    # Inside, each neighbour shares two triangles; the node itself shares them all.
    n_cells = np.bincount(cells.ravel(), minlength=len(points))
    sums = of_corners.T @ (of_corners @ weighted) - n_cells[:, None] * weighted
    step = sums[:, 1:] / sums[:, :1] - points
    normal = of_corners.T @ vectors
    step -= (dot(step, normal) / (dot(normal, normal) + np.finfo(float).tiny))[:, None] * normal
    slid = _slid(points, along, _rim(cells, opposite), rims)
    on_rim = slid >= 0
    moved = points + 0.7 * step
    moved[on_rim] = rims.at(slid[on_rim])
    moved = _unturned(points, moved, cells)
    return moved, np.where((moved == points).all(axis=1), along, slid)


def _slid(points: Points, along: Along, rim: Pairs, rims: _Rims) -> Along:
    """Nodes of rims moved along them to where the next is as far as the one before, keeping their order."""
    tail, head = rim.T
    length, room = distances(points, rim), rims.gap(along[tail], along[head])
    to_next, to_last, room_ahead, room_behind = np.zeros((4, len(points)))
    to_next[tail], room_ahead[tail] = length, room
    to_last[head], room_behind[head] = length, room
    step = np.clip((to_next - to_last) / 4, -0.4 * room_behind, 0.4 * room_ahead)
    slid = along.copy()
    slid[tail] = rims.moved(along[tail], step[tail])
    return slid


def _put_onto(points: Points, along: Along, cells: Cells, onto: OntoSurface) -> Points:
    """All nodes on the surface; those of rims are already."""
    inside, moved = along < 0, points.copy()
    moved[inside] = onto(points[inside])
    return _unturned(points, moved, cells)


def _unturned(points: Points, moved: Points, cells: Cells) -> Points:
    """The moved points; but those that would turn a triangle over stay."""
    before = area_vectors(points, cells)
    for _ in range(10):
        turned = _turns(before, area_vectors(moved, cells))
        if not turned.any():
            return moved
        back = cells[turned]
        moved[back] = points[back]
    return points
