"""XML VTK files (`.vtp`, `.vtu`): text, base64 or appended data, compressed or not, in several pieces or one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

import numpy as np

from gfunk.errors import InputError
from gfunk.files.vtk_arrays import DTYPES, ArrayElement, ArrayReader
from gfunk.files.vtk_cells import POLY_LINE, POLY_VERTEX, POLYGON, STRIP, Cells, Grid, cells_of, joined_cells
from gfunk.files.vtk_numbers import MOST_ARRAYS, count_of, points_of, shaped

_SUFFIX = {"PolyData": "vtp", "UnstructuredGrid": "vtu"}
# Cell data follow this order, whatever the order in the file.
_POLYDATA = {"Verts": POLY_VERTEX, "Lines": POLY_LINE, "Polys": POLYGON, "Strips": STRIP}
# VTKFile, PolyData, Piece, Points, DataArray, InformationKey, Value are seven; far more is no mesh.
_DEEPEST = 64
_MOST_PIECES = 1024


@dataclass(kw_only=True)
class _Piece:
    attributes: dict[str, str]
    sections: dict[str, list[ArrayElement]] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Outline:
    """What the XML says: the file's attributes, its pieces, and where appended data start."""

    attributes: dict[str, str] = field(default_factory=dict)
    pieces: list[_Piece] = field(default_factory=list)
    n_arrays: int = 0
    appended: dict[str, str] | None = None
    appended_at: int = 0


def xml_grid(content: bytes) -> Grid:
    """The dataset of an XML file."""
    outline = _outline(content)
    kind = outline.attributes.get("type", "")
    if kind not in _SUFFIX:
        raise InputError(f"a VTK file of type {kind[:40]!r} is not read: save the mesh as PolyData or UnstructuredGrid")
    reader = ArrayReader(content, outline.attributes, outline.appended, outline.appended_at)
    pieces = [_piece_grid(piece, kind, reader) for piece in outline.pieces]
    if not pieces:
        raise InputError(f"it holds no Piece of {kind}: the file is empty or damaged")
    return _joined(pieces)


class _Appended(Exception):
    """Reached the appended data, which need not be XML."""


def _outline(content: bytes) -> _Outline:
    """Walk through the XML without building its tree, so that no nesting and no entity can grow."""
    outline, path = _Outline(), []
    parser = expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, 2**20
    open_array: list[ArrayElement] = []

    def start(name: str, attributes: dict[str, str]):
        path.append(name)
        if len(path) > _DEEPEST:
            raise InputError("its XML is nested too deeply to be a mesh")
        if len(path) == 1:
            if name != "VTKFile":
                raise InputError(f"its XML is a {name[:40]!r}, VTKFile expected")
            outline.attributes = attributes
        elif name == "AppendedData" and len(path) == 2:
            outline.appended, outline.appended_at = attributes, parser.CurrentByteIndex
            raise _Appended
        elif name == "Piece" and len(path) == 3:
            outline.pieces.append(_Piece(attributes=attributes))
            if len(outline.pieces) > _MOST_PIECES:
                raise InputError(f"it has more than {_MOST_PIECES} pieces: join them before saving (ParaView: Merge Blocks)")
        elif name in ("DataArray", "Array") and len(path) == 5 and path[2] == "Piece":
            outline.n_arrays += 1
            if outline.n_arrays > MOST_ARRAYS:
                raise InputError(f"it has more than {MOST_ARRAYS} arrays: save fewer arrays or pieces")
            element = ArrayElement(attributes=attributes)
            outline.pieces[-1].sections.setdefault(path[3], []).append(element)
            open_array.append(element)

    def end(_: str):
        if len(path) == 5 and open_array:
            open_array.pop()
        path.pop()

    def text(part: str):
        if open_array and len(path) == 5:
            open_array[-1].text.append(part)

    def doctype(*_: object):
        raise InputError("its XML declares a DOCTYPE, which no VTK file needs: it is refused, as it may hide anything")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(content, True)
    except _Appended:
        pass
    except (expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not valid XML ({error}): the file is damaged or was cut short") from None
    return outline


def _piece_grid(piece: _Piece, kind: str, reader: ArrayReader) -> Grid:
    n_points = _count(piece, "NumberOfPoints")
    remarks: list[str] = []
    points = [element for element in piece.sections.get("Points", ()) if element.attributes.get("type") in DTYPES][:1]
    values = reader.array(points[0], "Points") if points else np.zeros(0)
    if len(values) != 3 * n_points:
        raise InputError(f"Points: {len(values)} numbers for {n_points} points, three for each expected")
    if kind == "PolyData":
        parts = [
            _cells(piece, section, reader, _count(piece, f"NumberOf{section}", "0"), number)
            for section, number in _POLYDATA.items()
        ]
        cells = joined_cells(parts)
    else:
        cells = _cells(piece, "Cells", reader, _count(piece, "NumberOfCells"), None)
    return Grid(
        points=points_of(values),
        cells=cells,
        point_data=_data(piece, "PointData", reader, n_points, remarks),
        cell_data=_data(piece, "CellData", reader, len(cells), remarks),
        remarks=tuple(remarks),
    )


def _count(piece: _Piece, name: str, default: str = "") -> int:
    return count_of(piece.attributes.get(name, default), f"Piece: {name}")


def _cells(piece: _Piece, section: str, reader: ArrayReader, n_cells: int, number: int | None) -> Cells:
    """The cells of a section; of a PolyData's section all are of one type, which has this number."""
    arrays = {element.attributes.get("Name", ""): element for element in piece.sections.get(section, ())}

    def values(name: str) -> np.ndarray:
        if n_cells == 0:
            return np.zeros(0, np.int64)
        if name not in arrays:
            raise InputError(f"{section}: {n_cells} cells announced, but its array {name!r} is missing")
        return reader.array(arrays[name], f"{section} {name}")

    ends = values("offsets")
    if len(ends) != n_cells:
        raise InputError(f"{section}: {len(ends)} offsets for {n_cells} cells, one for each expected")
    types = values("types") if number is None else np.full(n_cells, number)
    return cells_of(types, ends, values("connectivity"), section)


def _data(piece: _Piece, section: str, reader: ArrayReader, n_rows: int, remarks: list[str]) -> dict[str, np.ndarray]:
    data = {}
    for element in piece.sections.get(section, ()):
        name = element.attributes.get("Name", "")
        type_name = element.attributes.get("type", "")
        what = f"{section} {name[:80]!r}"
        if type_name in ("String", "Bit", "") or not name:
            remarks.append(f"{what} has no name or no numbers and was passed over")
            continue
        n_components = max(count_of(element.attributes.get("NumberOfComponents", "1"), f"{what}: NumberOfComponents"), 1)
        values = reader.array(element, what)
        if len(values) != n_rows * n_components:
            raise InputError(f"{what}: {len(values)} numbers for {n_rows} rows of {n_components}: the file is damaged")
        data[name] = shaped(values, n_components)
    return data


def _joined(pieces: Sequence[Grid]) -> Grid:
    """All pieces as one: nodes numbered on, data that every piece has."""
    if len(pieces) == 1:
        return pieces[0]
    # Writers leave empty pieces without their arrays.
    pieces = [piece for piece in pieces if len(piece.points) or len(piece.cells)] or pieces[:1]
    remarks = [remark for piece in pieces for remark in piece.remarks]
    firsts = np.cumsum([0, *(len(piece.points) for piece in pieces)])
    cells = []
    for piece, first in zip(pieces, firsts, strict=False):
        nodes = piece.cells.connectivity
        # Before the shift: afterwards a wrong node could be one of the next piece.
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < len(piece.points):
            raise InputError(f"a piece of {len(piece.points)} points has cells that name other nodes: the file is damaged")
        cells.append(Cells(types=piece.cells.types, starts=piece.cells.starts, connectivity=nodes + first))
    return Grid(
        points=np.concatenate([piece.points for piece in pieces]),
        cells=joined_cells(cells),
        point_data=_joined_data([piece.point_data for piece in pieces], "point", remarks),
        cell_data=_joined_data([piece.cell_data for piece in pieces], "cell", remarks),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _joined_data(parts: Sequence[Mapping[str, np.ndarray]], what: str, remarks: list[str]) -> dict[str, np.ndarray]:
    joined = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        arrays = [part[name] for part in parts if name in part]
        if len(arrays) < len(parts):
            remarks.append(f"{what} data {name!r} is missing from a piece and was passed over")
        elif len({array.shape[1:] for array in arrays}) > 1:
            raise InputError(f"{what} data {name!r} differs in its number of components from piece to piece")
        else:
            joined[name] = np.concatenate(arrays)
    return joined
