"""Meshes: synthetic atria made, those of others read, mended and remeshed."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gfunk.console import people, show
from gfunk.errors import InputError

_MESH_COLUMNS = ["nodes", "cells", "area_cm2", "volume_ml", "genus", "holes", "mean_edge_mm", "worst_angle_degrees"]


def atrium(options: argparse.Namespace):
    import numpy as np

    from gfunk.atria.anatomy import REGIONS, region_numbers
    from gfunk.atria.synthetic import atrium_fibres, synthetic_atrium
    from gfunk.files.mending import Mended
    from gfunk.files.reading import described, write_mesh

    if options.picture is not None:
        # It refuses now, not after the work.
        from gfunk.figures import pyplot

        pyplot()
    made = synthetic_atrium(options.seed, options.edge)
    fibres = atrium_fibres(made, options.seed, options.turned)
    at_nodes, tags = region_numbers(made.regions, made.cells)
    answer: dict[str, Any] = {"seed": options.seed, **asdict(described(made.points_mm, made.cells))}
    answer["regions"] = {name: {"number": number, "nodes": len(made.regions[name])} for number, name in enumerate(REGIONS)}
    mesh = Mended(
        points_mm=made.points_mm, cells=made.cells, fibres=fibres, tags=tags, point_data={"region": at_nodes}, cell_data={},
        file_nodes=np.full(len(at_nodes), -1), file_cells=np.full(len(tags), -1), repairs=(),
    )  # fmt: skip
    write_mesh(options.out, mesh)
    answer["out"] = str(options.out)
    if options.picture is not None:
        draw_atria(options.picture, [options.seed], options.edge, options.turned)
        answer["picture"] = str(options.picture)
    show(options.json, answer, [answer], ["seed", *_MESH_COLUMNS, "out"])


def draw_atria(path: Path, seeds: Sequence[int], edge_mm: float, turned_degrees: float = 20.0):
    from gfunk.atria.anatomy import REGIONS, region_numbers
    from gfunk.atria.synthetic import atrium_fibres, synthetic_atrium
    from gfunk.surface_pictures import Pictured, surfaces_picture

    shown = []
    for seed in seeds:
        made = synthetic_atrium(seed, edge_mm)
        _, labels = region_numbers(made.regions, made.cells)
        fibres = atrium_fibres(made, seed, turned_degrees)
        shown.append(Pictured(title=f"seed {seed}", points=made.points_mm, cells=made.cells, labels=labels, fibres=fibres))
    surfaces_picture(path, shown, REGIONS)


def mesh(options: argparse.Namespace):
    import numpy as np

    from gfunk.files.reading import described, read_mesh, with_rule_fibres, write_mesh
    from gfunk.remeshing import remeshed
    from gfunk.resampling import carried_fibres

    found = read_mesh(options.file, unit=options.unit, keep_all=options.keep_all)
    if found.cells.shape[1] != 3:
        raise InputError(f"{options.file}: has tetrahedra; `gfunk mesh` is for surfaces")
    answer: dict[str, Any] = {"file": str(options.file), **asdict(described(found.points_mm, found.cells))}
    if options.edge is not None:
        points, cells = remeshed(found.points_mm, found.cells, options.edge)
        fibres = found.fibres
        if fibres is not None:
            fibres = carried_fibres(found.points_mm, found.cells, fibres, points, cells)
        # Other data belong to the nodes and cells that were.
        found = replace(
            found, points_mm=points, cells=cells, fibres=fibres, tags=None, point_data={}, cell_data={},
            file_nodes=np.full(len(points), -1), file_cells=np.full(len(cells), -1),
        )  # fmt: skip
        answer["remeshed"] = asdict(described(points, cells))
    if options.fibres == "rule":
        found, regions = with_rule_fibres(found, dict(options.label))
        answer["regions"] = {name: len(nodes) for name, nodes in regions.items()}
    answer |= {"has_fibres": found.fibres is not None, "repairs": list(found.repairs)}
    if options.out is not None:
        write_mesh(options.out, found)
        answer["out"] = str(options.out)
    for sentence in answer["repairs"]:
        people.print(f"- {sentence}")
    show(options.json, answer, [answer, *([answer["remeshed"]] if "remeshed" in answer else [])], _MESH_COLUMNS)
