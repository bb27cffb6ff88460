"""openCARP's files: meshes (.pts .elem .lon, text or binary), node lists (.vtx) and values (.dat)."""

import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from gfunk.errors import InputError
from gfunk.files.raw import CORNERS, Block, RawMesh
from gfunk.store import write_bytes

KINDS = {
    "Ln": "line", "Tr": "triangle", "Qd": "quad", "Tt": "tetra", "Py": "pyramid", "Pr": "wedge", "Hx": "hexahedron",
}  # fmt: skip
# The order of meshtool's element types; its number 2, the octahedron, is in no mesh we know of.
BINARY_KINDS = {0: "tetra", 1: "hexahedron", 3: "pyramid", 4: "wedge", 5: "quad", 6: "triangle", 7: "line"}
BINARY_HEADER_BYTES = 1024
MICROMETRES_PER_MM = 1000.0

# Whole numbers up to here are exact in double precision.
_LARGEST_WHOLE = 2.0**53


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers of a file, row by row, rows of any width; a row knows its place in the file, for messages."""

    numbers: np.ndarray  # all of them, one after the other
    starts: Int[np.ndarray, " row"]  # of a row in `numbers`
    widths: Int[np.ndarray, " row"]
    places: Int[np.ndarray, " row"]
    place: str = "line"  # what `places` counts

    @property
    def n_rows(self) -> int:
        return len(self.starts)

    def where(self, row: int | np.integer) -> str:
        return f"{self.place} {self.places[row]}"

    def rest(self, n_skipped: int) -> "Table":
        """The rows after the first few."""
        kept = slice(n_skipped, None)
        return replace(self, starts=self.starts[kept], widths=self.widths[kept], places=self.places[kept])


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
        fibres = _text_fibres(fibres_path, table.n_rows)
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


def file_bytes(path: Path) -> bytes:
    """All of a file."""
    try:
        # A pipe or a device may never end.
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error})") from None
    except InputError:
        raise
    except ValueError as error:  # a name with a zero byte
        raise InputError(f"{str(path)!a}: can't be read ({error})") from None


def without_comments(data: bytes, mark: bytes = b"#") -> bytes:
    """A text with spaces for what follows the mark on a line: everything else stays in its place."""
    start = data.find(mark)
    if start < 0:
        return data
    # In a loop: what `re.sub` builds is many times the size of a file of comments.
    text = bytearray(data)
    while start >= 0:
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        text[start:end] = b" " * (end - start)
        start = data.find(mark, end)
    return bytes(text)


def table_of(path: Path, data: bytes, *, first_line: int = 1) -> Table:
    """The numbers of a text that is nothing else, comments (# to the end of a line) apart."""
    data = without_comments(data)
    tokens, starts, lines = _layout(data)
    widths = np.diff(starts, append=starts.dtype.type(len(tokens)))
    numbers = _numbers(path, data, tokens, first_line)
    return Table(numbers=numbers, starts=starts, widths=widths, places=lines + starts.dtype.type(first_line))


def columns(path: Path, table: Table, n_columns: int, what: str) -> Float[np.ndarray, "row column"]:
    """The rows of a table, which should all be `n_columns` wide: `what` names them."""
    wrong = np.flatnonzero(table.widths != n_columns)
    if len(wrong):
        found = f"{table.widths[wrong[0]]} number{'s' if table.widths[wrong[0]] > 1 else ''}"
        raise InputError(f"{path}, {table.where(wrong[0])}: {what} expected, {found} found")
    if not table.n_rows:
        return np.empty((0, n_columns))
    return table.numbers[table.starts[0] :][: table.n_rows * n_columns].reshape(-1, n_columns)


def finite_points(path: Path, points: Float[np.ndarray, "node 3"], table: Table) -> Float[np.ndarray, "node 3"]:
    """The same points, of which there is one at least and all are numbers; a point has a row of the table."""
    if not len(points):
        raise InputError(f"{path}: holds no points")
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise InputError(f"{path}, {table.where(bad[0])}: a coordinate is not finite; mend or remove that point")
    return points


def node_numbers(
    path: Path,
    nodes: Float[np.ndarray, "cell corner"],
    table: Table,
    rows: Int[np.ndarray, " cell"],
    n_nodes: int | None,
) -> Int[np.ndarray, "cell corner"]:
    """Whole numbers from 0, below `n_nodes` if that is known; `rows` of the table are where they stand."""
    limit = _LARGEST_WHOLE if n_nodes is None else n_nodes
    is_good = (nodes >= 0) & (nodes < limit) & (np.floor(nodes) == nodes)
    if not is_good.all():
        cell, corner = np.argwhere(~is_good)[0].tolist()
        fault = "is not a node number" if n_nodes is None else f"is not one of the {n_nodes} nodes, which count from 0"
        raise InputError(f"{path}, {table.where(int(rows[cell]))}: {nodes[cell, corner]:.15g} {fault}")
    return nodes.astype(np.int64)


def whole_if_exact(numbers: Float[np.ndarray, " cell"]) -> Int[np.ndarray, " cell"] | Float[np.ndarray, " cell"]:
    """The same numbers, as integers if all are whole: tags are, though some tools write 11.0."""
    is_whole = (np.abs(numbers) <= _LARGEST_WHOLE) & (np.floor(numbers) == numbers)
    return numbers.astype(np.int64) if is_whole.all() else numbers


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
_IS_SPACE = np.isin(np.arange(256), list(b" \t\n\v\f\r"))


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


def _layout(data: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where tokens start in a text, which of them start a line, and those lines, from 0."""
    letters = np.frombuffer(data, np.uint8)
    is_start = ~_IS_SPACE[letters]
    is_start[1:] &= ~is_start[:-1].copy()
    # Small integers where they do: a file of one-letter rows has as many of each as half its bytes.
    index = np.int32 if len(data) < 2**31 else np.int64
    tokens = np.flatnonzero(is_start).astype(index)
    lines = np.searchsorted(np.flatnonzero(letters == ord("\n")).astype(index), tokens).astype(index)
    starts = np.flatnonzero(np.diff(lines, prepend=index(-1))).astype(index)
    return tokens, starts, lines[starts]


def _numbers(path: Path, data: bytes, tokens: np.ndarray, first_line: int) -> np.ndarray:
    numbers = _parsed(data, len(tokens))
    if numbers is not None:
        return numbers
    # The first bad token is in [low, high): halved, for most of a large file is good.
    low, high = 0, len(tokens)
    while high - low > 1:
        middle = (low + high) // 2
        is_good = _parsed(data[tokens[low] : tokens[middle]], middle - low) is not None
        low, high = (middle, high) if is_good else (low, middle)
    start = int(tokens[low])
    line = data.count(b"\n", 0, start) + first_line
    raise InputError(f"{path}, line {line}: {_shown(data[start : start + 100].split()[0])} is not a number")


def _parsed(text: bytes, n_tokens: int) -> np.ndarray | None:
    """All numbers of a text, at once; None if there are not as many as tokens."""
    if not n_tokens:
        return np.empty(0)
    numbers = np.empty(0)
    with warnings.catch_warnings(), suppress(ValueError, DeprecationWarning):
        # Older NumPy warns where the text is no number, and gives those before it.
        warnings.simplefilter("error")
        numbers = np.fromstring(text, sep=" ")
    return numbers if len(numbers) == n_tokens else None


def _shown(token: bytes) -> str:
    return ascii(token[:20].decode("latin-1") + ("..." if len(token) > 20 else ""))


def _count(path: Path, table: Table, what: str) -> int:
    """The number that is alone on the first line."""
    if not table.n_rows:
        raise InputError(f"{path}: empty; its first line should be the number of {what}")
    count = table.numbers[table.starts[0]]
    if table.widths[0] != 1 or not 0 <= count <= _LARGEST_WHOLE or count != int(count):
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
    tokens, starts, lines = _layout(data)
    letters = np.frombuffer(data, np.uint8).copy()
    types = tokens[starts[1:]]
    kinds = _KIND_OF_LETTERS[letters[types], letters[types + 1]]
    unknown = np.flatnonzero((kinds < 0) | ~_IS_SPACE[letters[types + 2]])
    if len(unknown):
        row = unknown[0]
        found = _shown(data[types[row] : types[row] + 21].split()[0])
        raise InputError(f"{path}, line {lines[row + 1] + 1}: element type {found} is not one of {', '.join(KINDS)}")
    # With numbers for letters the whole text is numbers, which NumPy reads at once.
    letters[types], letters[types + 1] = ord(" "), ord("0")
    table = table_of(path, letters.tobytes())
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


def _text_fibres(path: Path, n_cells: int) -> Float[np.ndarray, "cell column"] | None:
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
    return np.frombuffer(data, dtype, offset=BINARY_HEADER_BYTES)


def _binary_points(path: Path) -> Float[np.ndarray, "node 3"]:
    data = file_bytes(path)
    (n_points, *_), order = _binary_header(path, data, 1)
    body = _binary_body(path, data, f"{order}f4")
    _check_n_rows(path, 3 * n_points, len(body), "coordinates")
    points = body.reshape(-1, 3).astype(float)
    rows = np.arange(n_points)
    return finite_points(path, points, Table(numbers=body, starts=rows, widths=rows, places=rows, place="point"))


def _binary_elements(path: Path) -> tuple[Int[np.ndarray, " cell"], Table]:
    data = file_bytes(path)
    (n_cells, *_), order = _binary_header(path, data, 1)
    body = _binary_body(path, data, f"{order}i4")
    starts: list[int] = []
    kinds = bytearray()
    start, words = 0, memoryview(body.astype(np.int32).tobytes()).cast("i")
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
    fibres = body.reshape(-1, 3 * n_axes).astype(float)
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
