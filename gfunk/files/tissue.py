"""From a mesh file to tissue a wave can cross: with the file's fibres, with those of another file, or with some by rule."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gfunk.atria.anatomy import Place, found_anatomy, regions
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.files.mending import Mended, Unit, mended
from gfunk.files.opencarp import text_fibres
from gfunk.files.reading import READERS, as_domain, read_mesh, with_rule_fibres
from gfunk.nearest import nearest_on_triangles
from gfunk.resampling import carried_fibres

FARTHEST_FIBRES_MM = 3.0  # from the surface they are for


def read_tissue(
    path: Path | str,
    *,
    fibres: Path | str | None = None,
    unit: Unit | None = None,
    labels: Mapping[str, Place] | None = None,
) -> Domain:
    """A surface with fibres; `repairs` says where they come from.

    fibres: "rule", or a file: a mesh of the same surface that has some, or openCARP's `.lon` with a row for each element of
    the mesh. None: the mesh's own; where it has none, by rule; where it is no left atrium, alike in all directions.
    """
    path = Path(path)
    if fibres is not None and str(fibres) != "rule":
        return as_domain(_with_fibres_of(path, Path(fibres), unit))
    mesh = _surface(path, read_mesh(path, unit=unit))
    if fibres is None and mesh.fibres is not None:
        return as_domain(mesh)
    try:
        made, parts = with_rule_fibres(mesh, labels)
    except InputError as error:
        if fibres is not None:
            raise InputError(f"{path}: {error}") from None
        said = f"no fibres in the file, and none could be made by rule ({error})"
        return as_domain(replace(mesh, repairs=(*mesh.repairs, said)))
    return replace(as_domain(made), regions=parts)


def with_regions(domain: Domain, labels: Mapping[str, Place] | None = None) -> Domain:
    """The domain with its parts named, found by shape where it has none, or where labels say where some are."""
    if domain.regions and not labels:
        return domain
    anatomy = found_anatomy(domain.points, domain.cells, labels)
    return replace(domain, regions=regions(domain.points, domain.cells, anatomy))


def _with_fibres_of(path: Path, source: Path, unit: Unit | None) -> Mended:
    if source.suffix.lower() == ".lon":
        return _surface(path, _with_rows(path, source, unit))
    mesh, other = (_surface(each, read_mesh(each, unit=unit)) for each in (path, source))
    if other.fibres is None:
        raise InputError(f"{source}: has no fibres")
    onto = nearest_on_triangles(other.points_mm, other.cells)
    away = float(np.median(np.linalg.norm(onto(mesh.points_mm) - mesh.points_mm, axis=1)))
    if away > FARTHEST_FIBRES_MM:
        raise InputError(f"{source}: not the surface of {path}: their nodes lie {away:.1f} mm apart (median)")
    fibres = carried_fibres(other.points_mm, other.cells, other.fibres, mesh.points_mm, mesh.cells)
    return replace(mesh, fibres=fibres, repairs=(*mesh.repairs, f"fibres carried over from {source}"))


def _with_rows(path: Path, source: Path, unit: Unit | None) -> Mended:
    """A row for each element, put beside it before anything is mended."""
    suffix = path.suffix.lower()
    if suffix not in READERS:
        return read_mesh(path, unit=unit)  # which says what is wrong
    raw = READERS[suffix](path)
    counts = [len(block.nodes) for block in raw.blocks]
    rows = text_fibres(source, sum(counts))
    if rows is None:
        raise InputError(f"{source}: no such file")
    parts = np.split(rows[:, :3], np.cumsum(counts)[:-1])
    blocks = tuple(replace(block, data={**block.data, "fibre": part}) for block, part in zip(raw.blocks, parts, strict=True))
    try:
        return mended(replace(raw, blocks=blocks), unit=unit)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _surface(path: Path, mesh: Mended) -> Mended:
    if mesh.cells.shape[1] != 3:
        raise InputError(f"{path}: has tetrahedra; waves are predicted on surfaces of triangles")
    return mesh
