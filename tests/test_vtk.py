import base64
import lzma
import os
import struct
import time
import tracemalloc
import zlib
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfunk.errors import InputError
from gfunk.files.raw import CORNERS, Block, RawMesh
from gfunk.files.vtk import read_vtk
from gfunk.files.vtk_write import write_series, write_vtp, write_vtu

NUMBERS = {"line": 3, "triangle": 5, "quad": 9, "tetra": 10, "hexahedron": 12, "wedge": 13, "pyramid": 14}
DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
LEGACY = {
    "i1": "char", "u1": "unsigned_char", "i2": "short", "u2": "unsigned_short", "i4": "int", "u4": "unsigned_int",
    "i8": "long", "u8": "unsigned_long", "f4": "float", "f8": "double",
}  # fmt: skip
XML = {
    "i1": "Int8", "u1": "UInt8", "i2": "Int16", "u2": "UInt16", "i4": "Int32", "u4": "UInt32", "i8": "Int64", "u8": "UInt64",
    "f4": "Float32", "f8": "Float64",
}  # fmt: skip
POLYDATA = (
    ("Verts", "VERTICES", (1, 2)),
    ("Lines", "LINES", (3, 4)),
    ("Polys", "POLYGONS", (5, 7, 9)),
    ("Strips", "TRIANGLE_STRIPS", (6,)),
)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A mesh as VTK sees it, for the encoders below: the type and nodes of each cell, and data."""

    points: np.ndarray
    cells: list[tuple[int, list[int]]]
    point_data: dict[str, np.ndarray] = field(default_factory=dict)
    cell_data: dict[str, np.ndarray] = field(default_factory=dict)


def an_example(is_polydata: bool, seed: int = 0, kind: str = "f8") -> Example:
    """A little of everything, with data in every type; cells in the order of a PolyData where it is one."""
    rng = np.random.default_rng(seed)
    surface = [
        (2, [0]),
        (4, [0, 1]),
        (4, [2, 3, 4]),
        (7, [0, 1, 2]),
        (7, [3, 4, 5, 6]),
        (7, [5, 6, 7, 8, 9]),
        (6, [0, 1, 2, 3, 4]),
    ]
    volume = [
        (10, [0, 1, 2, 3]), (5, [1, 2, 3]), (12, [*range(8)]), (3, [0, 9]), (13, [*range(6)]), (14, [*range(5)]),
        (9, [1, 2, 3, 4]), (10, [5, 6, 7, 8]), (24, [*range(10)]),
        (22, [*range(6)]), (1, [3]), (7, [0, 1, 2, 3, 4]), (6, [4, 5, 6, 7]),
    ]  # fmt: skip
    cells = surface if is_polydata else volume
    n = len(cells)
    return Example(
        points=rng.normal(size=(12, 3)).astype(kind),
        cells=cells,
        point_data={dtype: rng.integers(0, 100, 12).astype(dtype) for dtype in DTYPES},
        cell_data={"tag": np.arange(n), "fibre": rng.normal(size=(n, 3)), "K": rng.normal(size=(n, 9)).astype("f4")},
    )


def legacy_bytes(example: Example, is_polydata: bool, is_binary: bool, version: str) -> bytes:
    """A legacy file, as the VTK book describes it."""

    def values(array: np.ndarray) -> bytes:
        if is_binary:
            return array.astype(array.dtype.newbyteorder(">")).tobytes() + b"\n"
        return b" ".join(repr(value).encode() for value in array.ravel().tolist()) + b"\n"

    def cells(keyword: str, chosen: list[list[int]]) -> bytes:
        n_nodes = sum(map(len, chosen))
        if version >= "5":
            ends = np.cumsum([0, *map(len, chosen)])
            head = f"{keyword} {len(ends)} {n_nodes}\nOFFSETS vtktypeint64\n".encode()
            return head + values(ends) + b"CONNECTIVITY vtktypeint64\n" + values(np.array([*chain(*chosen)]))
        flat = np.array([number for nodes in chosen for number in (len(nodes), *nodes)], np.int32)
        return f"{keyword} {len(chosen)} {len(flat)}\n".encode() + values(flat)

    def data(keyword: str, arrays: dict[str, np.ndarray], n_rows: int) -> bytes:
        out = f"{keyword} {n_rows}\n".encode()
        fields = []
        for number, (name, array) in enumerate(arrays.items()):
            code = LEGACY[array.dtype.str[1:]]
            width = array.shape[1] if array.ndim == 2 else 1
            if width == 1 and number % 2 == 0:
                out += f"SCALARS {name} {code} 1\nLOOKUP_TABLE default\n".encode() + values(array)
            elif width in (3, 9):
                out += f"{'VECTORS' if width == 3 else 'TENSORS'} {name} {code}\n".encode() + values(array)
            else:
                fields.append(f"{name} {width} {n_rows} {code}\n".encode() + values(array))
        out += b"METADATA\nINFORMATION 0\n\n"
        return out + (f"FIELD FieldData {len(fields)}\n".encode() + b"".join(fields) if fields else b"")

    out = f"# vtk DataFile Version {version}\na title: POINTS 3 float\n{'BINARY' if is_binary else 'ASCII'}\n".encode()
    out += f"DATASET {'POLYDATA' if is_polydata else 'UNSTRUCTURED_GRID'}\n".encode()
    out += b"FIELD FieldData 1\nTIME 1 1 double\n" + values(np.array([1.5]))
    out += f"POINTS {len(example.points)} {LEGACY[example.points.dtype.str[1:]]}\n".encode() + values(example.points)
    if is_polydata:
        for _, keyword, types in POLYDATA:
            if chosen := [nodes for number, nodes in example.cells if number in types]:
                out += cells(keyword, chosen)
    else:
        out += cells("CELLS", [nodes for _, nodes in example.cells])
        out += f"CELL_TYPES {len(example.cells)}\n".encode()
        out += values(np.array([number for number, _ in example.cells], np.int32))
    out += data("CELL_DATA", example.cell_data, len(example.cells))
    return out + data("POINT_DATA", example.point_data, len(example.points))


@dataclass(frozen=True, kw_only=True)
class Coding:
    """How an XML file lays out its arrays."""

    form: Literal["ascii", "binary", "raw", "base64"] = "ascii"
    order: Literal["<", ">"] = "<"
    header: Literal["u4", "u8"] = "u4"
    compressor: Literal["", "ZLib", "LZMA"] = ""
    block_bytes: int = 64
    closes_count: bool = False  # base64 ended after the byte count


CODINGS = [
    Coding(form="ascii"),
    *(
        Coding(form=form, order=order, header=header, compressor=compressor, closes_count=form == "binary" and order == ">")
        for form, order, header, compressor in product(
            ("binary", "raw", "base64"), ("<", ">"), ("u4", "u8"), ("", "ZLib", "LZMA")
        )
    ),
]


def packed(array: np.ndarray, coding: Coding) -> bytes:
    content = array.astype(array.dtype.newbyteorder(coding.order)).tobytes()

    def counts(*numbers: int) -> bytes:
        return np.array(numbers, coding.header).astype(coding.order + coding.header).tobytes()

    is_raw = coding.form == "raw"
    encode = (lambda part: part) if is_raw else base64.b64encode
    if not coding.compressor:
        head = counts(len(content))
        return encode(head) + encode(content) if coding.closes_count else encode(head + content)
    compress = zlib.compress if coding.compressor == "ZLib" else lzma.compress
    size = coding.block_bytes
    blocks = [content[start : start + size] for start in range(0, len(content), size)]
    squeezed = [compress(block) for block in blocks]
    last = len(blocks[-1]) % size if blocks else 0
    return encode(counts(len(blocks), size, last, *map(len, squeezed))) + encode(b"".join(squeezed))


def xml_bytes(example: Example, is_polydata: bool, coding: Coding, n_pieces: int = 1) -> bytes:
    """An XML file; of several pieces, each the whole mesh again."""
    appended: list[bytes] = []

    def tag(name: str, array: np.ndarray) -> bytes:
        width = array.shape[1] if array.ndim == 2 else 1
        form = "appended" if coding.form in ("raw", "base64") else coding.form
        head = f'<DataArray type="{XML[array.dtype.str[1:]]}" Name="{name}" NumberOfComponents="{width}" format="{form}"'
        if form == "appended":
            offset = sum(map(len, appended))
            appended.append(packed(array, coding))
            return f'{head} offset="{offset}"/>\n'.encode()
        text = " ".join(map(repr, array.ravel().tolist())).encode() if form == "ascii" else packed(array, coding)
        key = b'<InformationKey name="L2" location="vtkDataArray" length="1"><Value index="0">7</Value></InformationKey>'
        return head.encode() + b">\n  " + text + b"\n" + key + b"</DataArray>\n"

    def section(name: str, arrays: dict[str, np.ndarray]) -> bytes:
        tags = b"".join(tag(*item) for item in arrays.items())
        return f"<{name}>\n".encode() + tags + f"</{name}>\n".encode()

    def cell_section(name: str, cells: list[tuple[int, list[int]]]) -> bytes:
        arrays = {
            "connectivity": np.array([node for _, nodes in cells for node in nodes], np.int64),
            "offsets": np.cumsum([len(nodes) for _, nodes in cells], dtype=np.int64),
        }
        types = {} if is_polydata else {"types": np.array([number for number, _ in cells], np.uint8)}
        return section(name, arrays | types)

    def piece() -> bytes:
        if is_polydata:
            chosen = {name: [cell for cell in example.cells if cell[0] in types] for name, _, types in POLYDATA}
            counts = " ".join(f'NumberOf{name}="{len(cells)}"' for name, cells in chosen.items())
            cells = b"".join(cell_section(name, cells) for name, cells in chosen.items())
        else:
            counts, cells = f'NumberOfCells="{len(example.cells)}"', cell_section("Cells", example.cells)
        head = f'<Piece NumberOfPoints="{len(example.points)}" {counts}>\n'.encode()
        data = section("PointData", example.point_data) + section("CellData", example.cell_data)
        return head + data + section("Points", {"Points": example.points}) + cells + b"</Piece>\n"

    kind = "PolyData" if is_polydata else "UnstructuredGrid"
    order = {"<": "LittleEndian", ">": "BigEndian"}[coding.order]
    squeeze = f' compressor="vtk{coding.compressor}DataCompressor"' if coding.compressor else ""
    head = f'<VTKFile type="{kind}" byte_order="{order}" header_type="{XML[coding.header]}"{squeeze}>\n<{kind}>\n'
    field = (
        b'<FieldData><DataArray type="Float64" Name="TimeValue" NumberOfTuples="1" format="ascii">1</DataArray></FieldData>'
    )
    out = (
        b'<?xml version="1.0"?>\n'
        + head.encode()
        + field
        + b"".join(piece() for _ in range(n_pieces))
        + f"</{kind}>\n".encode()
    )
    if appended:
        out += f'<AppendedData encoding="{coding.form}">\n   _'.encode() + b"".join(appended) + b"\n</AppendedData>\n"
    return out + b"</VTKFile>\n"


def every_encoding(is_polydata: bool, example: Example) -> list[bytes]:
    legacy = [
        legacy_bytes(example, is_polydata, is_binary, version)
        for is_binary, version in product((False, True), ("2.0", "3.0", "4.2", "5.1"))
    ]
    return legacy + [xml_bytes(example, is_polydata, coding) for coding in CODINGS]


def read(content: bytes) -> RawMesh:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mesh.vtk"
        path.write_bytes(content)
        return read_vtk(path)


def assert_same_data(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]):
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
        assert got[name].dtype == array.dtype, name


def assert_same_mesh(got: RawMesh, expected: RawMesh):
    assert got.points.dtype == expected.points.dtype
    np.testing.assert_array_equal(got.points, expected.points)
    assert_same_data(got.point_data, expected.point_data)
    assert [block.kind for block in got.blocks] == [block.kind for block in expected.blocks]
    for one, other in zip(got.blocks, expected.blocks, strict=True):
        np.testing.assert_array_equal(one.nodes, other.nodes)
        assert_same_data(one.data, other.data)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a random mesh is made of. Made into one within the test: checks of types draw random numbers of their own."""

    seed: int
    n_points: int
    is_single: bool
    n_cells: dict[str, int]
    columns: dict[str, tuple[str, int]]  # type and components

    def mesh(self) -> RawMesh:
        rng = np.random.default_rng(self.seed)

        def data(n_rows: int) -> dict[str, np.ndarray]:
            shapes = {name: (n_rows,) if width == 1 else (n_rows, width) for name, (_, width) in self.columns.items()}
            return {name: rng.integers(0, 127, shapes[name]).astype(code) for name, (code, _) in self.columns.items()}

        blocks = tuple(
            Block(kind=kind, nodes=rng.integers(0, self.n_points, (n, CORNERS[kind])), data=data(n))
            for kind, n in self.n_cells.items()
        )
        points = rng.normal(size=(self.n_points, 3)).astype(np.float32 if self.is_single else np.float64)
        return RawMesh(points=points, blocks=blocks, point_data=data(self.n_points))


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), min_size=1)
plans = st.builds(
    Plan,
    seed=st.integers(0, 2**32),
    n_points=st.integers(8, 40),
    is_single=st.booleans(),
    n_cells=st.dictionaries(st.sampled_from(sorted(CORNERS)), st.integers(1, 9), max_size=4),
    columns=st.dictionaries(names, st.tuples(st.sampled_from(DTYPES), st.integers(1, 9)), max_size=3),
)


@given(plan=plans)
def test_what_is_written_as_vtu_is_read_back_the_same(plan: Plan):
    mesh = plan.mesh()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mesh.vtu"
        write_vtu(path, mesh.points, mesh.blocks, mesh.point_data)
        assert_same_mesh(read_vtk(path), mesh)


@given(plan=plans, n_cells=st.integers(0, 9))
def test_what_is_written_as_vtp_is_read_back_the_same(plan: Plan, n_cells: int):
    mesh = plan.mesh()
    triangles = np.random.default_rng(n_cells).integers(0, len(mesh.points), (n_cells, 3))
    cell_data = {"tag": np.arange(n_cells), "fibre": np.random.default_rng(1).normal(size=(n_cells, 3))}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mesh.vtp"
        write_vtp(path, mesh.points, triangles, mesh.point_data, cell_data)
        block = Block(kind="triangle", nodes=triangles, data=cell_data)
        blocks = (block,) if n_cells else ()
        assert_same_mesh(read_vtk(path), RawMesh(points=mesh.points, blocks=blocks, point_data=mesh.point_data))


def test_values_without_a_decimal_form_survive(tmp_path: Path):
    u = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324])
    write_vtp(tmp_path / "odd.vtp", np.zeros((5, 3)), np.array([[0, 1, 2]]), {"u": u})
    assert read_vtk(tmp_path / "odd.vtp").point_data["u"].tobytes() == u.tobytes()


def test_nan_and_infinity_are_read_from_text():
    example = Example(points=np.zeros((3, 3)), cells=[(7, [0, 1, 2])], point_data={"u": np.array([np.nan, np.inf, -np.inf])})
    for content in (legacy_bytes(example, True, False, "4.2"), xml_bytes(example, True, Coding())):
        np.testing.assert_array_equal(read(content).point_data["u"], example.point_data["u"])


def test_planar_points_get_a_third_coordinate_and_truths_become_bytes(tmp_path: Path):
    square = np.array([[0.0, 0], [1, 0], [1, 1]])
    K = np.arange(9.0).reshape(1, 3, 3)
    write_vtp(tmp_path / "a.vtp", square, np.array([[0, 1, 2]]), {"is_hurt": np.array([True, False, True])}, {"K": K})
    mesh = read_vtk(tmp_path / "a.vtp")
    np.testing.assert_array_equal(mesh.points, [[0, 0, 0], [1, 0, 0], [1, 1, 0]])
    assert mesh.point_data["is_hurt"].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(mesh.blocks[0].data["K"], K.reshape(1, 9))


def test_the_same_content_is_written_as_the_same_bytes(tmp_path: Path):
    for name in ("a.vtp", "b.vtp"):
        write_vtp(tmp_path / name, np.ones((3, 3)), np.array([[0, 1, 2]]), {"u": np.arange(3.0)})
    assert (tmp_path / "a.vtp").read_bytes() == (tmp_path / "b.vtp").read_bytes()


@pytest.mark.parametrize("is_polydata", [True, False])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_every_encoding_of_a_mesh_reads_the_same(is_polydata: bool, kind: str):
    example = an_example(is_polydata, kind=kind)
    first, *others = [read(content) for content in every_encoding(is_polydata, example)]
    np.testing.assert_array_equal(first.points, example.points)
    assert first.point_data.keys() == example.point_data.keys()
    assert len(others) == 8 + len(CODINGS) - 1
    for other in others:
        assert_same_mesh(other, first)
        assert other.remarks == first.remarks


def test_cell_data_stay_with_their_cells_in_a_mixed_surface():
    mesh = read(xml_bytes(an_example(True), True, Coding()))
    line, triangle, quad = mesh.blocks
    assert (line.kind, line.nodes.tolist(), line.data["tag"].tolist()) == ("line", [[0, 1], [2, 3], [3, 4]], [1, 2, 2])
    fan, strip = [[5, 6, 7], [5, 7, 8], [5, 8, 9]], [[0, 1, 2], [2, 1, 3], [2, 3, 4]]
    assert (triangle.kind, triangle.nodes.tolist()) == ("triangle", [[0, 1, 2], *fan, *strip])
    assert triangle.data["tag"].tolist() == [3, 5, 5, 5, 6, 6, 6]
    assert (quad.kind, quad.nodes.tolist(), quad.data["tag"].tolist()) == ("quad", [[3, 4, 5, 6]], [4])
    assert [remark.split()[1] for remark in mesh.remarks] == ["vertex", "polygons"]


def test_cell_data_stay_with_their_cells_in_a_mixed_volume():
    example = an_example(False)
    mesh = read(legacy_bytes(example, False, True, "4.2"))
    tags = {block.kind: block.data["tag"].tolist() for block in mesh.blocks}
    assert tags == {
        "tetra": [0, 7, 8], "triangle": [1, 9, 11, 11, 11, 12, 12], "hexahedron": [2], "line": [3], "wedge": [4],
        "pyramid": [5], "quad": [6],
    }  # fmt: skip
    for block in mesh.blocks:
        np.testing.assert_array_equal(block.data["fibre"], example.cell_data["fibre"][block.data["tag"]])
    assert sum("quadratic" in remark for remark in mesh.remarks) == 2


def test_triangles_of_a_strip_all_face_the_same_way():
    points = np.array([[x, y, 0.0] for x in range(4) for y in (0, 1)])
    (block,) = read(legacy_bytes(Example(points=points, cells=[(6, [*range(8)])]), True, False, "4.2")).blocks
    a, b, c = points[block.nodes].transpose(1, 0, 2)
    assert len(set(np.sign(np.cross(b - a, c - a)[:, 2]))) == 1


@pytest.mark.parametrize("is_polydata", [True, False])
@pytest.mark.parametrize("coding", [Coding(), Coding(form="raw"), Coding(form="binary", compressor="ZLib")])
def test_pieces_are_joined_with_their_nodes_numbered_on(is_polydata: bool, coding: Coding):
    example = an_example(is_polydata)
    one, three = read(xml_bytes(example, is_polydata, coding)), read(xml_bytes(example, is_polydata, coding, n_pieces=3))
    np.testing.assert_array_equal(three.points, np.tile(one.points, (3, 1)))
    for block, whole in zip(one.blocks, three.blocks, strict=True):
        np.testing.assert_array_equal(whole.nodes, np.concatenate([block.nodes + 12 * n for n in range(3)]))
        np.testing.assert_array_equal(whole.data["tag"], np.tile(block.data["tag"], 3))


LEGACY_HEAD = (
    b"# vtk DataFile Version 3.0\nx\nASCII\nDATASET POLYDATA\nPOINTS 3 float\n0 0 0 1 0 0 0 1 0\nPOLYGONS 1 4\n3 0 1 2\n"
)


def test_all_legacy_attributes_are_read():
    data = b"""POINT_DATA 3
SCALARS s float
LOOKUP_TABLE mine
1 2 3
LOOKUP_TABLE mine 2
0 0 0 1 1 1 1 1
COLOR_SCALARS c 2
0 1 .5 .5 1 0
NORMALS n float
0 0 1 0 0 1 0 0 1
TEXTURE_COORDINATES t 2 float
0 0 1 0 0 1
TENSORS k double
1 0 0
0 1 0
0 0 1

1 0 0 0 1 0 0 0 1 2 0 0 0 2 0 0 0 2
FIELD FieldData 2
who%20is 1 3 string
some one
two

some%20words 1 3 int
4 5 6
METADATA
COMPONENT_NAMES
x

CELL_DATA 1
VECTORS fibre float
1 0 0
GLOBAL_IDS id vtkIdType
7
"""
    mesh = read(LEGACY_HEAD + data)
    assert {name: array.shape for name, array in mesh.point_data.items()} == {
        "s": (3,), "c": (3, 2), "n": (3, 3), "t": (3, 2), "k": (3, 9), "some words": (3,),
    }  # fmt: skip
    assert mesh.point_data["c"].tolist() == [[0, 255], [128, 128], [255, 0]]
    assert mesh.point_data["some words"].tolist() == [4, 5, 6]
    assert mesh.blocks[0].data["fibre"].tolist() == [[1, 0, 0]]
    assert mesh.blocks[0].data["id"].tolist() == [7]
    assert len(mesh.remarks) == 1 and "'who is'" in mesh.remarks[0]


def test_binary_strings_are_passed_over_at_any_length():
    words = [b"a" * length for length in (0, 5, 63, 64, 16383, 16384)]
    heads = [struct.pack(">B", 0xC0 | len(word)) for word in words[:3]]
    heads += [struct.pack(">H", 0x8000 | len(word)) for word in words[3:5]] + [struct.pack(">I", 0x40000000 | len(words[5]))]
    points = np.zeros(9, ">f4").tobytes()
    content = b"# vtk DataFile Version 4.2\nx\nBINARY\nDATASET POLYDATA\nFIELD f 1\nnames 1 6 string\n"
    content += b"".join(head + word for head, word in zip(heads, words, strict=True))
    content += b"\nPOINTS 3 float\n" + points + b"\nPOINT_DATA 3\nSCALARS bits bit\nLOOKUP_TABLE default\n\xa0\n"
    content += b"SCALARS bare char\n\x01\x02\x03\n"
    mesh = read(content)
    assert mesh.points.shape == (3, 3) and len(mesh.remarks) == 1
    assert mesh.point_data["bits"].tolist() == [1, 0, 1]
    assert mesh.point_data["bare"].tolist() == [1, 2, 3]


def test_text_arrays_in_xml_are_passed_over_with_a_remark():
    content = xml_bytes(an_example(True), True, Coding())
    text = b'<PointData><Array type="String" Name="names" NumberOfTuples="12" format="ascii">65 0</Array>'
    mesh = read(content.replace(b"<PointData>", text, 1))
    assert "names" not in mesh.point_data and any("'names'" in remark for remark in mesh.remarks)


def xml_with(old: bytes, new: bytes, is_polydata: bool = True, coding: Coding | None = None) -> bytes:
    content = xml_bytes(an_example(is_polydata), is_polydata, coding or Coding())
    assert old in content
    return content.replace(old, new, 1)


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>\n<VTKFile'
HUGE = b"POINTS 999999999999999999 float"
TABLE = b"CONNECTIVITY vtktypeint64\n0 1 2\n"
HEAD_51 = LEGACY_HEAD.replace(b"POLYGONS 1 4\n3 0 1 2\n", b"")
GRID = LEGACY_HEAD.replace(b"POLYDATA", b"UNSTRUCTURED_GRID").replace(b"POLYGONS", b"CELLS")
CUT = xml_bytes(an_example(True), True, Coding(form="raw")).split(b"<Appended")[0] + b"</VTKFile>"
BAD = {
    "empty": (b"", "neither"),
    "other": (b"solid ascii\n", "neither"),
    "html": (b"<html></html>", "VTKFile expected"),
    "version": (LEGACY_HEAD.replace(b"3.0", b"1.0"), "line 1"),
    "version 9": (LEGACY_HEAD.replace(b"3.0", b"9.0"), "line 1"),
    "coding": (LEGACY_HEAD.replace(b"ASCII", b"UTF-8"), "line 3"),
    "dataset": (LEGACY_HEAD.replace(b"POLYDATA", b"STRUCTURED_GRID"), "STRUCTURED_GRID"),
    "short": (LEGACY_HEAD[:70], "cut short"),
    "no number": (LEGACY_HEAD.replace(b"1 0 0", b"1 x 0"), "line 5: POINTS"),
    "count": (LEGACY_HEAD.replace(b"POINTS 3 float", HUGE), "more than the file holds"),
    "count of letters": (LEGACY_HEAD.replace(b"POINTS 3", b"POINTS -3"), "count expected"),
    "binary count": (LEGACY_HEAD.replace(b"ASCII", b"BINARY").replace(b"POINTS 3 float", HUGE), "more than the file holds"),
    "node": (LEGACY_HEAD.replace(b"3 0 1 2", b"3 0 1 3"), "cell 0 names node 3"),
    "negative node": (LEGACY_HEAD.replace(b"3 0 1 2", b"3 0 1 -1"), "names node -1"),
    "size": (LEGACY_HEAD.replace(b"3 0 1 2", b"4 0 1 2"), "do not hold"),
    "polygon": (LEGACY_HEAD.replace(b"1 4\n3 0 1 2", b"1 3\n2 0 1"), "polygon with 2 nodes"),
    "type": (GRID + b"CELL_TYPES 1\n42\n", "type 42 (polyhedron)"),
    "type of other size": (GRID + b"CELL_TYPES 1\n10\n", "3 nodes, 4 expected"),
    "no types": (GRID, "0 cell types for 1"),
    "offsets": (HEAD_51 + b"POLYGONS 3 3\nOFFSETS vtktypeint64\n0 9 3\n" + TABLE, "must rise"),
    "first offset": (HEAD_51 + b"POLYGONS 2 3\nOFFSETS vtktypeint64\n1 3\n" + TABLE, "first offset"),
    "offsets of floats": (HEAD_51 + b"POLYGONS 2 3\nOFFSETS float\n0 3\n" + TABLE, "whole numbers"),
    "keyword": (LEGACY_HEAD + b"NONSENSE\n", "'NONSENSE'"),
    "attribute": (LEGACY_HEAD + b"POINT_DATA 3\nNONSENSE x float\n", "no kind of data"),
    "data rows": (LEGACY_HEAD + b"CELL_DATA 2\nSCALARS a int\nLOOKUP_TABLE default\n1 2\n", "2 rows for 1 cells"),
    "field rows": (LEGACY_HEAD + b"CELL_DATA 1\nFIELD f 1\na 1 2 int\n1 2\n", "1 rows expected"),
    "data type": (LEGACY_HEAD + b"CELL_DATA 1\nSCALARS a variant\nLOOKUP_TABLE default\n1\n", "'variant'"),
    "range": (LEGACY_HEAD + b"CELL_DATA 1\nSCALARS a char\nLOOKUP_TABLE default\n300\n", "range of int8"),
    "doctype": (xml_with(b"<VTKFile", BOMB), "DOCTYPE"),
    "external": (xml_with(b"<VTKFile", b'<!DOCTYPE x SYSTEM "file:///etc/passwd">\n<VTKFile'), "DOCTYPE"),
    "image": (xml_with(b'type="PolyData"', b'type="ImageData"'), "ImageData"),
    "no piece": (b'<VTKFile type="PolyData"><PolyData/></VTKFile>', "no Piece"),
    "deep": (b"<VTKFile>" + b"<a>" * 100000, "nested"),
    "xml cut": (xml_bytes(an_example(True), True, Coding())[:900], "cut short"),
    "lz4": (xml_with(b"<VTKFile", b'<VTKFile compressor="vtkLZ4DataCompressor"'), "zlib or no compression"),
    "order": (xml_with(b'"LittleEndian"', b'"Middle"'), "byte_order"),
    "points": (xml_with(b'NumberOfPoints="12"', b'NumberOfPoints="11"'), "three for each"),
    "polys": (xml_with(b'NumberOfPolys="3"', b'NumberOfPolys="4"'), "offsets for 4 cells"),
    "missing": (xml_with(b'Name="offsets"', b'Name="other"'), "'offsets' is missing"),
    "format": (xml_with(b'ents="1" format="ascii"', b'ents="1" format="xdmf"'), "'xdmf'"),
    "array type": (xml_with(b'type="Int8"', b'type="Int7"'), "'Int7'"),
    "components": (xml_with(b'NumberOfComponents="3"', b'NumberOfComponents="2"'), "rows of 2"),
    "base64": (xml_with(b'format="binary">\n  ', b'format="binary">\n  !', coding=Coding(form="binary")), "base64"),
    "offset": (xml_with(b'offset="0"', b'offset="99999999"', coding=Coding(form="raw")), "cut short"),
    "fields": (LEGACY_HEAD + b"POINT_DATA 3\nFIELD f 99999\n", "99999 arrays"),
    "arrays": (xml_with(b"<PointData>", b"<PointData>" + b"<DataArray/>" * 21_000), "arrays"),
    "pieces": (b'<VTKFile type="PolyData"><PolyData>' + b"<Piece/>" * 5000, "pieces"),
    "no appended": (CUT, "appended"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_one_line_that_says_what_is_wrong(name: str, tmp_path: Path):
    content, message = BAD[name]
    path = tmp_path / "bad.vtk"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_vtk(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert message in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.vtk")
    for path in (tmp_path / "absent.vtk", tmp_path, tmp_path / "pipe.vtk", tmp_path / ("long" * 99)):
        with pytest.raises(InputError, match=r"no such file|not a file|can't be read"):
            read_vtk(path)


def one_array(array: bytes, coding: str, appended: bytes = b"", n_arrays: int = 1) -> bytes:
    """A file whose point data are the given array, many times over."""
    head = f'<VTKFile type="PolyData" header_type="UInt64" {coding}><PolyData><Piece NumberOfPoints="0"><PointData>'.encode()
    arrays = b"".join(array.replace(b"NAME", str(n).encode()) for n in range(n_arrays))
    return head + arrays + b"</PointData></Piece></PolyData>" + appended + b"</VTKFile>"


def compressed_bombs() -> dict[str, bytes]:
    """Small files that would fill the memory if they were believed."""
    zeros = zlib.compress(bytes(100_000_000), 9)
    zipped = 'compressor="vtkZLibDataCompressor"'
    honest, lying = struct.pack("<4Q", 1, 100_000_000, 0, len(zeros)), struct.pack("<4Q", 1, 8, 0, len(zeros))
    tag = b'<DataArray type="UInt8" Name="NAME" format="binary">'
    shared = b'<DataArray type="UInt8" Name="NAME" format="appended" offset="0"/>'
    appended = b'<AppendedData encoding="raw">_' + struct.pack("<Q", 10**6) + bytes(10**6) + b"</AppendedData>"
    small = zlib.compress(bytes(10**6), 9)
    many = b'<AppendedData encoding="raw">_' + struct.pack("<4Q", 1, 10**6, 0, len(small)) + small + b"</AppendedData>"
    n_wide = 20_000
    strip = Example(
        points=np.zeros((1, 3)), cells=[(6, [0] * n_wide)], cell_data={"wide": np.zeros((1, n_wide), "u1")}
    )  # fmt: skip
    return {
        "honest": one_array(tag + base64.b64encode(honest) + base64.b64encode(zeros) + b"</DataArray>", zipped),
        "lying": one_array(tag + base64.b64encode(lying) + base64.b64encode(zeros) + b"</DataArray>", zipped),
        "shared": one_array(shared, "", appended, n_arrays=1000),
        "shared and zipped": one_array(shared, zipped, many, n_arrays=1000),
        "many blocks": one_array(tag + base64.b64encode(struct.pack("<3Q", 2**60, 2**60, 0)) + b"</DataArray>", zipped),
        "strip": xml_bytes(strip, True, Coding(form="raw")),
    }


@pytest.mark.parametrize("name", ["honest", "lying", "shared", "shared and zipped", "many blocks", "strip"])
def test_bombs_are_refused_before_they_fill_the_memory(name: str):
    content = compressed_bombs()[name]
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            read(content)
        assert tracemalloc.get_traced_memory()[1] < max(25 * len(content), 160 * 2**20)
    finally:
        tracemalloc.stop()


# What a writer refuses: arguments for write_vtu after the path.
TRIANGLE = Block(kind="triangle", nodes=np.array([[0, 1, 2]]))
REFUSED = {
    "rows": ((np.zeros((3, 3)), [TRIANGLE], {"u": np.zeros(4)}), "3 rows"),
    "type": ((np.zeros((3, 3)), [TRIANGLE], {"u": np.zeros(3, complex)}), "complex128"),
    "name": ((np.zeros((3, 3)), [TRIANGLE], {"\x00": np.zeros(3)}), "name"),
    "empty name": ((np.zeros((3, 3)), [TRIANGLE], {"": np.zeros(3)}), "name"),
    "node": ((np.zeros((2, 3)), [TRIANGLE]), "2 points"),
    "kind": ((np.zeros((3, 3)), [Block(kind="heptagon", nodes=TRIANGLE.nodes)]), "heptagon"),
    "corners": ((np.zeros((3, 3)), [Block(kind="quad", nodes=TRIANGLE.nodes)]), "4 nodes"),
    "points": ((np.zeros((3, 4)), [TRIANGLE]), "2 or 3 coordinates"),
    "names": (
        (np.zeros((3, 3)), [TRIANGLE, Block(kind="triangle", nodes=TRIANGLE.nodes, data={"a": np.zeros(1)})]),
        "same names",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_written_is_refused_and_leaves_no_file(name: str, tmp_path: Path):
    arguments, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        write_vtu(tmp_path / "mesh.vtu", *arguments)
    assert list(tmp_path.iterdir()) == []


def a_film(path: Path, corners: int, n_times: int = 3) -> tuple[Path, np.ndarray]:
    rng = np.random.default_rng(0)
    u = rng.normal(size=(n_times, 6, 2)).astype(np.float32)
    cells = np.array([[0, 1, 2, 3], [2, 3, 4, 5]])[:, :corners]
    times_ms = 0.1 * np.arange(n_times)
    fields = {"u": u[:, :, 0], "both": u}
    pvd = write_series(
        path, rng.normal(size=(6, 3)), cells, times_ms, fields, {"id": np.arange(6)}, {"tag": np.array([4, 5])}
    )
    return pvd, u


@pytest.mark.parametrize(("corners", "suffix"), [(3, "vtp"), (4, "vtu")])
def test_a_film_is_a_list_of_frames_that_each_read_back(corners: int, suffix: str, tmp_path: Path):
    pvd, u = a_film(tmp_path / "film.pvd", corners)
    assert pvd == tmp_path / "film.pvd"
    frames = sorted((tmp_path / "film").iterdir())
    assert [frame.name for frame in frames] == [f"film_{n:06d}.{suffix}" for n in range(3)]
    text = pvd.read_text()
    for time_ms, frame in zip((0.0, 0.1, 0.2), frames, strict=True):
        assert f'timestep="{time_ms}" part="0" file="film/{frame.name}"' in text
    for now, frame in zip(u, frames, strict=True):
        mesh = read_vtk(frame)
        np.testing.assert_array_equal(mesh.point_data["u"], now[:, 0])
        np.testing.assert_array_equal(mesh.point_data["both"], now)
        assert mesh.point_data["u"].dtype == np.float32
        assert mesh.blocks[0].data["tag"].tolist() == [4, 5] and mesh.blocks[0].nodes.shape == (2, corners)


def test_a_film_given_a_folder_lies_within_it_and_its_bytes_repeat(tmp_path: Path):
    contents = []
    for _ in range(2):
        assert a_film(tmp_path / "film", 3)[0] == tmp_path / "film" / "film.pvd"
        contents.append({path.name: path.read_bytes() for path in (tmp_path / "film").iterdir()})
    assert len(contents[0]) == 4 and contents[0] == contents[1]


def test_a_film_that_breaks_off_has_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pvd, _ = a_film(tmp_path / "film", 3)
    (tmp_path / "film" / "film_000001.vtp").unlink()
    (tmp_path / "film" / "film_000001.vtp").mkdir()
    with pytest.raises(InputError, match="can't be written"):
        a_film(tmp_path / "film", 3)
    assert not pvd.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times_ms": np.array([0.0, 0.0])}, "rise"),
        ({"times_ms": np.array([0.0, np.nan])}, "finite"),
        ({"fields": {"u": np.zeros((2, 4))}}, "2 times of 3 nodes"),
        ({"cells": np.zeros((1, 2), int)}, "triangles or tetrahedra"),
        ({"point_data": {"u": np.zeros(3)}}, "both"),
    ],
)
def test_a_film_that_does_not_fit_together_is_refused(change: dict[str, Any], message: str, tmp_path: Path):
    film: dict[str, Any] = {
        "points": np.zeros((3, 3)), "cells": np.array([[0, 1, 2]]), "times_ms": np.array([0.0, 1.0]),
        "fields": {"u": np.zeros((2, 3))},
    }  # fmt: skip
    with pytest.raises(InputError, match=message):
        write_series(tmp_path / "film.pvd", **(film | change))
    assert list(tmp_path.iterdir()) == []


def test_a_quarter_of_a_million_nodes_are_read_within_two_seconds(tmp_path: Path):
    n = 63
    grid = np.arange(n**3).reshape(n, n, n)
    corner = grid[:-1, :-1, :-1].ravel()
    steps = np.array([0, 1, n, n * n])
    tetra = Block(kind="tetra", nodes=corner[:, None] + steps, data={"fibre": np.ones((len(corner), 3))})
    write_vtu(tmp_path / "big.vtu", np.random.default_rng(0).normal(size=(n**3, 3)), [tetra])
    start = time.perf_counter()
    mesh = read_vtk(tmp_path / "big.vtu")
    assert time.perf_counter() - start < 2
    assert len(mesh.points) == 250_047 and len(mesh.blocks[0].nodes) == 238_328


def real(name: str) -> Path:
    folder = os.environ.get("GFUNK_REAL_ATRIA")
    if folder is None or not (Path(folder) / name).is_file():
        pytest.skip(f"needs {name} in the folder named by GFUNK_REAL_ATRIA")
    return Path(folder) / name


@pytest.mark.parametrize(
    ("name", "n_points", "n_triangles", "cell_data"),
    [
        ("heart3.vtp", 20938, 41605, {"fibre", "tag"}),
        ("mixed_winding.vtp", 4581, 9023, set()),
        ("two_components.vtk", 8848, 16942, {"centroid", "Normals"}),
    ],
)
def test_real_atria_are_read(name: str, n_points: int, n_triangles: int, cell_data: set[str]):
    start = time.perf_counter()
    mesh = read_vtk(real(name))
    assert time.perf_counter() - start < 1
    (block,) = mesh.blocks
    assert block.kind == "triangle" and len(mesh.points) == n_points and len(block.nodes) == n_triangles
    assert set(block.data) == cell_data and np.isfinite(mesh.points).all() and mesh.remarks == ()
    assert set(block.nodes.ravel()) == set(range(n_points))


def test_the_fibres_of_a_real_atrium_lie_in_its_surface():
    # Only if rows of data and triangles belong together.
    mesh = read_vtk(real("heart3.vtp"))
    a, b, c = mesh.points[mesh.blocks[0].nodes].transpose(1, 0, 2)
    normal = np.cross(b - a, c - a)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    fibre = mesh.blocks[0].data["fibre"]
    np.testing.assert_allclose(np.linalg.norm(fibre, axis=1), 1, atol=1e-12)
    assert np.abs((normal * fibre).sum(1)).mean() < 0.1


def test_centroids_in_a_real_file_are_those_of_its_triangles():
    mesh = read_vtk(real("two_components.vtk"))
    block = mesh.blocks[0]
    np.testing.assert_allclose(mesh.points[block.nodes].mean(1), block.data["centroid"], atol=1e-3)


def test_meshio_reads_what_is_written(tmp_path: Path):
    meshio = pytest.importorskip("meshio")
    mesh = read(xml_bytes(an_example(False), False, Coding()))
    write_vtu(tmp_path / "mesh.vtu", mesh.points, mesh.blocks, mesh.point_data)
    other = meshio.read(tmp_path / "mesh.vtu")
    np.testing.assert_array_equal(other.points, mesh.points)
    assert_same_data(other.point_data, mesh.point_data)
    for block in mesh.blocks:
        # meshio turns VTK's wedges over, to its own convention; we keep the file's.
        order = [0, 2, 1, 3, 5, 4] if block.kind == "wedge" else slice(None)
        np.testing.assert_array_equal(other.cells_dict[block.kind], block.nodes[:, order])
        for name, array in block.data.items():
            np.testing.assert_array_equal(other.cell_data_dict[name][block.kind], array)


def test_pyvista_reads_what_is_written(tmp_path: Path):
    pyvista = pytest.importorskip("pyvista")
    mesh = read(xml_bytes(an_example(False), False, Coding()))
    write_vtu(tmp_path / "mesh.vtu", mesh.points, mesh.blocks, mesh.point_data)
    other = pyvista.read(tmp_path / "mesh.vtu")
    np.testing.assert_array_equal(other.points, mesh.points)
    assert_same_data({name: np.asarray(other.point_data[name]) for name in other.point_data}, mesh.point_data)
    for block in mesh.blocks:
        np.testing.assert_array_equal(other.cells_dict[NUMBERS[block.kind]], block.nodes)
        chosen = other.celltypes == NUMBERS[block.kind]
        for name, array in block.data.items():
            np.testing.assert_array_equal(other.cell_data[name][chosen], array)


def test_pyvista_plays_the_films_that_are_written(tmp_path: Path):
    pyvista = pytest.importorskip("pyvista")
    for corners in (3, 4):
        pvd, u = a_film(tmp_path / str(corners) / "film.pvd", corners)
        film = pyvista.get_reader(str(pvd))
        assert film.time_values == [0.0, 0.1, 0.2]
        for time_ms, now in zip(film.time_values, u, strict=True):
            film.set_active_time_value(time_ms)
            frame = film.read()[0]
            np.testing.assert_array_equal(frame.point_data["u"], now[:, 0])
            np.testing.assert_array_equal(frame.cell_data["tag"], [4, 5])
