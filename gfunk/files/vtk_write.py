"""Meshes and films for ParaView: XML `.vtp`, `.vtu` and `.pvd`, the same bytes for the same content.

Data are appended raw and uncompressed: quick to write and to read, and no compressor's version can change the bytes.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
from jaxtyping import Float, Int

from gfunk.errors import InputError
from gfunk.files.raw import CORNERS, Block
from gfunk.files.vtk_arrays import DTYPES
from gfunk.files.vtk_cells import FIXED
from gfunk.store import write_bytes

_TYPE_NAMES = {np.dtype(code): name for name, code in DTYPES.items()}
# The linear kinds; the quadratic ones are read, never written.
_NUMBERS = {kind: number for number, (kind, size) in FIXED.items() if size == CORNERS[kind]}


def write_vtu(
    path: Path,
    points: Float[np.ndarray, "node dim"],
    blocks: Sequence[Block],
    point_data: Mapping[str, np.ndarray] | None = None,
):
    """Cells of any kinds with their data; data must have the same names in every block."""
    write_bytes(path, _vtu(path, points, blocks, point_data or {}))


def write_vtp(
    path: Path,
    points: Float[np.ndarray, "node dim"],
    triangles: Int[np.ndarray, "cell 3"],
    point_data: Mapping[str, np.ndarray] | None = None,
    cell_data: Mapping[str, np.ndarray] | None = None,
):
    """A surface of triangles."""
    write_bytes(path, _vtp(path, points, triangles, point_data or {}, cell_data or {}))


def write_series(
    path: Path,
    points: Float[np.ndarray, "node dim"],
    cells: Int[np.ndarray, "cell corner"],
    times_ms: Float[np.ndarray, " time"],
    fields: Mapping[str, np.ndarray],
    point_data: Mapping[str, np.ndarray] | None = None,
    cell_data: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A film: one file for each time and a `.pvd` that lists them, which ParaView opens and whose path is returned.

    `path` is the `.pvd`, with the frames in a folder of its name beside it; or a folder, for both. A field has the axes
    (time, node) or (time, node, component); the other data are the same at every time.
    """
    pvd = path if path.suffix == ".pvd" else path / f"{path.name}.pvd"
    folder = pvd.with_suffix("") if path.suffix == ".pvd" else path
    _check_series(pvd, points, cells, times_ms, fields, point_data or {})
    suffix = "vtp" if cells.shape[1] == 3 else "vtu"
    # A list of frames that are being replaced would show a film of two halves.
    _remove(pvd)
    names = []
    for time in range(len(times_ms)):
        frame = folder / f"{folder.name}_{time:06d}.{suffix}"
        now = {**(point_data or {}), **{name: field[time] for name, field in fields.items()}}
        if suffix == "vtp":
            write_vtp(frame, points, cells, now, cell_data)
        else:
            write_vtu(frame, points, [Block(kind="tetra", nodes=cells, data=dict(cell_data or {}))], now)
        names.append(frame.relative_to(pvd.parent).as_posix())
    write_bytes(pvd, _pvd(pvd, times_ms, names))
    return pvd


def _vtp(
    path: Path,
    points: np.ndarray,
    triangles: np.ndarray,
    point_data: Mapping[str, np.ndarray],
    cell_data: Mapping[str, np.ndarray],
) -> bytes:
    _check_nodes(path, "triangle", triangles, len(points))
    ends = 3 * np.arange(1, len(triangles) + 1)
    sections = {
        "PointData": _rows(path, "point", point_data, len(points)),
        "CellData": _rows(path, "cell", cell_data, len(triangles)),
        "Points": {"Points": _coordinates(path, points)},
        "Polys": {"connectivity": _indices(triangles.ravel()), "offsets": _indices(ends)},
    }
    return _file(path, "PolyData", f'NumberOfPoints="{len(points)}" NumberOfPolys="{len(triangles)}"', sections)


def _vtu(path: Path, points: np.ndarray, blocks: Sequence[Block], point_data: Mapping[str, np.ndarray]) -> bytes:
    for block in blocks:
        if block.kind not in _NUMBERS:
            raise InputError(f"{path}: cells of kind {block.kind!r} can't be written: one of {', '.join(_NUMBERS)} expected")
        _check_nodes(path, block.kind, block.nodes, len(points))
    sizes = [np.zeros(0, np.int64), *(np.full(len(block.nodes), CORNERS[block.kind]) for block in blocks)]
    types = [np.zeros(0, np.uint8), *(np.full(len(block.nodes), _NUMBERS[block.kind], np.uint8) for block in blocks)]
    nodes = [np.zeros(0, np.int64), *(block.nodes.ravel() for block in blocks)]
    n_cells = sum(len(block.nodes) for block in blocks)
    sections = {
        "PointData": _rows(path, "point", point_data, len(points)),
        "CellData": _joined_rows(path, blocks),
        "Points": {"Points": _coordinates(path, points)},
        "Cells": {
            "connectivity": _indices(np.concatenate(nodes)),
            "offsets": _indices(np.cumsum(np.concatenate(sizes))),
            "types": np.concatenate(types),
        },
    }
    return _file(path, "UnstructuredGrid", f'NumberOfPoints="{len(points)}" NumberOfCells="{n_cells}"', sections)


def _file(path: Path, kind: str, counts: str, sections: Mapping[str, Mapping[str, np.ndarray]]) -> bytes:
    arrays = [array for section in sections.values() for array in section.values()]
    contents = [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays]
    # A count of 8 bytes comes before each array.
    offsets = iter(accumulate((8 + len(content) for content in contents), initial=0))
    lines = [
        '<?xml version="1.0"?>',
        f'<VTKFile type="{kind}" version="1.0" byte_order="LittleEndian" header_type="UInt64">',
        f"<{kind}>",
        f"<Piece {counts}>",
    ]
    for section, named in sections.items():
        tags = (_tag(path, name, array, next(offsets)) for name, array in named.items())
        lines += [f"<{section}>", *tags, f"</{section}>"]
    lines += ["</Piece>", f"</{kind}>", '<AppendedData encoding="raw">', "_"]
    appended = b"".join(len(content).to_bytes(8, "little") + content for content in contents)
    return "\n".join(lines).encode() + appended + b"\n</AppendedData>\n</VTKFile>\n"


def _tag(path: Path, name: str, array: np.ndarray, offset: int) -> str:
    n_components = f' NumberOfComponents="{array.shape[1]}"' if array.ndim == 2 else ""
    type_name = _TYPE_NAMES[array.dtype.newbyteorder("=")]
    return f'<DataArray type="{type_name}" Name={_quoted(path, name)}{n_components} format="appended" offset="{offset}"/>'


def _quoted(path: Path, name: str) -> str:
    """A name as XML writes it, where it can."""
    is_writable = all(code >= 32 and not 0xD800 <= code < 0xE000 and code not in (0xFFFE, 0xFFFF) for code in map(ord, name))
    if not name or not is_writable:
        raise InputError(f"{path}: the name {name!r} can't be written in XML: choose one of plain characters")
    return quoteattr(name)


def _rows(path: Path, what: str, data: Mapping[str, np.ndarray], n_rows: int) -> dict[str, np.ndarray]:
    return {name: _row_array(path, f"{what} data {name!r}", array, n_rows) for name, array in data.items()}


def _row_array(path: Path, what: str, array: np.ndarray, n_rows: int) -> np.ndarray:
    """An array as VTK takes it: one or more components in a row. A tensor is its nine numbers, a truth is 0 or 1."""
    if array.ndim == 0 or len(array) != n_rows or 0 in array.shape[1:]:
        raise InputError(f"{path}: {what} has the shape {array.shape}, {n_rows} rows expected")
    array = array.astype(np.uint8) if array.dtype == np.bool_ else array
    if array.dtype.newbyteorder("=") not in _TYPE_NAMES:
        raise InputError(f"{path}: {what} is of type {array.dtype.name}, which VTK files can't hold: use float64 or int64")
    return array if array.ndim == 1 else array.reshape(n_rows, int(np.prod(array.shape[1:])))


def _joined_rows(path: Path, blocks: Sequence[Block]) -> dict[str, np.ndarray]:
    names = list(blocks[0].data) if blocks else []
    if any(set(block.data) != set(names) for block in blocks):
        raise InputError(f"{path}: every block of cells must have data of the same names")
    joined = {}
    for name in names:
        rows = [_row_array(path, f"cell data {name!r}", block.data[name], len(block.nodes)) for block in blocks]
        if len({(array.shape[1:], array.dtype) for array in rows}) > 1:
            raise InputError(f"{path}: cell data {name!r} differs in shape or type from block to block")
        joined[name] = np.concatenate(rows)
    return joined


def _coordinates(path: Path, points: np.ndarray) -> np.ndarray:
    """Points in space; those in a plane get a third coordinate of 0."""
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise InputError(f"{path}: points have the shape {points.shape}, 2 or 3 coordinates for each expected")
    return _row_array(path, "points", np.pad(points, ((0, 0), (0, 3 - points.shape[1]))), len(points))


def _indices(numbers: np.ndarray) -> np.ndarray:
    """Half the bytes where they do."""
    is_small = len(numbers) == 0 or numbers.max() < 2**31
    return numbers.astype(np.int32 if is_small else np.int64)


def _check_nodes(path: Path, kind: str, nodes: np.ndarray, n_points: int):
    if nodes.ndim != 2 or nodes.shape[1] != CORNERS[kind] or nodes.dtype.kind not in "iu":
        raise InputError(
            f"{path}: {kind} cells of shape {nodes.shape} and type {nodes.dtype}, {CORNERS[kind]} nodes expected"
        )
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < n_points:
        raise InputError(f"{path}: cells name nodes {nodes.min()} to {nodes.max()}, but there are {n_points} points")


def _check_series(
    path: Path,
    points: np.ndarray,
    cells: np.ndarray,
    times_ms: np.ndarray,
    fields: Mapping[str, np.ndarray],
    point_data: Mapping[str, np.ndarray],
):
    if cells.ndim != 2 or cells.shape[1] not in (3, 4):
        raise InputError(f"{path}: a film needs triangles or tetrahedra, not cells of shape {cells.shape}")
    if not np.isfinite(times_ms).all() or (np.diff(times_ms) <= 0).any():
        raise InputError(f"{path}: the times of a film must be finite and rise")
    if both := set(fields) & set(point_data):
        raise InputError(f"{path}: {sorted(both)} are both fields and point data: rename one")
    for name, field in fields.items():
        if field.ndim < 2 or field.shape[:2] != (len(times_ms), len(points)):
            raise InputError(
                f"{path}: field {name!r} has the shape {field.shape}, {len(times_ms)} times of {len(points)} nodes expected"
            )


def _pvd(path: Path, times_ms: np.ndarray, names: Sequence[str]) -> bytes:
    frames = (
        f'<DataSet timestep="{float(time)!r}" part="0" file={_quoted(path, name)}/>'
        for time, name in zip(times_ms, names, strict=True)
    )
    head = ['<?xml version="1.0"?>', '<VTKFile type="Collection" version="0.1" byte_order="LittleEndian">', "<Collection>"]
    return "\n".join([*head, *frames, "</Collection>", "</VTKFile>", ""]).encode()


def _remove(path: Path):
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: can't be replaced ({error.strerror or error})") from error
