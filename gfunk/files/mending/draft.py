"""A mesh on its way through the steps of mending, and how points and cells are taken from it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from gfunk.errors import InputError
from gfunk.surface import triangle_areas


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A mesh on its way through the steps; coordinates in the file's unit until they are converted."""

    points: Float[np.ndarray, "node 3"]
    cells: Int[np.ndarray, "cell corner"]
    point_data: dict[str, np.ndarray]
    cell_data: dict[str, np.ndarray]
    file_nodes: Int[np.ndarray, " node"]
    file_cells: Int[np.ndarray, " cell"]
    repairs: tuple[str, ...]

    @property
    def is_surface(self) -> bool:
        return self.cells.shape[1] == 3

    @property
    def kind(self) -> str:
        return "triangle" if self.is_surface else "tetrahedron"

    def saying(self, sentence: str) -> "Draft":
        return replace(self, repairs=(*self.repairs, sentence))

    def sizes(self) -> Float[np.ndarray, " cell"]:
        return triangle_areas(self.points, self.cells) if self.is_surface else np.abs(tetra_volumes(self.points, self.cells))

    def node_place(self, node: int | np.integer) -> str:
        at = ", ".join(f"{x:.6g}" for x in self.points[node])
        return f"node {self.file_nodes[node]} ({at})"


def trimmed(draft: Draft) -> Draft:
    """Without the points no cell uses."""
    is_used = np.zeros(len(draft.points), dtype=bool)
    is_used[draft.cells] = True
    if is_used.all():
        return draft
    return replace(with_points(draft, np.flatnonzero(is_used)), cells=(np.cumsum(is_used) - 1)[draft.cells])


def with_points(draft: Draft, chosen: np.ndarray) -> Draft:
    """These points with their data; cells are left to the caller."""
    return replace(
        draft,
        points=draft.points[chosen],
        point_data=rows_of(draft.point_data, chosen),
        file_nodes=draft.file_nodes[chosen],
    )


def with_cells(draft: Draft, chosen: np.ndarray) -> Draft:
    """These cells with their data, and the points they use; a number may come twice."""
    if chosen.dtype == bool:
        chosen = np.flatnonzero(chosen)
    kept = replace(
        draft,
        cells=draft.cells[chosen],
        cell_data=rows_of(draft.cell_data, chosen),
        file_cells=draft.file_cells[chosen],
    )
    if not len(kept.cells):
        raise InputError("nothing is left of the mesh: all its cells are flat, or folded onto each other")
    return trimmed(kept)


def rows_of(data: Mapping[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[chosen] for name, values in data.items()}


def tetra_volumes(points: np.ndarray, cells: np.ndarray) -> Float[np.ndarray, " cell"]:
    a, b, c, d = points[cells].swapaxes(0, 1)
    return np.einsum("ni,ni->n", b - a, np.cross(c - a, d - a)) / 6
