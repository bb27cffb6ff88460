"""Topology and shape of triangle surfaces: rims, parts, holes and handles, winding, normals, the volume inside."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from gfunk.errors import InputError

# Below this share of the volume of a ball of the same area, a surface is too flat to have an outside.
_FLAT = 1e-6


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The three sides of every triangle, as it winds, and the edges they lie on; side s belongs to triangle s // 3."""

    nodes: Int[np.ndarray, "slot 2"]
    edge: Int[np.ndarray, " slot"]  # number of the edge each side lies on
    edges: Int[np.ndarray, "edge 2"]  # lower node first, sorted
    n_triangles: Int[np.ndarray, " edge"]
    order: Int[np.ndarray, " slot"]  # sides of one edge next to each other

    def meeting(self) -> tuple[Int[np.ndarray, " slot"], Int[np.ndarray, " slot"]]:
        """Pairs of sides on one edge: every side with the next one there."""
        same = self.edge[self.order[:-1]] == self.edge[self.order[1:]]
        return self.order[:-1][same], self.order[1:][same]


def sides_of(cells: Int[np.ndarray, "cell 3"]) -> Sides:
    tail, head = cells.ravel().astype(np.int64), cells.take([1, 2, 0], axis=1).ravel().astype(np.int64)
    low, high = np.minimum(tail, head), np.maximum(tail, head)
    order = _by_counting(low, _by_counting(high, np.arange(len(tail))))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(low[order]) != 0) | (np.diff(high[order]) != 0)
    edge = np.empty(len(order), dtype=np.int64)
    edge[order] = np.cumsum(is_first) - 1
    first = order[is_first]
    return Sides(
        nodes=np.stack([tail, head], axis=1),
        edge=edge,
        edges=np.stack([low[first], high[first]], axis=1),
        n_triangles=np.bincount(edge, minlength=len(first)),
        order=order,
    )


def opposite_sides(cells: Int[np.ndarray, "cell 3"]) -> Int[np.ndarray, " slot"]:
    """For every side the one on the same edge in the next triangle, -1 on a rim; no edge may have more than two."""
    one, other = sides_of(cells).meeting()
    opposite = np.full(cells.size, -1)
    opposite[one], opposite[other] = other, one
    return opposite


def unique_edges(cells: Int[np.ndarray, "cell 3"]) -> Int[np.ndarray, "edge 2"]:
    """Every edge once, lower node first."""
    return sides_of(cells).edges


def edge_lengths(points: Float[np.ndarray, "node dim"], cells: Int[np.ndarray, "cell 3"]) -> Float[np.ndarray, " edge"]:
    """Length of every edge, in the order of `unique_edges`."""
    return distances(points, unique_edges(cells))


def side_lengths(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Float[np.ndarray, "cell 3"]:
    """Length of every triangle's sides, from each corner to the next."""
    corners = points.take(cells, axis=0)
    along = corners.take([1, 2, 0], axis=1) - corners
    return np.sqrt(np.einsum("nci,nci->nc", along, along))


def distances(points: Float[np.ndarray, "node dim"], pairs: Int[np.ndarray, "edge 2"]) -> Float[np.ndarray, " edge"]:
    """From one node of every pair to the other."""
    along = points.take(pairs[:, 1], axis=0) - points.take(pairs[:, 0], axis=0)
    return np.sqrt(dot(along, along))


def nonmanifold_edges(cells: Int[np.ndarray, "cell 3"]) -> Int[np.ndarray, "edge 2"]:
    """Edges where three or more triangles meet."""
    sides = sides_of(cells)
    return sides.edges[sides.n_triangles > 2]


def nonmanifold_nodes(cells: Int[np.ndarray, "cell 3"]) -> Int[np.ndarray, " node"]:
    """Bow ties: nodes whose triangles form more than one fan."""
    fan, n_fans = corner_fans(cells, sides_of(cells))
    node_of_fan = np.zeros(n_fans, dtype=np.int64)
    node_of_fan[fan.ravel()] = cells.ravel()
    return np.flatnonzero(np.bincount(node_of_fan) > 1)


def corner_fans(cells: Int[np.ndarray, "cell 3"], sides: Sides) -> tuple[Int[np.ndarray, "cell 3"], int]:
    """For every corner the number of its fan: the triangles about a node that hang together by edges at that node."""
    start = np.arange(cells.size)
    end = start - start % 3 + (start + 1) % 3
    climbs = sides.nodes[:, 0] < sides.nodes[:, 1]
    low, high = np.where(climbs, start, end), np.where(climbs, end, start)
    one, other = sides.meeting()
    n_fans, fan = _parts(np.concatenate([low[one], high[one]]), np.concatenate([low[other], high[other]]), cells.size)
    return fan.reshape(-1, 3), n_fans


def connected_parts(cells: Int[np.ndarray, "cell corner"], n_nodes: int) -> Int[np.ndarray, " cell"]:
    """For every cell the number of its part, in order of appearance; cells hang together by shared nodes."""
    n_corners = cells.shape[1]
    tail = np.repeat(cells[:, 0], n_corners - 1)
    _, label = _parts(tail, cells[:, 1:].ravel(), n_nodes)
    _, first, part = np.unique(label[cells[:, 0]], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[part]


def boundary_loops(cells: Int[np.ndarray, "cell 3"]) -> list[Int[np.ndarray, " node"]]:
    """The nodes of every rim in order, going the way the triangles beside it wind (if they agree)."""
    sides = sides_of(cells)
    rim = np.flatnonzero(sides.n_triangles[sides.edge] == 1)
    ends = sides.nodes[rim].ravel()
    if (np.bincount(ends)[ends] != 2).any():
        # Fans, not nodes: where two rims touch in a node, each passes through its own fan.
        fan = corner_fans(cells, sides)[0].ravel()
        ends = np.stack([fan[rim], fan[rim - rim % 3 + (rim + 1) % 3]], axis=1).ravel()
    forks = np.flatnonzero(np.bincount(ends)[ends] != 2)
    if forks.size:
        node = sides.nodes[rim].ravel()[forks[0]]
        raise InputError(f"the rim forks at node {node}, at an edge of three or more triangles: remove the extra ones first")
    order = np.argsort(ends, kind="stable")
    partner = np.empty(len(ends), dtype=np.int64)
    partner[order[0::2]], partner[order[1::2]] = order[1::2], order[0::2]
    return [sides.nodes[rim[half // 2], half % 2] for half in _walks(partner)]


def perimeters(points: Float[np.ndarray, "node 3"], loops: list[np.ndarray]) -> Float[np.ndarray, " place"]:
    """Length of every loop."""
    return np.array([np.linalg.norm(points[np.roll(loop, -1)] - points[loop], axis=1).sum() for loop in loops])


def longest_first(points: Float[np.ndarray, "node 3"], loops: list[np.ndarray]) -> list[np.ndarray]:
    """The loops by falling perimeter: the mitral valve leads."""
    return [loops[i] for i in np.argsort(-perimeters(points, loops), kind="stable")]


def euler_characteristic(cells: Int[np.ndarray, "cell 3"]) -> int:
    """Nodes minus edges plus triangles; nodes without a triangle don't count."""
    return len(np.unique(cells)) - len(unique_edges(cells)) + len(cells)


def genus(cells: Int[np.ndarray, "cell 3"]) -> int:
    """Handles of an orientable manifold surface, over all its parts: 0 for a sphere with any holes, 1 for a torus."""
    n_parts = connected_parts(cells, int(cells.max(initial=-1)) + 1).max(initial=-1) + 1
    return int(2 * n_parts - euler_characteristic(cells) - len(boundary_loops(cells))) // 2


def triangle_normals(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Float[np.ndarray, "cell 3"]:
    """Unit normals by the right-hand rule; zero where a triangle has no area."""
    return _unit(area_vectors(points, cells))


def triangle_areas(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Float[np.ndarray, " cell"]:
    """Areas by the cross product: exact down to flatter triangles than the determinant of `cell_sizes`."""
    return np.linalg.norm(area_vectors(points, cells), axis=1) / 2


def area_vectors(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Float[np.ndarray, "cell 3"]:
    """Normals by the right-hand rule, twice as long as the triangle is large."""
    a, b, c = (points.take(corner, axis=0) for corner in cells.T)
    return cross(b - a, c - a)


def triangle_angles(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Float[np.ndarray, "cell 3"]:
    """The angle at every corner, in radians."""
    corners = points[cells]
    ahead = np.roll(corners, -1, axis=1) - corners
    behind = np.roll(corners, 1, axis=1) - corners
    # Every corner spans the same parallelogram.
    doubled_area = np.linalg.norm(area_vectors(points, cells), axis=1, keepdims=True)
    return np.arctan2(doubled_area, np.einsum("nci,nci->nc", ahead, behind))


def vertex_normals(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Float[np.ndarray, "node 3"]:
    """Unit normals at the nodes: the triangles' there, weighted by their angle, so blind to how the surface is cut."""
    weighted = triangle_angles(points, cells)[:, :, None] * triangle_normals(points, cells)[:, None]
    corner = cells.ravel()
    columns = weighted.reshape(-1, 3).T
    return _unit(np.stack([np.bincount(corner, column, minlength=len(points)) for column in columns], axis=1))


def main_tangents(
    tensors: Float[np.ndarray, "site 3 3"], normals: Float[np.ndarray, "site 3"]
) -> Float[np.ndarray, "site 3"]:
    """The unit vector across each normal along which its tensor is largest."""
    # Any first axis does; the one the normal leans to least is never along it.
    first = np.eye(3)[np.abs(normals).argmin(axis=1)]
    first = first - np.einsum("ni,ni->n", first, normals)[:, None] * normals
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(normals, first)
    onto_first, onto_second = (np.einsum("nij,nj->ni", tensors, axis) for axis in (first, second))
    along, across, mixed = (
        np.einsum("ni,ni->n", *pair) for pair in ((first, onto_first), (second, onto_second), (first, onto_second))
    )
    angle = np.arctan2(2 * mixed, along - across) / 2
    return np.cos(angle)[:, None] * first + np.sin(angle)[:, None] * second


def oriented(
    cells: Int[np.ndarray, "cell 3"], named: Callable[[int], str] = "node {}".format
) -> tuple[Int[np.ndarray, "cell 3"], int]:
    """The triangles wound alike within each part, with the fewest turned, and how many were; see `outward` for the side.

    named: a node in the words of an error.

    Every triangle stands twice, as it is and turned, each linked to the neighbours that agree with it: the two copies of
    an orientable part fall apart, and those of a one-sided one hang together.
    """
    sides = sides_of(cells)
    crowded = np.flatnonzero(sides.n_triangles > 2)
    if crowded.size:
        tail, head = map(named, sides.edges[crowded[0]].tolist())
        raise InputError(
            f"the edge from {tail} to {head} belongs to {sides.n_triangles[crowded[0]]} triangles, "
            "which can't be wound alike: remove the extra ones first"
        )
    n_cells = len(cells)
    one, other = sides.meeting()
    disagrees = sides.nodes[one, 0] == sides.nodes[other, 0]
    tail = np.concatenate([one // 3, one // 3 + n_cells])
    head = np.concatenate([other // 3 + n_cells * disagrees, other // 3 + n_cells * ~disagrees])
    n_copies, copy = _parts(tail, head, 2 * n_cells)
    as_is, turned = copy[:n_cells], copy[n_cells:]
    if (as_is == turned).any():
        tail, head = map(named, _unmatched_edge(sides, int(np.flatnonzero(as_is == turned)[0])).tolist())
        raise InputError(
            f"the surface has one side only, like a Moebius strip: no winding agrees across the edge from {tail} to {head}; "
            "cut it open there"
        )
    # Of the two copies of a part, the one with more triangles as they are; the first triangle's where that is a tie.
    n_as_is = np.bincount(as_is, minlength=n_copies)
    first = np.full(n_copies, n_cells)
    np.minimum.at(first, as_is, np.arange(n_cells))
    is_turned = (n_as_is[turned] > n_as_is[as_is]) | ((n_as_is[turned] == n_as_is[as_is]) & (first[turned] < first[as_is]))
    return _with_turned(cells, is_turned), int(is_turned.sum())


def outward(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> tuple[Int[np.ndarray, "cell 3"], int]:
    """The triangles, already wound alike, with each part's normals out of the volume it encloses, and how many were turned.

    A part that encloses next to nothing, such as a flat sheet, stays as it is.
    """
    part = connected_parts(cells, len(points))
    area = np.bincount(part, triangle_areas(points, cells))
    is_turned = (_volumes(points, cells, part) < -_FLAT * area**1.5)[part]
    return _with_turned(cells, is_turned), int(is_turned.sum())


def enclosed_volume(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> float:
    """The volume inside, every hole closed by a fan to the mean of its rim; negative if the normals point inwards.

    The triangles must be wound alike.
    """
    return float(_volumes(points, cells, np.zeros(len(cells), dtype=np.int64)).sum())


def _volumes(
    points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"], part: Int[np.ndarray, " cell"]
) -> Float[np.ndarray, " place"]:
    # Near the origin, where cones of large volume don't cancel.
    near = points - points[cells].mean(axis=(0, 1)) if len(cells) else points
    part_of_node = np.zeros(len(points), dtype=np.int64)
    part_of_node[cells] = part[:, None]
    corners, owner = [near[cells]], [part]
    for loop in boundary_loops(cells):
        rim, ahead = near[loop], near[np.roll(loop, -1)]
        corners.append(np.stack([ahead, rim, np.broadcast_to(rim.mean(axis=0), rim.shape)], axis=1))
        owner.append(part_of_node[loop])
    a, b, c = np.concatenate(corners).swapaxes(0, 1)
    return np.bincount(np.concatenate(owner), dot(a, cross(b, c)) / 6)


def _parts(tail: np.ndarray, head: np.ndarray, n_nodes: int) -> tuple[int, np.ndarray]:
    links = coo_array((np.ones(len(tail), dtype=np.int8), (tail, head)), shape=(n_nodes, n_nodes))
    n_parts, label = connected_components(links, directed=False)
    return int(n_parts), np.asarray(label, dtype=np.int64)


def _walks(partner: Int[np.ndarray, " slot"]) -> list[np.ndarray]:
    """Cycles of rim sides; half 2s is where side s starts, 2s + 1 where it ends, and partner is the half met there."""
    across = partner.tolist()
    seen = bytearray(len(across) // 2)
    walks = []
    for first in range(len(seen)):
        half, walk = 2 * first, []
        while not seen[half // 2]:
            seen[half // 2] = 1
            walk.append(half)
            half = across[half ^ 1]
        if walk:
            walks.append(np.array(walk))
    return walks


def _with_turned(cells: Int[np.ndarray, "cell 3"], is_turned: np.ndarray) -> Int[np.ndarray, "cell 3"]:
    return np.where(is_turned[:, None], cells[:, [0, 2, 1]], cells)


def _unmatched_edge(sides: Sides, start: int) -> Int[np.ndarray, " 2"]:
    """Where a walk over neighbours from this triangle, turning them as it goes, meets one that it can't agree with."""
    one, other = sides.meeting()
    a, b, disagrees = one // 3, other // 3, sides.nodes[one, 0] == sides.nodes[other, 0]
    n_cells = len(sides.nodes) // 3
    links = coo_array((np.ones(len(a), dtype=np.int8), (a, b)), shape=(n_cells, n_cells)).tocsr()
    order, before = breadth_first_order(links, start, directed=False)
    turns = {frozenset(pair): turn for *pair, turn in zip(a.tolist(), b.tolist(), disagrees.tolist(), strict=True)}
    is_turned, is_reached = np.zeros((2, n_cells), dtype=bool)
    is_reached[order] = True
    for cell in order[1:].tolist():
        is_turned[cell] = is_turned[before[cell]] ^ turns[frozenset((cell, int(before[cell])))]
    broken = np.flatnonzero(is_reached[a] & ((is_turned[a] ^ is_turned[b]) != disagrees))[0]
    return sides.edges[sides.edge[one[broken]]]


def cross(one: Float[np.ndarray, "place 3"], other: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, "place 3"]:
    """Row by row; np.cross takes five times as long."""
    (a, b, c), (d, e, f) = one.T, other.T
    return np.stack([b * f - c * e, c * d - a * f, a * e - b * d], axis=1)


def dot(one: Float[np.ndarray, "place dim"], other: Float[np.ndarray, "place dim"]) -> Float[np.ndarray, " place"]:
    """Row by row."""
    return np.einsum("pi,pi->p", one, other)


def _by_counting(key: Int[np.ndarray, " slot"], order: Int[np.ndarray, " slot"]) -> Int[np.ndarray, " slot"]:
    """The order stably sorted by its small keys, as a sparse matrix is transposed: three times as fast as a sort."""
    columns, n_columns = key[order], int(key.max(initial=0)) + 1
    return csr_array((order, columns, np.arange(len(order) + 1)), shape=(len(order), n_columns)).tocsc().data


def _unit(vectors: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)
