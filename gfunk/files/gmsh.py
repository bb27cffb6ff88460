"""gmsh's .msh, versions 2.2 and 4.1, text and binary. Read here: other readers take the memory that a header claims."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gfunk.errors import InputError
from gfunk.files.raw import CORNERS, Block, RawMesh
from gfunk.files.tables import file_bytes, table_of, whole_if_exact

# gmsh's number, our kind (None: passed over) and how many nodes the file gives; the corners come first.
KINDS: dict[int, tuple[str | None, int]] = {
    1: ("line", 2), 2: ("triangle", 3), 3: ("quad", 4), 4: ("tetra", 4), 5: ("hexahedron", 8), 6: ("wedge", 6),
    7: ("pyramid", 5), 8: ("line", 3), 9: ("triangle", 6), 11: ("tetra", 10), 15: (None, 1),
}  # fmt: skip
MOST_NAMES = 20  # of physical groups, told to the user
MOST_COMPONENTS = 100  # of a value; gmsh has up to 9
MOST_BLOCKS = 20_000  # of nodes or elements: each takes far more memory than the few bytes it may have in the file


def read_gmsh(path: Path) -> RawMesh:
    """Elements with their physical group as "tag" and their geometrical entity as "entity", and data of nodes and elements.

    Of values in time the first are read.
    """
    content = file_bytes(path)
    try:
        return _raw_mesh(_contents(content))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class _Format:
    version: int
    order: str  # of bytes, NumPy's letter; none in a text
    size: str  # NumPy's name for the type of counts in a binary file


@dataclass(frozen=True, kw_only=True)
class _Elements:
    """Elements of one type, a row each."""

    type: int
    numbers: np.ndarray
    nodes: np.ndarray
    groups: np.ndarray
    entities: np.ndarray


@dataclass(kw_only=True)
class _Contents:
    """What the sections hold; nodes and elements go by their numbers, which may have gaps."""

    node_numbers: np.ndarray = field(default_factory=lambda: np.zeros(0))
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))
    elements: list[_Elements] = field(default_factory=list)
    # By name: numbers of nodes or elements, and their values.
    node_values: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    element_values: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


class _Cursor:
    """The numbers of a section one after another, from text or bytes; never more than it holds."""

    def __init__(self, section: str, body: bytes, order: str, first_line: int = 1):
        self.section, self.order, self.at = section, order, 0
        self.body = body if order else table_of(Path(f"${section}"), body, first_line=first_line).numbers

    @property
    def n_left(self) -> int:
        """Numbers of a text, or bytes."""
        return len(self.body) - self.at

    def take(self, count: int | float, kind: str, n_columns: int = 1) -> np.ndarray:
        """So many rows of numbers, which in a binary file are of this kind."""
        width = n_columns * (np.dtype(kind).itemsize if self.order else 1)
        n_there = self.n_left // width
        if not 0 <= count <= n_there or count != int(count):
            raise InputError(f"${self.section}: {count:.15g} rows are due, {n_there} are there: the file was cut short")
        start, self.at = self.at, self.at + int(count) * width
        if isinstance(self.body, bytes):
            return np.frombuffer(self.body[start : self.at], self.order + kind)
        return self.body[start : self.at]

    def number(self, kind: str) -> float:
        return float(self.take(1, kind)[0])

    def rows(self, count: int | float, n_columns: int, kind: str) -> np.ndarray:
        return self.take(count, kind, n_columns).reshape(-1, n_columns)


def _contents(content: bytes) -> _Contents:
    how, start = _format(content)
    found = _Contents()
    groups: dict[tuple[float, float], float] = {}
    for section, first_line, body in _sections(content, start):
        if section == "PhysicalNames":
            found.remarks += _names(body)
        elif section in ("NodeData", "ElementData"):
            values = found.node_values if section == "NodeData" else found.element_values
            _add_values(values, section, body, how)
        elif section == "Entities":
            groups = _entity_groups(_Cursor(section, body, how.order, first_line), how)
        elif section == "Nodes":
            cursor, count = _counted(section, body, how, first_line)
            found.node_numbers, found.points = _nodes(cursor, count, how)
        elif section == "Elements" and how.version == 2 and not how.order:
            found.elements = list(_text_elements(body, first_line))
        elif section == "Elements":
            cursor, count = _counted(section, body, how, first_line)
            found.elements = list(_blocks(cursor, count, how, groups) if how.version == 4 else _runs(cursor, count))
    return found


def _format(content: bytes) -> tuple[_Format, int]:
    """How the file is written, and where its sections start."""
    head = re.match(rb"\s*\$MeshFormat\s+([0-9.]{1,9})\s+([01])\s+([48])[^\n]*\n", content)
    if head is None:
        raise InputError("doesn't start with $MeshFormat, a version and sizes: not a .msh of gmsh")
    version = {b"2": 2, b"2.2": 2, b"4": 4, b"4.1": 4}.get(head[1])
    if version is None:
        raise InputError(f"is of version {head[1].decode()}: save it as 2.2 or 4.1 (gmsh -save -format msh41)")
    # A binary file shows its byte order by the number 1.
    one = content[head.end() : head.end() + 4]
    if head[2] == b"1" and one not in (b"\1\0\0\0", b"\0\0\0\1"):
        raise InputError("$MeshFormat: says the file is binary, but shows no byte order")
    order = "" if head[2] == b"0" else "<" if one == b"\1\0\0\0" else ">"
    start = content.find(b"$EndMeshFormat", head.end())
    if start < 0:
        raise InputError("$MeshFormat: has no end: the file was cut short")
    return _Format(version=version, order=order, size=f"u{head[3].decode()}"), start + len(b"$EndMeshFormat")


def _sections(content: bytes, at: int) -> Iterator[tuple[str, int, bytes]]:
    """Name, first line and body of each section."""
    head = re.compile(rb"\s*\$([A-Za-z]{1,40})[^\n]*\n")
    line, seen = 1, 0
    while found := head.match(content, at):
        end = content.find(b"$End" + found[1], found.end())
        if end < 0:
            raise InputError(f"${found[1].decode()}: has no end: the file was cut short")
        line, seen = line + content.count(b"\n", seen, found.end()), found.end()
        yield found[1].decode(), line, content[found.end() : end]
        at = end + len(b"$End" + found[1])
    if rest := content[at : at + 100].split():
        raise InputError(f"{rest[0][:20].decode('latin-1')!a} where a section should start: the file is damaged")


def _counted(section: str, body: bytes, how: _Format, first_line: int) -> tuple[_Cursor, float]:
    """A section's numbers and its first count: of blocks in version 4, else of rows, as text in binary files too."""
    if how.version == 4:
        cursor = _Cursor(section, body, how.order, first_line)
        return cursor, float(cursor.take(4, how.size)[0])
    if not how.order:
        cursor = _Cursor(section, body, how.order, first_line)
        return cursor, cursor.number("i4")
    count, _, rest = body.partition(b"\n")
    if not re.fullmatch(rb"\s*[0-9]{1,15}\s*", count):
        raise InputError(f"${section}: doesn't start with a count")
    return _Cursor(section, rest, how.order), float(count)


def _nodes(cursor: _Cursor, count: int | float, how: _Format) -> tuple[np.ndarray, np.ndarray]:
    if how.version == 2:
        if not how.order:
            rows = cursor.rows(count, 4, "f8")
            return rows[:, 0], rows[:, 1:]
        kind = np.dtype([("number", f"{how.order}i4"), ("place", f"{how.order}f8", 3)])
        rows = cursor.take(count, "u1", kind.itemsize).view(kind)
        return rows["number"].astype(float), rows["place"].astype(float)
    numbers, places = [np.zeros(0)], [np.zeros((0, 3))]
    for _ in _each(cursor, count):
        dim, _, is_parametric = cursor.take(3, "i4").tolist()
        n_nodes = cursor.number(how.size)
        numbers.append(cursor.take(n_nodes, how.size).astype(float))
        n_columns = 3 + (int(dim) if is_parametric and dim in (1, 2, 3) else 0)
        places.append(cursor.rows(n_nodes, n_columns, "f8")[:, :3])
    return np.concatenate(numbers), np.concatenate(places).astype(float)


def _each(cursor: _Cursor, count: int | float) -> Iterator[int]:
    """As many rounds as are claimed, while there are numbers left."""
    n_done = 0
    while n_done < count:
        if n_done == MOST_BLOCKS:
            raise InputError(f"${cursor.section}: has more than {MOST_BLOCKS:,} blocks: save it as text of version 2.2")
        if not cursor.n_left:
            raise InputError(f"${cursor.section}: {n_done} blocks of {count:.15g} are there: the file was cut short")
        yield n_done
        n_done += 1


def _entity_groups(cursor: _Cursor, how: _Format) -> dict[tuple[float, float], float]:
    """The first physical group of each entity that has one, by dimension and number."""
    groups = {}
    for dim, count in enumerate(cursor.take(4, how.size).tolist()):
        for _ in _each(cursor, count):
            entity = cursor.number("i4")
            cursor.take(6 if dim else 3, "f8")
            of_entity = cursor.take(cursor.number(how.size), "i4")
            if len(of_entity):
                groups[float(dim), entity] = float(of_entity[0])
            if dim:
                cursor.take(cursor.number(how.size), "i4")
    return groups


def _blocks(
    cursor: _Cursor, count: int | float, how: _Format, groups: dict[tuple[float, float], float]
) -> Iterator[_Elements]:
    """Version 4: blocks of one entity and type."""
    for _ in _each(cursor, count):
        dim, entity, kind = cursor.take(3, "i4").tolist()
        rows = cursor.rows(cursor.number(how.size), 1 + _known(kind)[1], how.size)
        yield _Elements(
            type=int(kind),
            numbers=rows[:, 0],
            nodes=rows[:, 1:],
            groups=np.full(len(rows), groups.get((float(dim), float(entity)), 0.0)),
            entities=np.full(len(rows), float(entity)),
        )


def _runs(cursor: _Cursor, count: int | float) -> Iterator[_Elements]:
    """Version 2, binary: runs of one type and number of tags."""
    n_read = 0
    for _ in _each(cursor, count):
        kind, n_elements, n_tags = cursor.take(3, "i4").tolist()
        if n_elements < 1 or not 0 <= n_tags <= 1000:
            raise InputError(f"$Elements: a run of {n_elements} elements with {n_tags} tags: the file is damaged")
        rows = cursor.rows(n_elements, 1 + n_tags + _known(kind)[1], "i4")
        yield _tagged(kind, rows, n_tags)
        n_read += n_elements
        if n_read >= count:
            return


def _text_elements(body: bytes, first_line: int) -> Iterator[_Elements]:
    """Version 2, text: a row for each."""
    table = table_of(Path("$Elements"), body, first_line=first_line)
    if not table.n_rows or table.widths[0] != 1 or table.numbers[0] != table.n_rows - 1:
        raise InputError(f"$Elements: {table.n_rows - 1} elements are there, not as many as it says: the file was cut short")
    table = table.rest(1)
    if (table.widths < 3).any():
        raise InputError(f"$Elements, {table.where(int(table.widths.argmin()))}: number, type and number of tags expected")
    kinds, n_tags = table.numbers[table.starts + 1], table.numbers[table.starts + 2]
    present, firsts = np.unique(kinds, return_index=True)
    for kind in present[np.argsort(firsts)].tolist():
        due = 3 + n_tags + _known(kind)[1]
        wrong = np.flatnonzero((kinds == kind) & (due != table.widths))
        if wrong.size:
            raise InputError(
                f"$Elements, {table.where(wrong[0])}: {table.widths[wrong[0]]} numbers, {due[wrong[0]]:g} expected"
            )
        # In the order of the file where all have as many tags, as they mostly do.
        for n_same in np.unique(n_tags[kinds == kind]).tolist():
            starts = table.starts[(kinds == kind) & (n_tags == n_same)]
            n_columns = 3 + int(n_same) + _known(kind)[1]
            rows = table.numbers[starts[:, None] + np.delete(np.arange(n_columns), [1, 2])]
            yield _tagged(kind, rows, int(n_same))


def _tagged(kind: int | float, rows: np.ndarray, n_tags: int) -> _Elements:
    """Rows of a number, tags and nodes; the first tag is the physical group, the second the entity."""
    group, entity = (rows[:, 1 + n] if n_tags > n else np.zeros(len(rows)) for n in (0, 1))
    return _Elements(type=int(kind), numbers=rows[:, 0], nodes=rows[:, 1 + n_tags :], groups=group, entities=entity)


def _known(kind: int | float) -> tuple[str | None, int]:
    if kind not in KINDS:
        raise InputError(f"$Elements: elements of gmsh's type {kind:.15g} are not read: save the mesh with linear elements")
    return KINDS[int(kind)]


def _names(body: bytes) -> list[str]:
    """Physical groups and their names, for the user."""
    found = re.findall(rb'^[ \t]*[0-3][ \t]+([0-9]{1,9})[ \t]+"([^"\n]{1,60})"', body, flags=re.M)[:MOST_NAMES]
    named = ", ".join(f"{number.decode()} {name.decode('latin-1')!a}" for number, name in found)
    return [f"physical groups (tags): {named}"] if found else []


def _add_values(values: dict[str, tuple[np.ndarray, np.ndarray]], section: str, body: bytes, how: _Format):
    """Three lists, each after its length: words, the first the name; real numbers; whole ones: step, components, rows."""
    lists: list[list[bytes]] = []
    rest = body
    for _ in range(3):
        count, _, rest = rest.partition(b"\n")
        if not re.fullmatch(rb"\s*[0-9]\s*", count):
            raise InputError(f"${section}: doesn't start with its name, time and sizes: the file is damaged")
        *lines, rest = rest.split(b"\n", int(count)) if int(count) else [rest]
        lists.append(lines)
    words, _, sizes = lists
    if not words or len(sizes) < 3 or not all(re.fullmatch(rb"\s*[0-9]{1,15}\s*", size) for size in sizes[1:3]):
        raise InputError(f"${section}: has no name, or no numbers of components and rows: the file is damaged")
    name, n_components, n_rows = words[0].decode("latin-1").strip().strip('"'), int(sizes[1]), int(sizes[2])
    if not 1 <= n_components <= MOST_COMPONENTS:
        raise InputError(f"${section}: values of {n_components} components are not read")
    cursor = _Cursor(section, rest, how.order)
    if how.order:
        kind = np.dtype([("number", f"{how.order}i4"), ("value", f"{how.order}f8", (n_components,))])
        rows = cursor.take(n_rows, "u1", kind.itemsize).view(kind)
        found = rows["number"].astype(float), rows["value"].astype(float)
    else:
        numbers = cursor.rows(n_rows, 1 + n_components, "f8")
        found = numbers[:, 0], numbers[:, 1:]
    values.setdefault(name, found)


def _raw_mesh(found: _Contents) -> RawMesh:
    if not len(found.points):
        raise InputError("holds no $Nodes")
    order = np.argsort(found.node_numbers, kind="stable")
    of_nodes = found.node_numbers[order]
    if (of_nodes[1:] == of_nodes[:-1]).any():
        raise InputError("$Nodes: a number is given twice")
    remarks, blocks = list(found.remarks), []
    for kind in dict.fromkeys(KINDS[elements.type][0] for elements in found.elements):
        same = [elements for elements in found.elements if KINDS[elements.type][0] == kind]
        if kind is None:
            continue
        if any(KINDS[elements.type][1] > CORNERS[kind] for elements in same):
            remarks.append(f"quadratic elements were reduced to the corners of each {kind}")
        nodes = np.concatenate([elements.nodes[:, : CORNERS[kind]] for elements in same]).astype(float)
        place = np.minimum(np.searchsorted(of_nodes, nodes), len(of_nodes) - 1)
        if (wrong := np.argwhere(of_nodes[place] != nodes)).size:
            raise InputError(f"$Elements: a {kind} names node {nodes[tuple(wrong[0])]:.15g}, which is not among $Nodes")
        data = {
            name: whole_if_exact(np.concatenate([getattr(elements, what) for elements in same]).astype(float))
            for name, what in (("tag", "groups"), ("entity", "entities"))
        }
        numbers = np.concatenate([elements.numbers for elements in same]).astype(float)
        data |= {name: _placed(numbers, *values) for name, values in found.element_values.items()}
        blocks.append(Block(kind=kind, nodes=order[place], data=data))
    if not any(block.data["tag"].any() for block in blocks):
        # No physical groups, so that zeros would only look like tags.
        blocks = [Block(kind=b.kind, nodes=b.nodes, data={k: v for k, v in b.data.items() if k != "tag"}) for b in blocks]
    point_data = {name: _placed(found.node_numbers, *values) for name, values in found.node_values.items()}
    return RawMesh(points=found.points, blocks=tuple(blocks), point_data=point_data, remarks=tuple(remarks))


def _placed(wanted: np.ndarray, numbers: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values in the order of the numbers wanted, NaN where there are none; one component is a plain column."""
    placed = np.full((len(wanted), values.shape[1]), np.nan)
    if len(numbers):
        order = np.argsort(numbers, kind="stable")
        place = order[np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)]
        is_there = numbers[place] == wanted
        placed[is_there] = values[place[is_there]]
    return placed[:, 0] if placed.shape[1] == 1 else placed
