"""PLY, STL and OBJ by trimesh. It is given bytes, never a name or a resolver, so that it can open no other file.

Of a text it gets the lines that hold the mesh, and of a PLY a header in our words: names and materials of a file would
lead it to textures, and some to hours of work.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from gfunk.errors import InputError
from gfunk.files.outside import read_by
from gfunk.files.raw import RawMesh
from gfunk.files.tables import file_bytes
from gfunk.files.vtk_cells import POLYGON, Grid, allowance, cells_of, raw_mesh

# What a line of text takes in memory while trimesh reads it, at most and about.
LINE_BYTES = 400
MOST_PROPERTIES = 1000
# Letters beyond ASCII stand in names and comments only; some bytes below would end a line, or a text.
_PLAIN = bytes(
    ord("\n") if byte == ord("\r") else byte if byte in b"\n" or 32 <= byte < 127 else ord(" ") for byte in range(256)
)
_INDEX_NAMES = ("vertex_indices", "vertex_index")


def read_by_trimesh(path: Path) -> RawMesh:
    """The polygons of a file; a PLY's other properties are data, those called `a_x a_y a_z` or `ax ay az` the vector `a`."""
    content = file_bytes(path)
    load = {".ply": _ply, ".stl": _stl, ".obj": _obj}[path.suffix.lower()]
    with read_by("trimesh", path):
        return raw_mesh(load(content), len(content))


def _stl(content: bytes) -> Grid:
    from trimesh.exchange.stl import load_stl

    n_claimed = int.from_bytes(content[80:84], "little")
    if len(content) < 84 or len(content) != 84 + 50 * n_claimed:
        text = _plain_text(content)
        n_starts, n_ends = (len(re.findall(rb"(?im)^ *" + word + rb"\b", text)) for word in (b"solid", b"endsolid"))
        if not 0 < n_starts == n_ends or b"facet" not in text.lower():
            raise InputError(
                f"neither a whole text STL, from solid to endsolid, nor one of the {n_claimed} triangles that "
                f"bytes 80 to 83 claim ({len(content)} bytes, {84 + 50 * n_claimed} expected)"
            )
        # All solids as one, without their names.
        content = b"solid\n" + re.sub(rb"(?im)^ *(?:end)?solid\b[^\n]*", b"", text) + b"\nendsolid\n"
    loaded = load_stl(BytesIO(content))
    if "faces" not in loaded:
        raise InputError("holds no triangles")
    return _grid(loaded["vertices"], loaded["faces"])


def _obj(content: bytes) -> Grid:
    from trimesh.exchange.obj import load_obj

    text = _plain_text(content).replace(b"\\\n", b"")
    text = b"\n".join(re.findall(rb"(?m)^ *([vf] [^\n]*)", text))
    # Only the node of each corner: texture and normal would cut the mesh along their seams.
    text = re.sub(rb" +", b" ", re.sub(rb"/[^ \n]*", b"", text))
    if re.search(rb"(?m)^f[^\n]*(?:-| 0+(?: |$))", text):
        raise InputError("its faces count vertices from the last one back, or from 0, which is not read: number them from 1")
    if re.search(rb"(?m)^f(?: [^ \n]+){0,2} ?$", text):
        raise InputError("a face has fewer than three corners")
    loaded = load_obj(BytesIO(text), skip_materials=True, maintain_order=True)
    # Older versions give a single part as it is.
    parts = [loaded] if "faces" in loaded else list(loaded.get("geometry", {}).values())
    if len(parts) != 1:
        raise InputError("holds no faces (lines `f` of vertex numbers)")
    colours = parts[0].get("vertex_colors")
    return _grid(parts[0]["vertices"], parts[0]["faces"], {} if colours is None else {"colour": colours})


def _ply(content: bytes) -> Grid:
    from trimesh.exchange.ply import load_ply

    end = re.search(rb"(?m)^end_header[ \t]*\r?\n", content)
    if not content.startswith(b"ply") or end is None:
        raise InputError("doesn't start with ply and a header: not a PLY, or cut short")
    form, elements = _ply_header(content[: end.start()].translate(_PLAIN).decode())
    of_vertices, of_faces = _mesh_elements(elements)
    body = _plain_text(content[end.end() :]) if form == "ascii" else content[end.end() :]
    head = [f"ply\nformat {form} 1.0"]
    for place, element in enumerate(elements):
        head.append(f"element {element.name if element.is_mesh else f'other{place}'} {element.n_rows}")
        head += [f"property {kind} {word}" for word, kind in element.kinds.items()]
    stream = BytesIO("\n".join([*head, "end_header\n"]).encode() + body)
    loaded = load_ply(stream, fix_texture=False, skip_materials=True)
    raw = loaded["metadata"]["_ply_raw"]
    vertex, face = _ply_columns(raw, of_vertices), _ply_columns(raw, of_faces)
    corners = face.pop(_INDEX_NAMES[0], np.empty((0, 3), dtype=np.int64))
    points = np.stack([vertex.pop(axis) for axis in "xyz"], axis=1)
    return _grid(points, corners, _with_vectors(vertex), _with_vectors(face))


@dataclass(frozen=True, kw_only=True)
class _Element:
    """A kind of row in a PLY: for each property the word trimesh is given, its type, and the file's own name."""

    name: str
    n_rows: int
    kinds: dict[str, str]
    names: dict[str, str]

    @property
    def is_mesh(self) -> bool:
        return self.name in ("vertex", "face")


def _ply_header(header: str) -> tuple[str, list[_Element]]:
    """The form of its numbers, and its elements."""
    form = re.search(r"(?m)^format +(ascii|binary_little_endian|binary_big_endian) ", header)
    if form is None:
        raise InputError("its header has no format that PLY knows")
    elements: list[_Element] = []
    for words in (line.split() for line in header.split("\n")[1:]):
        match words:
            case ["element", name, count] if re.fullmatch("[0-9]{1,15}", count):
                elements.append(_Element(name=name, n_rows=int(count), kinds={}, names={}))
            case ["property", *kind, name] if elements and len(kind) in (1, 3):
                last = elements[-1]
                is_corners = last.name == "face" and name in _INDEX_NAMES and kind[0] == "list"
                is_place = last.name == "vertex" and name in ("x", "y", "z")
                word = _INDEX_NAMES[0] if is_corners else name if is_place else f"property{len(last.kinds)}"
                last.kinds[word], last.names[word] = " ".join(kind), _INDEX_NAMES[0] if is_corners else name
            case ["element" | "property", *_]:
                raise InputError(f"its header can't be read at {' '.join(words)[:60]!a}")
    if sum(1 + len(element.kinds) for element in elements) > MOST_PROPERTIES:
        raise InputError(f"its header has more than {MOST_PROPERTIES} properties")
    return form[1], elements


def _mesh_elements(elements: list[_Element]) -> list[_Element]:
    """The vertices and the faces, of which there may be none."""
    found = {element.name: element for element in elements}
    if len(found) < len(elements):
        raise InputError("its header names an element twice")
    if "vertex" not in found or not {"x", "y", "z"} <= found["vertex"].kinds.keys() or not found["vertex"].n_rows:
        raise InputError("has no vertices with x, y and z")
    return [found.get(name, _Element(name=name, n_rows=0, kinds={}, names={})) for name in ("vertex", "face")]


def _ply_columns(raw: Mapping, element: _Element) -> dict[str, np.ndarray]:
    """What trimesh found for each property, under the file's names."""
    if not element.n_rows:
        return {}
    data, columns = raw[element.name]["data"], {}
    for word, name in element.names.items():
        values = data[word]
        if values.dtype.names:
            # A list in a binary file: its length, which trimesh takes from the first, and its values.
            if (values["f0"] != values["f0"][0]).any():
                raise InputError(f"its lists {name!a} differ in length: save it as text, or triangulate it first")
            values = values["f1"]
        if len(values) != element.n_rows:
            raise InputError(f"says {element.n_rows} rows of {element.name}, but {len(values)} are there: it was cut short")
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        # Lists of different lengths can be the corners of polygons, but no data.
        if values.dtype != object or name == _INDEX_NAMES[0]:
            columns[name] = values
    return columns


def _with_vectors(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Three columns that differ in a last x, y, z become one array of three."""
    joined = dict(data)
    for name in [name for name in data if name[-1:] == "x" and len(name) > 1]:
        parts = [name[:-1] + axis for axis in "xyz"]
        if all(part in data and data[part].ndim == 1 for part in parts):
            joined[name[:-1].rstrip("_.") or name] = np.stack([joined.pop(part) for part in parts], axis=1)
    return joined


def _plain_text(content: bytes) -> bytes:
    """The text in plain letters, unless its lines are so short and so many that reading them would take too much memory."""
    text = content.replace(b"\r\n", b"\n").translate(_PLAIN)
    n_lines = text.count(b"\n")
    if n_lines * LINE_BYTES > allowance(len(content)):
        raise InputError(f"its {n_lines:,} lines are too short for a mesh: the file is damaged")
    return text


def _grid(
    points: np.ndarray,
    corners: np.ndarray,
    point_data: dict[str, np.ndarray] | None = None,
    cell_data: dict[str, np.ndarray] | None = None,
) -> Grid:
    """Polygons, a row each, all of one length or an array of arrays."""
    if corners.ndim == 2:
        sizes, nodes = np.full(len(corners), corners.shape[1]), corners.ravel()
    else:
        sizes = np.array([len(row) for row in corners], dtype=np.int64)
        nodes = np.concatenate([np.zeros(0, dtype=np.int64), *corners])
    cells = cells_of(np.full(len(sizes), POLYGON), np.cumsum(sizes), nodes, "faces")
    return Grid(
        points=np.asarray(points, dtype=np.float64).reshape(-1, 3),
        cells=cells,
        point_data=point_data or {},
        cell_data=cell_data or {},
    )
