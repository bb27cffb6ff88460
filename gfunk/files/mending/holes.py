"""Stray holes, closed by lids."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from gfunk.files.mending.draft import Draft, with_cells
from gfunk.files.mending.words import counted
from gfunk.surface import boundary_loops, perimeters, sides_of, triangle_areas, triangle_normals

LARGEST_LID_SHARE = 0.1  # of the area: a rim wider than that is the edge of a sheet, no stray hole
THIN_LID, FLAT_LID = 1e-3, 1e-5  # area over longest edge squared: not liked, not taken
MOST_EARS = 500  # a rim of more nodes is closed by a fan or not at all, as ears take the square of them
LARGEST_STRAY_HOLE_MM = 10.0  # round the rim; the narrowest vein of our hearts has 14


def without_stray_holes(draft: Draft, largest_mm: float) -> Draft:
    """Short rims closed with triangles that have area and fold over nothing."""
    loops = boundary_loops(draft.cells)
    length = perimeters(draft.points, loops)
    short = np.flatnonzero(length < largest_mm)
    if not short.size:
        return draft
    largest = LARGEST_LID_SHARE * draft.sizes().sum()
    neighbours = _neighbours(draft.cells, np.concatenate([loops[i] for i in short]))
    closed = {i: lid for i in short.tolist() if (lid := _lid(draft.points, loops[i], neighbours)) and lid.area < largest}
    if len(closed) < len(short):
        left = [i for i in short.tolist() if i not in closed]
        draft = draft.saying(
            f"{counted(len(left), 'rim')} under {largest_mm:g} mm left open, as a lid would be flat, or as large as the "
            f"mesh (the longest {length[left].max():.2g} mm)"
        )
    if not closed:
        return draft
    n_triangles, longest = sum(len(lid.corners) for lid in closed.values()), length[list(closed)].max()
    return _with_lids(draft, list(closed.values())).saying(
        f"{counted(len(closed), 'stray hole')} closed (under {largest_mm:g} mm round, the longest {longest:.2g}) with "
        f"{counted(n_triangles, 'triangle')}, data as beside them; {counted(len(loops) - len(closed), 'hole')} left"
    )


@dataclass(frozen=True, kw_only=True)
class _Lid:
    """Triangles over one rim; corner i is the rim's node i, and its length the new node in the middle."""

    rim: Int[np.ndarray, " node"]
    corners: Int[np.ndarray, "cell 3"]
    area: float


def _neighbours(cells: Int[np.ndarray, "cell 3"], nodes: Int[np.ndarray, " node"]) -> dict[int, set[int]]:
    """Of these nodes, those that share an edge with each."""
    found: dict[int, set[int]] = {}
    for one, other in sides_of(cells[np.isin(cells, nodes).any(axis=1)]).edges.tolist():
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found


def _lid(points: Float[np.ndarray, "_ 3"], rim: Int[np.ndarray, " node"], neighbours: dict[int, set[int]]) -> _Lid | None:
    """One triangle, or a fan to the mean of the rim, or ears cut off one by one; None where each has flat triangles."""
    n_rim = len(rim)
    place = np.concatenate([points[rim], points[rim].mean(axis=0, keepdims=True)])
    here = np.arange(n_rim)
    # Against the rim, so that the lid winds as the triangles beside it.
    fan = np.stack([np.roll(here, -1), here, np.full(n_rim, n_rim)], axis=1)
    ways = [here[None, ::-1]] if n_rim == 3 else [fan]
    if 3 < n_rim <= MOST_EARS and not _lid_shape(place, fan)[1]:
        ways.append(_ears(rim, place, neighbours))
    ways = [way for way in ways if len(way) and _lid_shape(place, way)[0] > FLAT_LID]
    # A folded lid is better than a hole that looks like a sixth vein.
    corners = max(ways, key=lambda way: _lid_shape(place, way)[::-1], default=None)
    return None if corners is None else _Lid(rim=rim, corners=corners, area=float(triangle_areas(place, corners).sum()))


def _lid_shape(place: np.ndarray, corners: np.ndarray) -> tuple[float, bool]:
    """The least area over longest edge squared, and whether no triangle is thin or faces away from the rest."""
    area, normal = triangle_areas(place, corners), triangle_normals(place, corners)
    longest = np.linalg.norm(place[corners] - place[np.roll(corners, 1, axis=1)], axis=2).max(axis=1)
    thinnest = float((area / longest**2).min())
    return thinnest, bool(thinnest > THIN_LID and (normal @ (area @ normal) > 0).all())


def _ears(rim: np.ndarray, place: np.ndarray, neighbours: dict[int, set[int]]) -> np.ndarray:
    """Triangles over a rim without a new node, the best shaped first; empty where the mesh has their edges already."""
    names = rim.tolist()
    known = {frozenset((node, other)) for node in names for other in neighbours[node]}
    left, ears = list(range(len(rim)))[::-1], []
    up = np.cross(place[left], place[np.roll(left, -1)]).sum(axis=0)
    while len(left) > 3:
        trios = np.stack([np.roll(left, 1), left, np.roll(left, -1)], axis=1)
        a, b, c = place[trios].swapaxes(0, 1)
        shape = np.cross(b - a, c - b) @ up / (np.stack([a - b, b - c, c - a]) ** 2).sum(axis=(0, 2))
        is_free = [frozenset((names[one], names[other])) not in known for one, _, other in trios.tolist()]
        best = int(np.where(is_free, shape, -np.inf).argmax())
        if not is_free[best] or shape[best] <= 0:
            return np.empty((0, 3), dtype=np.int64)
        ears.append(trios[best])
        known.add(frozenset(rim[trios[best][[0, 2]]].tolist()))
        del left[best]
    return np.array([*ears, left])


def _with_lids(draft: Draft, lids: list[_Lid]) -> Draft:
    n_points = len(draft.points)
    about = np.flatnonzero(np.isin(draft.cells, np.concatenate([lid.rim for lid in lids])).any(axis=1))
    steps = sides_of(draft.cells[about]).nodes.tolist()
    owner = {(tail, head): cell for (tail, head), cell in zip(steps, np.repeat(about, 3).tolist(), strict=True)}
    cells, sources, centres = [], [], []
    for lid in lids:
        names = np.append(lid.rim, n_points + len(centres))
        cells.append(names[lid.corners])
        # A fan's triangle i lies at the rim's side i, which starts at its second corner; so does an ear, or near it.
        beside = np.array([owner[step] for step in zip(lid.rim.tolist(), np.roll(lid.rim, -1).tolist(), strict=True)])
        sources.append(beside[lid.corners[:, 1]])
        if (lid.corners == len(lid.rim)).any():
            centres.append(lid.rim)
    source = np.concatenate([np.arange(len(draft.cells)), *sources])
    grown = with_cells(draft, source)
    n_made = len(source) - len(draft.cells)
    point_data = {
        name: np.concatenate([values, *[_middle(values[rim]) for rim in centres]])
        for name, values in draft.point_data.items()
    }
    return replace(
        grown,
        points=np.concatenate([draft.points, *[draft.points[rim].mean(axis=0, keepdims=True) for rim in centres]]),
        cells=np.concatenate([draft.cells, *cells]),
        point_data=point_data,
        file_nodes=np.concatenate([draft.file_nodes, np.full(len(centres), -1)]),
        file_cells=np.concatenate([draft.file_cells, np.full(n_made, -1)]),
    )


def _middle(values: np.ndarray) -> np.ndarray:
    """The mean of measurements; of labels, which have none, the first."""
    return values.mean(axis=0, keepdims=True) if np.issubdtype(values.dtype, np.floating) else values[:1]
