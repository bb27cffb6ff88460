"""VTK's numbered kinds of cell, turned into blocks of cells that we know by name."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from gfunk.errors import InputError
from gfunk.files.raw import CORNERS, Block, RawMesh

# VTK's number, our kind, and how many nodes the file gives for each; the corners come first, mid-edge nodes after them.
FIXED = {
    3: ("line", 2), 5: ("triangle", 3), 9: ("quad", 4), 10: ("tetra", 4), 12: ("hexahedron", 8), 13: ("wedge", 6),
    14: ("pyramid", 5), 22: ("triangle", 6), 24: ("tetra", 10),
}  # fmt: skip
POLY_VERTEX, POLY_LINE, STRIP, POLYGON = 2, 4, 6, 7
_VERTICES, _QUADRATIC = (1, POLY_VERTEX), (22, 24)
# Why an unknown number is unknown: names for the ones that users meet.
_UNKNOWN = {
    0: "empty cell", 8: "pixel", 11: "voxel", 15: "pentagonal prism", 16: "hexagonal prism", 21: "quadratic edge",
    23: "quadratic quad", 25: "quadratic hexahedron", 26: "quadratic wedge", 27: "quadratic pyramid", 28: "biquadratic quad",
    29: "triquadratic hexahedron", 34: "biquadratic triangle", 41: "convex point set", 42: "polyhedron",
    68: "Lagrange curve", 69: "Lagrange triangle", 71: "Lagrange tetrahedron", 72: "Lagrange hexahedron",
    75: "Bezier curve", 76: "Bezier triangle", 78: "Bezier tetrahedron",
}  # fmt: skip
# Memory a file may ask for: so many times its own size, and never less than this. Constant arrays do compress
# a thousandfold, so a small file may grow by more than the factor.
GROWTH, FLOOR_BYTES = 20, 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Cells of any kind one after another: cell c has the nodes connectivity[starts[c]:starts[c + 1]]."""

    types: np.ndarray  # of whole numbers, signed or not
    starts: np.ndarray  # one more than there are cells
    connectivity: Int[np.ndarray, " corner"]

    def __len__(self) -> int:
        return len(self.types)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A VTK dataset as its file gives it."""

    points: Float[np.ndarray, "node 3"]
    cells: Cells
    point_data: dict[str, np.ndarray] = field(default_factory=dict)
    cell_data: dict[str, np.ndarray] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def allowance(n_file_bytes: int) -> int:
    """Most bytes that what a file holds may take in memory."""
    return max(GROWTH * n_file_bytes, FLOOR_BYTES)


def cells_of(types: np.ndarray, ends: np.ndarray, connectivity: np.ndarray, what: str) -> Cells:
    """Cells from where each one ends in the connectivity, checked."""
    for name, array in (("cell types", types), ("offsets", ends), ("connectivity", connectivity)):
        if array.dtype.kind not in "iu":
            raise InputError(f"{what}: its {name} are {array.dtype.name}, not whole numbers")
    if len(types) != len(ends):
        raise InputError(f"{what}: {len(types)} cell types for {len(ends)} offsets: one for each cell expected")
    # Unsigned numbers too large for us turn negative here, and are refused below as such.
    starts = np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
    if (np.diff(starts) < 0).any() or starts[-1] != len(connectivity):
        raise InputError(f"{what}: offsets must rise from 0 to the {len(connectivity)} entries of its connectivity")
    return Cells(types=types, starts=starts, connectivity=connectivity.astype(np.int64, copy=False))


def joined_cells(parts: list[Cells]) -> Cells:
    sizes = [np.zeros(1, np.int64), *(np.diff(part.starts) for part in parts)]
    return Cells(
        types=np.concatenate([np.zeros(0, np.int64), *(part.types for part in parts)]),
        starts=np.cumsum(np.concatenate(sizes)),
        connectivity=np.concatenate([np.zeros(0, np.int64), *(part.connectivity for part in parts)]),
    )


def raw_mesh(grid: Grid, n_file_bytes: int) -> RawMesh:
    """The same mesh as blocks, one for each kind of cell, in the order the kinds first appear."""
    cells, n_nodes = grid.cells, len(grid.points)
    _check_rows("point", grid.point_data, n_nodes)
    _check_rows("cell", grid.cell_data, len(cells))
    outside = (cells.connectivity < 0) | (cells.connectivity >= n_nodes)
    if outside.any():
        where = int(outside.argmax())
        cell = int(np.searchsorted(cells.starts, where, side="right")) - 1
        raise InputError(
            f"cell {cell} names node {cells.connectivity[where]}, but the file's {n_nodes} points are numbered "
            f"from 0 to {n_nodes - 1}: the file is damaged or was cut"
        )
    parts, remarks = _parts(cells)
    blocks = _blocks(parts, grid.cell_data, allowance(n_file_bytes))
    return RawMesh(points=grid.points, blocks=blocks, point_data=grid.point_data, remarks=(*grid.remarks, *remarks))


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Some cells of one kind: which cell of the file each came from, and where in the connectivity its corners are."""

    kind: str
    source: Int[np.ndarray, " cell"]
    nodes: Int[np.ndarray, "cell corner"]


def _check_rows(what: str, data: dict[str, np.ndarray], n_rows: int):
    for name, array in data.items():
        if len(array) != n_rows:
            raise InputError(f"{what} data {name!r} has {len(array)} rows for {n_rows} {what}s: one for each expected")


def _parts(cells: Cells) -> tuple[list[_Part], list[str]]:
    parts: list[_Part] = []
    remarks: list[str] = []
    sizes = np.diff(cells.starts)
    for number in np.unique(cells.types).tolist():
        chosen = np.flatnonzero(cells.types == number)
        if number in _VERTICES:
            remarks.append(f"{len(chosen)} vertex cells were passed over")
        elif number in FIXED:
            kind, size = FIXED[number]
            _check_sizes(sizes[chosen] == size, chosen, sizes, f"{kind} (VTK type {number})", str(size))
            parts.append(_fixed_part(cells, kind, chosen))
            if number in _QUADRATIC:
                remarks.append(
                    f"{len(chosen)} quadratic cells (VTK type {number}) were reduced to the corners of each {kind}"
                )
        elif number == POLY_LINE:
            _check_sizes(sizes[chosen] >= 2, chosen, sizes, "polyline", "2 or more")
            parts.append(_expanded_part(cells, "line", chosen, sizes[chosen] - 1))
        elif number == STRIP:
            _check_sizes(sizes[chosen] >= 3, chosen, sizes, "triangle strip", "3 or more")
            parts.append(_expanded_part(cells, "triangle", chosen, sizes[chosen] - 2))
        elif number == POLYGON:
            _check_sizes(sizes[chosen] >= 3, chosen, sizes, "polygon", "3 or more")
            parts += _polygons(cells, chosen, sizes[chosen])
            if n_large := int((sizes[chosen] > 4).sum()):
                remarks.append(f"{n_large} polygons with more than four corners were cut into triangles, as fans")
        else:
            raise InputError(
                f"cell {chosen[0]} is of VTK type {number} ({_UNKNOWN.get(number, 'unknown')}), which is not read: "
                "convert the mesh to triangles or tetrahedra (ParaView: Triangulate or Tetrahedralize)"
            )
    return parts, remarks


def _check_sizes(is_right: np.ndarray, chosen: np.ndarray, sizes: np.ndarray, kind: str, expected: str):
    if not is_right.all():
        cell = chosen[int(is_right.argmin())]
        raise InputError(f"cell {cell} is a {kind} with {sizes[cell]} nodes, {expected} expected: the file is damaged")


def _fixed_part(cells: Cells, kind: str, chosen: np.ndarray) -> _Part:
    corners = cells.starts[chosen][:, None] + np.arange(CORNERS[kind])
    return _Part(kind=kind, source=chosen, nodes=cells.connectivity[corners])


def _polygons(cells: Cells, chosen: np.ndarray, sizes: np.ndarray) -> list[_Part]:
    large = chosen[sizes > 4]
    parts = [_fixed_part(cells, "triangle", chosen[sizes == 3]), _fixed_part(cells, "quad", chosen[sizes == 4])]
    parts.append(_expanded_part(cells, "triangle", large, sizes[sizes > 4] - 2, is_fan=True))
    return [part for part in parts if len(part.source)]


def _expanded_part(cells: Cells, kind: str, chosen: np.ndarray, n_pieces: np.ndarray, is_fan: bool = False) -> _Part:
    """Cells of any length cut into lines or triangles that each keep the number of the cell they came from."""
    piece = np.arange(n_pieces.sum()) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
    first = np.repeat(cells.starts[chosen], n_pieces)
    if kind == "line":
        corners = np.stack([first + piece, first + piece + 1], axis=1)
    elif is_fan:
        corners = np.stack([first, first + piece + 1, first + piece + 2], axis=1)
    else:
        # Every second triangle of a strip is turned, so that all face the same way.
        odd = piece % 2
        corners = np.stack([first + piece + odd, first + piece + 1 - odd, first + piece + 2], axis=1)
    return _Part(kind=kind, source=np.repeat(chosen, n_pieces), nodes=cells.connectivity[corners])


def _blocks(parts: list[_Part], cell_data: dict[str, np.ndarray], n_bytes_allowed: int) -> tuple[Block, ...]:
    n_rows = sum(len(part.source) for part in parts)
    row_bytes = sum(array.dtype.itemsize * int(np.prod(array.shape[1:])) for array in cell_data.values())
    # One strip of many triangles with wide data would otherwise be copied without end.
    if n_rows * row_bytes > n_bytes_allowed:
        raise InputError("its polygons or strips would repeat cell data beyond reason: triangulate it before saving")
    first_seen = sorted({part.kind: 0 for part in parts}, key=lambda kind: min(_firsts(parts, kind)))
    blocks = []
    for kind in first_seen:
        same = [part for part in parts if part.kind == kind]
        source, nodes = np.concatenate([part.source for part in same]), np.concatenate([part.nodes for part in same])
        if len(same) > 1:
            order = np.argsort(source, kind="stable")
            source, nodes = source[order], nodes[order]
        blocks.append(Block(kind=kind, nodes=nodes, data={name: array[source] for name, array in cell_data.items()}))
    return tuple(blocks)


def _firsts(parts: list[_Part], kind: str) -> list[int]:
    return [int(part.source[0]) for part in parts if part.kind == kind]
