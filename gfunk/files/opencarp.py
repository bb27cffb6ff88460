"""openCARP's files: meshes (.pts .elem .lon, text or binary), node lists (.vtx) and values (.dat)."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from gfunk.errors import InputError
from gfunk.files.raw import CORNERS, Block, RawMesh
from gfunk.files.tables import (
    LARGEST_WHOLE,
    Table,
    columns,
    file_bytes,
    finite_points,
    is_space,
    layout,
    node_numbers,
    shown,
    table_laid_out,
    table_of,
    whole_if_exact,
    without_comments,
)
from gfunk.store import write_bytes

KINDS = {
    "Ln": "line", "Tr": "triangle", "Qd": "quad", "Tt": "tetra", "Py": "pyramid", "Pr": "wedge", "Hx": "hexahedron",
}  # fmt: skip
# The order of meshtool's element types; its number 2, the octahedron, is in no mesh we know of.
BINARY_KINDS = {0: "tetra", 1: "hexahedron", 3: "pyramid", 4: "wedge", 5: "quad", 6: "triangle", 7: "line"}
BINARY_HEADER_BYTES = 1024
MICROMETRES_PER_MM = 1000.0


def read_opencarp(path: Path) -> RawMesh:
    """The mesh under a base name; `path` is that name or one of its files. Unit and order of corners are the file's.

    Cells are sorted into one block a kind, in the file's order within it; fibres are "fibre" (and "sheet"), tags "tag".
    Where the text and the binary files are both there, the text is read, unless `path` is a binary one.
    """
    base = _base(path)
    is_binary = path.suffix in _BINARY_SUFFIXES or (not _is_there(base, ".pts") and _is_there(base, ".bpts"))
    if is_binary:
        points_path, cells_path, fibres_path = (_beside(base, suffix) for suffix in _BINARY_SUFFIXES)
        points = _binary_points(points_path)
        kinds, table = _binary_elements(cells_path)
        fibres = _binary_fibres(fibres_path, table.n_rows)
    else:
        points_path, cells_path, fibres_path = (_beside(base, suffix) for suffix in _TEXT_SUFFIXES)
        points = _text_points(points_path)
        kinds, table = _text_elements(cells_path)
        fibres = text_fibres(fibres_path, table.n_rows)
    n_untagged = np.count_nonzero(table.widths == _N_CORNERS[kinds] + 1)
    has_tags = bool(n_untagged < table.n_rows)
    present, firsts = np.unique(kinds, return_index=True)
    blocks = [
        _block(cells_path, _KINDS[kind], np.flatnonzero(kinds == kind), table, len(points), has_tags, fibres)
        for kind in present[np.argsort(firsts)]
    ]
    remark = f"{cells_path}: {n_untagged} of {table.n_rows} elements have no tag: taken as 0"
    return RawMesh(points=points, blocks=tuple(blocks), remarks=(remark,) if has_tags and n_untagged else ())


def write_opencarp(base: Path, points_mm: Float[np.ndarray, "node 3"], blocks: Sequence[Block]):
    """Write base.pts in micrometres, base.elem and, if the blocks have "fibre" (and "sheet"), base.lon.

    Blocks are as `read_opencarp` gives them. Numbers are printed so that they come back to the last bit. Each file is
    whole or absent; an older .lon is removed where the mesh has no fibres, for it would be read as this mesh's.
    """
    base = _base(base)
    _check_writable(base, points_mm, blocks)
    points = (points_mm * MICROMETRES_PER_MM).tolist()
    write_bytes(_beside(base, ".pts"), _text([str(len(points)), *(" ".join(map(repr, point)) for point in points)]))
    cells = [line for block in blocks for line in _element_lines(block)]
    write_bytes(_beside(base, ".elem"), _text([str(len(cells)), *cells]))
    axes = [name for name in _AXES if name in blocks[0].data]
    if axes:
        rows = np.concatenate([np.hstack([block.data[name] for name in axes]) for block in blocks]).astype(float).tolist()
        write_bytes(_beside(base, ".lon"), _text([str(len(axes)), *(" ".join(map(repr, row)) for row in rows)]))
    else:
        try:
            _beside(base, ".lon").unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{base}.lon: is of another mesh and can't be removed ({error.strerror or error})") from None


def read_vtx(path: Path) -> Int[np.ndarray, " node"]:
    """Node numbers, from 0. Whether they are `intra` or `extra` is not kept: that is about the stimulus."""
    # Blanked, not cut, so that places stay places.
    data = re.sub(rb"^([ \t]*)(?:intra|extra)\b", rb"\1     ", file_bytes(path), count=1, flags=re.MULTILINE)
    table = table_of(path, data)
    n_nodes = _count(path, table, "nodes")
    table = table.rest(1)
    nodes = columns(path, table, 1, "one node number")
    _check_n_rows(path, n_nodes, len(nodes), "nodes")
    return node_numbers(path, nodes, table, np.arange(len(nodes)), None)[:, 0]


def write_vtx(path: Path, nodes: Int[np.ndarray, " node"], *, domain: str = "intra"):
    """Write node numbers, from 0, as a stimulus takes them."""
    if domain not in ("intra", "extra"):
        raise InputError(f"{path}: a .vtx is of `intra` or `extra`, not {domain!r}")
    if np.any(nodes < 0):
        raise InputError(f"{path}: node numbers start at 0, not {nodes.min()}")
    write_bytes(path, _text([str(len(nodes)), domain, *map(str, nodes.tolist())]))


def read_dat(path: Path) -> Float[np.ndarray, " row"]:
    """One value a line, of nodes or of cells: the file doesn't say."""
    table = table_of(path, file_bytes(path))
    if not table.n_rows:
        raise InputError(f"{path}: holds no values")
    return columns(path, table, 1, "one value")[:, 0]


_AXES = ("fibre", "sheet")
_TEXT_SUFFIXES = (".pts", ".elem", ".lon")
_BINARY_SUFFIXES = (".bpts", ".belem", ".blon")
_TYPES = {kind: name for name, kind in KINDS.items()}
# A cell's kind is a small number while a file is read: its place here.
_KINDS = tuple(KINDS.values())
_N_CORNERS = np.array([CORNERS[kind] for kind in _KINDS])
# Kind by the two letters of a type; -1: none.
_KIND_OF_LETTERS = np.full((256, 256), -1, dtype=np.int8)
for _number, (_first, _second) in enumerate(name.encode() for name in KINDS):
    _KIND_OF_LETTERS[_first, _second] = _number


def _base(path: Path) -> Path:
    """The name without a mesh file's suffix; other dots are the base name's own."""
    return path.with_suffix("") if path.suffix in (*_TEXT_SUFFIXES, *_BINARY_SUFFIXES) else path


def _beside(base: Path, suffix: str) -> Path:
    return base.parent / (base.name + suffix)


def _is_there(base: Path, suffix: str) -> bool:
    try:
        return _beside(base, suffix).exists()
    except (OSError, ValueError):  # a name too long, or with a zero byte: reading it will say so
        return False


def _count(path: Path, table: Table, what: str) -> int:
    """The number that is alone on the first line."""
    if not table.n_rows:
        raise InputError(f"{path}: empty; its first line should be the number of {what}")
    count = table.numbers[table.starts[0]]
    if table.widths[0] != 1 or not 0 <= count <= LARGEST_WHOLE or count != int(count):
        raise InputError(f"{path}, {table.where(0)}: the first line should be the number of {what}, alone")
    return int(count)


def _check_n_rows(path: Path, claimed: int, found: int, what: str):
    if claimed != found:
        why = "it was cut short" if found < claimed else "that number is wrong"
        raise InputError(f"{path}: says it holds {claimed} {what}, but {found} are there, so {why}: export it again")


def _text_points(path: Path) -> Float[np.ndarray, "node 3"]:
    table = table_of(path, file_bytes(path))
    n_points = _count(path, table, "points")
    table = table.rest(1)
    points = columns(path, table, 3, "x y z")
    _check_n_rows(path, n_points, len(points), "points")
    return finite_points(path, points, table)


def _text_elements(path: Path) -> tuple[Int[np.ndarray, " cell"], Table]:
    """Kind of each element, and rows of a zero (where its type was), its nodes and perhaps its tag."""
    # Padded, so that a type has two letters and an end wherever it starts.
    data = without_comments(file_bytes(path)) + b"\n\n\n"
    tokens, starts, lines = layout(data)
    letters = np.frombuffer(data, np.uint8).copy()
    types = tokens[starts[1:]]
    kinds = _KIND_OF_LETTERS[letters[types], letters[types + 1]]
    unknown = np.flatnonzero((kinds < 0) | ~is_space(letters[types + 2]))
    if len(unknown):
        row = unknown[0]
        found = shown(data[types[row] : types[row] + 21].split()[0])
        raise InputError(f"{path}, line {lines[row + 1] + 1}: element type {found} is not one of {', '.join(KINDS)}")
    # With numbers for letters the whole text is numbers, which NumPy reads at once.
    letters[types], letters[types + 1] = ord("0"), ord(" ")
    table = table_laid_out(path, letters.tobytes(), tokens, starts, lines)
    n_cells = _count(path, table, "elements")
    table = table.rest(1)
    _check_n_rows(path, n_cells, table.n_rows, "elements")
    return kinds, _checked_widths(path, kinds, table)


def _checked_widths(path: Path, kinds: Int[np.ndarray, " cell"], table: Table) -> Table:
    if not table.n_rows:
        raise InputError(f"{path}: holds no elements")
    n_extra = table.widths - _N_CORNERS[kinds]
    wrong = np.flatnonzero((n_extra != 1) & (n_extra != 2))
    if len(wrong):
        row = wrong[0]
        kind = _KINDS[kinds[row]]
        expected = f"{_TYPES[kind]} has {CORNERS[kind]} nodes and perhaps a tag"
        raise InputError(f"{path}, {table.where(row)}: {expected}, not {table.widths[row] - 1} numbers")
    return table


def _block(
    path: Path,
    kind: str,
    rows: Int[np.ndarray, " cell"],
    table: Table,
    n_nodes: int,
    has_tags: bool,
    fibres: Float[np.ndarray, "row column"] | None,
) -> Block:
    """The elements of one kind, which are in these rows."""
    n_corners = CORNERS[kind]
    starts = table.starts[rows]
    nodes = table.numbers[starts[:, None] + np.arange(1, n_corners + 1)]
    data: dict[str, np.ndarray] = {}
    if has_tags:
        is_tagged = table.widths[rows] == n_corners + 2
        tags = np.zeros(len(rows))
        tags[is_tagged] = table.numbers[starts[is_tagged] + n_corners + 1]
        if not np.isfinite(tags).all():
            raise InputError(f"{path}, {table.where(rows[~np.isfinite(tags)][0])}: the tag is not a finite number")
        data["tag"] = whole_if_exact(tags)
    if fibres is not None:
        vectors = fibres[rows].reshape(len(rows), -1, 3)
        data |= {name: vectors[:, axis] for axis, name in enumerate(_AXES[: vectors.shape[1]])}
    return Block(kind=kind, nodes=node_numbers(path, nodes, table, rows, n_nodes), data=data)


def text_fibres(path: Path, n_cells: int) -> Float[np.ndarray, "cell column"] | None:
    """The rows of a .lon, one or two directions each; None if there is no such file."""
    if not path.exists():
        return None
    table = table_of(path, file_bytes(path))
    n_columns = 0
    if table.n_rows and table.widths[0] == 1:
        n_axes = table.numbers[0]
        if n_axes not in (1, 2):
            raise InputError(f"{path}, {table.where(0)}: the number of fibre directions is 1 or 2, not {n_axes:.15g}")
        n_columns = 3 * int(n_axes)
        table = table.rest(1)
    # Many tools leave the header out; then the first row says it.
    if table.n_rows and not n_columns:
        n_columns = int(table.widths[0])
        if n_columns not in (3, 6):
            raise InputError(f"{path}, {table.where(0)}: 3 or 6 numbers expected, {n_columns} found")
    fibres = columns(path, table, n_columns, f"{n_columns} numbers")
    _check_n_fibres(path, len(fibres), n_cells)
    return fibres


def _check_n_fibres(path: Path, n_fibres: int, n_cells: int):
    if n_fibres != n_cells:
        raise InputError(
            f"{path}: holds {n_fibres} fibres, but the mesh has {n_cells} elements; one a row, in the order of the elements"
        )


def _binary_header(path: Path, data: bytes, n_counts: int) -> tuple[list[int], str]:
    """Counts, and the byte order (NumPy's letter): meshtool writes counts, 0 or 1 for little or big endian, a checksum."""
    words = data[:BINARY_HEADER_BYTES].replace(b"\0", b" ").split()
    is_plain = all(word.isdigit() and len(word) < 20 for word in words[: n_counts + 1])
    if len(data) < BINARY_HEADER_BYTES or not words or not is_plain:
        raise InputError(f"{path}: no header of {BINARY_HEADER_BYTES} bytes; convert it to text with meshtool")
    numbers = [int(word) for word in words[: n_counts + 1]]
    order = numbers[n_counts] if len(numbers) > n_counts else 0
    if order not in (0, 1):
        raise InputError(f"{path}: byte order {order} in the header is neither 0 (little) nor 1 (big)")
    return numbers[:n_counts], "<>"[order]


def _binary_body(path: Path, data: bytes, dtype: str) -> np.ndarray:
    n_odd = (len(data) - BINARY_HEADER_BYTES) % 4
    if n_odd:
        raise InputError(f"{path}: its size is no multiple of 4 bytes, so it was cut short: export it again")
    # Any bits may stand in a file: those of no number are seen later, and no reason for a warning.
    with np.errstate(invalid="ignore"):
        return np.frombuffer(data, dtype, offset=BINARY_HEADER_BYTES).astype(float if "f" in dtype else np.int32)


def _binary_points(path: Path) -> Float[np.ndarray, "node 3"]:
    data = file_bytes(path)
    (n_points, *_), order = _binary_header(path, data, 1)
    body = _binary_body(path, data, f"{order}f4")
    _check_n_rows(path, 3 * n_points, len(body), "coordinates")
    points = body.reshape(-1, 3)
    rows = np.arange(n_points)
    return finite_points(path, points, Table(numbers=body, starts=rows, widths=rows, places=rows, place="point"))


def _binary_elements(path: Path) -> tuple[Int[np.ndarray, " cell"], Table]:
    data = file_bytes(path)
    (n_cells, *_), order = _binary_header(path, data, 1)
    body = _binary_body(path, data, f"{order}i4")
    starts: list[int] = []
    kinds = bytearray()
    start, words = 0, memoryview(body.tobytes()).cast("i")
    while start < len(words):
        kind = BINARY_KINDS.get(words[start])
        if kind is None:
            raise InputError(f"{path}, element {len(starts)}: type {words[start]} is not one of meshtool's")
        starts.append(start)
        kinds.append(_KINDS.index(kind))
        start += CORNERS[kind] + 2
    if start != len(words):
        raise InputError(f"{path}, element {len(starts) - 1}: the file ends in the middle of it: export it again")
    _check_n_rows(path, n_cells, len(starts), "elements")
    ends = np.array([*starts, start], dtype=np.int64)
    places = np.arange(len(starts))
    table = Table(numbers=body.astype(float), starts=ends[:-1], widths=np.diff(ends), places=places, place="element")
    numbers = np.frombuffer(kinds, np.int8)
    return numbers, _checked_widths(path, numbers, table)


def _binary_fibres(path: Path, n_cells: int) -> Float[np.ndarray, "cell column"] | None:
    if not path.exists():
        return None
    data = file_bytes(path)
    (n_axes, *_), order = _binary_header(path, data, 2)
    if n_axes not in (1, 2):
        raise InputError(f"{path}: the number of fibre directions is 1 or 2, not {n_axes}")
    body = _binary_body(path, data, f"{order}f4")
    if len(body) % (3 * n_axes):
        raise InputError(f"{path}: ends in the middle of a fibre: export it again")
    fibres = body.reshape(-1, 3 * n_axes)
    _check_n_fibres(path, len(fibres), n_cells)
    return fibres


def _check_writable(base: Path, points_mm: Float[np.ndarray, "node 3"], blocks: Sequence[Block]):
    if not len(points_mm) or not sum(len(block.nodes) for block in blocks):
        raise InputError(f"{base}: a mesh needs points and cells to be written")
    if not np.isfinite(points_mm).all():
        raise InputError(f"{base}: a coordinate is not finite, so the mesh can't be written")
    for block in blocks:
        if block.kind not in _TYPES or block.nodes.shape[1] != CORNERS[block.kind]:
            raise InputError(f"{base}: openCARP has no element {block.kind!r} of {block.nodes.shape[1]} nodes")
        if np.any((block.nodes < 0) | (block.nodes >= len(points_mm))):
            raise InputError(f"{base}: a {block.kind} has a node that is not one of the {len(points_mm)} points")
        for name, shape in (("tag", ()), ("fibre", (3,)), ("sheet", (3,))):
            if (name in block.data) != (name in blocks[0].data):
                raise InputError(f"{base}: some blocks have {name!r}, some don't; openCARP needs it for all or none")
            if name in block.data and block.data[name].shape != (len(block.nodes), *shape):
                raise InputError(f"{base}: {name!r} is of shape {block.data[name].shape} for {len(block.nodes)} cells")
        if "sheet" in block.data and "fibre" not in block.data:
            raise InputError(f"{base}: sheets can't be written without fibres")


def _element_lines(block: Block) -> list[str]:
    columns_ = block.nodes.T.tolist()
    if "tag" in block.data:
        columns_.append(whole_if_exact(np.asarray(block.data["tag"], dtype=float)).tolist())
    return [f"{_TYPES[block.kind]} {' '.join(map(repr, row))}" for row in zip(*columns_, strict=True)]


def _text(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()
