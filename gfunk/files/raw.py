"""What a mesh file holds, before anything of it is judged."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

# Corners of the kinds of cell we know by name; a file's other kinds are refused by its reader, with the name.
CORNERS = {"line": 2, "triangle": 3, "quad": 4, "tetra": 4, "pyramid": 5, "wedge": 6, "hexahedron": 8}


@dataclass(frozen=True, kw_only=True)
class Block:
    """Cells of one kind and their data, one row a cell."""

    kind: str  # of CORNERS
    nodes: Int[np.ndarray, "cell corner"]
    data: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RawMesh:
    """Points in the file's own unit, as many blocks of cells as the file has, and data under the file's own names."""

    points: Float[np.ndarray, "node 3"]
    blocks: tuple[Block, ...]
    point_data: dict[str, np.ndarray] = field(default_factory=dict)
    # What the reader saw and passed over: one line each, for the user.
    remarks: tuple[str, ...] = ()
