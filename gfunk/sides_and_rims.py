"""Sides of triangles and the rims they make: walked, slid along, flipped.

A side is a triangle's walk from one corner to the next, side s of triangle s // 3: inside, every edge is walked both ways.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from gfunk.errors import InputError
from gfunk.nearest import Cells, Points
from gfunk.surface import boundary_loops, cross, dot

# As many as there are at that moment.
Pairs = Int[np.ndarray, "_ 2"]
Sides = Int[np.ndarray, " _"]
Mask = Bool[np.ndarray, " _"]
# Where on the rims a node is; -1 inside.
Along = Float[np.ndarray, " _"]
_NOWHERE = np.zeros((0, 3))


@dataclass(frozen=True, kw_only=True)
class Rims:
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


def rims_of(points: Points, cells: Cells) -> tuple[Rims, Along]:
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
    return Rims(knots=np.concatenate(knots), places=np.concatenate(places), starts=np.array(starts), lengths=lengths), along


def ahead(side: Sides) -> Sides:
    """The next side of the same triangle; its node is where the side ends."""
    return side + 1 - 3 * (side % 3 == 2)


def behind(side: Sides) -> Sides:
    """The side before; its node is the corner across."""
    return side - 1 + 3 * (side % 3 == 0)


def rim_edges(cells: Cells, opposite: Sides) -> Pairs:
    """The edges of one triangle, as it walks them."""
    side, node = np.flatnonzero(opposite < 0), cells.ravel()
    return np.stack([node[side], node[ahead(side)]], 1)


def mask(n_nodes: int, nodes: np.ndarray) -> Mask:
    is_one = np.zeros(n_nodes, dtype=bool)
    is_one[nodes] = True
    return is_one


def are_turned(before: Float[np.ndarray, "_ 3"], after: Float[np.ndarray, "_ 3"]) -> Mask:
    """Which normals face elsewhere afterwards, by more than 60 degrees, or are lost with their area."""
    squared = dot(before, before)
    return (dot(before, after) <= 0.5 * np.sqrt(squared * dot(after, after))) & (squared > 0)


def flipped(points: Points, cells: Cells, opposite: Sides) -> tuple[Cells, Sides]:
    """Edges turned within their two triangles until the angles opposite to each sum to no more than 180 degrees."""
    node, opposite = cells.flatten(), opposite.copy()
    side = np.flatnonzero(np.arange(len(node)) < opposite)
    for _ in range(30):
        side = side[_wished_flips(points, node, side, opposite)]
        c, d = node[behind(side)], node[behind(opposite[side])]
        is_new = ~_are_neighbors(node, opposite, behind(side), d)
        # Two flips far apart may wish for the same new edge.
        is_new &= mask(len(side), np.unique(np.minimum(c, d) * len(points) + np.maximum(c, d), return_index=True)[1])
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
    a, b, c, d = (points.take(node[of], axis=0) for of in (side, other, behind(side), behind(other)))
    (sine, cosine), (other_sine, other_cosine) = (_sine_and_cosine(a - tip, b - tip) for tip in (c, d))
    excess = -(sine * other_cosine + cosine * other_sine)
    wished = np.flatnonzero(excess > 1e-6)
    a, b, c, d = (corner[wished] for corner in (a, b, c, d))
    # On a surface the new pair of triangles must face where the old one did.
    before = cross(b - a, c - a) + cross(d - a, b - a)
    turns = are_turned(before, cross(a - c, d - c)) | are_turned(before, cross(d - c, b - c))
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
    a, b, c, d = (node[of] for of in (side, other, behind(side), behind(other)))
    # From a, b, c and b, a, d to c, a, d and c, d, b: where the four outer sides were, and where they are now.
    old = np.concatenate([behind(side), ahead(other), behind(other), ahead(side)])
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
            found[walker] |= (node[ahead(at)] == wanted[walker]) | (node[behind(at)] == wanted[walker])
            at = opposite[behind(at)] if is_left else opposite[at]
            walker, at = walker[at >= 0], at[at >= 0]
            at = at if is_left else ahead(at)
            goes_on = (at != spoke[walker]) & ~found[walker]
            walker, at = walker[goes_on], at[goes_on]
    return found
