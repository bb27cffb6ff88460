"""The nearest places on triangles: on which one, and where on it."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from gfunk.surface import cross, dot, triangle_areas

# As many as there are at that moment.
Points = Float[np.ndarray, "_ 3"]
Cells = Int[np.ndarray, "_ 3"]
OntoSurface = Callable[[Points], Points]
# For every place a triangle, and the weights of its corners.
OnTriangles = tuple[Int[np.ndarray, " place"], Float[np.ndarray, "place 3"]]

# Centres to look at first; for few places that is not enough.
_N_NEAR = 8


def nearest_on_triangles(points: Points, cells: Cells) -> OntoSurface:
    """Takes points to the nearest place on the triangles."""
    found_on = nearest_triangles(points, cells)

    def onto(places: Points) -> Points:
        cell, weights = found_on(places)
        return np.einsum("pk,pki->pi", weights, points[cells[cell]])

    return onto


def nearest_triangles(points: Points, cells: Cells) -> Callable[[Points], OnTriangles]:
    """Finds for points the triangle nearest to each, and the nearest place on it."""
    corners = points[cells]
    centre, radius, owner = pieces(points, cells)
    tree = KDTree(centre, balanced_tree=False)

    def found_on(places: Points) -> OnTriangles:
        cell, weights = np.zeros(len(places), dtype=np.int64), np.zeros((len(places), 3))
        open_, n_near = np.arange(len(places)), min(_N_NEAR, len(centre))
        while True:
            away, near = (each.reshape(len(open_), -1) for each in tree.query(places[open_], n_near))
            # Most are on the piece of the nearest centre; others count where they may be nearer than that.
            distance, _ = _on_triangle(places[open_], corners[owner[near[:, 0]]])
            row, column = np.nonzero(away - radius[near] <= distance[:, None])
            candidate = owner[near[row, column]]
            gap, weight = _on_triangle(places[open_[row]], corners[candidate])
            np.minimum.at(distance, row, gap)
            is_best = gap == distance[row]
            cell[open_[row[is_best]]], weights[open_[row[is_best]]] = candidate[is_best], weight[is_best]
            # Pieces that were not looked at are farther than the last one here.
            is_open = distance > away[:, -1] - radius.max()
            if n_near == len(centre) or not is_open.any():
                return cell, weights
            open_, n_near = open_[is_open], min(4 * n_near, len(centre))

    return found_on


def pieces(points: Points, cells: Cells) -> tuple[Points, Float[np.ndarray, " _"], Int[np.ndarray, " _"]]:
    """Triangles halved until none is much wider than the mean one: their centres, how far they reach, and whose they are."""
    widest = 3 * np.sqrt(triangle_areas(points, cells).mean())
    corners, owner = points[cells], np.arange(len(cells))
    whole = []
    while True:
        along = corners.take([1, 2, 0], axis=1) - corners
        length = np.sqrt(np.einsum("nci,nci->nc", along, along))
        is_wide = length.max(axis=1) > widest
        whole.append((corners[~is_wide], owner[~is_wide]))
        if not is_wide.any():
            break
        start = length[is_wide].argmax(axis=1)
        a, b, c = np.take_along_axis(corners[is_wide], ((start[:, None] + np.arange(3)) % 3)[:, :, None], 1).swapaxes(0, 1)
        corners = np.concatenate([np.stack([a, (a + b) / 2, c], 1), np.stack([(a + b) / 2, b, c], 1)])
        owner = np.tile(owner[is_wide], 2)
    corners, owner = (np.concatenate(parts) for parts in zip(*whole, strict=True))
    centre = corners.mean(axis=1)
    return centre, np.sqrt(((corners - centre[:, None]) ** 2).sum(axis=2).max(axis=1)), owner


def _on_triangle(
    place: Points, corners: Float[np.ndarray, "_ 3 3"]
) -> tuple[Float[np.ndarray, " _"], Float[np.ndarray, "_ 3"]]:
    """Distance to the nearest place on a triangle each, and the weights of its corners there."""
    a, b, c = corners.swapaxes(0, 1)
    u, v, w = b - a, c - a, place - a
    uu, uv, vv, uw, vw = dot(u, u), dot(u, v), dot(v, v), dot(u, w), dot(v, w)
    # Shares along u and v: of the foot of the perpendicular, and of the nearest places on the three sides.
    tiny = np.finfo(float).tiny
    normal = cross(u, v)
    squared_area = np.maximum(dot(normal, normal), tiny)
    foot = dot(cross(w, v), normal) / squared_area, dot(cross(u, w), normal) / squared_area
    on_u, on_v = np.clip(uw / np.maximum(uu, tiny), 0, 1), np.clip(vw / np.maximum(vv, tiny), 0, 1)
    across = np.clip((vw - uw + uu - uv) / np.maximum(uu - 2 * uv + vv, tiny), 0, 1)
    best = np.full(len(place), np.inf)
    p, q = np.zeros((2, len(place)))
    nothing = np.zeros(len(place))
    for s, t in ((on_u, nothing), (nothing, on_v), (1 - across, across)):
        squared = s * (s * uu + 2 * (t * uv - uw)) + t * (t * vv - 2 * vw)
        nearer = squared < best
        best, p, q = np.where(nearer, squared, best), np.where(nearer, s, p), np.where(nearer, t, q)
    inside = (foot[0] >= 0) & (foot[1] >= 0) & (foot[0] + foot[1] <= 1) & (squared_area > 1e-24 * uu * vv)
    p, q = np.where(inside, foot[0], p), np.where(inside, foot[1], q)
    gap = w - p[:, None] * u - q[:, None] * v
    return np.sqrt(dot(gap, gap)), np.stack([np.maximum(1 - p - q, 0), p, q], 1)
