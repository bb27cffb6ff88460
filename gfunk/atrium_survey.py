"""Synthetic atria beside real ones: is each of them a sound surface, and do their figures spread as wide?"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gfunk.atria.anatomy import VEINS, found_anatomy
from gfunk.atria.synthetic import Atrium, synthetic_atrium
from gfunk.domain import make_domain
from gfunk.errors import InputError
from gfunk.intersections import self_intersections
from gfunk.laplacian import fem_laplacian
from gfunk.remeshing import EVEN
from gfunk.spectrum import lowest_modes
from gfunk.surface import (
    boundary_loops,
    connected_parts,
    edge_lengths,
    enclosed_volume,
    genus,
    perimeters,
    triangle_angles,
    triangle_areas,
)

WORST_ANGLE_DEGREES = 15.0
MODES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30)
# Lowest and highest. Sizes: 13 real atria with five holes; spectra: 19 from different imaging chains.
REAL = {
    "area, cm2": (54.0, 114.0),
    "volume, ml": (26.0, 93.0),
    "valve's rim, mm": (74.0, 139.0),
    "widest vein's rim, mm": (28.0, 55.0),
    "narrowest vein's rim, mm": (14.0, 40.0),
    "area / volume^(2/3)": (5.4, 6.2),
    **{
        f"eigenvalue {mode} x area": bounds
        for mode, bounds in zip(
            MODES,
            (
                (11.9, 17.6), (19.8, 24.9), (22.0, 32.7), (36.1, 50.6), (51.2, 62.7), (56.3, 73.7), (72.4, 98.3),
                (99.1, 116.6), (147.0, 181.0), (210.0, 235.4), (319.0, 359.7),
            ),
            strict=True,
        )
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """One atrium: what is wrong with it, and its figures, named as in REAL."""

    seed: int
    seconds: float
    nodes: int
    shortest_edge: float  # of the wished length
    longest_edge: float
    worst_angle_degrees: float
    faults: tuple[str, ...]
    labels: Literal["right", "refused", "wrong"]  # of the holes, found by shape alone
    figures: dict[str, float]


def surveyed(seed: int, edge_mm: float) -> Surveyed:
    started = time.perf_counter()
    atrium = synthetic_atrium(seed, edge_mm)
    seconds = time.perf_counter() - started
    points, cells = atrium.points_mm, atrium.cells
    area, volume = float(triangle_areas(points, cells).sum()), enclosed_volume(points, cells)
    relative = edge_lengths(points, cells) / edge_mm
    angle = float(np.rad2deg(triangle_angles(points, cells).min()))
    n_holes, n_cuts = len(boundary_loops(cells)), len(self_intersections(points, cells))
    faults = {
        f"{n_holes} holes": n_holes != 5,
        f"genus {genus(cells)}": genus(cells) != 0,
        "several parts": bool(connected_parts(cells, len(points)).any()),
        f"{n_cuts} pairs of triangles cut through each other": n_cuts > 0,
        f"an angle of {angle:.1f} degrees": angle <= WORST_ANGLE_DEGREES,
        f"edges of {relative.min():.2f} to {relative.max():.2f}": not (
            EVEN[0] < relative.min() and relative.max() < EVEN[1]
        ),
        "normals point inwards": volume <= 0,
    }
    rims = atrium.anatomy.rims
    veins = perimeters(points, [rims[name] for name in VEINS])
    values = lowest_modes(fem_laplacian(make_domain(points, cells)), max(MODES) + 1).eigenvalues[list(MODES)] * area
    sizes = (
        area / 100, volume / 1000, perimeters(points, [rims["MV"]])[0], veins.max(), veins.min(), area / volume ** (2 / 3),
    )  # fmt: skip
    return Surveyed(
        seed=seed,
        seconds=seconds,
        nodes=len(points),
        shortest_edge=float(relative.min()),
        longest_edge=float(relative.max()),
        worst_angle_degrees=angle,
        faults=tuple(words for words, is_so in faults.items() if is_so),
        labels=_labels(atrium),
        figures={name: float(value) for name, value in zip(REAL, (*sizes, *values), strict=True)},
    )


def _labels(atrium: Atrium) -> Literal["right", "refused", "wrong"]:
    try:
        found = found_anatomy(atrium.points_mm, atrium.cells)
    except InputError:
        return "refused"
    is_right = all(set(found.rims[name]) == set(rim) for name, rim in atrium.anatomy.rims.items())
    return "right" if is_right else "wrong"


def compared(atria: Sequence[Surveyed]) -> list[dict[str, object]]:
    """For every figure the real ones' range and that of these, and whether the first lies within the second."""
    rows = []
    for name, (lowest, highest) in REAL.items():
        values = np.array([atrium.figures[name] for atrium in atria])
        rows.append(
            {
                "figure": name, "real_lowest": lowest, "real_highest": highest, "lowest": float(values.min()),
                "mean": float(values.mean()), "highest": float(values.max()),
                "covers": bool(values.min() <= lowest and highest <= values.max()),
            }
        )  # fmt: skip
    return rows
