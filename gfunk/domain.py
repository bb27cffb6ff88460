"""Domain: where the PDE lives, and how fast it diffuses there; squares, rectangles and slabs; the checks at the door."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import ceil
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.spatial import Delaunay, KDTree

from gfunk.errors import InputError
from gfunk.small_matrices import are_positive
from gfunk.surface import dot, sides_of

FLAT_AT_THE_HULL = 0.01  # area over longest side squared


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Points, the simplices between them, and a diffusion tensor K at every node or cell.

    Triangles in the plane (dim 2, 3 corners), triangles on a surface (dim 3, 3 corners), tetrahedra (dim 3, 4 corners);
    a bare cloud of points has no cells (shape (0, dim + 1)). Everything is checked when the record is made.
    """

    points: Float[np.ndarray, "node dim"]
    cells: Int[np.ndarray, "cell corner"]
    diffusion: Float[np.ndarray, "site dim dim"]
    diffusion_at: Literal["node", "cell"]
    # Main direction of diffusion, a unit vector; f and -f mean the same to us, the rivals see the sign.
    fibres: Float[np.ndarray, "node dim"]
    # What was changed or assumed where it was read from a file, one sentence each.
    repairs: tuple[str, ...] = ()
    # Nodes by the name of the part they belong to, where parts are known.
    regions: Mapping[str, Int[np.ndarray, " _"]] = field(default_factory=dict)

    def __post_init__(self):
        _check_points(self.points)
        _check_cells(self.cells, self.points)
        n_sites = len(self.points) if self.diffusion_at == "node" else len(self.cells)
        if len(self.diffusion) != n_sites:
            raise InputError(
                f"{len(self.diffusion)} diffusion tensors for {n_sites} {self.diffusion_at}s: give one for each"
            )
        _check_diffusion(self.diffusion, self.diffusion_at, self.points.shape[1])
        if self.fibres.shape != self.points.shape or not np.isfinite(self.fibres).all():
            raise InputError(f"fibres must be finite and of the points' shape {self.points.shape}, not {self.fibres.shape}")
        for name, nodes in self.regions.items():
            if ((nodes < 0) | (nodes >= len(self.points))).any():
                raise InputError(f"region {name!r} names nodes outside 0 to {len(self.points) - 1}")

    @property
    def n_nodes(self) -> int:
        return len(self.points)

    @property
    def has_cells(self) -> bool:
        return len(self.cells) > 0

    def cell_diffusion(self) -> Float[np.ndarray, "cell dim dim"]:
        """K per cell: as given, or the mean of the corners (exact enough for P1, order 2)."""
        return self.diffusion if self.diffusion_at == "cell" else self.diffusion[self.cells].mean(axis=1)

    def node_diffusion(self) -> Float[np.ndarray, "node dim dim"]:
        """K per node: as given, or the mean over the cells around the node, weighted by their size."""
        if self.diffusion_at == "node":
            return self.diffusion
        size = cell_sizes(self.points, self.cells)
        corner = self.cells.ravel()
        weight = np.repeat(size, self.cells.shape[1])
        total = np.bincount(corner, weight, minlength=self.n_nodes)
        mean = np.zeros((self.n_nodes, *self.diffusion.shape[1:]))
        np.add.at(mean, corner, weight[:, None, None] * np.repeat(self.diffusion, self.cells.shape[1], axis=0))
        return mean / total[:, None, None]


def make_domain(
    points: Float[np.ndarray, "node dim"],
    cells: Int[np.ndarray, "cell corner"] | None = None,
    diffusion: Float[np.ndarray, "site dim dim"] | None = None,
    *,
    diffusion_at: Literal["node", "cell"] = "node",
    fibres: Float[np.ndarray, "node dim"] | None = None,
    repairs: tuple[str, ...] = (),
    regions: Mapping[str, Int[np.ndarray, " _"]] | None = None,
) -> Domain:
    """A Domain with what is usual filled in: no cells, K = identity, fibres along K's main axis."""
    points = np.ascontiguousarray(points, dtype=np.float64)
    if points.ndim != 2:
        raise InputError(f"points must be a table with one row per node, not an array of shape {points.shape}")
    dim = points.shape[1]
    if cells is None:
        cells = np.empty((0, dim + 1), dtype=np.int64)
    _check_whole_numbers(cells)
    if diffusion is None:
        diffusion = np.broadcast_to(np.eye(dim), (len(points), dim, dim)).copy()
        if fibres is None and dim:
            fibres = np.broadcast_to(np.eye(dim)[-1], points.shape).copy()
    draft = Domain(
        points=points,
        cells=np.ascontiguousarray(cells, dtype=np.int64),
        diffusion=np.asarray(diffusion, dtype=np.float64),
        diffusion_at=diffusion_at,
        fibres=np.zeros_like(points) if fibres is None else np.asarray(fibres, dtype=np.float64),
        repairs=repairs,
        regions=dict(regions or {}),
    )
    return draft if fibres is not None else replace(draft, fibres=np.linalg.eigh(draft.node_diffusion())[1][..., -1])


def fibre_tensors(
    fibres: Float[np.ndarray, "site dim"], along: float | np.ndarray, across: float | np.ndarray
) -> Float[np.ndarray, "site dim dim"]:
    """K = across I + (along - across) f f^T (Eqs. 15 and 19): blind to the fibre's sign."""
    length = np.linalg.norm(fibres, axis=1, keepdims=True)
    if not (length > 0).all():
        raise InputError(f"fibre {np.flatnonzero(~(length[:, 0] > 0))[0]} is zero: every fibre needs a direction")
    unit = fibres / length
    along, across = np.broadcast_to(along, len(unit)), np.broadcast_to(across, len(unit))
    outer = unit[:, :, None] * unit[:, None, :]
    return across[:, None, None] * np.eye(fibres.shape[1]) + (along - across)[:, None, None] * outer


def cell_sizes(points: Float[np.ndarray, "node dim"], cells: Int[np.ndarray, "cell corner"]) -> Float[np.ndarray, " cell"]:
    """Length, area or volume of each simplex, wherever it lies in space."""
    edges = edges_of(points, cells)
    if len(edges) == 2:
        # Written out, as for many small matrices a library's determinant takes several times as long.
        one, other = edges
        squares = dot(one, one) * dot(other, other)
        return np.sqrt(np.maximum(squares - dot(one, other) ** 2, 0)) / 2
    sides = np.stack(edges, axis=1)
    gram = sides @ sides.swapaxes(1, 2)
    factorial = {1: 1, 3: 6}[len(edges)]
    return np.sqrt(np.maximum(np.linalg.det(gram), 0)) / factorial


def edges_of(points: Float[np.ndarray, "node dim"], cells: Int[np.ndarray, "cell corner"]) -> list[np.ndarray]:
    """From each simplex's first corner to the others, one after the other."""
    # Rows are taken several times as fast as they are indexed.
    first, *others = (points.take(corner, axis=0) for corner in cells.T)
    return [other - first for other in others]


def rectangle(width: float, height: float, edge: float) -> Domain:
    """A regular triangulation of [0, width] x [0, height] with legs no longer than `edge`; K = identity."""
    if not (width > 0 and height > 0 and edge > 0):
        raise InputError(f"a rectangle needs positive width, height and edge, not {width}, {height}, {edge}")
    n_x, n_y = max(1, ceil(width / edge - 1e-9)), max(1, ceil(height / edge - 1e-9))
    x, y = np.meshgrid(np.linspace(0, width, n_x + 1), np.linspace(0, height, n_y + 1), indexing="ij")
    corner = (np.arange(n_x)[:, None] * (n_y + 1) + np.arange(n_y)).ravel()
    right, up, across = corner + n_y + 1, corner + 1, corner + n_y + 2
    cells = np.concatenate([np.stack([corner, right, across], 1), np.stack([corner, across, up], 1)])
    return make_domain(np.stack([x.ravel(), y.ravel()], 1), cells)


def slab(width: float, height: float, depth: float, edge: float) -> Domain:
    """[0, width] x [0, height] x [0, depth] in bricks no longer than `edge`, each cut into six tetrahedra; K = identity."""
    sides = np.array([width, height, depth])
    if not ((sides > 0).all() and edge > 0):
        raise InputError(f"a slab needs positive sides and edge, not {width}, {height}, {depth}, {edge}")
    n_bricks = np.maximum(1, np.ceil(sides / edge - 1e-9).astype(np.int64))
    grid = np.stack(np.meshgrid(*[np.arange(n + 1) for n in n_bricks], indexing="ij"), -1).reshape(-1, 3)
    step = np.array([(n_bricks[1] + 1) * (n_bricks[2] + 1), n_bricks[2] + 1, 1])
    corner = grid[(grid < n_bricks).all(axis=1)] @ step
    # From corner to opposite corner along three edges, in each of the six orders: neighbouring bricks agree on their face.
    walks = [np.cumsum([0, *step[list(order)]]) for order in permutations(range(3))]
    return make_domain(grid / n_bricks * sides, np.concatenate([corner[:, None] + walk for walk in walks]))


def unit_square(n_side: int) -> Domain:
    """The unit square with n_side x n_side nodes, x running slowest; K = identity."""
    if n_side < 2:
        raise InputError(f"a square needs at least 2 nodes a side, not {n_side}")
    return rectangle(1.0, 1.0, 1.0 / (n_side - 1))


def perturbed_square(max_cell: float, rng: np.random.Generator) -> Domain:
    """A Delaunay mesh of the unit square with randomly moved nodes and no triangle larger than `max_cell`.

    Nodes of the boundary slide along it, corners stay. The largest of the moved triangles is about 1.7 times their mean.
    """
    if not 0 < max_cell <= 0.5:
        raise InputError(f"cells of the unit square can be no larger than 0.5 and must be positive, not {max_cell}")
    n_cells_a_side = ceil(np.sqrt(1.7 / (2 * max_cell)))
    grid = unit_square(n_cells_a_side + 1)
    move = rng.uniform(-0.25, 0.25, grid.points.shape) / n_cells_a_side
    move[(grid.points == 0) | (grid.points == 1)] = 0
    while True:
        points = grid.points + move
        cells = Delaunay(points).simplices.astype(np.int64)
        size = cell_sizes(points, cells)
        # Qhull may close a straight side with flat triangles.
        cells, size = cells[size > 1e-12], size[size > 1e-12]
        if size.max() <= max_cell:
            return make_domain(points, cells)
        move *= 0.9


def rotated(domain: Domain, degrees: float) -> Domain:
    """The domain turned about the z axis, fibres and diffusion with it."""
    angle = np.deg2rad(degrees)
    turn = np.eye(domain.points.shape[1])
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    tensors = turn @ domain.diffusion @ turn.T
    return replace(
        domain,
        points=domain.points @ turn.T,
        fibres=domain.fibres @ turn.T,
        diffusion=(tensors + tensors.swapaxes(1, 2)) / 2,
    )


def refined(domain: Domain) -> tuple[Float[np.ndarray, "node dim"], Int[np.ndarray, "cell corner"]]:
    """Points and cells with every triangle cut into four; the old nodes come first, unmoved.

    K is not carried over: on a finer mesh it should be taken anew from the field it samples.
    """
    if domain.cells.shape[1] != 3 or not domain.has_cells:
        raise InputError("only triangle meshes can be refined")
    sides = sides_of(domain.cells)
    (a, b, c), (ab, bc, ca) = domain.cells.T, domain.n_nodes + sides.edge.reshape(-1, 3).T
    cells = np.concatenate([np.stack(t, 1) for t in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))])
    one, other = (domain.points.take(end, axis=0) for end in sides.edges.T)
    return np.concatenate([domain.points, (one + other) / 2]), cells


def halved(domain: Domain, n_times: int) -> Domain:
    """Every triangle cut into four alike, n_times; the old nodes come first, and each part has the K that the whole had."""
    for _ in range(n_times):
        points, cells = refined(domain)
        tensors = np.tile(domain.cell_diffusion(), (4, 1, 1))
        domain = make_domain(points, cells, tensors, diffusion_at="cell", fibres=np.zeros_like(points))
    return domain


def voxel_means(
    points: Float[np.ndarray, "node dim"], voxel: float
) -> tuple[Float[np.ndarray, "place dim"], Int[np.ndarray, " place"]]:
    """One point for each cube of the grid that holds any: their mean, and the number of the node nearest to it.

    A cube is centred on the lowest corner of all points, as in open3d's voxel_down_sample.
    """
    cube = np.floor((points - points.min(axis=0)) / voxel + 0.5 + 1e-9).astype(np.int64)
    _, group, count = np.unique(cube, axis=0, return_inverse=True, return_counts=True)
    group = group.ravel()
    means = np.stack([np.bincount(group, column) for column in points.T], axis=1) / count[:, None]
    # A hair aside, so that of nodes equally near it is always the one on the same side.
    return means, np.asarray(KDTree(points).query(means - 1e-6 * voxel)[1])


def triangulated(points: Float[np.ndarray, "node 2"]) -> Int[np.ndarray, "cell 3"]:
    """Delaunay triangles over a cloud in the plane, up to its convex hull; those without area are left out.

    Along a hull that is not quite straight lie triangles with next to no height, which would join nodes far apart: they go.
    """
    cells = Delaunay(points).simplices.astype(np.int64)
    cells = cells[cell_sizes(points, cells) > 1e-9 * np.ptp(points, axis=0).max() ** 2]
    while True:
        sides = sides_of(cells)
        length = np.linalg.norm(points[sides.nodes[:, 1]] - points[sides.nodes[:, 0]], axis=1).reshape(-1, 3)
        is_at_rim = (sides.n_triangles == 1)[sides.edge].reshape(-1, 3).any(axis=1)
        is_flat = cell_sizes(points, cells) < FLAT_AT_THE_HULL * length.max(axis=1) ** 2
        # No node is left alone.
        is_held = np.zeros(len(points), dtype=bool)
        is_held[cells[~is_flat]] = True
        goes = is_flat & is_at_rim & is_held[cells].all(axis=1)
        if not goes.any():
            return cells
        cells = cells[~goes]


def interpolation(domain: Domain, places: Float[np.ndarray, "place dim"]) -> csr_array:
    """Matrix (place, node) of linear interpolation in the plane, over the Delaunay triangles of the nodes."""
    if domain.points.shape[1] != 2:
        raise InputError("linear interpolation is for planar domains")
    mesh = Delaunay(domain.points)
    inside = mesh.find_simplex(places)
    if (inside < 0).any():
        centre = domain.points.mean(axis=0)
        # Rounding can put a place on the rim outside: pull it in by a hair.
        places = np.where((inside < 0)[:, None], centre + (places - centre) * (1 - 1e-9), places)
        inside = mesh.find_simplex(places)
    if (inside < 0).any():
        raise InputError(f"place {np.flatnonzero(inside < 0)[0]} lies outside the domain")
    transform = mesh.transform[inside]
    first = np.einsum("pij,pj->pi", transform[:, :2], places - transform[:, 2])
    weights = np.concatenate([first, 1 - first.sum(1, keepdims=True)], axis=1)
    row = np.repeat(np.arange(len(places)), 3)
    return csr_array((weights.ravel(), (row, mesh.simplices[inside].ravel())), shape=(len(places), domain.n_nodes))


def _check_points(points: np.ndarray):
    if points.ndim != 2 or points.shape[1] not in (2, 3) or len(points) < 2:
        raise InputError(f"a domain needs at least 2 points in 2 or 3 dimensions, not an array of shape {points.shape}")
    broken = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if broken.size:
        raise InputError(f"node {broken[0]} has the coordinates {points[broken[0]]}: all must be finite numbers")


def _check_cells(cells: np.ndarray, points: np.ndarray):
    if cells.ndim != 2 or cells.shape[1] not in (3, 4) or cells.shape[1] > points.shape[1] + 1:
        raise InputError(
            f"cells must be triangles or (in 3-D) tetrahedra, one row each, not an array of shape {cells.shape}"
        )
    _check_whole_numbers(cells)
    if not len(cells):
        return
    if cells.min() < 0 or cells.max() >= len(points):
        cell, corner = np.argwhere((cells < 0) | (cells >= len(points)))[0]
        raise InputError(f"cell {cell} names node {cells[cell, corner]}, but nodes run from 0 to {len(points) - 1}")
    loose = np.flatnonzero(np.bincount(cells.ravel(), minlength=len(points)) == 0)
    if loose.size:
        raise InputError(f"node {loose[0]} belongs to no cell ({loose.size} such nodes): remove them or give their cells")
    size = cell_sizes(points, cells)
    longest = np.sqrt(np.max([dot(edge, edge) for edge in edges_of(points, cells)], axis=0))
    flat = np.flatnonzero(~(size > 1e-12 * longest ** (cells.shape[1] - 1)))
    if flat.size:
        raise InputError(f"cell {flat[0]} (nodes {cells[flat[0]].tolist()}) has no area or volume ({flat.size} such cells)")


def _check_whole_numbers(cells: np.ndarray):
    if not np.issubdtype(cells.dtype, np.integer):
        raise InputError(f"cells hold node numbers, so integers, not {cells.dtype}")


def _check_diffusion(diffusion: np.ndarray, site: str, dim: int):
    if diffusion.shape[1:] != (dim, dim):
        raise InputError(f"each {site} needs a {dim} x {dim} diffusion tensor, not an array of shape {diffusion.shape}")
    is_finite = np.isfinite(diffusion)
    if not is_finite.all():
        raise InputError(f"the diffusion tensor of {site} {np.argwhere(~is_finite)[0, 0]} is not finite")
    scale = _largest(diffusion)
    skew = np.flatnonzero(_largest(diffusion - diffusion.swapaxes(1, 2)) > 1e-8 * scale)
    if skew.size:
        raise InputError(f"the diffusion tensor of {site} {skew[0]} is not symmetric")
    weak = np.flatnonzero(~are_positive(diffusion - 1e-12 * scale[:, None, None] * np.eye(dim)))
    if weak.size:
        lowest = np.linalg.eigvalsh(diffusion[weak[0]])[0]
        raise InputError(
            f"the diffusion tensor of {site} {weak[0]} is singular or negative (lowest eigenvalue {lowest:.3g}): "
            "K must be positive in every direction, on surfaces along the normal too"
        )


def _largest(tensors: np.ndarray) -> np.ndarray:
    """The size of each one's largest entry; over rows of few a library's maximum takes several times as long."""
    return np.abs(tensors.reshape(len(tensors), -1).T, order="C").max(axis=0, initial=0)
