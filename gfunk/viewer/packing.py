"""What the page is sent: one line of JSON that says which arrays follow, then their bytes, little endian."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.surface import edge_lengths, triangle_areas, vertex_normals
from gfunk.viewer.predictor import Wave

ALIGNMENT = 8  # the page reads arrays in place, which begin at multiples of their numbers' sizes
N_STROKES = 5000
STROKE_LIFT = 0.12  # of an edge, above the surface: what lies in it is hidden by it


def packed(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray], *, is_last: bool = True) -> bytes:
    """The line and the bytes; `arrays` of the line tells each one's type, shape and first byte after the line.

    is_last: no others follow that are to take their place.
    """
    parts, table, offset = [], [], 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        content += bytes(-len(content) % ALIGNMENT)
        table.append({"name": name, "type": array.dtype.name, "shape": list(array.shape), "offset": offset})
        parts.append(content)
        offset += len(content)
    return line({"about": about, "arrays": table, "bytes": offset, "last": is_last}) + b"".join(parts)


def line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"


def packed_mesh(name: str, label: str, domain: Domain) -> bytes:
    """Points and triangles, and what is known of them so far."""
    areas = triangle_areas(domain.points, domain.cells)
    about = {
        "scene": name, "label": label, "nodes": domain.n_nodes, "triangles": len(domain.cells),
        "area_cm2": float(areas.sum() / 100), "edge_mm": float(edge_lengths(domain.points, domain.cells).mean()),
    }  # fmt: skip
    said, arrays = _parts(domain)
    whole = {"points": domain.points.astype(np.float32), "triangles": domain.cells.astype(np.int32)}
    return packed(about | said, whole | arrays)


def packed_parts(domain: Domain) -> bytes:
    """What is known of a mesh that was sent before."""
    return packed(*_parts(domain))


def _parts(domain: Domain) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The number of each node's region and strokes along the fibres; names of regions, what was changed or assumed."""
    names, numbers = numbered_regions(domain)
    arrays = {"regions": numbers, "fibres": fibre_strokes(domain).astype(np.float32)}
    return {"regions": names, "repairs": list(domain.repairs)}, arrays


def packed_wave(wave: Wave, about: Mapping[str, Any], *, is_last: bool = True) -> bytes:
    """Frames as 256 levels between the wave's lowest and highest potential; activation times as they are."""
    if not np.isfinite(wave.values_mV).all():
        raise InputError("no wave came of it: its potential is not finite everywhere; try another site or mesh")
    low, high = float(wave.values_mV.min()), float(wave.values_mV.max())
    step = max((high - low) / 255, 1e-6)
    until = wave.times_ms[-1] if wave.until_ms is None else wave.until_ms
    said = {"low_mV": low, "step_mV": step, "until_ms": float(until), "seconds": dict(wave.seconds)} | dict(about)
    return packed(
        said,
        {
            "times_ms": wave.times_ms.astype(np.float32),
            "frames": levels(wave.values_mV, low, step),
            "activation_ms": wave.activation_ms.astype(np.float32),
        },
        is_last=is_last,
    )


def levels(values: Float[np.ndarray, "time node"], low: float, step: float) -> UInt8[np.ndarray, "time node"]:
    """The nearest of 256 levels, a time at once: many times of many nodes are not copied as a whole."""
    frames = np.empty(values.shape, np.uint8)
    for time, row in enumerate(values):
        frames[time] = np.rint((row - low) / step).clip(0, 255)
    return frames


def numbered_regions(domain: Domain) -> tuple[list[str], UInt8[np.ndarray, " node"]]:
    """Names, and the number of each node's region, counted from 1; 0 where it belongs to none."""
    numbers = np.zeros(domain.n_nodes, np.uint8)
    for number, nodes in enumerate(domain.regions.values(), start=1):
        numbers[nodes] = number
    return list(domain.regions), numbers


def fibre_strokes(domain: Domain, n_strokes: int = N_STROKES) -> Float[np.ndarray, "_ 2 3"]:
    """Both ends of short lines along the fibres, evenly spread; none where diffusion is alike in all directions."""
    points, cells = domain.points, domain.cells
    # About as many squares of this side as strokes cover the surface.
    side = float(np.sqrt(triangle_areas(points, cells).sum() / n_strokes))
    cube = np.floor(points / side).astype(np.int64)
    chosen = np.unique(cube, axis=0, return_index=True)[1]
    chosen = chosen[_has_direction(domain)[chosen]]
    lift = STROKE_LIFT * edge_lengths(points, cells).mean() * vertex_normals(points, cells)[chosen]
    along = 0.4 * side * domain.fibres[chosen]
    centre = points[chosen] + lift
    return np.stack([centre - along, centre + along], axis=1)


def _has_direction(domain: Domain) -> Bool[np.ndarray, " node"]:
    tensors = domain.node_diffusion()
    along = np.einsum("ni,nij,nj->n", domain.fibres, tensors, domain.fibres)
    return along > 1.05 * np.trace(tensors, axis1=1, axis2=2) / 3
