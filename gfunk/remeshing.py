"""Even triangles of a wished edge length on any surface: long edges cut, short ones closed, others flipped and relaxed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array, csr_array
from scipy.spatial import KDTree

from gfunk.errors import InputError

# As many as there are at that moment.
Points = Float[np.ndarray, "_ 3"]
Cells = Int[np.ndarray, "_ 3"]
OntoSurface = Callable[[Points], Points]

# Of the wished length (Botsch and Kobbelt 2004): an edge cut there, or closed, leaves none that would be treated again.
LONGEST, SHORTEST = 4 / 3, 4 / 5
# Relaxing stretches and squeezes what was just cut and closed; at the end all edges should be within these.
EVEN = 0.6, 1.5


@dataclass(frozen=True, kw_only=True)
class _Edges:
    """Each edge once, and what lies beside it."""

    nodes: Int[np.ndarray, "edge 2"]
    of_cell: Int[np.ndarray, "cell 3"]  # the edge from corner k to corner k + 1
    cells: Int[np.ndarray, "edge 2"]  # -1 where there is none: on a rim

    @property
    def is_rim(self) -> Bool[np.ndarray, " edge"]:
        return self.cells[:, 1] < 0


def remeshed(
    points: Points, cells: Cells, edge_mm: float, *, onto: OntoSurface | None = None, n_rounds: tuple[int, int] = (5, 20)
) -> tuple[Points, Cells]:
    """Points and triangles of the same surface, with edges of about edge_mm; its holes and handles stay.

    onto: takes points near the surface to it; by default the nearest places of the given triangles. Rims stay on their
    lines, where their nodes slide. The surface must be consistently wound, each edge with one or two triangles.
    n_rounds: at least the first, then until all edges are even, but no more than the second.
    """
    if not edge_mm > 0:
        raise InputError(f"the edge length must be positive, not {edge_mm}")
    onto_surface = nearest_on_triangles(points, cells) if onto is None else onto
    rims = _edges(cells)
    onto_rim = _nearest_on_segments(points, rims.nodes[rims.is_rim], edge_mm) if rims.is_rim.any() else None
    for number in range(n_rounds[1]):
        points, cells = _long_edges_cut(points, cells, LONGEST * edge_mm)
        points, cells = _short_edges_closed(points, cells, SHORTEST * edge_mm, LONGEST * edge_mm)
        cells = _flipped(points, cells)
        for _ in range(3):
            points = _relaxed(points, cells, onto_surface, onto_rim)
            cells = _flipped(points, cells)
        length = _lengths(points, _edges(cells).nodes) / edge_mm
        if number + 1 >= n_rounds[0] and EVEN[0] < length.min() and length.max() < EVEN[1]:
            break
    return points, cells


def nearest_on_triangles(points: Points, cells: Cells, n_candidates: int = 12) -> OntoSurface:
    """The nearest place on the triangles, of those whose centres are nearest."""
    corners = points[cells]
    tree = KDTree(corners.mean(axis=1))
    n_candidates = min(n_candidates, len(cells))

    def onto(places: Points) -> Points:
        near = np.asarray(tree.query(places, n_candidates)[1]).reshape(len(places), -1)
        found = _nearest_in_triangle(places[:, None], corners[near])
        best = np.linalg.norm(found - places[:, None], axis=2).argmin(axis=1)
        return found[np.arange(len(places)), best]

    return onto


def carried_fibres(
    points: Points, cells: Cells, fibres: Float[np.ndarray, "_ 3"], new_points: Points, new_cells: Cells
) -> Float[np.ndarray, "_ 3"]:
    """Fibres on other triangles of the same surface: the main axis of f f^T, blind to f's sign, over the nearest cells."""
    centre, new_centre = points[cells].mean(axis=1), new_points[new_cells].mean(axis=1)
    # As many as a new triangle covers, but some.
    n_near = int(np.clip(np.ceil(len(cells) / len(new_cells)), 3, 50))
    near = np.asarray(KDTree(centre).query(new_centre, min(n_near, len(cells)))[1]).reshape(len(new_cells), -1)
    area = np.linalg.norm(_normal(points, *cells.T), axis=1)
    tensor = np.einsum("cn,cni,cnj->cij", area[near], fibres[near], fibres[near])
    normal = _normal(new_points, *new_cells.T)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    flat = np.eye(3) - normal[:, :, None] * normal[:, None, :]
    return np.linalg.eigh(flat @ tensor @ flat)[1][:, :, -1]


def _edges(cells: Cells) -> _Edges:
    n_nodes = int(cells.max()) + 1
    tail, head = cells.ravel(), np.roll(cells, -1, axis=1).ravel()
    key = np.minimum(tail, head) * n_nodes + np.maximum(tail, head)
    unique, edge = np.unique(key, return_inverse=True)
    count = np.bincount(edge)
    if count.max() > 2:
        worst = unique[count.argmax()]
        raise InputError(f"{count.max()} triangles meet at the edge of nodes {worst // n_nodes} and {worst % n_nodes}")
    owner = np.repeat(np.arange(len(cells)), 3)
    order = np.argsort(edge, kind="stable")
    first = np.cumsum(count) - count
    beside = np.full((len(unique), 2), -1)
    beside[:, 0] = owner[order][first]
    beside[count == 2, 1] = owner[order][first[count == 2] + 1]
    return _Edges(nodes=np.stack([unique // n_nodes, unique % n_nodes], 1), of_cell=edge.reshape(-1, 3), cells=beside)


def _lengths(points: Points, pairs: Int[np.ndarray, "edge 2"]) -> Float[np.ndarray, " edge"]:
    return np.linalg.norm(points[pairs[:, 1]] - points[pairs[:, 0]], axis=1)


def _long_edges_cut(points: Points, cells: Cells, longest: float) -> tuple[Points, Cells]:
    """Each longer edge gets a node in its middle, until none is."""
    while True:
        edges = _edges(cells)
        is_long = _lengths(points, edges.nodes) > longest
        if not is_long.any():
            return points, cells
        middle = np.full(len(is_long), -1)
        middle[is_long] = len(points) + np.arange(is_long.sum())
        points = np.concatenate([points, points[edges.nodes[is_long]].mean(axis=1)])
        cells = _with_middles(points, cells, middle[edges.of_cell])


def _with_middles(points: Points, cells: Cells, middles: Int[np.ndarray, "cell 3"]) -> Cells:
    """Triangles cut at the nodes in the middle of their edges (-1 where an edge has none)."""
    n_cuts = (middles >= 0).sum(axis=1)
    # Turned so that one cut is on the first side, and of two cuts the whole side is the last.
    start = np.where(n_cuts == 2, (middles < 0).argmax(axis=1) + 1, (middles >= 0).argmax(axis=1)) % 3
    turn = (start[:, None] + np.arange(3)) % 3
    a, b, c = np.take_along_axis(cells, turn, 1).T
    ab, bc, ca = np.take_along_axis(middles, turn, 1).T
    parts = [cells[n_cuts == 0]]
    one, two, three = n_cuts == 1, n_cuts == 2, n_cuts == 3
    parts += [np.stack(part, 1)[one] for part in ((a, ab, c), (ab, b, c))]
    # The quadrangle a, ab, bc, c is cut along its shorter diagonal.
    is_first = np.zeros(len(cells), dtype=bool)
    is_first[two] = _lengths(points, np.stack([a, bc], 1)[two]) < _lengths(points, np.stack([ab, c], 1)[two])
    parts += [np.stack([ab, b, bc], 1)[two]]
    parts += [np.stack(part, 1)[two & is_first] for part in ((a, ab, bc), (a, bc, c))]
    parts += [np.stack(part, 1)[two & ~is_first] for part in ((a, ab, c), (ab, bc, c))]
    parts += [np.stack(part, 1)[three] for part in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
    return np.concatenate(parts)


def _short_edges_closed(points: Points, cells: Cells, shortest: float, longest: float) -> tuple[Points, Cells]:
    """Each shorter edge becomes a node, where neither the topology nor a normal suffers and no edge grows too long."""
    refused = np.zeros(0, dtype=np.int64)
    while True:
        edges, n_nodes = _edges(cells), len(points)
        length = _lengths(points, edges.nodes)
        keys = edges.nodes[:, 0] * n_nodes + edges.nodes[:, 1]
        candidate = np.flatnonzero((length < shortest) & ~np.isin(keys, refused))
        candidate = candidate[_can_close(edges, candidate, n_nodes)]
        chosen = _far_apart(edges, candidate, length, n_nodes)
        if not chosen.size:
            return points, cells
        spoilt = _spoilt_by_closing(points, cells, edges, chosen, longest)
        refused = np.concatenate([refused, keys[chosen[spoilt]]])
        chosen = chosen[~spoilt]
        moved, target = _closed(points, edges, chosen)
        renamed = target[cells]
        stays = target == np.arange(n_nodes)
        number = np.cumsum(stays) - 1
        # Refusals are by node numbers, which change now.
        tail, head = refused // n_nodes, refused % n_nodes
        is_left = stays[tail] & stays[head]
        points, cells = moved[stays], number[renamed[_has_three_nodes(renamed)]]
        refused = number[tail[is_left]] * len(points) + number[head[is_left]]


def _closed(points: Points, edges: _Edges, chosen: Int[np.ndarray, " _"]) -> tuple[Points, Int[np.ndarray, " node"]]:
    """Both ends of the chosen edges at one place, and the node that each node becomes."""
    kept, gone = edges.nodes[chosen].T
    on_rim = _nodes_on_rim(edges, len(points))
    place = points[edges.nodes[chosen]].mean(axis=1)
    # A node on a rim stays where it is.
    for end, other in ((kept, gone), (gone, kept)):
        only_this = on_rim[end] & ~on_rim[other]
        place[only_this] = points[end[only_this]]
    moved, target = points.copy(), np.arange(len(points))
    moved[kept] = moved[gone] = place
    target[gone] = kept
    return moved, target


def _spoilt_by_closing(
    points: Points, cells: Cells, edges: _Edges, chosen: Int[np.ndarray, " _"], longest: float
) -> Bool[np.ndarray, " _"]:
    """Which of the chosen edges, once closed, turn a triangle over or make a side too long."""
    moved, target = _closed(points, edges, chosen)
    is_near = np.zeros(len(points), dtype=bool)
    is_near[edges.nodes[chosen]] = True
    cells = cells[is_near[cells].any(axis=1)]
    is_long = _sides(moved[cells]).max(axis=1) > np.maximum(longest, _sides(points[cells]).max(axis=1))
    is_bad = _has_three_nodes(target[cells]) & (_turns(points, moved, cells) | is_long)
    touched = np.zeros(len(points), dtype=bool)
    touched[cells[is_bad]] = True
    return np.asarray(touched[edges.nodes[chosen]].any(axis=1))


def _has_three_nodes(cells: Cells) -> Bool[np.ndarray, " cell"]:
    return np.asarray((cells != np.roll(cells, 1, axis=1)).all(axis=1))


def _can_close(edges: _Edges, candidate: Int[np.ndarray, " _"], n_nodes: int) -> Bool[np.ndarray, " _"]:
    """Closing keeps the topology if the ends share no neighbours but those across, and don't bridge a hole."""
    neighbors = _neighbors(edges, n_nodes)
    tail, head = edges.nodes[candidate].T
    shared = np.asarray(neighbors[tail].multiply(neighbors[head]).sum(axis=1)).ravel()
    on_rim, is_rim = _nodes_on_rim(edges, n_nodes), edges.is_rim[candidate]
    bridges = on_rim[tail] & on_rim[head] & ~is_rim
    return (shared == np.where(is_rim, 1, 2)) & ~bridges


def _far_apart(
    edges: _Edges, candidate: Int[np.ndarray, " _"], rank: Float[np.ndarray, " edge"], n_nodes: int
) -> Int[np.ndarray, " _"]:
    """Candidates of the lowest rank among all near them: no two share a triangle or touch one another's."""
    order = np.full(n_nodes, len(rank))
    place = np.empty(len(rank), dtype=np.int64)
    place[candidate[np.lexsort((candidate, rank[candidate]))]] = np.arange(len(candidate))
    for end in edges.nodes[candidate].T:
        np.minimum.at(order, end, place[candidate])
    for _ in range(2):
        wider = order.copy()
        for here, there in (edges.nodes.T, edges.nodes.T[::-1]):
            np.minimum.at(wider, here, order[there])
        order = wider
    tail, head = edges.nodes[candidate].T
    return candidate[(order[tail] == place[candidate]) & (order[head] == place[candidate])]


def _flipped(points: Points, cells: Cells) -> Cells:
    """Edges turned within their two triangles until the angles opposite to each sum to no more than 180 degrees."""
    for _ in range(30):
        edges = _edges(cells)
        inner = np.flatnonzero(~edges.is_rim)
        side = np.stack([(edges.of_cell[edges.cells[inner, k]] == inner[:, None]).argmax(axis=1) for k in (0, 1)], 1)
        left, right = (cells[edges.cells[inner, k]] for k in (0, 1))
        row = np.arange(len(inner))
        a, b, c = left[row, side[:, 0]], left[row, (side[:, 0] + 1) % 3], left[row, (side[:, 0] + 2) % 3]
        d = right[row, (side[:, 1] + 2) % 3]
        excess = _angle(points, c, a, b) + _angle(points, d, a, b) - np.pi
        exists = _are_edges(edges, c, d, len(points))
        is_wished = (excess > 1e-6) & ~exists & (c != d)
        # On a surface the new pair of triangles must face where the old one did.
        before = _normal(points, a, b, c) + _normal(points, b, a, d)
        for new in (_normal(points, c, a, d), _normal(points, c, d, b)):
            is_wished &= (new * before).sum(axis=1) > 0.5 * np.linalg.norm(new, axis=1) * np.linalg.norm(before, axis=1)
        wished = np.flatnonzero(is_wished)
        if not wished.size:
            return cells
        best = np.full(len(cells), -1.0)
        pair = edges.cells[inner[wished]]
        # Equal ones are told apart by their number.
        rank = excess[wished] + 1e-12 * np.arange(len(wished))
        for k in (0, 1):
            np.maximum.at(best, pair[:, k], rank)
        taken = wished[(best[pair[:, 0]] == rank) & (best[pair[:, 1]] == rank)]
        # Two flips far apart may wish for the same new edge.
        new_key = np.minimum(c, d)[taken] * len(points) + np.maximum(c, d)[taken]
        taken = taken[np.unique(new_key, return_index=True)[1]]
        cells = cells.copy()
        cells[edges.cells[inner[taken], 0]] = np.stack([c, a, d], 1)[taken]
        cells[edges.cells[inner[taken], 1]] = np.stack([c, d, b], 1)[taken]
    return cells


def _relaxed(points: Points, cells: Cells, onto_surface: OntoSurface, onto_rim: OntoSurface | None) -> Points:
    """Every node nearer to the middle of its neighbours, within the surface; nodes of rims within theirs."""
    edges = _edges(cells)
    neighbors = _neighbors(edges, len(points))
    # Weighted by area around, nodes spread evenly.
    area = np.linalg.norm(_normal(points, *cells.T), axis=1)
    around = np.bincount(cells.ravel(), np.repeat(area, 3), minlength=len(points))
    weight = neighbors @ around
    middle = (neighbors @ (around[:, None] * points)) / weight[:, None]
    normal = np.zeros_like(points)
    for corner in cells.T:
        np.add.at(normal, corner, _normal(points, *cells.T))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True) + 1e-300
    step = middle - points
    step -= (step * normal).sum(axis=1, keepdims=True) * normal
    on_rim = _nodes_on_rim(edges, len(points))
    moved = points.copy()
    moved[~on_rim] = onto_surface(points[~on_rim] + 0.7 * step[~on_rim])
    if onto_rim is not None:
        rim = edges.nodes[edges.is_rim]
        both = np.zeros_like(points)
        for here, there in (rim.T, rim.T[::-1]):
            np.add.at(both, here, points[there] / 2)
        moved[on_rim] = onto_rim(0.5 * points[on_rim] + 0.5 * both[on_rim])
    # What would turn a triangle over stays.
    for _ in range(10):
        turned = _turns(points, moved, cells)
        if not turned.any():
            return moved
        back = np.unique(cells[turned])
        moved[back] = points[back]
    return points


def _neighbors(edges: _Edges, n_nodes: int) -> csr_array:
    tail, head = edges.nodes.T
    ones = np.ones(2 * len(tail))
    return coo_array((ones, (np.concatenate([tail, head]), np.concatenate([head, tail]))), shape=(n_nodes, n_nodes)).tocsr()


def _nodes_on_rim(edges: _Edges, n_nodes: int) -> Bool[np.ndarray, " node"]:
    on_rim = np.zeros(n_nodes, dtype=bool)
    on_rim[edges.nodes[edges.is_rim].ravel()] = True
    return on_rim


def _are_edges(edges: _Edges, tail: np.ndarray, head: np.ndarray, n_nodes: int) -> Bool[np.ndarray, " edge"]:
    keys = edges.nodes[:, 0] * n_nodes + edges.nodes[:, 1]
    asked = np.minimum(tail, head) * n_nodes + np.maximum(tail, head)
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.asarray(keys[at] == asked)


def _normal(points: Points, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Float[np.ndarray, "cell 3"]:
    """Twice the area, along the normal."""
    return np.cross(points[b] - points[a], points[c] - points[a])


def _turns(before: Points, after: Points, cells: Cells) -> Bool[np.ndarray, " cell"]:
    """Which triangles face elsewhere afterwards, by more than 60 degrees, or have lost their area."""
    old, new = _normal(before, *cells.T), _normal(after, *cells.T)
    return (old * new).sum(axis=1) <= 0.5 * np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)


def _sides(corners: Float[np.ndarray, "cell 3 3"]) -> Float[np.ndarray, "cell 3"]:
    return np.linalg.norm(np.roll(corners, -1, axis=1) - corners, axis=2)


def _angle(points: Points, at: np.ndarray, a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, " corner"]:
    u, v = points[a] - points[at], points[b] - points[at]
    return np.arctan2(np.linalg.norm(np.cross(u, v), axis=1), (u * v).sum(axis=1))


def _nearest_on_segments(points: Points, segments: Int[np.ndarray, "edge 2"], edge_mm: float) -> OntoSurface:
    """The nearest place on the segments, of those with a sample near: samples lie a quarter of an edge apart or closer."""
    start, along = points[segments[:, 0]], points[segments[:, 1]] - points[segments[:, 0]]
    n_samples = np.ceil(4 * np.linalg.norm(along, axis=1) / edge_mm).astype(np.int64) + 1
    segment = np.repeat(np.arange(len(segments)), n_samples)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(n_samples) - n_samples, n_samples)
    tree = KDTree(start[segment] + (number / n_samples[segment])[:, None] * along[segment])
    squared = (along**2).sum(axis=1)

    def onto(places: Points) -> Points:
        near = segment[np.asarray(tree.query(places, min(4, len(segment)))[1]).reshape(len(places), -1)]
        offset = places[:, None] - start[near]
        share = np.clip((offset * along[near]).sum(axis=2) / squared[near], 0, 1)
        found = start[near] + share[:, :, None] * along[near]
        best = np.linalg.norm(found - places[:, None], axis=2).argmin(axis=1)
        return found[np.arange(len(places)), best]

    return onto


def _nearest_in_triangle(
    place: Float[np.ndarray, "place 1 3"], corners: Float[np.ndarray, "place cell 3 3"]
) -> Float[np.ndarray, "place cell 3"]:
    """By the foot of the perpendicular if it falls inside, else on the nearest side."""
    a, b, c = corners[:, :, 0], corners[:, :, 1], corners[:, :, 2]
    normal = np.cross(b - a, c - a)
    squared = (normal**2).sum(axis=2, keepdims=True)
    foot = place - ((place - a) * normal).sum(axis=2, keepdims=True) / squared * normal
    best, distance = foot, np.full(foot.shape[:2], np.inf)
    inside = np.ones(foot.shape[:2], dtype=bool)
    for start, end in ((a, b), (b, c), (c, a)):
        inside &= (np.cross(end - start, foot - start) * normal).sum(axis=2) >= 0
        along = end - start
        share = np.clip(((place - start) * along).sum(axis=2) / (along**2).sum(axis=2), 0, 1)
        found = start + share[:, :, None] * along
        away = np.linalg.norm(found - place, axis=2)
        is_nearer = away < distance
        best = np.where(is_nearer[:, :, None], found, best)
        distance = np.where(is_nearer, away, distance)
    return np.where(inside[:, :, None], foot, best)
