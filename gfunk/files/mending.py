"""From what a mesh file holds to one clean mesh in millimetres with unit fibres, and a sentence for every change made."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import block_array, coo_array, csr_array
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.spatial import KDTree

from gfunk.errors import InputError
from gfunk.files.raw import CORNERS, Block, RawMesh
from gfunk.surface import (
    Sides,
    boundary_loops,
    connected_parts,
    corner_fans,
    oriented,
    outward,
    perimeters,
    sides_of,
    triangle_areas,
    triangle_normals,
)

Unit = Literal["mm", "um", "m", "cm"]
MM_PER_UNIT = {"mm": 1.0, "um": 1e-3, "m": 1e3, "cm": 10.0}
UNIT_NAMES = {"mm": "millimetres", "um": "micrometres", "m": "metres", "cm": "centimetres"}

# In this order; meshtool, AugmentA, Roney, FiberNet, openep, lifeX, pyansys and our openCARP reader.
FIBRE_NAMES = ("fibre", "fibres", "fiber", "fibers", "longitudinal_fibres", "f0", "e_l", "lon")
TAG_NAMES = ("tag", "tags", "elemtag", "cell_region", "region")

NO_DATA = -10000  # CARTO's mark for a place without a measurement
MERGE_SHARE = 1e-6  # of the extent: far below any edge, above the rounding of text files
# Flatter than this (area over longest edge squared, volume over its cube) the later sums lose all digits.
FLAT = {3: 1e-6, 4: 1e-7}
LARGEST_FLAP_SHARE = 0.05  # of the area: what may be cut off at an edge of three triangles without asking
LARGEST_SEAM_SHARE = 0.005  # of the area: triangles at edges where walls touch, with no flap to blame
BOW_TIE_PULL = 0.1  # how far a split node is drawn towards the middle of its triangles
LARGEST_LID_SHARE = 0.1  # of the area: a rim wider than that is the edge of a sheet, no stray hole
THIN_LID, FLAT_LID = 1e-3, 1e-5  # area over longest edge squared: not liked, not taken
LARGEST_STRAY_HOLE_MM = 10.0  # round the rim; the narrowest vein of our hearts has 14
N_SMOOTHINGS = 20  # of fibres in gaps: blends the neighbourhoods of different known cells
CROOKED = 0.3  # mean |f.n| from which fibres and surface can hardly belong together; chance is 0.5


@dataclass(frozen=True, kw_only=True)
class Mended:
    """One clean mesh: triangles, or tetrahedra if the file has any; all lengths in mm."""

    points_mm: Float[np.ndarray, "node 3"]
    cells: Int[np.ndarray, "cell corner"]
    fibres: Float[np.ndarray, "cell 3"] | None  # unit, tangent on surfaces
    tags: Int[np.ndarray, " cell"] | None
    point_data: dict[str, np.ndarray]
    cell_data: dict[str, np.ndarray]
    # Numbers the nodes and cells have in the file, counted from 0 through all its blocks; -1 for those we made.
    file_nodes: Int[np.ndarray, " node"]
    file_cells: Int[np.ndarray, " cell"]
    # One plain sentence for everything changed or assumed, with its numbers.
    repairs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """A mesh on its way through the steps; coordinates in the file's unit until they are converted."""

    points: Float[np.ndarray, "node 3"]
    cells: Int[np.ndarray, "cell corner"]
    point_data: dict[str, np.ndarray]
    cell_data: dict[str, np.ndarray]
    file_nodes: Int[np.ndarray, " node"]
    file_cells: Int[np.ndarray, " cell"]
    repairs: tuple[str, ...]

    @property
    def is_surface(self) -> bool:
        return self.cells.shape[1] == 3

    def saying(self, sentence: str) -> "_Draft":
        return replace(self, repairs=(*self.repairs, sentence))

    def sizes(self) -> Float[np.ndarray, " cell"]:
        return (
            triangle_areas(self.points, self.cells) if self.is_surface else np.abs(_tetra_volumes(self.points, self.cells))
        )

    def node_place(self, node: int | np.integer) -> str:
        at = ", ".join(f"{x:.6g}" for x in self.points[node])
        return f"node {self.file_nodes[node]} ({at})"


def mended(
    raw: RawMesh,
    *,
    unit: Unit | None = None,
    keep_all: bool = False,
    largest_stray_hole_mm: float = LARGEST_STRAY_HOLE_MM,
) -> Mended:
    """A clean mesh of what the file holds, with everything that was changed or assumed told in `repairs`.

    unit: what the coordinates are in, or None to judge by the width of the mesh; keep_all: separate parts all stay;
    largest_stray_hole_mm: rims shorter than this are closed.
    """
    draft = _one_kind(raw)
    draft = _with_checked_nodes(draft)
    draft = _without_unused_points(draft)
    draft = _with_merged_points(draft)
    draft = _without_collapsed_cells(draft)
    draft = _without_repeated_cells(draft)
    if draft.is_surface:
        draft = _without_flat_triangles(draft)
        draft = _manifold(draft)
    else:
        draft = _without_flat_tetrahedra(draft)
    draft = _with_all_parts(draft) if keep_all else _largest_part(draft)
    draft = _wound_outwards(draft) if draft.is_surface else _with_positive_volumes(draft)
    draft = _in_mm(draft, unit)
    if draft.is_surface:
        draft = _without_stray_holes(draft, largest_stray_hole_mm)
    draft = _with_marks_as_nan(draft)
    tags, draft = _tags(draft)
    fibres, draft = _fibres(draft)
    return Mended(
        points_mm=draft.points,
        cells=draft.cells,
        fibres=fibres,
        tags=tags,
        point_data=draft.point_data,
        cell_data=draft.cell_data,
        file_nodes=draft.file_nodes,
        file_cells=draft.file_cells,
        repairs=draft.repairs,
    )


# What the file holds, as one table of cells


def _one_kind(raw: RawMesh) -> _Draft:
    """Tetrahedra where there are any, else triangles and quads cut in two; the reader's remarks come first."""
    _check_lengths(raw)
    first = np.cumsum([0, *[len(block.nodes) for block in raw.blocks]])
    numbered = [(block, np.arange(first[i], first[i + 1])) for i, block in enumerate(raw.blocks) if len(block.nodes)]
    n_of = {kind: sum(len(block.nodes) for block, _ in numbered if block.kind == kind) for kind in CORNERS}
    for kind in ("pyramid", "wedge", "hexahedron"):
        if n_of[kind]:
            raise InputError(f"the mesh has {n_of[kind]:,} {kind} cells: cut them into tetrahedra first (meshtool, gmsh)")
    repairs = list(raw.remarks)
    if n_of["line"]:
        repairs.append(f"{_n(n_of['line'], 'line')} (links or cables) left out")
    if n_of["tetra"]:
        n_flat = n_of["triangle"] + n_of["quad"]
        if n_flat:
            repairs.append(f"{_n(n_flat, 'surface cell')} beside {_n(n_of['tetra'], 'tetrahedron')} left out")
        kept = [item for item in numbered if item[0].kind == "tetra"]
    else:
        kept = [item for item in numbered if item[0].kind in ("triangle", "quad")]
    if not kept:
        raise InputError("the mesh has no triangles or tetrahedra: bring a surface or a volume, not a cloud of points")
    for block, number in kept:
        _check_names(block.nodes, number, len(raw.points))
    if n_of["quad"] and not n_of["tetra"]:
        repairs.append(f"{_n(n_of['quad'], 'quad')} cut into {_n(2 * n_of['quad'], 'triangle')} along the shorter diagonal")
        kept = [_split(block, number, raw.points) if block.kind == "quad" else (block, number) for block, number in kept]
    return _Draft(
        points=np.array(raw.points, dtype=np.float64),
        cells=np.concatenate([block.nodes for block, _ in kept]).astype(np.int64),
        point_data=dict(raw.point_data),
        cell_data=_joined([block.data for block, _ in kept], [len(block.nodes) for block, _ in kept]),
        file_nodes=np.arange(len(raw.points)),
        file_cells=np.concatenate([number for _, number in kept]),
        repairs=tuple(repairs),
    )


def _check_lengths(raw: RawMesh):
    for name, values in raw.point_data.items():
        if len(values) != len(raw.points):
            raise InputError(
                f"point data '{name}' has {len(values):,} rows for {len(raw.points):,} points: one is needed for each"
            )
    for block in raw.blocks:
        if block.kind not in CORNERS:
            raise InputError(f"cells of the kind '{block.kind}' are unknown: known are {', '.join(CORNERS)}")
        for name, values in block.data.items():
            if len(values) != len(block.nodes):
                raise InputError(
                    f"cell data '{name}' has {len(values):,} rows for {len(block.nodes):,} {block.kind} cells: "
                    "one is needed for each"
                )


def _check_names(nodes: np.ndarray, number: np.ndarray, n_points: int):
    wrong = np.argwhere((nodes < 0) | (nodes >= n_points))
    if wrong.size:
        cell, corner = wrong[0]
        raise InputError(
            f"cell {number[cell]} names node {nodes[cell, corner]}, but nodes run from 0 to {n_points - 1}: "
            "the file is cut short, or counts from 1"
        )


def _split(block: Block, number: np.ndarray, points: np.ndarray) -> tuple[Block, np.ndarray]:
    a, b, c, d = block.nodes.T
    is_ac_shorter = np.linalg.norm(points[a] - points[c], axis=1) <= np.linalg.norm(points[b] - points[d], axis=1)
    first = np.where(is_ac_shorter, [a, b, c], [a, b, d])
    second = np.where(is_ac_shorter, [a, c, d], [b, c, d])
    nodes = np.stack([first.T, second.T], axis=1).reshape(-1, 3)
    data = {name: np.repeat(values, 2, axis=0) for name, values in block.data.items()}
    return Block(kind="triangle", nodes=nodes, data=data), np.repeat(number, 2)


def _joined(tables: list[dict[str, np.ndarray]], lengths: list[int]) -> dict[str, np.ndarray]:
    """Data of several blocks as one; NaN where a block lacks a name, and no entry where the shapes disagree."""
    joined = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        tail = next(table[name].shape[1:] for table in tables if name in table)
        columns = [table.get(name, np.full((n, *tail), np.nan)) for table, n in zip(tables, lengths, strict=True)]
        if all(column.shape[1:] == tail for column in columns):
            joined[name] = np.concatenate(columns)
    return joined


# Nodes


def _with_checked_nodes(draft: _Draft) -> _Draft:
    is_used = np.zeros(len(draft.points), dtype=bool)
    is_used[draft.cells] = True
    broken = np.flatnonzero(is_used & ~np.isfinite(draft.points).all(axis=1))
    if broken.size:
        cell = np.flatnonzero((draft.cells == broken[0]).any(axis=1))[0]
        raise InputError(
            f"{draft.node_place(broken[0])} of cell {draft.file_cells[cell]} has no finite place "
            f"({_n(broken.size, 'such node')}): remove it with its cells, or export the mesh again"
        )
    return draft


def _without_unused_points(draft: _Draft) -> _Draft:
    trimmed = _trimmed(draft)
    n_unused = len(draft.points) - len(trimmed.points)
    return trimmed.saying(f"{_n(n_unused, 'point')} that no cell uses removed") if n_unused else draft


def _with_merged_points(draft: _Draft) -> _Draft:
    """Points on the same place become the first of them, as in STL, where every triangle brings its own corners."""
    extent = np.ptp(draft.points, axis=0).max(initial=0)
    same = _first_alike(draft.points)
    lone = np.flatnonzero(same == np.arange(len(same)))
    # Exact copies first: a soup holds six of everything, and trees of copies are slow.
    pairs = KDTree(draft.points[lone]).query_pairs(MERGE_SHARE * extent, output_type="ndarray")
    if len(pairs):
        links = coo_array((np.ones(len(pairs)), pairs.T), shape=(len(lone), len(lone)))
        label = connected_components(links, directed=False)[1]
        _, first, group = np.unique(label, return_index=True, return_inverse=True)
        position = np.searchsorted(lone, same)
        same = lone[first[group]][position]
    n_merged = int((same != np.arange(len(same))).sum())
    if not n_merged:
        return draft
    return _trimmed(replace(draft, cells=same[draft.cells])).saying(
        f"{_n(n_merged, 'point')} of {len(same):,} merged with another on the same place"
    )


def _first_alike(points: np.ndarray) -> Int[np.ndarray, " node"]:
    """For every point the first with exactly its coordinates."""
    order = np.lexsort(points.T)  # stable: of equal points the first comes first
    along = points[order]
    is_first = np.concatenate([[True], (along[1:] != along[:-1]).any(axis=1)])
    first = np.empty(len(points), dtype=np.int64)
    first[order] = order[is_first][np.cumsum(is_first) - 1]
    return first


def _trimmed(draft: _Draft) -> _Draft:
    """Without the points no cell uses."""
    is_used = np.zeros(len(draft.points), dtype=bool)
    is_used[draft.cells] = True
    if is_used.all():
        return draft
    return replace(_with_points(draft, np.flatnonzero(is_used)), cells=(np.cumsum(is_used) - 1)[draft.cells])


def _with_points(draft: _Draft, chosen: np.ndarray) -> _Draft:
    """These points with their data; cells are left to the caller."""
    return replace(
        draft,
        points=draft.points[chosen],
        point_data=_rows(draft.point_data, chosen),
        file_nodes=draft.file_nodes[chosen],
    )


def _with_cells(draft: _Draft, chosen: np.ndarray) -> _Draft:
    """These cells with their data, and the points they use; a number may come twice."""
    if chosen.dtype == bool:
        chosen = np.flatnonzero(chosen)
    kept = replace(
        draft,
        cells=draft.cells[chosen],
        cell_data=_rows(draft.cell_data, chosen),
        file_cells=draft.file_cells[chosen],
    )
    if not len(kept.cells):
        raise InputError("nothing is left of the mesh: all its cells are flat, or folded onto each other")
    return _trimmed(kept)


# Cells


def _without_collapsed_cells(draft: _Draft) -> _Draft:
    ordered = np.sort(draft.cells, axis=1)
    is_sound = (ordered[:, 1:] != ordered[:, :-1]).all(axis=1)
    if is_sound.all():
        return draft
    return _with_cells(draft, is_sound).saying(f"{_n((~is_sound).sum(), _kind(draft))} with a corner named twice removed")


def _without_repeated_cells(draft: _Draft) -> _Draft:
    ordered = np.sort(draft.cells, axis=1)
    order = np.lexsort(ordered.T)
    is_repeat = np.zeros(len(ordered), dtype=bool)
    is_repeat[order[1:]] = (ordered[order[1:]] == ordered[order[:-1]]).all(axis=1)
    if not is_repeat.any():
        return draft
    return _with_cells(draft, ~is_repeat).saying(f"{_n(is_repeat.sum(), _kind(draft))} given more than once, kept once")


def _without_flat_triangles(draft: _Draft) -> _Draft:
    """Triangles without area taken out so that no crack opens: the neighbour at the long edge is cut at the middle node."""
    n_cut, n_removed = 0, 0
    for _ in range(10):  # a cut may leave another flat one; endless chains are not worth more rounds
        flat = np.flatnonzero(_is_flat(draft))
        if not flat.size:
            break
        draft, n_done = _with_flat_ones_cut(draft, flat)
        if not n_done:
            draft, n_removed = _with_cells(draft, ~_is_flat(draft)), n_removed + len(flat)
        n_cut += n_done
    if n_cut:
        draft = draft.saying(f"{_n(n_cut, 'triangle')} without area removed, the neighbour cut to fit")
    return draft.saying(f"{_n(n_removed, 'triangle')} without area removed") if n_removed else draft


def _with_flat_ones_cut(draft: _Draft, flat: np.ndarray) -> tuple[_Draft, int]:
    sides = sides_of(draft.cells)
    lengths = np.linalg.norm(draft.points[sides.nodes[:, 1]] - draft.points[sides.nodes[:, 0]], axis=1).reshape(-1, 3)
    by_edge: dict[int, list[int]] = {}
    near = np.isin(sides.edge, sides.edge.reshape(-1, 3)[flat])
    for side in np.flatnonzero(near).tolist():
        by_edge.setdefault(int(sides.edge[side]), []).append(side)
    known = set(map(tuple, sides.edges[np.isin(sides.edges, draft.cells[flat]).any(axis=1)].tolist()))
    cells, source, busy = draft.cells.copy(), np.arange(len(draft.cells)), set()
    for cell in flat.tolist():
        side = 3 * cell + int(lengths[cell].argmax())
        others = [s for s in by_edge[int(sides.edge[side])] if s != side]
        if len(others) != 1 or {cell, others[0] // 3} & busy:
            continue
        tail, head = sides.nodes[side].tolist()
        neighbour = others[0] // 3
        middle = int(draft.cells[cell].sum()) - tail - head
        apex = int(draft.cells[neighbour].sum()) - tail - head
        if middle == apex or (min(middle, apex), max(middle, apex)) in known:
            continue
        # The neighbour's two halves wind as it did.
        whole = draft.cells[neighbour]
        cells[neighbour] = np.where(whole == tail, middle, whole)
        cells[cell] = np.where(whole == head, middle, whole)
        source[cell] = neighbour
        busy |= {cell, neighbour}
        known.add((min(middle, apex), max(middle, apex)))
    cut = replace(draft, cells=cells, cell_data=_rows(draft.cell_data, source), file_cells=draft.file_cells[source])
    return cut, len(busy) // 2


def _without_flat_tetrahedra(draft: _Draft) -> _Draft:
    is_flat = _is_flat(draft)
    if not is_flat.any():
        return draft
    return _with_cells(draft, ~is_flat).saying(f"{_n(is_flat.sum(), 'tetrahedron')} without volume removed")


def _is_flat(draft: _Draft) -> np.ndarray:
    corners = draft.points[draft.cells]
    n_corners = draft.cells.shape[1]
    steps = [np.linalg.norm(corners[:, i] - corners[:, j], axis=1) for i in range(n_corners) for j in range(i)]
    return ~(draft.sizes() > FLAT[n_corners] * np.max(steps, axis=0) ** (n_corners - 1))


# Topology


def _manifold(draft: _Draft) -> _Draft:
    """Two triangles at every edge, or one, and one fan at every node."""
    sides = sides_of(draft.cells)
    if (sides.n_triangles > 2).any():
        draft = _without_crowded_edges(draft, sides)
        sides = sides_of(draft.cells)
    return _without_bow_ties(draft, sides)


def _without_crowded_edges(draft: _Draft, sides: Sides) -> _Draft:
    """Where three or more triangles meet at an edge: small flaps come off, and small seams between sheets are unpicked."""
    is_flap, n_flaps, is_crowded = _flaps(draft, sides)
    area = draft.sizes()
    if n_flaps:
        draft = draft.saying(
            f"{_n(is_flap.sum(), 'triangle')} in {_n(n_flaps, 'flap')} ({_percent(area[is_flap].sum() / area.sum())} of the "
            f"area) removed at {_n((sides.n_triangles > 2).sum() - is_crowded.sum(), 'edge')} of three or more triangles"
        )
    if not is_crowded.any():
        return _with_cells(draft, ~is_flap)
    is_seam = is_crowded[sides.edge].reshape(-1, 3).any(axis=1) & ~is_flap
    is_kept = ~is_flap & ~is_seam
    lost = area[is_seam].sum() / area.sum()
    # The body must outlive it: else these are no spots where walls touch, but large sheets that end on each other.
    before, after = _largest_share(draft, ~is_flap), _largest_share(draft, is_kept)
    if lost > LARGEST_SEAM_SHARE or after < before - lost - LARGEST_FLAP_SHARE:
        edge = int(np.flatnonzero(is_crowded)[0])
        tail, head = sides.edges[edge]
        raise InputError(
            f"the edge from {draft.node_place(tail)} to {draft.node_place(head)} belongs to {sides.n_triangles[edge]} "
            f"triangles, and no small flap ends there ({_n(is_crowded.sum(), 'such edge')}): separate the sheets first"
        )
    return _with_cells(draft, is_kept).saying(
        f"{_n(is_seam.sum(), 'triangle')} ({_percent(lost)} of the area) removed where walls touch, "
        f"at {_n(is_crowded.sum(), 'edge')} of three or more triangles"
    )


def _flaps(draft: _Draft, sides: Sides) -> tuple[np.ndarray, int, np.ndarray]:
    """Cells in the smallest pieces that end on crowded edges, how many pieces, and which edges stay crowded without them."""
    piece = _pieces(sides, len(draft.cells))
    area = np.bincount(piece, draft.sizes())
    is_small = area < LARGEST_FLAP_SHARE * area.sum()
    # A row for every side that lies on a crowded edge.
    row = np.flatnonzero(sides.n_triangles[sides.edge] > 2)
    row_edge, row_piece = sides.edge[row], piece[row // 3]
    n_left = sides.n_triangles.copy()
    is_flap = np.zeros(len(area), dtype=bool)
    while True:
        candidates = np.unique(row_piece[(n_left[row_edge] > 2) & (is_small & ~is_flap)[row_piece]])
        if not candidates.size:
            return is_flap[piece], int(is_flap.sum()), n_left > 2
        smallest = candidates[area[candidates].argmin()]
        is_flap[smallest] = True
        np.subtract.at(n_left, row_edge[row_piece == smallest], 1)


def _pieces(sides: Sides, n_cells: int) -> np.ndarray:
    """For every triangle the number of its piece, all crowded edges cut."""
    one, other = sides.meeting()
    is_plain = sides.n_triangles[sides.edge[one]] == 2
    links = coo_array((np.ones(is_plain.sum()), (one[is_plain] // 3, other[is_plain] // 3)), shape=(n_cells, n_cells))
    return connected_components(links, directed=False)[1]


def _largest_share(draft: _Draft, is_kept: np.ndarray) -> float:
    """The largest part's share of the whole area when only these triangles are left; parts hang together by edges."""
    area = draft.sizes()
    sides = sides_of(draft.cells[is_kept])
    one, other = sides.meeting()
    links = coo_array((np.ones(len(one)), (one // 3, other // 3)), shape=(is_kept.sum(),) * 2)
    part = connected_components(links, directed=False)[1]
    return float(np.bincount(part, area[is_kept]).max(initial=0) / area.sum())


def _without_bow_ties(draft: _Draft, sides: Sides) -> _Draft:
    """A node where the surface only touches itself becomes one node for every fan of triangles; the largest keeps it."""
    fan, n_fans = corner_fans(draft.cells, sides)
    if n_fans == len(draft.points):
        return draft
    node = np.zeros(n_fans, dtype=np.int64)
    node[fan.ravel()] = draft.cells.ravel()
    order = np.lexsort([np.arange(n_fans), -np.bincount(fan.ravel()), node])
    is_extra = np.concatenate([[False], node[order[1:]] == node[order[:-1]]])
    place = np.empty(n_fans, dtype=np.int64)
    place[order] = np.where(is_extra, len(draft.points) + np.cumsum(is_extra) - 1, node[order])
    copied = node[order[is_extra]]
    grown = _with_points(draft, np.concatenate([np.arange(len(draft.points)), copied]))
    # Two nodes on one place would be merged again by the next reader, and graphs of near points would join them.
    middle = draft.points[draft.cells].mean(axis=1)
    sums = [np.bincount(fan.ravel(), np.repeat(column, 3), minlength=n_fans) for column in middle.T]
    centre = (np.stack(sums, axis=1) / np.bincount(fan.ravel())[:, None])[order[is_extra]]
    points = grown.points.copy()
    points[len(draft.points) :] += BOW_TIE_PULL * (centre - points[len(draft.points) :])
    n_nodes = len(np.unique(copied))
    return replace(grown, points=points, cells=place[fan]).saying(
        f"{_n(n_nodes, 'node')} where the surface touches itself in a point only, split into {n_nodes + len(copied):,}, "
        f"the new drawn {_percent(BOW_TIE_PULL)} of the way into their triangles"
    )


def _largest_part(draft: _Draft) -> _Draft:
    part = connected_parts(draft.cells, len(draft.points))
    size = np.bincount(part, draft.sizes())
    if len(size) == 1:
        return draft
    is_kept = part == size.argmax()
    what = "area" if draft.is_surface else "volume"
    return _with_cells(draft, is_kept).saying(
        f"the largest of {len(size):,} separate parts kept; the others ({_n((~is_kept).sum(), _kind(draft))}, "
        f"{_percent(1 - size.max() / size.sum())} of the {what}) removed"
    )


def _with_all_parts(draft: _Draft) -> _Draft:
    n_parts = connected_parts(draft.cells, len(draft.points)).max() + 1
    return draft.saying(f"{n_parts:,} separate parts, all kept") if n_parts > 1 else draft


def _wound_outwards(draft: _Draft) -> _Draft:
    cells, _ = outward(draft.points, oriented(draft.cells, draft.node_place)[0])
    n_turned = int((cells != draft.cells).any(axis=1).sum())
    if not n_turned:
        return draft
    if n_turned == len(cells):
        said = "all triangles were wound with the normals inwards: turned"
    else:
        said = f"{n_turned:,} of {len(cells):,} triangles wound the other way round from the rest, or inwards: turned"
    return replace(draft, cells=cells).saying(said)


def _with_positive_volumes(draft: _Draft) -> _Draft:
    is_turned = _tetra_volumes(draft.points, draft.cells) < 0
    if not is_turned.any():
        return draft
    cells = np.where(is_turned[:, None], draft.cells[:, [0, 1, 3, 2]], draft.cells)
    return replace(draft, cells=cells).saying(f"{_n(is_turned.sum(), 'tetrahedron')} of negative volume turned")


@dataclass(frozen=True, kw_only=True)
class _Lid:
    """Triangles over one rim; corner i is the rim's node i, and its length the new node in the middle."""

    rim: Int[np.ndarray, " node"]
    corners: Int[np.ndarray, "cell 3"]
    area: float


def _without_stray_holes(draft: _Draft, largest_mm: float) -> _Draft:
    """Short rims closed with triangles that have area and fold over nothing."""
    loops = boundary_loops(draft.cells)
    length = perimeters(draft.points, loops)
    short = np.flatnonzero(length < largest_mm)
    if not short.size:
        return draft
    largest = LARGEST_LID_SHARE * draft.sizes().sum()
    closed = {i: lid for i in short.tolist() if (lid := _lid(draft, loops[i])) and lid.area < largest}
    if len(closed) < len(short):
        left = [i for i in short.tolist() if i not in closed]
        draft = draft.saying(
            f"{_n(len(left), 'rim')} under {largest_mm:g} mm left open, as a lid would be flat, or as large as the mesh "
            f"(the longest {length[left].max():.2g} mm)"
        )
    if not closed:
        return draft
    n_triangles, longest = sum(len(lid.corners) for lid in closed.values()), length[list(closed)].max()
    return _with_lids(draft, list(closed.values())).saying(
        f"{_n(len(closed), 'stray hole')} closed (under {largest_mm:g} mm round, the longest {longest:.2g}) with "
        f"{_n(n_triangles, 'triangle')}, data as beside them; {_n(len(loops) - len(closed), 'hole')} left"
    )


def _lid(draft: _Draft, rim: Int[np.ndarray, " node"]) -> _Lid | None:
    """One triangle, or a fan to the mean of the rim, or ears cut off one by one; None where each has flat triangles."""
    n_rim = len(rim)
    place = np.concatenate([draft.points[rim], draft.points[rim].mean(axis=0, keepdims=True)])
    here = np.arange(n_rim)
    # Against the rim, so that the lid winds as the triangles beside it.
    fan = np.stack([np.roll(here, -1), here, np.full(n_rim, n_rim)], axis=1)
    ways = [here[None, ::-1]] if n_rim == 3 else [fan]
    if n_rim > 3 and not _lid_shape(place, fan)[1]:
        ways.append(_ears(draft.cells, rim, place))
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


def _ears(cells: np.ndarray, rim: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Triangles over a rim without a new node, the best shaped first; empty where the mesh has their edges already."""
    about = cells[np.isin(cells, rim).sum(axis=1) > 1]
    known = {frozenset(edge) for edge in sides_of(about).edges.tolist()}
    left, ears = list(range(len(rim)))[::-1], []
    up = np.cross(place[left], place[np.roll(left, -1)]).sum(axis=0)
    while len(left) > 3:
        trios = np.stack([np.roll(left, 1), left, np.roll(left, -1)], axis=1)
        a, b, c = place[trios].swapaxes(0, 1)
        shape = np.cross(b - a, c - b) @ up / (np.stack([a - b, b - c, c - a]) ** 2).sum(axis=(0, 2))
        is_free = [frozenset(rim[trio[[0, 2]]].tolist()) not in known for trio in trios]
        best = int(np.where(is_free, shape, -np.inf).argmax())
        if not is_free[best] or shape[best] <= 0:
            return np.empty((0, 3), dtype=np.int64)
        ears.append(trios[best])
        known.add(frozenset(rim[trios[best][[0, 2]]].tolist()))
        del left[best]
    return np.array([*ears, left])


def _with_lids(draft: _Draft, lids: list[_Lid]) -> _Draft:
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
    grown = _with_cells(draft, source)
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


# Units


def _in_mm(draft: _Draft, unit: Unit | None) -> _Draft:
    width = float(np.ptp(draft.points, axis=0).max())
    if unit is None:
        guess = _unit_of(width)
        reason = f"taken as {UNIT_NAMES[guess]}, as the mesh is {_g(width)} wide"
    else:
        guess, reason = unit, f"given as {UNIT_NAMES[unit]}"
    factor = MM_PER_UNIT[guess]
    width_mm = width * factor
    if factor != 1:
        said = f"divided by {1 / factor:,.0f}" if factor < 1 else f"multiplied by {factor:,.0f}"
        draft = replace(draft, points=draft.points * factor).saying(f"coordinates {reason}: {said}")
    if not 20 <= width_mm <= 200:
        draft = draft.saying(f"the mesh is {_g(width_mm)} mm wide, where a left atrium has 40 to 110: check the unit")
    return draft


def _unit_of(width: float) -> Unit:
    """By the width of a left atrium, 40 to 110 mm, with room on both sides."""
    if width > 1000:
        return "um"
    if width < 0.2:
        return "m"
    return "cm" if 4 <= width <= 11 else "mm"


# Data


def _with_marks_as_nan(draft: _Draft) -> _Draft:
    point_data, said_of_points = _unmarked(draft.point_data, "point")
    cell_data, said_of_cells = _unmarked(draft.cell_data, "cell")
    said = (*draft.repairs, *said_of_points, *said_of_cells)
    return replace(draft, point_data=point_data, cell_data=cell_data, repairs=said)


def _unmarked(data: Mapping[str, np.ndarray], site: str) -> tuple[dict[str, np.ndarray], list[str]]:
    clean, said = dict(data), []
    for name, values in data.items():
        if not np.issubdtype(values.dtype, np.number) or not (is_mark := values == NO_DATA).any():
            continue
        clean[name] = np.where(is_mark, np.nan, values)
        said.append(f"{_n(is_mark.sum(), 'value')} {NO_DATA} (no data) in the {site} data '{name}' taken as NaN")
    return clean, said


def _tags(draft: _Draft) -> tuple[Int[np.ndarray, " cell"] | None, _Draft]:
    """Whole numbers from the first array that bears a tag's name; some tools write them as 11.0."""
    lower = {name.lower(): name for name in reversed(draft.cell_data)}
    for name in (lower[known] for known in TAG_NAMES if known in lower):
        values = draft.cell_data[name].squeeze()
        if values.shape == (len(draft.cells),) and np.issubdtype(values.dtype, np.number):
            if np.isfinite(values).all() and (values == np.rint(values)).all():
                return values.astype(np.int64), draft
            draft = draft.saying(f"cell data '{name}' not taken for tags: it holds fractions or gaps")
    return None, draft


# Fibres


def _fibres(draft: _Draft) -> tuple[Float[np.ndarray, "cell 3"] | None, _Draft]:
    """Unit fibres per cell, in the plane of the triangle on surfaces, from the first array with a fibre's name."""
    found = _fibre_array(draft)
    if found is None:
        return None, draft
    site, name, vectors = found
    length = np.linalg.norm(vectors, axis=1)
    is_given = np.isfinite(length) & (length > 0)
    unit = np.where(is_given[:, None], vectors / np.where(is_given, length, 1)[:, None], 0)
    at_cells = draft.cells if site == "point" else np.arange(len(draft.cells))[:, None]
    # f f^T, never f: f and -f are the same fibre.
    tensors = np.einsum("nci,ncj->nij", unit[at_cells], unit[at_cells])
    said = f"fibres from the {site} data '{name}', {_percent(1 - is_given.mean())} of them zero or NaN"
    if draft.is_surface:
        normals = triangle_normals(draft.points, draft.cells)
        lean = np.abs(np.einsum("nci,ni->nc", unit[at_cells], normals))[is_given[at_cells]]
        slope = float(lean.mean()) if lean.size else 0.0
        said += f", mean |f.n| {slope:.3f}: laid into the surface and normalised"
        if slope > CROOKED:
            said += "; so steep that fibres and points may be in different frames"
        tensors = _laid_flat(tensors, normals)
    draft = draft.saying(said)
    # A fibre along the normal has no direction in the surface.
    is_known = np.trace(tensors, axis1=1, axis2=2) > 0.01
    if (~is_known).mean() > 0.5:
        return None, draft.saying(f"fibres discarded, as {_percent((~is_known).mean())} of the cells have none")
    filled, n_lost = _with_gaps_filled(tensors, is_known, draft)
    if n_lost:
        return None, draft.saying(f"fibres discarded, as {_n(n_lost, 'cell')} without one hang together with none that has")
    if not is_known.all():
        draft = draft.saying(f"{_n((~is_known).sum(), 'cell')} without a fibre took the direction of their neighbours")
    fibres = _main_tangents(filled, draft) if draft.is_surface else np.linalg.eigh(filled)[1][..., -1]
    return _signed_as(fibres, unit[at_cells[:, 0]]), draft


def _fibre_array(draft: _Draft) -> tuple[str, str, Float[np.ndarray, "site 3"]] | None:
    for known in FIBRE_NAMES:
        for site, data in (("cell", draft.cell_data), ("point", draft.point_data)):
            for name, values in data.items():
                # Six columns are fibre and sheet.
                if name.lower() == known and values.ndim == 2 and values.shape[1] in (3, 6):
                    return site, name, np.asarray(values[:, :3], dtype=np.float64)
    return None


def _laid_flat(tensors: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """P T P with P = I - n n^T."""
    flat = np.eye(3) - normals[:, :, None] * normals[:, None, :]
    return flat @ tensors @ flat


def _main_tangents(tensors: np.ndarray, draft: _Draft) -> np.ndarray:
    """The direction in each triangle's plane along which its tensor is largest."""
    corners = draft.points[draft.cells]
    first = corners[:, 1] - corners[:, 0]
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(triangle_normals(draft.points, draft.cells), first)
    along, across, mixed = (
        np.einsum("ni,nij,nj->n", a, tensors, b) for a, b in ((first, first), (second, second), (first, second))
    )
    angle = np.arctan2(2 * mixed, along - across) / 2
    return np.cos(angle)[:, None] * first + np.sin(angle)[:, None] * second


def _signed_as(fibres: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Each fibre on the side of the one given: the sign says nothing, but pictures and rivals see it."""
    return np.where(np.einsum("ni,ni->n", fibres, given)[:, None] < 0, -fibres, fibres)


def _with_gaps_filled(tensors: np.ndarray, is_known: np.ndarray, draft: _Draft) -> tuple[np.ndarray, int]:
    """Unknown tensors from the nearest known cell over the mesh, then smoothed; and how many none could reach."""
    if is_known.all():
        return tensors, 0
    n_cells, n_corners = draft.cells.shape
    row = np.repeat(np.arange(n_cells), n_corners)
    touches = csr_array((np.ones(row.size), (row, draft.cells.ravel())), shape=(n_cells, len(draft.points)))
    # Only the gaps and the cells about them take part.
    near = np.flatnonzero(touches @ (touches.T @ (~is_known).astype(float)) > 0)
    local = touches[near]
    is_gap = ~is_known[near]
    # From cell to corner to cell: one graph for triangles and tetrahedra.
    links = block_array([[None, local], [local.T, None]], format="csr")
    away, _, source = dijkstra(
        links, indices=np.flatnonzero(~is_gap), min_only=True, unweighted=True, return_predecessors=True
    )
    n_lost = int(np.isinf(away[: len(near)]).sum()) if (~is_gap).any() else len(near)
    if n_lost:
        return tensors, n_lost
    flat = tensors[near[source[: len(near)]]].reshape(-1, 9)
    into_gap = local[np.flatnonzero(is_gap)]
    to_nodes = csr_array(local.T / local.sum(axis=0).clip(1)[:, None])
    for _ in range(N_SMOOTHINGS):
        flat[is_gap] = into_gap @ (to_nodes @ flat) / n_corners
    filled = tensors.copy()
    gap = near[is_gap]
    filled[gap] = flat[is_gap].reshape(-1, 3, 3)
    if draft.is_surface:
        filled[gap] = _laid_flat(filled[gap], triangle_normals(draft.points, draft.cells[gap]))
    return filled, 0


# Words


def _kind(draft: _Draft) -> str:
    return "triangle" if draft.is_surface else "tetrahedron"


def _n(count: int | np.integer, what: str) -> str:
    """A count with its noun: 1 triangle, 2,300 triangles."""
    plural = {"tetrahedron": "tetrahedra"}.get(what, f"{what}s")
    return f"{int(count):,} {what if count == 1 else plural}"


def _percent(share: float) -> str:
    return "less than 0.01 %" if 0 < share < 1e-4 else f"{100 * share:.2g} %"


def _g(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _rows(data: Mapping[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[chosen] for name, values in data.items()}


def _tetra_volumes(points: np.ndarray, cells: np.ndarray) -> Float[np.ndarray, " cell"]:
    a, b, c, d = points[cells].swapaxes(0, 1)
    return np.einsum("ni,ni->n", b - a, np.cross(c - a, d - a)) / 6
