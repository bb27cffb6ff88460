"""Damaged files of every format: each is read or refused with one line, soon, and within a multiple of its size."""

import gzip
import re
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import sphere
from test_carto import MESH
from test_igb import igb_bytes
from test_opencarp import binary_files
from test_other_formats import msh_text, obj_text, off_text, ply_bytes, stl_bytes
from test_vtk import CODINGS, Example, an_example, legacy_bytes, xml_bytes

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.files.igb import Igb, read_igb
from gfunk.files.opencarp import read_dat, read_vtx, write_opencarp
from gfunk.files.raw import Block, RawMesh
from gfunk.files.reading import READERS, read_domain

LONGEST_SECONDS = 5.0
# Beyond this floor, files may take twenty times their size.
FLOOR_BYTES, GROWTH = 128 * 2**20, 20


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sound file, and those beside it that belong to it; the first is given to the reader."""

    files: dict[str, bytes]
    read: Callable[[Path], object] = read_domain
    gives: type = Domain


@cache
def ball() -> RawMesh:
    """Large as an atrium, two holes, with fibres and tags."""
    mesh = sphere(1)
    cells = mesh.cells[~np.isin(mesh.cells, [0, 1]).any(axis=1)]
    centre = mesh.points[cells].mean(axis=1)
    data = {"fibre": np.cross([0.1, 0.2, 1.0], centre), "tag": (centre[:, 2] > 0).astype(np.int64)}
    return RawMesh(points=30 * mesh.points, blocks=(Block(kind="triangle", nodes=cells, data=data),))


def written(write: Callable[[Path], object], first: str) -> dict[str, bytes]:
    """The files that were written to a folder, the named one first."""
    with TemporaryDirectory() as folder:
        write(Path(folder))
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return {first: files[first], **files}


def vtk_samples() -> dict[str, Sample]:
    """The ball in a few codings, and a little of every kind of cell in all."""
    mesh = ball()
    block = mesh.blocks[0]
    example = Example(points=mesh.points, cells=[(5, nodes.tolist()) for nodes in block.nodes], cell_data=block.data)
    codings = [CODINGS[0], *(coding for coding in CODINGS if coding.order == "<" and coding.header == "u8")]
    samples = {f"vtu {c.form} {c.compressor}": Sample(files={"a.vtu": xml_bytes(example, False, c)}) for c in codings[:6]}
    for is_binary, version in product((False, True), ("4.2", "5.1")):
        content = legacy_bytes(example, False, is_binary, version)
        samples[f"vtk {version} {'binary' if is_binary else 'text'}"] = Sample(files={"a.vtk": content})
    for is_polydata in (False, True):
        samples[f"vtk of all kinds, {is_polydata}"] = Sample(
            files={"a.vtk": legacy_bytes(an_example(is_polydata), is_polydata, False, "4.2")}
        )
    return samples


def meshio_files(name: str, kind: str, **options: str) -> dict[str, bytes]:
    """The ball as meshio writes it."""
    import meshio

    mesh = ball()
    data, n_cells = mesh.blocks[0].data, len(mesh.blocks[0].nodes)
    tags = {} if kind == "xdmf" else {f"gmsh:{key}": [np.ones(n_cells, dtype=int)] for key in ("physical", "geometrical")}
    out = meshio.Mesh(mesh.points, [("triangle", mesh.blocks[0].nodes)], cell_data={"fibre": [data["fibre"]], **tags})
    return written(lambda folder: out.write(folder / name, kind, **options), name)


def opencarp_files() -> dict[str, bytes]:
    mesh = ball()
    return written(lambda folder: write_opencarp(folder / "a", mesh.points, mesh.blocks), "a.pts")


def opencarp_binary_files() -> dict[str, bytes]:
    block = ball().blocks[0]
    full = Block(kind="triangle", nodes=block.nodes, data=block.data | {"sheet": block.data["fibre"]})
    mesh = RawMesh(points=1000 * ball().points, blocks=(full,))
    return written(lambda folder: binary_files(folder / "a", mesh, "<"), "a.bpts")


def samples() -> dict[str, Sample]:
    mesh = ball()
    points, cells = mesh.points, mesh.blocks[0].nodes
    faces = cells.tolist()
    film = igb_bytes(
        "x:2 y:1 z:1 t:2 type:float systeme:big_endian dim_t:2 org_t:1 facteur:2", np.arange(4, dtype=">f4").tobytes()
    )
    long = igb_bytes("x:2 t:3 type:long inc_t:1", bytes(24))
    lists = b"3\nintra\n3\n0\n12345678\n"
    return {
        "openCARP text": Sample(files=opencarp_files()),
        "openCARP binary": Sample(files=opencarp_binary_files()),
        "CARTO": Sample(files={"a.mesh": MESH.encode("latin-1")}),
        **vtk_samples(),
        "PLY text": Sample(files={"a.ply": ply_bytes(points, faces, lat=np.arange(len(points)))}),
        "PLY little": Sample(files={"a.ply": ply_bytes(points, faces, "binary_little_endian", lat=np.arange(len(points)))}),
        "PLY big": Sample(files={"a.ply": ply_bytes(points, [*faces[:4]], "binary_big_endian")}),
        "STL text": Sample(files={"a.stl": stl_bytes(points, cells, True)}),
        "STL binary": Sample(files={"a.stl": stl_bytes(points, cells, False)}),
        "OBJ": Sample(files={"a.obj": obj_text(points, faces).encode()}),
        "OFF": Sample(files={"a.off": off_text(points, faces).encode()}),
        "gmsh 2.2 text": Sample(files={"a.msh": msh_text(points, cells, "2.2").encode()}),
        "gmsh 4.1 text": Sample(files={"a.msh": msh_text(points, cells, "4.1").encode()}),
        "gmsh 2.2 binary": Sample(files=meshio_files("a.msh", "gmsh22")),
        "gmsh 4.1 binary": Sample(files=meshio_files("a.msh", "gmsh")),
        "XDMF text": Sample(files=meshio_files("a.xdmf", "xdmf", data_format="XML")),
        "XDMF with HDF5": Sample(files=meshio_files("a.xdmf", "xdmf", data_format="HDF")),
        "igb": Sample(files={"a.igb": film}, read=read_igb, gives=Igb),
        "igb zipped": Sample(files={"a.igb": gzip.compress(long)}, read=read_igb, gives=Igb),
        "vtx": Sample(files={"a.vtx": lists}, read=read_vtx, gives=np.ndarray),
        "dat": Sample(files={"a.dat": b"1.5\n-2e-3\nnan\n4\n"}, read=read_dat, gives=np.ndarray),
    }


WORDS = (
    b"nan", b"-inf", b"1e999", b"-1", b"0", b"99999999999", b"9" * 30, b"1e-320", b"1e300", b"0.5", b"-", b" ", b"\n",
    b"\r", b"\0", b"#", b"=", b"/", b"<", b"$", b";", b"[", b"\xff\xfe", b"e", b".",
)  # fmt: skip
WAYS = (
    "flip", "set", "word", "number", "delete", "lines", "copy", "repeat lines", "cut", "garbage", "nothing else",
)  # fmt: skip
damages = st.lists(st.tuples(st.sampled_from(WAYS), st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4)


def damaged(content: bytes, how: list[tuple[str, float, int]]) -> bytes:
    out = bytearray(content)
    for kind, share, value in how:
        place = min(int(share * len(out)), max(len(out) - 1, 0))
        word = WORDS[value % len(WORDS)]
        end = out.find(b"\n", place)
        line = slice(out.rfind(b"\n", 0, place) + 1, end + 1 if end >= 0 else len(out))
        match kind:
            case "flip" if out:
                out[place] ^= 1 << value % 8
            case "set" if out:
                out[place] = value
            case "word":
                out[place:place] = word
            case "number":
                # The next one after this place: counts, types and offsets are what a reader trusts.
                found = re.compile(rb"[0-9][0-9.e+-]*").search(out, place)
                out[slice(*found.span()) if found else slice(place, place)] = word
            case "delete":
                del out[place : place + 1 + value % 40]
            case "lines":
                del out[line]
            case "copy":
                out[place:place] = out[place : place + value]
            case "repeat lines":
                out[line.stop : line.stop] = out[line] * (1 + value % 3)
            case "cut":
                del out[place:]
            case "nothing else":
                out[:] = np.random.default_rng(int(share * 1e6)).bytes(12 * value)
            case "garbage":
                out[place : place + value] = np.random.default_rng(value).bytes(value)
    return bytes(out)


def assert_read_or_refused(sample: Sample, which: int, how: list[tuple[str, float, int]]):
    names = list(sample.files)
    spoiled = names[which % len(names)]
    with TemporaryDirectory() as folder:
        for name, content in sample.files.items():
            (Path(folder) / name).write_bytes(damaged(content, how) if name == spoiled else content)
        n_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
        tracemalloc.start()
        start = time.perf_counter()
        try:
            assert isinstance(sample.read(Path(folder) / names[0]), sample.gives)
        except InputError as error:
            assert "\n" not in str(error) and folder in str(error)
        finally:
            seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert seconds < LONGEST_SECONDS
    assert peak < FLOOR_BYTES + GROWTH * n_bytes


SAMPLES = samples()


@pytest.mark.parametrize("name", [name for name in SAMPLES if "all kinds" not in name])
def test_a_sound_file_is_read(name: str, tmp_path: Path):
    sample = SAMPLES[name]
    for file, content in sample.files.items():
        (tmp_path / file).write_bytes(content)
    assert isinstance(sample.read(tmp_path / next(iter(sample.files))), sample.gives)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=8)
@given(which=st.integers(0, 2), how=damages)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(name: str, which: int, how: list[tuple[str, float, int]]):
    assert_read_or_refused(SAMPLES[name], which, how)


# What readers meet first in their formats, followed by much of the same.
STARTS = (
    b"",
    b"OFF\n",
    b"solid\nfacet\n",
    b"v 0 0 0\nf",
    b"f 1 2 3",
    b"ply\nformat ascii 1.0\n",
    b"$MeshFormat\n2.2 0 8\n$EndMeshFormat\n$Nodes\n",
)


@pytest.mark.parametrize("suffix", sorted(set(READERS) - {""}))
def test_much_of_the_same_keeps_no_reader_busy(suffix: str, tmp_path: Path):
    for start, same in product(
        STARTS, (b" ", b"\n", b"\r\n", b"0", b"-", b"/", b"#", b"\0", b"1 ", b"\n$Nodes\n", b"\nsolid a\nendsolid", b"<a>")
    ):
        for path in (tmp_path / f"a{suffix}", tmp_path / "a.elem"):
            path.write_bytes(start + same * (60_000 // len(same)))
        began = time.perf_counter()
        with pytest.raises(InputError):
            read_domain(tmp_path / f"a{suffix}")
        assert time.perf_counter() - began < LONGEST_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=300)
@given(which=st.integers(0, 2), how=damages)
def test_many_damaged_files_are_read_or_refused(name: str, which: int, how: list[tuple[str, float, int]]):
    assert_read_or_refused(SAMPLES[name], which, how)
