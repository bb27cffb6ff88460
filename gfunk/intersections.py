"""Where a surface cuts through itself."""

from collections.abc import Callable
from itertools import product

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from gfunk.nearest import pieces
from gfunk.surface import cross, dot, side_lengths, triangle_areas

# Shares of a pair's size: within the first of a plane is in it, and less than the second is no overlap.
_FLAT, _TOUCH = 1e-6, 1e-9
_NOTHING = 1e-12

Pairs = Int[np.ndarray, "_ 2"]
Corners = Float[np.ndarray, "3 _ 3"]
# A direction for each pair, worked out only for those that are left.
Axis = Callable[[Corners, Corners], Float[np.ndarray, "_ 3"]]


def self_intersections(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Pairs:
    """Pairs of triangles that cut through each other, or lie on each other in one plane; lower number first, sorted.

    Neighbours may touch where they share nodes, but overlap nowhere, as they do where the surface is folded over.
    """
    # A triangle without area has no inside.
    solid = np.flatnonzero(
        triangle_areas(points, cells) > _NOTHING * side_lengths(points, cells).max(axis=1, initial=0) ** 2
    )
    pairs = solid[_near_pairs(points, cells[solid])]
    one, other = points[cells[pairs]].transpose(1, 2, 0, 3)
    # Of size one and about a corner of theirs, where all digits count.
    corner = one[0].copy()
    size = np.maximum(np.abs(one - corner).max(axis=(0, 2)), np.abs(other - corner).max(axis=(0, 2)))[:, None]
    one, other = (one - corner) / size, (other - corner) / size
    is_flat = (np.abs(np.einsum("kpi,pi->kp", other, _normal(one))) < _FLAT).all(axis=0)
    found = [
        _unseparated(pairs[is_kind], one[:, is_kind], other[:, is_kind], axes)
        for is_kind, axes in ((is_flat, _axes_in_plane()), (~is_flat, _axes_in_space()))
    ]
    return np.array(sorted(np.concatenate(found).tolist()), dtype=np.int64).reshape(-1, 2)


def _near_pairs(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Pairs:
    """Pairs whose boxes overlap, by the balls about pieces of triangles."""
    centre, radius, owner = pieces(points, cells)
    near = KDTree(centre).query_pairs(2 * radius.max(), output_type="ndarray")
    gap = centre[near[:, 0]] - centre[near[:, 1]]
    near = near[dot(gap, gap) <= (radius[near[:, 0]] + radius[near[:, 1]]) ** 2]
    low, high = np.sort(owner[near], axis=1).T
    key = np.unique((low * len(cells) + high)[low < high])
    pairs = np.stack(np.divmod(key, len(cells)), axis=1)
    lowest, highest = points[cells].min(axis=1), points[cells].max(axis=1)
    a, b = pairs.T
    return pairs[((lowest[a] <= highest[b]) & (lowest[b] <= highest[a])).all(axis=1)]


def _unseparated(pairs: Pairs, one: Corners, other: Corners, axes: list[Axis]) -> Pairs:
    """Convex shapes overlap unless a plane parts them, and for triangles a few directions of it are enough to try."""
    for axis in axes:
        direction = axis(one, other)
        length = np.sqrt(dot(direction, direction))
        here, there = (np.einsum("kpi,pi->kp", corners, direction) for corners in (one, other))
        overlap = np.minimum(here.max(axis=0) - there.min(axis=0), there.max(axis=0) - here.min(axis=0))
        # Sides in parallel give no direction.
        is_left = (overlap > _TOUCH * length) | (length < _FLAT)
        pairs, one, other = pairs[is_left], one[:, is_left], other[:, is_left]
    return pairs


def _axes_in_space() -> list[Axis]:
    """Both normals, and what is at right angles to a side of each."""
    sides = [lambda one, other, i=i, j=j: cross(_side(one, i), _side(other, j)) for i, j in product(range(3), repeat=2)]
    return [lambda one, other: _normal(one), lambda one, other: _normal(other), *sides]


def _axes_in_plane() -> list[Axis]:
    """At right angles to each side, in the plane."""
    mine = [lambda one, other, i=i: cross(_normal(one), _side(one, i)) for i in range(3)]
    return [*mine, *(lambda one, other, i=i: cross(_normal(one), _side(other, i)) for i in range(3))]


def _side(corners: Corners, number: int) -> Float[np.ndarray, "_ 3"]:
    return corners[(number + 1) % 3] - corners[number]


def _normal(corners: Corners) -> Float[np.ndarray, "_ 3"]:
    normal = cross(_side(corners, 0), _side(corners, 1))
    return normal / np.sqrt(dot(normal, normal))[:, None]
