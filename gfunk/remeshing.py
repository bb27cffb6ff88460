"""Even triangles of a wished edge length on any surface: long edges cut, short ones closed, others flipped and relaxed."""

import numpy as np
from scipy.sparse import csr_array

from gfunk.errors import InputError
from gfunk.even_edges import long_edges_cut, short_edges_closed
from gfunk.nearest import Cells, OntoSurface, Points, nearest_on_triangles
from gfunk.sides_and_rims import Along, Pairs, Rims, Sides, are_turned, flipped, rim_edges, rims_of
from gfunk.surface import area_vectors, distances, dot, opposite_sides, side_lengths, sides_of, triangle_areas

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
    rims, along = rims_of(points, cells)
    for number in range(n_rounds[1]):
        is_full = number < max(N_FULL_ROUNDS, n_rounds[0])
        shortest, longest = (SHORTEST, LONGEST) if is_full else (LATE_SHORTEST, LATE_LONGEST)
        points, along, cells = long_edges_cut(points, along, cells, rims, longest * edge_mm)
        points, along, cells = short_edges_closed(points, along, cells, rims, shortest * edge_mm, longest * edge_mm)
        cells, opposite = flipped(points, cells, opposite_sides(cells))
        for _ in range(N_RELAXINGS):
            points, along = _relaxed(points, along, cells, opposite, rims)
            cells, opposite = flipped(points, cells, opposite)
        may_end, is_last = number + 1 >= n_rounds[0], number + 1 == n_rounds[1]
        # As this may be slow: once early, lest narrow places shrink, and again at the end.
        if number == 0 or is_last or (may_end and _is_even(points, cells, edge_mm)):
            points = _put_onto(points, along, cells, onto_surface)
            cells, opposite = flipped(points, cells, opposite)
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


def _is_even(points: Points, cells: Cells, edge_mm: float) -> bool:
    length = side_lengths(points, cells) / edge_mm
    return bool(EVEN[0] < length.min() and length.max() < EVEN[1])


def _relaxed(points: Points, along: Along, cells: Cells, opposite: Sides, rims: Rims) -> tuple[Points, Along]:
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
    slid = _slid(points, along, rim_edges(cells, opposite), rims)
    on_rim = slid >= 0
    moved = points + 0.7 * step
    moved[on_rim] = rims.at(slid[on_rim])
    moved = _unturned(points, moved, cells)
    return moved, np.where((moved == points).all(axis=1), along, slid)


def _slid(points: Points, along: Along, rim: Pairs, rims: Rims) -> Along:
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
        turned = are_turned(before, area_vectors(moved, cells))
        if not turned.any():
            return moved
        back = cells[turned]
        moved[back] = points[back]
    return points
