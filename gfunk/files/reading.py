"""From a file to a Domain in one call, and what there is to say about its mesh."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from gfunk.atria.anatomy import REGIONS, VEINS, Place, found_anatomy, region_numbers, regions, rim_lengths
from gfunk.atria.fibres import ATRIAL_ACROSS, fibrous_domain, rule_fibres
from gfunk.domain import Domain, make_domain
from gfunk.errors import InputError
from gfunk.files.by_meshio import read_xdmf
from gfunk.files.by_trimesh import read_by_trimesh
from gfunk.files.carto import read_carto_mesh
from gfunk.files.gmsh import read_gmsh
from gfunk.files.mending import Mended, Unit, mended
from gfunk.files.off import read_off
from gfunk.files.opencarp import read_opencarp, write_opencarp
from gfunk.files.raw import Block
from gfunk.files.vtk import read_vtk
from gfunk.files.vtk_write import write_vtp, write_vtu
from gfunk.surface import (
    boundary_loops,
    edge_lengths,
    enclosed_volume,
    genus,
    longest_first,
    perimeters,
    triangle_angles,
    triangle_areas,
    vertex_normals,
)

READERS = {
    **dict.fromkeys((".pts", ".elem", ".bpts", ".belem", ""), read_opencarp),
    **dict.fromkeys((".vtk", ".vtp", ".vtu"), read_vtk),
    ".mesh": read_carto_mesh,
    **dict.fromkeys((".ply", ".stl", ".obj"), read_by_trimesh),
    ".off": read_off,
    ".msh": read_gmsh,
    **dict.fromkeys((".xdmf", ".xmf"), read_xdmf),
}


@dataclass(frozen=True, kw_only=True)
class Described:
    """Size and shape of a surface."""

    nodes: int
    cells: int
    area_cm2: float
    volume_ml: float  # holes closed by flat lids
    genus: int
    holes: int
    hole_perimeters_mm: tuple[float, ...]  # longest first
    mean_edge_mm: float
    worst_angle_degrees: float


def read_mesh(path: Path | str, *, unit: Unit | None = None, keep_all: bool = False) -> Mended:
    """The mesh of a file, mended; `repairs` says what was changed or assumed."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in READERS:
        known = ", ".join(sorted(suffix for suffix in READERS if suffix))
        raise InputError(f"{path}: no reader for {suffix!r}: convert it to one of {known} (ParaView and meshio write .vtk)")
    raw = READERS[suffix](path)
    try:
        return mended(raw, unit=unit, keep_all=keep_all)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_domain(
    path: Path | str,
    *,
    unit: Unit | None = None,
    across: float = ATRIAL_ACROSS,
    ratio: float = 5.0,
    keep_all: bool = False,
    fibres: Literal["file", "rule"] = "file",
    labels: Mapping[str, Place] | None = None,
) -> Domain:
    """A Domain from a mesh file, in mm; `repairs` says what was changed or assumed.

    across: diffusion across fibres, mm^2/ms; ratio: how many times that along them. A mesh without fibres diffuses alike
    in all directions, `across`. fibres: "rule" makes some for a left atrium, and its regions, whatever the file has; labels
    are places of its holes or of its appendage's tip ("LAA") where they are not to be found by shape (docs/fibres.md).
    """
    mesh = read_mesh(path, unit=unit, keep_all=keep_all)
    if fibres == "file":
        return as_domain(mesh, across=across, ratio=ratio)
    try:
        mesh, regions = with_rule_fibres(mesh, labels)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return replace(as_domain(mesh, across=across, ratio=ratio), regions=regions)


def as_domain(mesh: Mended, *, across: float = ATRIAL_ACROSS, ratio: float = 5.0) -> Domain:
    """Diffusion along and across the fibres of a mesh, cell by cell; its parts where the file has them as we write them."""
    parts = written_regions(mesh)
    if mesh.fibres is not None:
        return fibrous_domain(
            mesh.points_mm, mesh.cells, mesh.fibres, across=across, ratio=ratio, repairs=mesh.repairs, regions=parts
        )
    said = (*mesh.repairs, f"no fibres: diffusion is {across:.4g} mm^2/ms in all directions")
    tensors = np.broadcast_to(across * np.eye(3), (len(mesh.cells), 3, 3)).copy()
    return make_domain(
        mesh.points_mm, mesh.cells, tensors, diffusion_at="cell", fibres=_any_tangents(mesh), repairs=said, regions=parts
    )


def written_regions(mesh: Mended) -> dict[str, Int[np.ndarray, " _"]]:
    """The parts by the point data "region" that `gfunk atrium` and rule fibres write; none where its numbers mean others.

    They are ours where the longest rim lies in the valve's part, and a rim in that of each vein.
    """
    number = mesh.point_data.get("region")
    if mesh.cells.shape[1] != 3 or number is None or number.ndim != 1 or not np.isin(number, range(len(REGIONS))).all():
        return {}
    rims = [set(number[loop].tolist()) for loop in longest_first(mesh.points_mm, boundary_loops(mesh.cells))]
    if not rims or rims[0] != {REGIONS.index("MV")} or not all({REGIONS.index(vein)} in rims for vein in VEINS):
        return {}
    return {name: np.flatnonzero(number == i) for i, name in enumerate(REGIONS)}


def with_rule_fibres(
    mesh: Mended, labels: Mapping[str, Place] | None = None
) -> tuple[Mended, dict[str, Int[np.ndarray, " _"]]]:
    """The mesh of a left atrium with fibres by the rule and its regions' numbers as tags, and the nodes of each region."""
    if mesh.cells.shape[1] != 3:
        raise InputError("the rule is for surfaces, and this mesh has tetrahedra")
    points, cells = mesh.points_mm, mesh.cells
    anatomy = found_anatomy(points, cells, labels)
    fibres, parts = rule_fibres(points, cells, anatomy), regions(points, cells, anatomy)
    at_nodes, tags = region_numbers(parts, cells)
    holes = ", ".join(f"{name} {perimeter:.0f} mm" for name, perimeter in rim_lengths(points, anatomy).items())
    said = f"fibres by the Laplace-Dirichlet rule; rims taken for {holes}; the appendage's tip for node {anatomy.tip}"
    made = replace(
        mesh, fibres=fibres, tags=tags, point_data={**mesh.point_data, "region": at_nodes}, repairs=(*mesh.repairs, said)
    )
    return made, parts


def described(points_mm: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> Described:
    loops = longest_first(points_mm, boundary_loops(cells))
    return Described(
        nodes=len(points_mm),
        cells=len(cells),
        area_cm2=float(triangle_areas(points_mm, cells).sum() / 100),
        volume_ml=enclosed_volume(points_mm, cells) / 1000,
        genus=genus(cells),
        holes=len(loops),
        hole_perimeters_mm=tuple(perimeters(points_mm, loops).tolist()),
        mean_edge_mm=float(edge_lengths(points_mm, cells).mean()),
        worst_angle_degrees=float(np.rad2deg(triangle_angles(points_mm, cells).min())),
    )


def write_mesh(path: Path, mesh: Mended):
    """As `.vtp` or `.vtu`, in mm, or as openCARP's `.pts`, `.elem` and `.lon`, in micrometres."""
    data = {name: array for name, array in (("fibre", mesh.fibres), ("tag", mesh.tags)) if array is not None}
    kind = "triangle" if mesh.cells.shape[1] == 3 else "tetra"
    block = Block(kind=kind, nodes=mesh.cells, data=data)
    suffix = path.suffix.lower()
    if suffix == ".vtp" and kind == "triangle":
        write_vtp(path, mesh.points_mm, mesh.cells, mesh.point_data, {**mesh.cell_data, **data})
    elif suffix == ".vtu":
        write_vtu(
            path, mesh.points_mm, [Block(kind=kind, nodes=mesh.cells, data={**mesh.cell_data, **data})], mesh.point_data
        )
    elif suffix in (".pts", ".elem"):
        write_opencarp(path.with_suffix(""), mesh.points_mm, [block])
    else:
        raise InputError(f"{path}: a mesh is written as .vtp (surfaces), .vtu or .pts, not {suffix!r}")


def _any_tangents(mesh: Mended) -> Float[np.ndarray, "node 3"]:
    """A unit vector in the tangent plane of each node, the same in space wherever it can be."""
    if mesh.cells.shape[1] == 4:
        return np.tile([0.0, 0.0, 1.0], (len(mesh.points_mm), 1))
    normals = vertex_normals(mesh.points_mm, mesh.cells)
    axis = np.where(np.abs(normals[:, 2:]) < 0.9, [0.0, 0.0, 1.0], [1.0, 0.0, 0.0])
    tangents = axis - (axis * normals).sum(axis=1, keepdims=True) * normals
    return tangents / np.linalg.norm(tangents, axis=1, keepdims=True)
