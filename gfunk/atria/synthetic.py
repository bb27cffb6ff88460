"""Synthetic left atria: from a shape to a surface with five holes, even triangles and named parts."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from gfunk.atria.anatomy import HOLES, REGIONS, VALVE_BAND_MM, Anatomy
from gfunk.atria.fibres import ATRIAL_ACROSS, fibrous_domain, rule_fibres, smoothly_turned
from gfunk.atria.shape import PARTS, Plane, Shape, random_shape
from gfunk.domain import Domain, make_domain, refined
from gfunk.errors import InputError
from gfunk.isosurface import kept_below_zero, zero_surface
from gfunk.remeshing import EVEN, remeshed
from gfunk.surface import boundary_loops, connected_parts, edge_lengths, enclosed_volume, genus, perimeters

Points = Float[np.ndarray, "_ 3"]
Cells = Int[np.ndarray, "_ 3"]

SHORTEST_EDGE_MM, LONGEST_EDGE_MM = 0.25, 1.5
GRID_MM = 1.5
# Edges below this are made by halving longer ones, which is many times cheaper than remeshing.
REMESHED_EDGE_MM = 0.65
VALVE_OVER_VEIN = 1.1  # how much longer the valve's rim is, so that it can be told
SHORTEST_RIM_MM = 9.0  # the narrowest vein of real ones has 14
IN_PLANE_MM = 0.3  # between nodes laid into a plane, remeshed rims cut corners
VALVE_DIAMETERS = 0.53, 0.99  # of the volume's cube root, as of real ones
GENTLEST_SLOPE = 0.42  # of the distance, which is about 1; flatter where parts all but touch, in a gap too narrow to mesh
N_ATTEMPTS = 20
TURNS_MM = 15.0  # how far directions of fibres vary together
ROUGH_MM = 0.7, 3.0  # the same of roughness; measured ones have about 1


@dataclass(frozen=True, kw_only=True)
class Atrium:
    """A synthetic left atrium: its surface, normals outwards, and where its parts are."""

    shape: Shape
    points_mm: Float[np.ndarray, "node 3"]
    cells: Int[np.ndarray, "cell 3"]
    anatomy: Anatomy
    regions: dict[str, Int[np.ndarray, " _"]]  # nodes of each of REGIONS


def left_atrium(
    seed: int,
    edge_mm: float = 1.0,
    *,
    across: float = ATRIAL_ACROSS,
    ratio: float = 5.0,
    turned_degrees: float = 20.0,
    rough_degrees: float = 0.0,
) -> Domain:
    """A synthetic left atrium with fibres, in mm; every seed has its own shape and fibres, whatever the edge length.

    across: diffusion across fibres, mm^2/ms; ratio: how many times that along them. turned_degrees: standard deviation of
    the fibres' directions from those of the rule; rough_degrees: the largest there may be of turns within a millimetre or
    three (docs/fibres.md).
    """
    atrium = synthetic_atrium(seed, edge_mm)
    return fibrous_domain(
        atrium.points_mm,
        atrium.cells,
        roughened(atrium, seed, atrium_fibres(atrium, seed, turned_degrees), rough_degrees),
        across=across,
        ratio=ratio,
        regions=atrium.regions,
    )


def atrium_fibres(atrium: Atrium, seed: int, turned_degrees: float) -> Float[np.ndarray, "cell 3"]:
    """Fibres by the rule, turned smoothly at random."""
    by_rule = rule_fibres(atrium.points_mm, atrium.cells, atrium.anatomy)
    rng = np.random.default_rng([seed, N_ATTEMPTS])
    return smoothly_turned(atrium.points_mm, atrium.cells, by_rule, degrees=turned_degrees, length_mm=TURNS_MM, rng=rng)


def roughened(
    atrium: Atrium, seed: int, fibres: Float[np.ndarray, "cell 3"], most_degrees: float
) -> Float[np.ndarray, "cell 3"]:
    """Fibres turned from place to place, as measured ones are: by how much and over what distance is the seed's own."""
    rng = np.random.default_rng([seed, N_ATTEMPTS + 1])
    degrees, length_mm = rng.uniform(0, most_degrees), rng.uniform(*ROUGH_MM)
    return smoothly_turned(atrium.points_mm, atrium.cells, fibres, degrees=degrees, length_mm=length_mm, rng=rng)


def synthetic_atrium(seed: int, edge_mm: float = 1.0) -> Atrium:
    """The surface of a seed's atrium, with edges of about edge_mm: always the same shape."""
    if not SHORTEST_EDGE_MM <= edge_mm <= LONGEST_EDGE_MM:
        raise InputError(f"atria are made with edges of {SHORTEST_EDGE_MM} to {LONGEST_EDGE_MM} mm, not {edge_mm}")
    shape, points, cells = _draft(seed)
    n_halvings = max(0, int(np.floor(np.log2(2 * REMESHED_EDGE_MM / edge_mm))))

    def remade(points: Points, cells: Cells, edge_mm: float) -> Atrium:
        return _labelled(shape, *remeshed(points, cells, edge_mm, onto=lambda places: _onto_shape(shape, places)))

    atrium = remade(points, cells, edge_mm * 2**n_halvings)
    for _ in range(n_halvings):
        atrium = halved(atrium)
    relative = edge_lengths(atrium.points_mm, atrium.cells) / edge_mm
    # Laid onto a bent surface, a halved edge may become longer than half.
    is_even = EVEN[0] < relative.min() and relative.max() < EVEN[1]
    return atrium if is_even else remade(atrium.points_mm, atrium.cells, edge_mm)


def halved(atrium: Atrium) -> Atrium:
    """Every triangle cut into four, on the same shape; the old nodes come first, unmoved."""
    points, cells = refined(make_domain(atrium.points_mm, atrium.cells))
    n_old = len(atrium.points_mm)
    points[n_old:] = _onto_shape(atrium.shape, points[n_old:])
    return _labelled(atrium.shape, points, cells, n_old)


def _labelled(shape: Shape, points: Points, cells: Cells, n_fixed: int = 0) -> Atrium:
    """The atrium, nodes of its rims laid into the planes that cut it, except for the first few."""
    points, rims = points.copy(), _rims(shape, points, cells)
    for name, (plane, _) in shape.cuts().items():
        free = rims[name][rims[name] >= n_fixed]
        points[free] = _onto_rim(shape, plane, points[free])
    tip = int(KDTree(points).query(shape.tip_mm)[1])
    regions = _regions(shape, points, rims["MV"])
    return Atrium(shape=shape, points_mm=points, cells=cells, anatomy=Anatomy(rims=rims, tip=tip), regions=regions)


def _draft(seed: int) -> tuple[Shape, Points, Cells]:
    """The first shape of the seed that is an atrium when it is cut open, and its triangles, still uneven."""
    for attempt in range(N_ATTEMPTS):
        shape = random_shape(np.random.default_rng([seed, attempt]))
        points, cells = _cut_open(shape, *_closed_surface(shape))
        rims = _rims(shape, points, cells)
        if len(boundary_loops(cells)) != len(HOLES) or len(rims) != len(HOLES) or genus(cells) != 0:
            continue
        valve, *veins = perimeters(points, [rims[name] for name in HOLES])
        relative = valve / np.pi / enclosed_volume(points, cells) ** (1 / 3)
        is_valve_fit = VALVE_DIAMETERS[0] < relative < VALVE_DIAMETERS[1] and valve > VALVE_OVER_VEIN * max(veins)
        slope = np.linalg.norm(_distance_and_gradient(shape, points)[1], axis=1)
        if is_valve_fit and slope.min() > GENTLEST_SLOPE:
            return shape, points, cells
    raise InputError(f"no atrium came of seed {seed} in {N_ATTEMPTS} attempts: take another seed")


def _rims(shape: Shape, points: Points, cells: Cells) -> dict[str, Int[np.ndarray, " _"]]:
    """The loop in each hole's plane; missing where there is none or more than one, or it is too short."""
    rims = {}
    loops = boundary_loops(cells)
    for name, (plane, reach) in shape.cuts().items():
        own = [
            loop
            for loop in loops
            if np.abs(plane.height(points[loop])).max() < IN_PLANE_MM
            and np.linalg.norm(points[loop].mean(axis=0) - plane.origin) < reach
        ]
        if len(own) == 1 and perimeters(points, own)[0] > SHORTEST_RIM_MM:
            rims[name] = own[0]
    return rims


def _regions(shape: Shape, points: Points, valve: Int[np.ndarray, " _"]) -> dict[str, Int[np.ndarray, " _"]]:
    """Every node to the part it lies on, or to the valve's band."""
    part = shape.part_distances(points).argmin(axis=0)
    by_valve = KDTree(points[valve]).query(points)[0] < VALVE_BAND_MM
    regions = {name: np.flatnonzero((part == number) & ~by_valve) for number, name in enumerate(PARTS)}
    return {name: regions.get(name, np.flatnonzero(by_valve)) for name in REGIONS}


def _closed_surface(shape: Shape) -> tuple[Points, Cells]:
    low, high = shape.box_mm()
    counts = np.ceil((high - low) / GRID_MM).astype(np.int64) + 1
    grid = np.stack(np.meshgrid(*(np.arange(n) * GRID_MM for n in counts), indexing="ij"), -1) + low
    points, cells = zero_surface(shape.distance(grid.reshape(-1, 3)).reshape(counts), low, GRID_MM)
    return _onto_shape(shape, points), cells


def _cut_open(shape: Shape, points: Points, cells: Cells) -> tuple[Points, Cells]:
    for plane, reach in shape.cuts().values():
        is_near = ((points - plane.origin) ** 2).sum(axis=1) < reach**2
        points, cells, rim = kept_below_zero(points, cells, np.where(is_near, plane.height(points), -1.0))
        points[rim] = _onto_rim(shape, plane, points[rim])
    part = connected_parts(cells, len(points))
    used, renamed = np.unique(cells[part == np.bincount(part).argmax()], return_inverse=True)
    return points[used], renamed.reshape(-1, 3)


def _onto_shape(shape: Shape, places: Points, n_steps: int = 2) -> Points:
    """Newton's steps along the gradient."""
    for _ in range(n_steps):
        distance, gradient = _distance_and_gradient(shape, places)
        places = places - (distance / ((gradient**2).sum(axis=1) + 1e-9))[:, None] * gradient
    return places


def _distance_and_gradient(shape: Shape, places: Points) -> tuple[Float[np.ndarray, " _"], Points]:
    """By four values near, at the corners of a tetrahedron."""
    corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * 1e-3
    around = np.stack([shape.distance(places + corner) for corner in corners])
    return around.mean(axis=0), around.T @ corners / 4e-6


def _onto_rim(shape: Shape, plane: Plane, places: Points) -> Points:
    """Where the surface meets the plane: onto the one and the other in turn."""
    for _ in range(4):
        places = _onto_shape(shape, places - plane.height(places)[:, None] * plane.normal, 1)
    return places - plane.height(places)[:, None] * plane.normal
