"""The parts of a left atrium, found on its surface: valve, veins and appendage (docs/fibres.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import KDTree

from gfunk.domain import make_domain
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, fem_laplacian
from gfunk.sparse_solver import symmetric_solver
from gfunk.surface import boundary_loops, connected_parts, longest_first, perimeters, triangle_areas, unique_edges

Points = Float[np.ndarray, "node 3"]
Cells = Int[np.ndarray, "cell 3"]
Nodes = Int[np.ndarray, " _"]
Place = int | np.integer | Sequence[float] | Float[np.ndarray, " 3"]  # a node, or x, y, z

VEINS = ("LSPV", "LIPV", "RSPV", "RIPV")
HOLES = ("MV", *VEINS)
REGIONS = ("body", *HOLES, "LAA")

TIP_RADIUS_MM = 4.0
VALVE_BAND_MM = 4.0
VEIN_CUT = 0.7  # of the way from valve to rim

STRAY_HOLE = 0.1  # a hole with less than this share of the valve's perimeter is no vein
_MOST_VEINS = 8
_NARROW = 0.43  # between what was seen on bodies (0.34 to 0.41) and at tips of appendages (0.47 to 1.0)
_N_LEVELS = 20  # between tip and valve; with more, few triangles lie between two on coarse meshes


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """Where the parts of a left atrium end."""

    rims: dict[str, Nodes]  # of each of HOLES, in order; a further vein's rim follows that of the vein nearest to it
    tip: int  # node at the end of the appendage

    def __post_init__(self):
        if set(self.rims) != set(HOLES) or not all(len(rim) for rim in self.rims.values()):
            raise InputError(f"an anatomy needs the rims of {', '.join(HOLES)}, not of {', '.join(self.rims) or 'nothing'}")


def found_anatomy(points: Points, cells: Cells, given: Mapping[str, Place] | None = None) -> Anatomy:
    """Valve, veins and appendage by their shape, wherever the atrium lies and however it is turned.

    given: places or nodes of those of HOLES and "LAA" that are known; the rim or node nearest to each gets its name.
    The appendage tells left from right and a right-handed frame up from down: in a mirror image veins swap their names.
    """
    places = _checked_places(given or {}, points)
    if connected_parts(cells, len(points)).max(initial=0):
        raise InputError("the surface falls into several parts: keep the one that is the atrium")
    loops = longest_first(points, boundary_loops(cells))
    centres = np.array([points[loop].mean(axis=0) for loop in loops]).reshape(-1, 3)
    known = _known_loops(points, loops, places)
    valve, veins = _valve_and_veins(perimeters(points, loops), known)
    if "LAA" in places:
        tip = int(KDTree(points).query(places["LAA"])[1])
    else:
        tip = _found_tip(points, cells, np.concatenate([loops[i] for i in (valve, *veins)]))
    left, right = _left_and_right(centres, veins, known, points[tip])
    across = centres[left].mean(axis=0) - centres[right].mean(axis=0)
    backward = centres[veins].mean(axis=0) - centres[valve]
    height = centres @ np.cross(across, backward)
    named = {"MV": [valve], **_upper_and_lower("L", left, centres, height, known)}
    named |= _upper_and_lower("R", right, centres, height, known)
    return Anatomy(rims={name: np.concatenate([loops[i] for i in own]) for name, own in named.items()}, tip=tip)


def regions(points: Points, cells: Cells, anatomy: Anatomy) -> dict[str, Nodes]:
    """The nodes of each of REGIONS; every node belongs to one.

    The valve's are a band along its rim; a vein begins at a level of the harmonic field from valve to rim, the appendage
    at its orifice.
    """
    laplacian = fem_laplacian(make_domain(points, cells))
    valve = anatomy.rims["MV"]
    region = np.zeros(len(points), dtype=np.int64)
    patch = nodes_within(points, cells, np.array([anatomy.tip]), TIP_RADIUS_MM)
    toward_tip = harmonic(laplacian, {0.0: valve, 1.0: patch})
    region[toward_tip > _orifice(points, cells, toward_tip)] = REGIONS.index("LAA")
    toward = np.array([harmonic(laplacian, {0.0: valve, 1.0: anatomy.rims[vein]}) for vein in VEINS])
    region = np.where(toward.max(axis=0) > VEIN_CUT, REGIONS.index(VEINS[0]) + toward.argmax(axis=0), region)
    region[nodes_within(points, cells, valve, VALVE_BAND_MM)] = REGIONS.index("MV")
    return {name: np.flatnonzero(region == i) for i, name in enumerate(REGIONS)}


def region_numbers(regions: Mapping[str, Nodes], cells: Cells) -> tuple[Int[np.ndarray, " node"], Int[np.ndarray, " cell"]]:
    """The number, in REGIONS, of every node's region, and of that which most corners of a cell are in."""
    number = np.zeros(int(cells.max()) + 1, dtype=np.int64)
    for region, name in enumerate(REGIONS):
        number[regions[name]] = region
    # Of three, the middle one is that of two, if two agree.
    return number, np.sort(number[cells], axis=1)[:, 1]


def rim_lengths(points: Points, anatomy: Anatomy) -> dict[str, float]:
    """The perimeter of each hole, in mm."""
    return dict(zip(anatomy.rims, perimeters(points, list(anatomy.rims.values())).tolist(), strict=True))


def harmonic(laplacian: Laplacian, held: Mapping[float, Nodes]) -> Float[np.ndarray, " node"]:
    """The smoothest field that has each value at its nodes; no flux through rims that are not held."""
    return harmonic_fields(laplacian, list(held.values()), [list(held)])[0]


def harmonic_fields(
    laplacian: Laplacian, held: Sequence[Nodes], values: Sequence[Sequence[float]]
) -> list[Float[np.ndarray, " node"]]:
    """Harmonic fields held at the same sets of nodes, each with its own row of values: the matrix is factored once."""
    is_free = np.ones(laplacian.n_nodes, dtype=bool)
    is_free[np.concatenate(held)] = False
    if not is_free.any():
        raise InputError("every node is held: valve, veins and appendage leave nothing between them")
    rows = laplacian.stiffness[is_free]
    solve = symmetric_solver(rows[:, is_free])
    fields = []
    for row in values:
        field = np.zeros(laplacian.n_nodes)
        for nodes, value in zip(held, row, strict=True):
            field[nodes] = value
        field[is_free] = solve(-(rows @ field))
        fields.append(field)
    return fields


def along_levels(points: Points, cells: Cells, values: Float[np.ndarray, "cell 3"]) -> Float[np.ndarray, "cell 3"]:
    """The direction of level lines in each triangle, from values at its corners: grad u x n, times twice the area."""
    corners = points[cells]
    return np.einsum("nc,nci->ni", values, np.roll(corners, 1, axis=1) - np.roll(corners, -1, axis=1))


def nodes_within(points: Points, cells: Cells, start: Nodes, radius_mm: float) -> Nodes:
    """Nodes no farther from the nearest of `start` than the radius."""
    # Straight, as ways along edges stay too long however fine the mesh; those keep us on this side of the wall.
    straight = KDTree(points[start]).query(points)[0]
    along = dijkstra(_edge_graph(points, cells), indices=start, min_only=True, limit=2 * radius_mm)
    return np.flatnonzero((straight <= radius_mm) & np.isfinite(along))


def _checked_places(given: Mapping[str, Place], points: Points) -> dict[str, Float[np.ndarray, " 3"]]:
    places = {}
    for name, place in given.items():
        if name not in (*HOLES, "LAA"):
            raise InputError(f"{name!r} is no part that can be given: name some of {', '.join((*HOLES, 'LAA'))}")
        if isinstance(place, int | np.integer) and not 0 <= place < len(points):
            raise InputError(f"{name} is given as node {place}, but nodes run from 0 to {len(points) - 1}")
        places[name] = points[place] if isinstance(place, int | np.integer) else np.asarray(place, dtype=np.float64)
        if places[name].shape != (3,) or not np.isfinite(places[name]).all():
            raise InputError(f"{name} is given as {place}: give a node or three finite coordinates")
    return places


def _known_loops(points: Points, loops: list[Nodes], places: Mapping[str, np.ndarray]) -> dict[str, int]:
    """For each hole given, the number of its rim."""
    known: dict[str, int] = {}
    for name in (name for name in places if name in HOLES and loops):
        nearest = int(np.argmin([np.linalg.norm(points[loop] - places[name], axis=1).min() for loop in loops]))
        twin = next((other for other, loop in known.items() if loop == nearest), None)
        if twin:
            raise InputError(f"{twin} and {name} are given the same rim: move one of the places")
        known[name] = nearest
    return known


def _valve_and_veins(perimeter: Float[np.ndarray, " place"], known: Mapping[str, int]) -> tuple[int, list[int]]:
    """Of loops by falling perimeter: the longest is the valve's, the others are veins but for stray ones."""
    free = [i for i in range(len(perimeter)) if i not in known.values()]
    valve = known.get("MV", free[0] if free else 0)
    veins = [
        i for i in range(len(perimeter)) if i != valve and (i not in free or perimeter[i] > STRAY_HOLE * perimeter[valve])
    ]
    if not len(VEINS) <= len(veins) <= _MOST_VEINS:
        found = ", ".join(f"{length:.0f}" for length in perimeter)
        raise InputError(
            f"found {len(perimeter)} holes{f' (perimeters {found} mm)' if found else ''}, {len(veins)} of them veins; "
            f"a valve and {len(VEINS)} to {_MOST_VEINS} veins are needed: cut veins open or close other holes; "
            "a small vein can be given by its place, LIPV = x, y, z"
        )
    return valve, veins


def _found_tip(points: Points, cells: Cells, rims: Nodes) -> int:
    """The narrowest end: a place where the way to the rims is locally longest and little area lies nearer than they do.

    Depth alone often finds the middle of a wall. Longest is meant in time, for a random walk: -div grad t = 1, 0 at rims.
    """
    laplacian = fem_laplacian(make_domain(points, cells))
    is_free = np.ones(len(points), dtype=bool)
    is_free[rims] = False
    mass = laplacian.lumped_mass()
    time = np.zeros(len(points))
    time[is_free] = symmetric_solver(laplacian.stiffness[is_free][:, is_free])(mass[is_free])
    tail, head = np.concatenate([unique_edges(cells), unique_edges(cells)[:, ::-1]]).T
    highest_neighbor = np.zeros(len(points))
    np.maximum.at(highest_neighbor, tail, time[head])
    graph = _edge_graph(points, cells)
    depth = dijkstra(graph, indices=rims, min_only=True)
    ends = np.flatnonzero(time > highest_neighbor)
    # Depth^2 over the area nearer: 1 / pi in the plane, whatever the scale, and the more the longer and narrower a pouch is.
    nearer = [mass[np.isfinite(dijkstra(graph, indices=end, limit=depth[end]))].sum() for end in ends]
    narrowness = depth[ends] ** 2 / np.array(nearer)
    if narrowness.max(initial=0) < _NARROW:
        raise InputError("no appendage stands out from this surface: give the place of its tip, LAA = x, y, z")
    return int(ends[narrowness.argmax()])


def _left_and_right(
    centres: Float[np.ndarray, "place 3"], veins: list[int], known: Mapping[str, int], tip: Float[np.ndarray, " 3"]
) -> tuple[list[int], list[int]]:
    """Two groups of veins, each as close together as can be; the left is nearer to the appendage."""
    must = {letter: {loop for name, loop in known.items() if name in VEINS and name[0] == letter} for letter in "LR"}
    splits = [
        (list(one), [vein for vein in veins if vein not in one])
        for n in range(2, len(veins) - 1)
        for one in combinations(veins, n)
        if must["L"] <= set(one) and not must["R"] & set(one)
    ]
    if not splits:
        raise InputError("the veins given leave fewer than two for a side: give fewer of them, or other places")

    def spread(group: list[int]) -> float:
        return float(((centres[group] - centres[group].mean(axis=0)) ** 2).sum())

    def to_tip(group: list[int]) -> float:
        return float(np.linalg.norm(centres[group].mean(axis=0) - tip))

    # Without a vein given, each split stands in the list twice, once for either side.
    return min(splits, key=lambda split: (spread(split[0]) + spread(split[1]), to_tip(split[0])))


def _upper_and_lower(
    letter: str, group: list[int], centres: np.ndarray, height: np.ndarray, known: Mapping[str, int]
) -> dict[str, list[int]]:
    """Superior and inferior vein of a side, and further ones with the nearer of the two."""
    upper, lower = f"{letter}SPV", f"{letter}IPV"
    free = sorted((vein for vein in group if vein not in known.values()), key=lambda vein: height[vein])
    named = {upper: [known[upper] if upper in known else free.pop()]}
    named[lower] = [known[lower] if lower in known else free.pop(0)]
    for vein in free:
        nearest = min(named, key=lambda name: float(np.linalg.norm(centres[named[name][0]] - centres[vein])))
        named[nearest].append(vein)
    return named


def _orifice(points: Points, cells: Cells, field: Float[np.ndarray, " node"]) -> float:
    """The level, between tip (1) and valve (0), where the level lines open the most: where the pouch becomes the body.

    With l their length and A the area passed, l dl/dA is the whole turn of a level line: 0 in a tube, 2 pi in the plane.
    """
    values = field[cells]
    # Area times gradient, summed between two levels, is the length of their lines times the gap.
    slope = np.linalg.norm(along_levels(points, cells, values), axis=1) / 2
    band = np.clip((values.mean(axis=1) * _N_LEVELS).astype(np.int64), 0, _N_LEVELS - 1)
    length = np.bincount(band, slope, minlength=_N_LEVELS) * _N_LEVELS
    area = np.bincount(band, triangle_areas(points, cells), minlength=_N_LEVELS)
    turn = -np.diff(length**2) / np.maximum(area[1:] + area[:-1], 1e-9 * area.sum())
    turn = np.convolve(np.pad(turn, 1, mode="edge"), [0.25, 0.5, 0.25], "valid")
    # Beyond half-way lobes open and close too.
    level = np.arange(1, _N_LEVELS) / _N_LEVELS
    among = slice(1, _N_LEVELS // 2 - 1)
    return float(level[among][turn[among].argmax()])


def _edge_graph(points: Points, cells: Cells) -> csr_array:
    edges = unique_edges(cells)
    length = np.linalg.norm(points[edges[:, 0]] - points[edges[:, 1]], axis=1)
    tail, head = np.concatenate([edges, edges[:, ::-1]]).T
    return csr_array(coo_array((np.tile(length, 2), (tail, head)), shape=(len(points), len(points))))
