"""Geomview's OFF: numbers of vertices and faces, then a row for each."""

import re
from pathlib import Path

import numpy as np

from gfunk.errors import InputError
from gfunk.files.raw import RawMesh
from gfunk.files.tables import file_bytes, finite_points, node_numbers, table_of, without_comments
from gfunk.files.vtk_cells import POLYGON, Grid, cells_of, raw_mesh


def read_off(path: Path) -> RawMesh:
    """The polygons of a file; colours are passed over."""
    content = without_comments(file_bytes(path))
    head = re.match(rb"\s*C?N?OFF\s+([0-9]{1,15})[ \t]+([0-9]{1,15})[^\n]*\n", content)
    if head is None:
        raise InputError(f"{path}: doesn't start with OFF and the numbers of its vertices and faces: not an OFF of text")
    table = table_of(path, content[head.end() :], first_line=content.count(b"\n", 0, head.end()) + 1)
    n_points, n_faces = int(head[1]), int(head[2])
    n_rows = n_points + n_faces
    if table.n_rows < n_rows:
        raise InputError(
            f"{path}: says it holds {n_rows} vertices and faces, but {table.n_rows} rows are there: it was cut short"
        )
    sizes = table.numbers[table.starts[n_points:n_rows]]
    # Any number may stand there; more corners than numbers in the file are too many anyhow.
    sizes = np.nan_to_num(sizes, nan=-1).clip(-1, table.numbers.size).astype(np.int64)
    n_due = np.concatenate([np.full(n_points, 3), 1 + sizes])
    short = np.flatnonzero((table.widths[:n_rows] < n_due) | (n_due < 1))
    if short.size:
        raise InputError(
            f"{path}, {table.where(short[0])}: {n_due[short[0]]} numbers expected, {table.widths[short[0]]} found"
        )
    points = finite_points(path, table.numbers[table.starts[:n_points, None] + np.arange(3)], table)
    rows = np.repeat(np.arange(n_faces), sizes)
    corner = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    nodes = table.numbers[table.starts[n_points + rows] + 1 + corner]
    nodes = node_numbers(path, nodes[:, None], table, n_points + rows, n_points)[:, 0]
    try:
        cells = cells_of(np.full(n_faces, POLYGON), np.cumsum(sizes), nodes, "faces")
        return raw_mesh(Grid(points=points, cells=cells), len(content))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
