"""PLY, STL, OBJ, OFF, gmsh and XDMF."""

import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from problems import box, sphere

from gfunk import Domain, InputError, read_domain
from gfunk.files.by_meshio import read_xdmf
from gfunk.files.gmsh import read_gmsh
from gfunk.files.raw import Block, RawMesh
from gfunk.files.reading import READERS
from gfunk.files.vtk_write import write_series, write_vtp, write_vtu

for package in ("trimesh", "meshio", "h5py"):
    pytest.importorskip(package)

BALL = sphere(1)
POINTS = 30 * BALL.points
# A triangle, a quad and a pentagon, folded a little.
PLACES = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0.5], [0, 1, 0.5], [2, 0, 1], [2.5, 0.5, 1], [2, 1, 1]], dtype=float)
MIXED = [[0, 1, 2, 3], [1, 4, 2], [2, 4, 5, 6, 3]]
CUT = {"triangle": [[1, 4, 2], [2, 4, 5], [2, 5, 6], [2, 6, 3]], "quad": [[0, 1, 2, 3]]}


def rows(*lines: object) -> str:
    """Numbers as text, a line for each row; words are lines of their own."""
    return (
        "\n".join(line if isinstance(line, str) else " ".join(map(repr, np.ravel(line).tolist())) for line in lines) + "\n"
    )


def ply_bytes(points: np.ndarray, faces: list, form: str = "ascii", **vertex_data: np.ndarray) -> bytes:
    """With a tag for each face; text, or binary in either order."""
    kinds = {"f": "double", "i": "int"}
    head = [
        "ply",
        f"format {form} 1.0",
        "comment r\xe9sum\xe9",
        "comment TextureFile texture.png",
        f"element vertex {len(points)}",
    ]
    head += [f"property double {axis}" for axis in "xyz"]
    head += [f"property {kinds[values.dtype.kind]} {name}" for name, values in vertex_data.items()]
    head += [f"element face {len(faces)}", "property list uchar int vertex_indices", "property int tag"]
    head += ["element edge 1", "property int vertex1", "property int vertex2", "end_header\n"]
    table = [[*point, *(values[i].item() for values in vertex_data.values())] for i, point in enumerate(points.tolist())]
    if form == "ascii":
        lines = [
            *(" ".join(map(repr, row)) for row in table),
            *(f"{len(f)} {' '.join(map(str, f))} {n}" for n, f in enumerate(faces)),
        ]
        return ("\n".join(head) + "\n".join([*lines, "0 1\n"])).encode("latin-1")
    order = "<" if "little" in form else ">"
    letters = "ddd" + "".join({"f": "d", "i": "i"}[values.dtype.kind] for values in vertex_data.values())
    body = b"".join(struct.pack(order + letters, *row) for row in table)
    body += b"".join(struct.pack(f"{order}B{len(face)}ii", len(face), *face, n) for n, face in enumerate(faces))
    return "\n".join(head).encode("latin-1") + body + struct.pack(order + "2i", 0, 1)


def stl_bytes(points: np.ndarray, cells: np.ndarray, is_text: bool) -> bytes:
    corners = points[cells]
    if is_text:
        facets = [
            rows("facet normal 0 0 1", "outer loop", *(f"vertex {a!r} {b!r} {c!r}" for a, b, c in t), "endloop", "endfacet")
            for t in corners.tolist()
        ]
        half = len(facets) // 2
        solids = [
            f"solid {name}\n{''.join(part)}endsolid {name}\n"
            for name, part in (("\xe9{}", facets[:half]), ("\xe9{}", facets[half:]))
        ]
        return "".join(solids).encode("latin-1")
    record = np.zeros(len(cells), dtype=[("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
    record["corners"] = corners
    return b"solid in name only".ljust(80) + struct.pack("<I", len(cells)) + record.tobytes()


def obj_text(points: np.ndarray, faces: list) -> str:
    """With textures, normals, materials and objects, as modelling tools write."""
    half = len(faces) // 2
    lines = [f"f {' '.join(f'{n + 1}/1/1' for n in face)}" for face in faces]
    return rows(
        "# a comment", "mtllib secret.mtl", "o one", *(f"v\t{x!r} {y!r} {z!r}" for x, y, z in points.tolist()),
        "vt 0 0", "vn 0 0 1", "usemtl red", *lines[:half], "o two", "usemtl blue", "s off", *lines[half:],
    )  # fmt: skip


def off_text(points: np.ndarray, faces: list) -> str:
    return rows("OFF # of", f"{len(points)} {len(faces)} 0", *points, "# faces", *([len(face), *face] for face in faces))


def msh_text(points: np.ndarray, cells: np.ndarray, version: str, first: int = 1, step: int = 1) -> str:
    """Nodes numbered from `first` in steps; the first half of the cells is in group 7, the others in group 8."""
    kind = {3: 2, 4: 4}[cells.shape[1]]
    dim = cells.shape[1] - 1
    numbers = first + step * np.arange(len(points))
    named, half = numbers[cells], len(cells) // 2
    lines: list[object] = [
        "$MeshFormat",
        f"{version} 0 8",
        "$EndMeshFormat",
        "$PhysicalNames",
        "1",
        f'{dim} 7 "wall"',
        "$EndPhysicalNames",
    ]
    if version == "2.2":
        lines += [
            "$Nodes",
            f"{len(points)}",
            *(f"{n} {x!r} {y!r} {z!r}" for n, (x, y, z) in zip(numbers, points.tolist(), strict=True)),
        ]
        lines += ["$EndNodes", "$Elements", f"{len(cells)}"]
        lines += [[i + 1, kind, 2, 7 if i < half else 8, 3, *nodes] for i, nodes in enumerate(named)]
    else:
        lines += [
            "$Entities",
            "0 0 2 0" if dim == 2 else "0 0 0 2",
            "1 0 0 0 1 1 1 1 7 0",
            "2 0 0 0 1 1 1 1 8 0",
            "$EndEntities",
        ]
        lines += [
            "$Nodes",
            f"1 {len(points)} {numbers[0]} {numbers[-1]}",
            f"{dim} 1 0 {len(points)}",
            *numbers[:, None],
            *points,
        ]
        lines += ["$EndNodes", "$Elements", f"2 {len(cells)} 1 {len(cells)}", f"{dim} 1 {kind} {half}"]
        lines += [[i + 1, *nodes] for i, nodes in enumerate(named[:half])]
        lines += [f"{dim} 2 {kind} {len(cells) - half}", *([i + 1 + half, *nodes] for i, nodes in enumerate(named[half:]))]
    lines += ["$EndElements", "$NodeData", "1", '"lat"', "1", "0.0", "3", "0", "1", f"{len(points)}"]
    lines += [[n, 0.5 * i] for i, n in enumerate(numbers)]
    lines += ["$EndNodeData", "$ElementData", "1", '"fibre"', "1", "0.0", "3", "0", "3", f"{half}"]
    return rows(*lines, *([i + 1, 0, 0, i] for i in range(half)), "$EndElementData")


def read_content(folder: Path, name: str, content: bytes | str) -> RawMesh:
    (folder / name).write_bytes(content.encode("latin-1") if isinstance(content, str) else content)
    return READERS[(folder / name).suffix](folder / name)


SURFACES: dict[str, Callable[[np.ndarray, np.ndarray], bytes | str]] = {
    "text.ply": lambda points, cells: ply_bytes(points, cells.tolist()),
    "text_of_windows.ply": lambda points, cells: ply_bytes(points, cells.tolist()).replace(b"\n", b"\r\n"),
    "little.ply": lambda points, cells: ply_bytes(points, cells.tolist(), "binary_little_endian"),
    "big.ply": lambda points, cells: ply_bytes(points, cells.tolist(), "binary_big_endian"),
    "text.stl": lambda points, cells: stl_bytes(points, cells, True),
    "binary.stl": lambda points, cells: stl_bytes(points, cells, False),
    "a.obj": lambda points, cells: obj_text(points, cells.tolist()),
    "a.off": lambda points, cells: off_text(points, cells.tolist()),
    "two.msh": lambda points, cells: msh_text(points, cells, "2.2"),
    "four.msh": lambda points, cells: msh_text(points, cells, "4.1"),
    "gaps.msh": lambda points, cells: msh_text(points, cells, "4.1", first=10**12, step=1000),
}  # fmt: skip


@pytest.mark.parametrize("name", SURFACES)
def test_every_format_holds_the_same_triangles(name: str, tmp_path: Path):
    mesh = read_content(tmp_path, name, SURFACES[name](POINTS, BALL.cells))
    (block,) = mesh.blocks
    corners = mesh.points[block.nodes]
    np.testing.assert_allclose(
        corners, POINTS[BALL.cells], rtol=1e-7 if name == "binary.stl" else 0, atol=1e-5 if name == "binary.stl" else 0
    )


@pytest.mark.parametrize("name", SURFACES)
def test_every_format_becomes_a_domain_with_one_call(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(
        content if isinstance(content := SURFACES[name](1000 * POINTS, BALL.cells), bytes) else content.encode("latin-1")
    )
    domain = read_domain(tmp_path / name)
    assert domain.n_nodes == len(POINTS) and len(domain.cells) == len(BALL.cells)
    assert np.ptp(domain.points, axis=0).max() == pytest.approx(np.ptp(POINTS, axis=0).max(), rel=1e-6)
    assert any("micrometres" in sentence for sentence in domain.repairs)


@pytest.mark.parametrize("name", ["a.ply", "a.obj", "a.off"])
def test_quads_stay_and_larger_polygons_are_cut(name: str, tmp_path: Path):
    write = {".ply": ply_bytes, ".obj": obj_text, ".off": off_text}[Path(name).suffix]
    mesh = read_content(tmp_path, name, write(PLACES, MIXED))
    corners = {block.kind: mesh.points[block.nodes].tolist() for block in mesh.blocks}
    if name == "a.obj":
        # Where faces differ in size, trimesh cuts the quads as well.
        assert len(corners["triangle"]) == 6
        corners = {"triangle": corners["triangle"][2:], "quad": [[*corners["triangle"][0], corners["triangle"][1][1]]]}
    assert corners == {kind: PLACES[nodes].tolist() for kind, nodes in CUT.items()}


def test_data_of_a_ply_stay_with_their_vertices_and_faces(tmp_path: Path):
    data = {
        "lat": np.arange(7) / 3,
        "code": np.arange(7),
        "fibre_x": np.arange(7.0),
        "fibre_y": np.ones(7),
        "fibre_z": np.zeros(7),
        "nx": np.ones(7),
        "u": np.ones(7),
        "v": np.ones(7),
    }
    mesh = read_content(tmp_path, "a.ply", ply_bytes(PLACES, MIXED, **data))
    assert {block.kind: block.nodes.tolist() for block in mesh.blocks} == CUT
    assert {block.kind: block.data["tag"].tolist() for block in mesh.blocks} == {"triangle": [1, 2, 2, 2], "quad": [0]}
    np.testing.assert_array_equal(mesh.point_data["fibre"], np.stack([np.arange(7), np.ones(7), np.zeros(7)], axis=1))
    np.testing.assert_array_equal(mesh.point_data["lat"], data["lat"])
    assert set(mesh.point_data) == {"lat", "code", "fibre", "nx", "u", "v"}
    for form in ("binary_little_endian", "binary_big_endian"):
        same = read_content(tmp_path, "b.ply", ply_bytes(PLACES, [MIXED[0]], form, **data))
        for name, values in mesh.point_data.items():
            np.testing.assert_array_equal(same.point_data[name], values)
        assert same.blocks[0].data["tag"].tolist() == [0]


def test_colours_of_an_obj_are_data_of_its_points(tmp_path: Path):
    mesh = read_content(tmp_path, "a.obj", "v 0 0 0 1 0 0\nv 1 0 0 0 1 0\nv 0 1 0 0 0 1\nf 1 2 3\n")
    np.testing.assert_array_equal(mesh.point_data["colour"], np.eye(3))


@pytest.mark.parametrize("version", ["2.2", "4.1"])
@pytest.mark.parametrize("mesh", [BALL, box(3)])
def test_groups_and_data_of_a_gmsh_file_are_kept(version: str, mesh, tmp_path: Path):
    found = read_content(tmp_path, "a.msh", msh_text(mesh.points, mesh.cells, version, first=5, step=3))
    (block,) = found.blocks
    half = len(mesh.cells) // 2
    np.testing.assert_array_equal(found.points, mesh.points)
    np.testing.assert_array_equal(block.nodes, mesh.cells)
    np.testing.assert_array_equal(block.data["tag"], np.repeat([7, 8], [half, len(mesh.cells) - half]))
    np.testing.assert_array_equal(found.point_data["lat"], 0.5 * np.arange(len(mesh.points)))
    np.testing.assert_array_equal(block.data["fibre"][:half, 2], np.arange(half))
    assert np.isnan(block.data["fibre"][half:]).all()
    assert found.remarks == ("physical groups (tags): 7 'wall'",)


@pytest.mark.parametrize("version", ["2.2", "4.1"])
@pytest.mark.parametrize("is_binary", [True, False])
def test_what_meshio_writes_for_gmsh_is_read_the_same(version: str, is_binary: bool, tmp_path: Path):
    import meshio

    rng = np.random.default_rng(0)
    n_cells = len(BALL.cells)
    groups = [np.repeat([4, 6], [n_cells // 2, n_cells - n_cells // 2]), np.full(3, 9)]
    # Its text of data can't be read back: it writes `np.float64(0.5)`.
    data = {"u": rng.normal(size=len(POINTS)), "v": rng.normal(size=(len(POINTS), 3))} if is_binary else {}
    # Of version 4.1 it writes one kind of cell only.
    cells = [("triangle", BALL.cells), ("line", BALL.cells[:3, :2])][: 2 if version == "2.2" else 1]
    groups = groups[: len(cells)]
    tags = {"gmsh:physical": groups, "gmsh:geometrical": groups}
    mesh = meshio.Mesh(POINTS, cells, point_data=data, cell_data=tags)
    meshio.gmsh.write(tmp_path / "a.msh", mesh, version, binary=is_binary)
    found = read_gmsh(tmp_path / "a.msh")
    np.testing.assert_array_equal(found.points, POINTS)
    assert [block.kind for block in found.blocks] == [kind for kind, _ in cells]
    for block, cells, group in zip(found.blocks, mesh.cells, groups, strict=True):
        np.testing.assert_array_equal(block.nodes, cells.data)
        if version == "2.2":
            np.testing.assert_array_equal(block.data["tag"], group)
    for name, values in data.items():
        np.testing.assert_array_equal(found.point_data[name], values)


def test_quadratic_elements_and_points_of_gmsh_are_reduced_aloud(tmp_path: Path):
    nodes = [f"{i + 1} {i} {i % 2} {i % 3}" for i in range(6)]
    text = rows(
        "$MeshFormat",
        "2.2 0 8",
        "$EndMeshFormat",
        "$Nodes",
        "6",
        *nodes,
        "$EndNodes",
        "$Elements",
        "3",
        "1 15 0 1",
        "2 9 0 1 2 3 4 5 6",
        "3 1 1 5 1 2",
        "$EndElements",
    )
    mesh = read_content(tmp_path, "a.msh", text)
    assert {block.kind: block.nodes.tolist() for block in mesh.blocks} == {"triangle": [[0, 1, 2]], "line": [[0, 1]]}
    assert [remark.split()[0] for remark in mesh.remarks] == ["quadratic"]


def xdmf(folder: Path, data_format: str = "XML") -> Path:
    import meshio

    data = {"lat": np.arange(len(POINTS)) / 2, "f0": np.tile([0.0, 0, 1], (len(POINTS), 1))}
    tags = {"tag": [np.arange(len(BALL.cells))], "K": [np.ones((len(BALL.cells), 9))]}
    mesh = meshio.Mesh(POINTS, [("triangle", BALL.cells)], point_data=data, cell_data=tags)
    meshio.xdmf.write(folder / "a.xdmf", mesh, data_format=data_format)
    return folder / "a.xdmf"


@pytest.mark.parametrize("data_format", ["XML", "HDF"])
def test_fields_of_an_xdmf_are_kept_from_its_text_or_the_hdf5_beside_it(data_format: str, tmp_path: Path):
    path = xdmf(tmp_path, data_format)
    head = b'<?xml version="1.0"?><!DOCTYPE Xdmf SYSTEM "Xdmf.dtd" []>'
    path.write_bytes(
        head + path.read_bytes().partition(b"?>")[2] if b"?>" in path.read_bytes() else head + path.read_bytes()
    )
    mesh = read_xdmf(path)
    (block,) = mesh.blocks
    np.testing.assert_array_equal(mesh.points, POINTS)
    np.testing.assert_array_equal(block.nodes, BALL.cells)
    np.testing.assert_array_equal(mesh.point_data["lat"], np.arange(len(POINTS)) / 2)
    np.testing.assert_array_equal(block.data["tag"], np.arange(len(BALL.cells)))
    assert block.data["K"].shape == (len(BALL.cells), 9)
    domain = read_domain(path)
    assert any("'f0'" in sentence for sentence in domain.repairs)


OPENED: list[str] | None = None


def _note(event: str, arguments: tuple):
    if OPENED is not None and event in ("open", "socket.connect", "subprocess.Popen", "os.system"):
        OPENED.append(str(arguments[0]))


sys.addaudithook(_note)


@contextmanager
def what_is_opened() -> Iterator[list[str]]:
    global OPENED
    OPENED = noted = []
    try:
        yield noted
    finally:
        OPENED = None


@pytest.mark.parametrize("name", [*SURFACES, "a.xdmf"])
def test_nothing_but_the_file_itself_is_opened_or_run(name: str, tmp_path: Path):
    for tempting in ("secret.mtl", "texture.png", "Xdmf.dtd"):
        (tmp_path / tempting).write_text("newmtl red\nmap_Kd texture.png\n")
    content = xdmf(tmp_path).read_bytes() if name == "a.xdmf" else SURFACES[name](POINTS, BALL.cells)
    read_content(tmp_path, name, content)  # imports open files of their own, the first time
    with what_is_opened() as opened:
        READERS[Path(name).suffix](tmp_path / name)
    assert set(opened) == {str(tmp_path / name)}


def spoil_hdf5(folder: Path, how: str):
    """The points of `a.h5` become a link, or a table whose numbers are elsewhere."""
    import h5py

    (folder / "elsewhere").mkdir()
    with h5py.File(folder / "elsewhere" / "b.h5", "w") as other:
        other["data0"] = POINTS
    POINTS.tofile(folder / "raw")
    with h5py.File(folder / "a.h5", "r+") as file:
        del file["data0"]
        match how:
            case "external link":
                file["data0"] = h5py.ExternalLink("elsewhere/b.h5", "/data0")
            case "soft link":
                file["data0"] = h5py.SoftLink("/data1")
            case "external storage":
                file.create_dataset("data0", POINTS.shape, "f8", external=[(str(folder / "raw"), 0, POINTS.nbytes)])
            case "virtual":
                layout = h5py.VirtualLayout(POINTS.shape, "f8")
                layout[:] = h5py.VirtualSource("elsewhere/b.h5", "data0", POINTS.shape)
                file.create_virtual_dataset("data0", layout)
            case "words":
                file["data0"] = ["a", "b"]
            case "group":
                file.create_group("data0")
            case "bomb":
                file.create_dataset("data0", (10**9, 3), "f8", chunks=(1000, 3), compression="gzip")
            case "nothing":
                pass


@pytest.mark.parametrize(
    "how", ["external link", "soft link", "external storage", "virtual", "words", "group", "bomb", "nothing"]
)
def test_hdf5_that_leads_elsewhere_or_claims_too_much_is_refused(how: str, tmp_path: Path):
    path = xdmf(tmp_path, "HDF")
    spoil_hdf5(tmp_path, how)
    with pytest.raises(InputError, match=r"a\.xdmf: (names|its HDF5 data would)"):
        read_xdmf(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a.h5:/data0", "../a.h5:/data0", "only HDF5 files of its own folder"),
        ("a.h5:/data0", "/etc/hostname:/data0", "only HDF5 files of its own folder"),
        ("a.h5:/data0", "sub/a.h5:/data0", "only HDF5 files of its own folder"),
        ("a.h5:/data0", "linked.h5:/data0", "only HDF5 files of its own folder"),
        ("a.h5:/data0", "absent.h5:/data0", "no such file"),
        ("a.h5:/data0", "a.xdmf:/data0", "meshio can't read it"),
        ("a.h5:/data0", ":/data0", "only HDF5 files of its own folder"),
        ("a.h5:/data0", "a.h5:/data0<b/>", "tags within its data"),
        ('Format="HDF"', 'Format="Binary"', "leads to another file"),
        ('Format="HDF"', 'Format="HDF" Reference="/Xdmf"', "leads to another file"),
        ("<Domain>", '<Domain><xi:include href="b.xml"/>', "leads to another file"),
        ("<Domain>", "<Domain><Information><![CDATA[<!DOCTYPE a>]]></Information>", "declarations"),
        ("<Domain>", '<Domain><Information Format="HDF">../a.h5:/data0</Information>', "only HDF5 files of its own folder"),
        ("<Xdmf", '<!DOCTYPE Xdmf [<!ENTITY a SYSTEM "file:///etc/hostname">]><Xdmf', "entities"),
        ("<Xdmf", '<!DOCTYPE Xdmf [<!ENTITY % a "b">]><Xdmf', "entities"),
        ("<Domain>", "<Domain>" + "<a/>" * 10_001, "tags"),
        ("</Xdmf>", "", "meshio can't read it"),
    ],
)  # fmt: skip
def test_an_xdmf_that_leads_elsewhere_is_refused(old: str, new: str, said: str, tmp_path: Path):
    path = xdmf(tmp_path, "HDF")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.h5").write_bytes((tmp_path / "a.h5").read_bytes())
    (tmp_path / "linked.h5").symlink_to(tmp_path / "sub" / "a.h5")
    text = path.read_text()
    assert old in text
    with what_is_opened() as opened:
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(InputError) as caught:
            read_xdmf(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not any("hostname" in name for name in opened)


HUGE = 10**9
CLAIMS = {
    "text.ply": (b"element vertex 42", b"element vertex %d" % HUGE),
    "little.ply": (b"element vertex 42", b"element vertex %d" % HUGE),
    "big.ply": (b"element face 80", b"element face %d" % HUGE),
    "binary.stl": (struct.pack("<I", 80), struct.pack("<I", HUGE)),
    "a.off": (b"42 80 0", b"%d 80 0" % HUGE),
    "a.obj": (b"f 1", b"f %d 1" % HUGE),
    "two.msh": (b"$Nodes\n42", b"$Nodes\n%d" % HUGE),
    "four.msh": (b"2 1 0 42", b"2 1 0 %d" % HUGE),
    "gaps.msh": (b"$Elements\n2", b"$Elements\n%d" % HUGE),
    "a.xdmf": (b'Dimensions="42 3"', b'Dimensions="%d 3"' % HUGE),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_header_claims_costs_nothing(name: str, tmp_path: Path):
    content = xdmf(tmp_path).read_bytes() if name == "a.xdmf" else SURFACES[name](POINTS, BALL.cells)
    content = content if isinstance(content, bytes) else content.encode("latin-1")
    read_content(tmp_path, name, content)
    old, new = CLAIMS[name]
    assert old in content
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=name) as caught:
            read_content(tmp_path, name, content.replace(old, new, 1))
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("a.obj", "f 40/1/1", "f -1/1/1", "number them from 1"),
        ("a.obj", "f 40/1/1", "f 0/1/1", "number them from 1"),
        ("a.obj", "f 40/1/1 28/1/1 30/1/1", "f 40/1/1 28/1/1", "fewer than three corners"),
        ("a.off", "OFF", "FOO", "doesn't start with OFF"),
        ("a.off", "# faces\n3", "# faces\n3 9999", "line 46: 9999 is not one of the 42 nodes"),
        ("a.off", "# faces\n3", "# faces\n30", "line 46: 31 numbers expected, 4 found"),
        ("a.off", "# faces\n3", "# faces\nnan", "line 46: "),
        ("a.off", "# faces\n3", "# faces\n2", "polygon with 2 nodes"),
        ("text.ply", "ply", "plx", "doesn't start with ply"),
        ("text.ply", "double x", "double w", "no vertices with x, y and z"),
        ("text.ply", "element face", "element vertex", "names an element twice"),
        ("text.ply", "property int tag", "property int", "header can't be read at 'property int'"),
        ("text.stl", "vertex ", "vertex x", "trimesh can't read it"),
        ("text.stl", "endsolid", "end", "solid to endsolid"),
        ("two.msh", "2.2 0 8", "4.0 0 8", "is of version 4.0"),
        ("two.msh", "$EndNodes", "", "$Nodes: has no end"),
        ("two.msh", "1 2 2 7 3", "1 20 2 7 3", "gmsh's type 20"),
        ("two.msh", "1 2 2 7 3", "1 2 3 7 3", "$Elements, line 55: 8 numbers, 9 expected"),
        ("four.msh", "$Nodes\n1 42", "$Nodes\nx 42", "$Nodes, line 14: 'x' is not a number"),
        ("four.msh", "2 1 0 42", "2 1 0 41", "names node 42, which is not among $Nodes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(name: str, old: str, new: str, said: str, tmp_path: Path):
    content = SURFACES[name](POINTS, BALL.cells)
    text = content.decode("latin-1") if isinstance(content, bytes) else content
    assert old in text
    with pytest.raises(InputError, match=name) as caught:
        read_content(tmp_path, name, text.replace(old, new) if name == "text.stl" else text.replace(old, new, 1))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_stl_cut_within_its_second_solid_is_refused(tmp_path: Path):
    content = stl_bytes(POINTS, BALL.cells, True)
    with pytest.raises(InputError, match="from solid to endsolid"):
        read_content(tmp_path, "a.stl", content[: content.rindex(b"endsolid")])


@pytest.mark.parametrize(
    ("name", "package"),
    [("a.ply", "trimesh"), ("a.stl", "trimesh"), ("a.obj", "trimesh"), ("a.xdmf", "meshio")],
)
def test_a_missing_package_is_asked_for(name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    content = (
        xdmf(tmp_path).read_bytes()
        if name == "a.xdmf"
        else {**SURFACES, "a.ply": SURFACES["text.ply"], "a.stl": SURFACES["text.stl"]}[name](POINTS, BALL.cells)
    )
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"{name}: .* {package}.*pip install 'gfunk\[meshes\]'"):
        read_content(tmp_path, name, content)


def test_an_xdmf_asks_for_h5py_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = xdmf(tmp_path, "HDF")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match="needs h5py: pip install h5py"):
        read_xdmf(path)


# What we write, other tools read.


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Domain, np.ndarray]:
    """A ball with numbers at nodes and cells as .vtu and .vtp, and a film of three moments of it."""
    folder, ball = tmp_path_factory.mktemp("written"), sphere(2)
    at_nodes = {"voltage": ball.points[:, 0], "fibre": ball.points}
    at_cells = {"tag": np.arange(len(ball.cells))}
    write_vtu(folder / "ball.vtu", ball.points, [Block(kind="triangle", nodes=ball.cells, data=at_cells)], at_nodes)
    write_vtp(folder / "ball.vtp", ball.points, ball.cells, at_nodes, at_cells)
    values = np.arange(3.0)[:, None] + ball.points[None, :, 0]
    write_series(folder / "film.pvd", ball.points, ball.cells, np.array([0.0, 10.0, 20.0]), {"voltage": values})
    return folder, ball, values


def test_meshio_reads_what_we_write(written: tuple[Path, Domain, np.ndarray]):
    import meshio

    folder, ball, _ = written
    mesh = meshio.read(folder / "ball.vtu")
    np.testing.assert_array_equal(mesh.points, ball.points)
    np.testing.assert_array_equal(mesh.cells_dict["triangle"], ball.cells)
    np.testing.assert_array_equal(mesh.point_data["voltage"], ball.points[:, 0])
    np.testing.assert_array_equal(mesh.point_data["fibre"], ball.points)
    np.testing.assert_array_equal(mesh.cell_data_dict["tag"]["triangle"], np.arange(len(ball.cells)))


def test_pyvista_reads_what_we_write(written: tuple[Path, Domain, np.ndarray]):
    pyvista = pytest.importorskip("pyvista", reason="700 MB, so no part of the development set")
    folder, ball, values = written
    for name in ("ball.vtu", "ball.vtp"):
        mesh = pyvista.read(folder / name)
        np.testing.assert_array_equal(mesh.points, ball.points)
        np.testing.assert_array_equal(mesh.point_data["fibre"], ball.points)
        np.testing.assert_array_equal(mesh.cell_data["tag"], np.arange(len(ball.cells)))
    film = pyvista.get_reader(folder / "film.pvd")
    assert film.time_values == [0.0, 10.0, 20.0]
    for moment, frame in zip(film.time_values, values, strict=True):
        film.set_active_time_value(moment)
        np.testing.assert_allclose(film.read()[0].point_data["voltage"], frame, rtol=1e-6)
