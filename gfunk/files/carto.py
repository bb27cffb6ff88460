"""CARTO 3's .mesh: the chamber a mapping system drew, with what it measured at its vertices."""

import re
from pathlib import Path

import numpy as np
from jaxtyping import Float

from gfunk.errors import InputError
from gfunk.files.raw import Block, RawMesh
from gfunk.files.tables import (
    Table,
    columns,
    file_bytes,
    finite_points,
    node_numbers,
    table_of,
    whole_if_exact,
    without_comments,
)

VERSION = b"#TriangulatedMeshVersion2.0"
INACTIVE_GROUP = -1000000
NO_VALUE = -10000.0
# CARTO has some twenty.
MAX_COLOURS = 1000

GENERAL, VERTICES, TRIANGLES = b"GeneralAttributes", b"VerticesSection", b"TrianglesSection"
COLOURS, ATTRIBUTES = b"VerticesColorsSection", b"VerticesAttributesSection"


def read_carto_mesh(path: Path) -> RawMesh:
    """Active triangles, in mm, with their "group"; colours under the names the file gives them, NaN where it has none.

    Vertices that only inactive triangles used are kept: the file's other numbers count on their order.
    """
    data = file_bytes(path)
    sections = _sections(path, data)
    missing = [name.decode() for name in (VERTICES, TRIANGLES) if name not in sections]
    if missing:
        raise InputError(f"{path}: no [{missing[0]}], so it is not a CARTO 3 .mesh or was cut short: export it again")
    general = sections.get(GENERAL, (1, b""))[1]
    points, point_groups = _vertices(path, sections[VERTICES], general)
    block, remarks = _triangles(path, sections[TRIANGLES], general, len(points))
    colours, colour_remarks = _colours(path, sections.get(COLOURS, (1, b"")), general, len(points))
    if not data.startswith(VERSION):
        remarks = (f"{path}: doesn't start with {VERSION.decode()}: read as if it did", *remarks)
    if b"=" in without_comments(sections.get(ATTRIBUTES, (1, b""))[1], b";"):
        colour_remarks = (*colour_remarks, f"{path}: [{ATTRIBUTES.decode()}] (scar and the like) is not read")
    return RawMesh(
        points=points,
        blocks=(block,),
        # A colour of the same name is the file's own word.
        point_data={"group": point_groups} | colours,
        remarks=(*remarks, *colour_remarks),
    )


def _vertices(path: Path, section: tuple[int, bytes], general: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Points and their groups."""
    table = _rows(path, section)
    rows = columns(path, table, 8, "`i = x y z`, a normal and a group")
    _check_count(path, general, "NumVertex", len(rows))
    _check_order(path, rows, table)
    return finite_points(path, rows[:, 1:4].copy(), table), whole_if_exact(rows[:, 7])


def _triangles(path: Path, section: tuple[int, bytes], general: bytes, n_points: int) -> tuple[Block, tuple[str, ...]]:
    table = _rows(path, section)
    rows = columns(path, table, 8, "`i = a b c`, a normal and a group")
    _check_count(path, general, "NumTriangle", len(rows))
    is_active = rows[:, 7] != INACTIVE_GROUP
    active = np.flatnonzero(is_active)
    if not len(active):
        raise InputError(f"{path}: holds no active triangle")
    # Those that are dropped may name nodes that are gone.
    nodes = node_numbers(path, rows[active, 1:4], table, active, n_points)
    groups = rows[active, 7]
    n_inactive, n_invisible = len(rows) - len(active), np.count_nonzero(groups < 0)
    remarks = []
    if n_inactive:
        remarks.append(f"{path}: {n_inactive} of {len(rows)} triangles are inactive: left out")
    if n_invisible:
        remarks.append(f"{path}: {n_invisible} triangles are in groups CARTO doesn't show (negative numbers): kept")
    return Block(kind="triangle", nodes=nodes, data={"group": whole_if_exact(groups)}), tuple(remarks)


def _colours(
    path: Path, section: tuple[int, bytes], general: bytes, n_points: int
) -> tuple[dict[str, Float[np.ndarray, " node"]], tuple[str, ...]]:
    """Values at the vertices, by name; none where the map has none."""
    table = _rows(path, section)
    if not table.n_rows:
        return {}, ()
    n_colours = int(table.widths[0]) - 1
    if not 1 <= n_colours <= MAX_COLOURS:
        raise InputError(f"{path}, {table.where(0)}: {n_colours} colours, where 1 to {MAX_COLOURS} are possible")
    rows = columns(path, table, n_colours + 1, f"`i =` and {n_colours} colours, as in the row before,")
    if len(rows) != n_points:
        raise InputError(f"{path}: colours of {len(rows)} vertices, but there are {n_points}: export it again")
    _check_order(path, rows, table)
    values = np.where(rows[:, 1:] == NO_VALUE, np.nan, rows[:, 1:])
    # The settings name the colours, and so does the last comment above the rows.
    comment = b""
    for line in re.finditer(rb"^[ \t]*;([^=\r\n]*)\r?$", section[1], flags=re.MULTILINE):
        comment = line[1]
    for said in (_setting(general, "ColorsNames") or "", comment.decode("latin-1")):
        names = said.split(maxsplit=n_colours)
        if len(set(names)) == len(names) == n_colours:
            return dict(zip(names, values.T.copy(), strict=True)), ()
    names = [f"colour{column}" for column in range(n_colours)]
    remark = f"{path}: {n_colours} colours, but not as many names for them: called {names[0]} to {names[-1]}"
    return dict(zip(names, values.T.copy(), strict=True)), (remark,)


def _sections(path: Path, data: bytes) -> dict[bytes, tuple[int, bytes]]:
    """The sections we know: the line each one's body starts on, and the body."""
    sections: dict[bytes, tuple[int, bytes]] = {}
    head = re.compile(rb"^[ \t]*\[(\w+)\][^\n]*", flags=re.MULTILINE)
    line, seen = 1, 0
    here = head.search(data)
    while here:
        following = head.search(data, here.end())
        line, seen = line + data.count(b"\n", seen, here.end()), here.end()
        if here[1] in sections:
            raise InputError(f"{path}, line {line}: a second [{here[1].decode()}]: export it again")
        if here[1] in (GENERAL, VERTICES, TRIANGLES, COLOURS, ATTRIBUTES):
            sections[here[1]] = line, data[here.end() : following.start() if following else len(data)]
        here = following
    return sections


def _setting(general: bytes, key: str) -> str | None:
    """What the line `key = value` says."""
    found = re.search(rb"^[ \t]*" + key.encode() + rb"[ \t]*=([^\r\n]*)", general, flags=re.MULTILINE)
    return found and found[1].decode("latin-1").strip()


def _rows(path: Path, section: tuple[int, bytes]) -> Table:
    """The rows `i = ...`, the number i first."""
    first_line, body = section
    return table_of(path, without_comments(body, b";").replace(b"=", b" "), first_line=first_line)


def _check_count(path: Path, general: bytes, key: str, n_rows: int):
    said = _setting(general, key)
    if said is not None and said != str(n_rows):
        raise InputError(f"{path}: {key} is {said[:20]!a}, but {n_rows} rows are there: export it again")


def _check_order(path: Path, rows: Float[np.ndarray, "row column"], table: Table):
    """Raise unless vertices are numbered in order from 0: triangles name them by that number."""
    wrong = np.flatnonzero(rows[:, 0] != np.arange(len(rows)))
    if len(wrong):
        raise InputError(f"{path}, {table.where(wrong[0])}: vertex {rows[wrong[0], 0]:.15g} where {wrong[0]} is due")
