"""From what a mesh file holds to one clean mesh in millimetres with unit fibres, and a sentence for every change made."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gfunk.files.mending.blocks import one_kind
from gfunk.files.mending.cells import (
    with_positive_volumes,
    without_collapsed_cells,
    without_flat_tetrahedra,
    without_flat_triangles,
    without_repeated_cells,
)
from gfunk.files.mending.fibres import fibres_of
from gfunk.files.mending.holes import LARGEST_STRAY_HOLE_MM, without_stray_holes
from gfunk.files.mending.manifold import manifold
from gfunk.files.mending.parts import largest_part, with_all_parts, wound_outwards
from gfunk.files.mending.points import with_checked_nodes, with_merged_points, without_unused_points
from gfunk.files.mending.units import Unit, in_mm
from gfunk.files.mending.values import tags_of, with_marks_as_nan
from gfunk.files.raw import RawMesh


@dataclass(frozen=True, kw_only=True)
class Mended:
    """One clean mesh: triangles, or tetrahedra if the file has any; all lengths in mm."""

    points_mm: Float[np.ndarray, "node 3"]
    cells: Int[np.ndarray, "cell corner"]
    fibres: Float[np.ndarray, "cell 3"] | None  # unit, tangent on surfaces
    tags: Int[np.ndarray, " cell"] | None
    point_data: dict[str, np.ndarray]
    cell_data: dict[str, np.ndarray]
    # Numbers the nodes and cells have in the file, counted from 0 through all its blocks; -1 for those we made.
    file_nodes: Int[np.ndarray, " node"]
    file_cells: Int[np.ndarray, " cell"]
    # One plain sentence for everything changed or assumed, with its numbers.
    repairs: tuple[str, ...]


def mended(
    raw: RawMesh,
    *,
    unit: Unit | None = None,
    keep_all: bool = False,
    largest_stray_hole_mm: float = LARGEST_STRAY_HOLE_MM,
) -> Mended:
    """A clean mesh of what the file holds, with everything that was changed or assumed told in `repairs`.

    unit: what the coordinates are in, or None to judge by the width of the mesh; keep_all: separate parts all stay;
    largest_stray_hole_mm: rims shorter than this are closed.
    """
    draft = one_kind(raw)
    draft = with_checked_nodes(draft)
    draft = without_unused_points(draft)
    draft = with_merged_points(draft)
    draft = without_collapsed_cells(draft)
    draft = without_repeated_cells(draft)
    if draft.is_surface:
        draft = without_flat_triangles(draft)
        draft = manifold(draft)
    else:
        draft = without_flat_tetrahedra(draft)
    draft = with_all_parts(draft) if keep_all else largest_part(draft)
    draft = wound_outwards(draft) if draft.is_surface else with_positive_volumes(draft)
    draft = in_mm(draft, unit)
    if draft.is_surface:
        draft = without_stray_holes(draft, largest_stray_hole_mm)
    draft = with_marks_as_nan(draft)
    tags, draft = tags_of(draft)
    fibres, draft = fibres_of(draft)
    return Mended(
        points_mm=draft.points,
        cells=draft.cells,
        fibres=fibres,
        tags=tags,
        point_data=draft.point_data,
        cell_data=draft.cell_data,
        file_nodes=draft.file_nodes,
        file_cells=draft.file_cells,
        repairs=draft.repairs,
    )
