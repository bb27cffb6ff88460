"""XDMF by meshio, once it is sure that the file leads to no other but HDF5 beside it, and claims no more than is there."""

from math import prod
from pathlib import Path
from xml.parsers import expat

import numpy as np

from gfunk.errors import InputError
from gfunk.files.outside import read_by
from gfunk.files.raw import CORNERS, Block, RawMesh
from gfunk.files.tables import file_bytes, readable
from gfunk.files.vtk_cells import allowance

# A mesh has some ten; each takes far more memory than its tag.
MOST_TAGS = 10_000
# Kinds with nodes between the corners; the corners come first.
QUADRATIC = {"line3": "line", "triangle6": "triangle", "quad8": "quad", "quad9": "quad", "tetra10": "tetra"}
# HDF5's own filters and h5py's: any other would be looked for among the plugins of the machine.
FILTERS = {1, 2, 3, 4, 5, 6, 32000}


def read_xdmf(path: Path) -> RawMesh:
    """The one grid of a file, with its attributes as data."""
    content = file_bytes(path)
    with read_by("meshio", path):
        import meshio

        heavy = _heavy_items(content)
        if heavy:
            _check_heavy(path.resolve().parent, heavy)
        return _raw_mesh(meshio.xdmf.read(path))


def _heavy_items(content: bytes) -> list[str]:
    """What the file says of data in HDF5, as `name:place`, having been walked through for anything that leads elsewhere."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    heavy: list[str] = []
    n_tags, item, form = 0, [], ""

    def start(name: str, attributes: dict[str, str]):
        nonlocal n_tags, form
        n_tags += 1
        if n_tags > MOST_TAGS or form:
            raise InputError(f"has tags within its data, or more than {MOST_TAGS:,} of them: no mesh needs that")
        # Any tag may hold data: meshio doesn't ask for its name. What is called Information it parses as XML once more.
        form = attributes.get("Format", name if name == "Information" else "")
        if form not in ("", "XML", "HDF", "Information") or "Reference" in attributes or name.endswith("include"):
            raise InputError(
                f"its {name[:40]!a} leads to another file, or place: save the data within it, or in HDF5 beside it"
            )

    def text(part: str):
        if form in ("HDF", "Information"):
            item.append(part)

    def end(_: str):
        nonlocal form
        said = "".join(item).strip()
        if form == "HDF":
            heavy.append(said)
        elif "<!" in said:
            raise InputError("has declarations within its Information, which no mesh needs: they are refused")
        item.clear()
        form = ""

    def entity(*_: object):
        raise InputError("declares entities, which no mesh needs: they are refused, as they may hide anything")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.EntityDeclHandler = entity
    parser.Parse(content, True)
    return heavy


def _check_heavy(folder: Path, heavy: list[str]):
    """Raise unless every item is a table of numbers, of a modest size, in a file of this folder."""
    import h5py

    n_bytes = n_allowed = 0
    for name in dict.fromkeys(item.partition(":")[0] for item in heavy):
        file = folder / name
        if not name.isprintable() or Path(name).name != name or name in ("", "..") or file.resolve().parent != folder:
            raise InputError(f"names {name[:80]!a}, but only HDF5 files of its own folder are opened: put it there")
        with readable(file), file.open("rb"):
            n_allowed += allowance(file.stat().st_size)
        with h5py.File(file, "r") as opened:
            for place in (item.partition(":")[2] for item in heavy if item.partition(":")[0] == name):
                n_bytes += _n_bytes(h5py, opened, place)
    if n_bytes > n_allowed:
        raise InputError(f"its HDF5 data would unpack to {n_bytes:,} bytes, many times their files: save them uncompressed")


def _n_bytes(h5py, opened, place: str) -> int:
    """Size of a table that is in the file itself, not a link out of it; no key leads through one either."""
    found = opened
    for key in place.strip("/").split("/"):
        if not isinstance(found, h5py.Group) or not isinstance(found.get(key, getlink=True), h5py.HardLink):
            raise InputError(f"names {place[:80]!a}, which is not in the HDF5 file, or is a link")
        found = found[key]
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual or found.dtype.kind not in "iuf":
        raise InputError(f"names {place[:80]!a}, which is no table of numbers in the HDF5 file itself")
    steps = found.id.get_create_plist()
    if not {steps.get_filter(number)[0] for number in range(steps.get_nfilters())} <= FILTERS:
        raise InputError(f"{place[:80]!a} is packed in a way that HDF5 doesn't know by itself: save it with gzip, or plain")
    # A piece may be larger than the whole.
    return max(found.nbytes, found.dtype.itemsize * prod(found.chunks or (0,)))


def _raw_mesh(mesh) -> RawMesh:
    points = np.asarray(mesh.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise InputError(f"its points have the shape {points.shape}: two or three coordinates each expected")
    blocks, remarks = [], []
    for place, cells in enumerate(mesh.cells):
        kind = QUADRATIC.get(cells.type, cells.type)
        if cells.type == "vertex":
            remarks.append(f"{len(cells.data)} vertex cells were passed over")
            continue
        if kind not in CORNERS or cells.data.ndim != 2 or cells.data.dtype.kind not in "iu":
            raise InputError(f"cells of the kind {cells.type!a} and shape {cells.data.shape} are not read")
        if cells.data.shape[1] < CORNERS[kind]:
            raise InputError(f"{kind} cells of {cells.data.shape[1]} nodes: the file is damaged")
        if kind != cells.type:
            remarks.append(f"{len(cells.data)} {cells.type} cells were reduced to the corners of each {kind}")
        data = {name: _numbers(values[place]) for name, values in mesh.cell_data.items()}
        blocks.append(Block(kind=kind, nodes=cells.data[:, : CORNERS[kind]].astype(np.int64), data=data))
    return RawMesh(
        points=np.pad(points, ((0, 0), (0, 3 - points.shape[1]))),
        blocks=tuple(blocks),
        point_data={name: _numbers(values) for name, values in mesh.point_data.items()},
        remarks=tuple(remarks),
    )


def _numbers(values: np.ndarray) -> np.ndarray:
    """One component is a plain column; a tensor is a row of its numbers."""
    rows = np.asarray(values)
    rows = rows.reshape(len(rows), -1)
    return rows[:, 0] if rows.shape[1] == 1 else rows
