"""Directions of muscle fibres on a left atrium: by the Laplace-Dirichlet rule, or near it at random (docs/fibres.md)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from gfunk.atria.anatomy import TIP_RADIUS_MM, Anatomy, along_levels, harmonic_fields, nodes_within
from gfunk.domain import Domain, cell_sizes, fibre_tensors, make_domain
from gfunk.errors import InputError
from gfunk.laplacian import fem_laplacian
from gfunk.surface import main_tangents, triangle_normals, vertex_normals

Points = Float[np.ndarray, "node 3"]
Cells = Int[np.ndarray, "cell 3"]
Fibres = Float[np.ndarray, "cell 3"]

ATRIAL_ACROSS = 0.625 / 1.4  # mm^2/ms: the paper's 0.625 mS/mm across fibres, over surface-to-volume ratio and capacitance

_FLAT = 1e-9  # a field that varies less within a triangle has no direction there
_N_WAVES = 300


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Where one bundle ends and the next begins (Piersanti et al. 2021, idealised left atrium)."""

    tau_mv: float = 0.65  # rings round the valve where r is higher
    tau_lpv: float = 0.10  # rings round the left veins where v is lower
    tau_rpv: float = 0.65  # rings round the right veins where v is higher
    tip_radius_mm: float = TIP_RADIUS_MM  # of the patch held at the appendage's tip: a single node has no limit

    def __post_init__(self):
        if not (0 < self.tau_mv <= 1 and 0 <= self.tau_lpv < self.tau_rpv <= 1 and self.tip_radius_mm > 0):
            raise InputError(f"thresholds must lie in 0 to 1, tau_lpv below tau_rpv, and the radius above 0, not {self}")


@dataclass(frozen=True, kw_only=True)
class RuleFields:
    """The harmonic fields whose level lines are fibres."""

    ab: Float[np.ndarray, " node"]  # right veins 2, valve 1, left veins 0, appendage -1
    v: Float[np.ndarray, " node"]  # right veins 1, left veins 0
    r: Float[np.ndarray, " node"]  # valve 1, veins and appendage 0


def rule_fields(points: Points, cells: Cells, anatomy: Anatomy, tip_radius_mm: float = TIP_RADIUS_MM) -> RuleFields:
    laplacian = fem_laplacian(make_domain(points, cells))
    rims = anatomy.rims
    right, left = (np.concatenate([rims[side + "SPV"], rims[side + "IPV"]]) for side in "RL")
    patch = nodes_within(points, cells, np.array([anatomy.tip]), tip_radius_mm)
    ab, r = harmonic_fields(laplacian, [patch, left, rims["MV"], right], [[-1.0, 0.0, 1.0, 2.0], [0.0, 0.0, 1.0, 0.0]])
    (v,) = harmonic_fields(laplacian, [left, right], [[0.0, 1.0]])
    return RuleFields(ab=ab, v=v, r=r)


def rule_fibres(points: Points, cells: Cells, anatomy: Anatomy, rule: Rule | None = None) -> Fibres:
    """Unit vectors along the level lines of r round the valve, of v round the veins, of ab elsewhere."""
    rule = rule or Rule()
    fields = rule_fields(points, cells, anatomy, rule.tip_radius_mm)
    v, r = fields.v[cells].mean(axis=1), fields.r[cells].mean(axis=1)
    near_vein = (v < rule.tau_lpv) | (v > rule.tau_rpv)
    values = np.where(near_vein[:, None], fields.v[cells], fields.ab[cells])
    values = np.where((r >= rule.tau_mv)[:, None], fields.r[cells], values)
    along = along_levels(points, cells, values)
    is_known = np.ptp(values, axis=1) > _FLAT
    length = np.where(is_known, np.linalg.norm(along, axis=1), 1.0)
    return _filled(points, cells, along / length[:, None], is_known)


def smoothly_turned(
    points: Points, cells: Cells, fibres: Fibres, *, degrees: float, length_mm: float, rng: np.random.Generator
) -> Fibres:
    """Every fibre turned within its triangle by a smooth Gaussian random angle of that standard deviation.

    Angles a distance d apart have the correlation exp(-(d / length_mm)^2). The field is one of space, a sum of plane waves,
    of which the surface sees its part: the same generator gives the same angles on any mesh. Triangles must wind alike.
    """
    if not (degrees >= 0 and length_mm > 0):
        raise InputError(f"degrees can't be negative and length_mm must be positive, not {degrees} and {length_mm}")
    centres = points[cells].mean(axis=1)
    waves = rng.normal(0, np.sqrt(2) / length_mm, (_N_WAVES, 3))
    # Rayleigh heights with uniform phases are Gaussian amplitudes of cosine and sine.
    heights, phases = rng.rayleigh(size=_N_WAVES), rng.uniform(0, 2 * np.pi, _N_WAVES)
    angle = np.zeros(len(cells))
    for wave, height, phase in zip(waves, heights, phases, strict=True):
        angle += height * np.cos(centres @ wave + phase)
    angle *= np.deg2rad(degrees) / np.sqrt(_N_WAVES)
    aside = np.cross(triangle_normals(points, cells), fibres)
    return np.cos(angle)[:, None] * fibres + np.sin(angle)[:, None] * aside


def fibrous_domain(
    points: Points,
    cells: Int[np.ndarray, "cell corner"],
    fibres: Float[np.ndarray, "cell 3"],
    *,
    across: float = ATRIAL_ACROSS,
    ratio: float = 5.0,
    repairs: tuple[str, ...] = (),
    regions: Mapping[str, Int[np.ndarray, " _"]] | None = None,
) -> Domain:
    """A Domain that diffuses `across` the fibres of its cells, in mm^2/ms, and ratio times that along them."""
    tensors = fibre_tensors(fibres, ratio * across, across)
    at_nodes = node_fibres(points, cells, fibres)
    return make_domain(points, cells, tensors, diffusion_at="cell", fibres=at_nodes, repairs=repairs, regions=regions)


def node_fibres(
    points: Points, cells: Int[np.ndarray, "cell corner"], fibres: Float[np.ndarray, "cell 3"]
) -> Float[np.ndarray, "node 3"]:
    """The main axis of f f^T over the cells around each node, weighted by their size: blind to f's sign.

    On surfaces it is looked for in the tangent plane of the node.
    """
    weighted = np.sqrt(cell_sizes(points, cells))[:, None] * fibres
    tensors = _summed_squares(cells, weighted, len(points))
    if cells.shape[1] == 4:
        return np.linalg.eigh(tensors)[1][:, :, -1]
    return main_tangents(tensors, vertex_normals(points, cells))


def _filled(points: Points, cells: Cells, fibres: Fibres, is_known: Bool[np.ndarray, " cell"]) -> Fibres:
    """Where there is no direction, the main one of the triangles around, laid into the triangle; from the edge inwards."""
    fibres, is_known = np.where(is_known[:, None], fibres, 0.0), is_known.copy()
    normals = triangle_normals(points, cells)
    while not is_known.all():
        around = _summed_squares(cells, fibres, len(points))[cells].sum(axis=1)
        reached = np.flatnonzero(~is_known & (np.trace(around, axis1=1, axis2=2) > 0))
        if not reached.size:
            raise InputError("no field of the rule varies on this surface: valve, veins and appendage must lie apart")
        fibres[reached] = main_tangents(around[reached], normals[reached])
        is_known[reached] = True
    return fibres


def _summed_squares(
    cells: Int[np.ndarray, "cell corner"], fibres: Float[np.ndarray, "cell 3"], n_nodes: int
) -> Float[np.ndarray, "node 3 3"]:
    """f f^T summed over the cells around each node."""
    tensors = np.empty((n_nodes, 3, 3))
    for i in range(3):
        for j in range(i + 1):
            share = np.repeat(fibres[:, i] * fibres[:, j], cells.shape[1])
            tensors[:, i, j] = tensors[:, j, i] = np.bincount(cells.ravel(), share, minlength=n_nodes)
    return tensors
