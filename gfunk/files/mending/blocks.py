"""What the file holds, as one table of cells of one kind."""

import numpy as np

from gfunk.errors import InputError
from gfunk.files.mending.draft import Draft
from gfunk.files.mending.words import counted
from gfunk.files.raw import CORNERS, Block, RawMesh


def one_kind(raw: RawMesh) -> Draft:
    """Tetrahedra where there are any, else triangles and quads cut in two; the reader's remarks come first."""
    _check_lengths(raw)
    first = np.cumsum([0, *[len(block.nodes) for block in raw.blocks]])
    numbered = [(block, np.arange(first[i], first[i + 1])) for i, block in enumerate(raw.blocks) if len(block.nodes)]
    n_of = {kind: sum(len(block.nodes) for block, _ in numbered if block.kind == kind) for kind in CORNERS}
    for kind in ("pyramid", "wedge", "hexahedron"):
        if n_of[kind]:
            raise InputError(f"the mesh has {n_of[kind]:,} {kind} cells: cut them into tetrahedra first (meshtool, gmsh)")
    repairs = list(raw.remarks)
    if n_of["line"]:
        repairs.append(f"{counted(n_of['line'], 'line')} (links or cables) left out")
    if n_of["tetra"]:
        n_flat = n_of["triangle"] + n_of["quad"]
        if n_flat:
            repairs.append(f"{counted(n_flat, 'surface cell')} beside {counted(n_of['tetra'], 'tetrahedron')} left out")
        kept = [item for item in numbered if item[0].kind == "tetra"]
    else:
        kept = [item for item in numbered if item[0].kind in ("triangle", "quad")]
    if not kept:
        raise InputError("the mesh has no triangles or tetrahedra: bring a surface or a volume, not a cloud of points")
    for block, number in kept:
        _check_names(block.nodes, number, len(raw.points))
    if n_of["quad"] and not n_of["tetra"]:
        repairs.append(
            f"{counted(n_of['quad'], 'quad')} cut into {counted(2 * n_of['quad'], 'triangle')} along the shorter diagonal"
        )
        kept = [_split(block, number, raw.points) if block.kind == "quad" else (block, number) for block, number in kept]
    return Draft(
        points=np.array(raw.points, dtype=np.float64),
        cells=np.concatenate([block.nodes for block, _ in kept]).astype(np.int64),
        point_data=dict(raw.point_data),
        cell_data=_joined([block.data for block, _ in kept], [len(block.nodes) for block, _ in kept]),
        file_nodes=np.arange(len(raw.points)),
        file_cells=np.concatenate([number for _, number in kept]),
        repairs=tuple(repairs),
    )


def _check_lengths(raw: RawMesh):
    for name, values in raw.point_data.items():
        if len(values) != len(raw.points):
            raise InputError(
                f"point data '{name}' has {len(values):,} rows for {len(raw.points):,} points: one is needed for each"
            )
    for block in raw.blocks:
        if block.kind not in CORNERS:
            raise InputError(f"cells of the kind '{block.kind}' are unknown: known are {', '.join(CORNERS)}")
        for name, values in block.data.items():
            if len(values) != len(block.nodes):
                raise InputError(
                    f"cell data '{name}' has {len(values):,} rows for {len(block.nodes):,} {block.kind} cells: "
                    "one is needed for each"
                )


def _check_names(nodes: np.ndarray, number: np.ndarray, n_points: int):
    wrong = np.argwhere((nodes < 0) | (nodes >= n_points))
    if wrong.size:
        cell, corner = wrong[0]
        raise InputError(
            f"cell {number[cell]} names node {nodes[cell, corner]}, but nodes run from 0 to {n_points - 1}: "
            "the file is cut short, or counts from 1"
        )


def _split(block: Block, number: np.ndarray, points: np.ndarray) -> tuple[Block, np.ndarray]:
    a, b, c, d = block.nodes.T
    # Places beyond all measure are refused later.
    with np.errstate(over="ignore", invalid="ignore"):
        is_ac_shorter = np.linalg.norm(points[a] - points[c], axis=1) <= np.linalg.norm(points[b] - points[d], axis=1)
    first = np.where(is_ac_shorter, [a, b, c], [a, b, d])
    second = np.where(is_ac_shorter, [a, c, d], [b, c, d])
    nodes = np.stack([first.T, second.T], axis=1).reshape(-1, 3)
    data = {name: np.repeat(values, 2, axis=0) for name, values in block.data.items()}
    return Block(kind="triangle", nodes=nodes, data=data), np.repeat(number, 2)


def _joined(tables: list[dict[str, np.ndarray]], lengths: list[int]) -> dict[str, np.ndarray]:
    """Data of several blocks as one; NaN where a block lacks a name, and no entry where the shapes disagree."""
    joined = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        tail = next(table[name].shape[1:] for table in tables if name in table)
        columns = [table.get(name, np.full((n, *tail), np.nan)) for table, n in zip(tables, lengths, strict=True)]
        if all(column.shape[1:] == tail for column in columns):
            joined[name] = np.concatenate(columns)
    return joined
