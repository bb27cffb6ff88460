"""Legacy VTK files (`# vtk DataFile Version ...`), text or big-endian binary."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gfunk.errors import InputError
from gfunk.files.vtk_cells import POLY_LINE, POLY_VERTEX, POLYGON, STRIP, Cells, Grid, cells_of, joined_cells
from gfunk.files.vtk_legacy_file import LegacyFile
from gfunk.files.vtk_numbers import MOST_ARRAYS, count_of, points_of, shaped

# Cell data follow this order, whatever the order in the file.
_POLYDATA = {"vertices": POLY_VERTEX, "lines": POLY_LINE, "polygons": POLYGON, "triangle_strips": STRIP}
# Attributes that are a name, a type and this many components.
_PLAIN = {"vectors": 3, "normals": 3, "tensors": 9, "tensors6": 6, "global_ids": 1, "pedigree_ids": 1, "edge_flags": 1}


def legacy_grid(content: bytes) -> Grid:
    """The dataset of a legacy file."""
    version = re.match(rb"# vtk DataFile Version\s+([0-9]{1,3})\.([0-9]{1,3})", content, re.IGNORECASE)
    if version is None or not (2, 0) <= (int(version[1]), int(version[2])) <= (5, 99):
        raise InputError("line 1: `# vtk DataFile Version 2.0` (to 5.1) expected: save it again with a newer program")
    lines = content[:4096].split(b"\n", 3)
    coding = lines[2].strip().lower() if len(lines) == 4 else b""
    if coding not in (b"ascii", b"binary"):
        raise InputError("line 3: ASCII or BINARY expected: the file is damaged")
    file = LegacyFile(content=content, is_binary=coding == b"binary", position=sum(map(len, lines[:3])) + 3)
    if file.keyword() != "dataset":
        raise InputError(f"{file.place()}: DATASET expected")
    kind = file.keyword()
    if kind not in ("polydata", "unstructured_grid"):
        raise InputError(f"DATASET {kind.upper()[:40]} is not read: save the mesh as POLYDATA or UNSTRUCTURED_GRID")
    return _Sections(file=file, is_polydata=kind == "polydata").grid()


@dataclass(kw_only=True)
class _Sections:
    """What the sections read so far have given."""

    file: LegacyFile
    is_polydata: bool
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))
    # Where cells end, and their nodes, by the keyword of the section.
    cells: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    types: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    data: dict[str, dict[str, np.ndarray]] = field(default_factory=lambda: {"point": {}, "cell": {}})
    remarks: list[str] = field(default_factory=list)

    def grid(self) -> Grid:
        where: str | None = None
        n_rows = 0
        while not self.file.is_at_end():
            keyword = self.file.keyword()
            if keyword in ("point_data", "cell_data"):
                where, n_rows = keyword.removesuffix("_data"), self.file.count(keyword.upper())
            elif keyword == "metadata":
                self.file.skip_metadata()
            elif where is not None:
                self._attribute(keyword, where, n_rows)
            else:
                self._geometry(keyword)
        return Grid(
            points=self.points, cells=self._cells(), point_data=self.data["point"], cell_data=self.data["cell"],
            remarks=tuple(self.remarks),
        )  # fmt: skip

    def _geometry(self, keyword: str):
        file = self.file
        if keyword == "points":
            n_points = file.count("POINTS")
            self.points = points_of(file.array(3 * n_points, file.word(), "POINTS"))
        elif keyword in (_POLYDATA if self.is_polydata else ("cells",)):
            self.cells[keyword] = self._cell_array(keyword.upper())
        elif keyword == "cell_types" and not self.is_polydata:
            self.types = file.array(file.count("CELL_TYPES"), "int", "CELL_TYPES")
        elif keyword == "field":
            # Facts about the whole dataset, such as its time: no rows for points or cells.
            self._field(lambda name, rows: None, None)
        else:
            raise InputError(f"{file.place()}: {keyword.upper()[:40]!r} is no section of this kind of file: it is damaged")

    def _cell_array(self, what: str) -> tuple[np.ndarray, np.ndarray]:
        file = self.file
        n_first, n_second = file.count(what), file.count(what)
        if not file.has_next(b"OFFSETS"):
            return _ends_and_nodes(file.array(n_second, "int", what), n_first, what)
        # Since 5.0: as many offsets as cells and one more, then the nodes.
        offsets = self._named_array("offsets", n_first, what)
        nodes = self._named_array("connectivity", n_second, what)
        if n_first and offsets[0] != 0:
            raise InputError(f"{what}: its first offset is {offsets[0]}, 0 expected: the file is damaged")
        return offsets[1:], nodes

    def _named_array(self, keyword: str, n_values: int, what: str) -> np.ndarray:
        if self.file.keyword() != keyword:
            raise InputError(f"{self.file.place()}: {keyword.upper()} of {what} expected: the file is damaged")
        return self.file.array(n_values, self.file.word(), f"{keyword.upper()} of {what}")

    def _cells(self) -> Cells:
        empty = np.zeros(0, np.int64)
        if not self.is_polydata:
            return cells_of(self.types, *self.cells.get("cells", (empty, empty)), "CELLS")
        parts = [
            cells_of(np.full(len(self.cells[name][0]), number), *self.cells[name], name.upper())
            for name, number in _POLYDATA.items()
            if name in self.cells
        ]
        return joined_cells(parts)

    def _attribute(self, keyword: str, where: str, n_rows: int):
        file, data = self.file, self.data[where]
        if keyword == "field":
            self._field(data.__setitem__, n_rows)
            return
        if keyword == "lookup_table":
            _, size = file.name(), file.count("LOOKUP_TABLE")
            file.array(4 * size, "unsigned_char" if file.is_binary else "float", "LOOKUP_TABLE")
            return
        name = file.name()
        what = f"{where} data {name[:80]!r}"
        if keyword == "scalars":
            data[name] = self._scalars(n_rows, what)
        elif keyword == "color_scalars":
            n_components = self._n_components(what)
            values = file.array(n_rows * n_components, "unsigned_char" if file.is_binary else "float", what)
            # Text has shares of 1, binary has bytes.
            data[name] = shaped(values if file.is_binary else _bytes_of_shares(values, what), n_components)
        elif keyword == "texture_coordinates":
            n_components = self._n_components(what)
            data[name] = shaped(file.array(n_rows * n_components, file.word(), what), n_components)
        elif keyword in _PLAIN:
            data[name] = shaped(file.array(n_rows * _PLAIN[keyword], file.word(), what), _PLAIN[keyword])
        else:
            raise InputError(f"{file.place()}: {keyword.upper()[:40]!r} is no kind of data: the file is damaged")

    def _scalars(self, n_rows: int, what: str) -> np.ndarray:
        file = self.file
        type_name = file.word()
        rest = file.line().split()
        n_components = count_of(rest[0].decode("ascii", "replace"), what) if rest else 1
        if n_components == 0:
            raise InputError(f"{what}: no components")
        if file.has_next(b"LOOKUP_TABLE"):
            file.word()
            file.word()
        else:
            # The line was read already, and `array` takes the rest of one.
            file.position -= 1
        return shaped(file.array(n_rows * n_components, type_name, what), n_components)

    def _n_components(self, what: str) -> int:
        n_components = self.file.count(what)
        if n_components == 0:
            raise InputError(f"{what}: no components")
        return n_components

    def _field(self, keep: Callable[[str, np.ndarray], None], n_rows: int | None):
        """The arrays of a FIELD. Those of points or cells must have a row for each."""
        file = self.file
        file.word()
        n_arrays = file.count("FIELD")
        if n_arrays > MOST_ARRAYS:
            raise InputError(f"{file.place()}: a FIELD of {n_arrays} arrays is not read, {MOST_ARRAYS} at most")
        for _ in range(n_arrays):
            while file.has_next(b"METADATA"):
                file.word()
                file.skip_metadata()
            name = file.name()
            n_components, n_tuples, type_name = file.count(name), file.count(name), file.word()
            if type_name.lower() in ("string", "utf8_string"):
                file.skip_strings(n_components * n_tuples)
                self.remarks.append(f"array {name!r} holds text and was passed over")
                continue
            values = file.array(n_components * n_tuples, type_name, f"array {name!r}")
            if n_rows is not None and (n_tuples != n_rows or n_components == 0):
                raise InputError(
                    f"array {name!r} is {n_tuples} x {n_components}, {n_rows} rows expected: the file is damaged"
                )
            keep(name, shaped(values, max(n_components, 1)))


def _ends_and_nodes(flat: np.ndarray, n_cells: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Before 5.0: each cell as its number of nodes, then the nodes."""
    damaged = InputError(f"{what}: its {len(flat)} numbers do not hold {n_cells} cells: the file is damaged")
    if n_cells > len(flat) or (n_cells == 0) != (len(flat) == 0):
        raise damaged
    if n_cells == 0:
        return flat, flat
    size = int(flat[0])
    if size >= 0 and n_cells * (size + 1) == len(flat):
        table = flat.reshape(n_cells, size + 1)
        if (table[:, 0] == size).all():
            return size * np.arange(1, n_cells + 1), table[:, 1:].ravel()
    heads = np.empty(n_cells, np.int64)
    # Indexing this is several times quicker than an array.
    numbers, place = memoryview(flat.data), 0
    for cell in range(n_cells):
        if place >= len(flat) or numbers[place] < 0:
            raise damaged
        heads[cell] = place
        place += numbers[place] + 1
    if place != len(flat):
        raise damaged
    is_node = np.ones(len(flat), bool)
    is_node[heads] = False
    return np.cumsum(flat[heads], dtype=np.int64), flat[is_node]


def _bytes_of_shares(shares: np.ndarray, what: str) -> np.ndarray:
    if not ((shares >= 0) & (shares <= 1)).all():
        raise InputError(f"{what}: colours written as text must lie between 0 and 1")
    return np.round(255 * shares).astype(np.uint8)
