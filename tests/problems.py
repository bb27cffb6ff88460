"""Small domains, and problems whose solution is known."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import Delaunay
from scipy.spatial.transform import Rotation
from torch import Tensor, nn

from gfunk.batch import Batch, pack
from gfunk.domain import Domain, fibre_tensors, make_domain, perturbed_square, refined, unit_square
from gfunk.laplacian import Discretisation, Laplacian, laplacian
from gfunk.operators.make import NetworkConfig, make_operator
from gfunk.spectrum import lowest_modes


def with_diffusion(domain: Domain, tensor: Float[np.ndarray, "dim dim"]) -> Domain:
    """The same domain with one K everywhere."""
    return make_domain(domain.points, domain.cells, np.tile(tensor, (domain.n_nodes, 1, 1)))


def anisotropic_square(n_side: int, ratio: float) -> Domain:
    """A regular square, K = diag(ratio, 1)."""
    return with_diffusion(unit_square(n_side), np.diag([ratio, 1.0]))


def crossed_square(n_side: int, tensor: Float[np.ndarray, "2 2"]) -> Domain:
    """A regular square whose diagonals alternate, one K everywhere.

    With all diagonals one way, two corners weigh twice the others, and a sampled cosine has a mean that never decays.
    """
    square = unit_square(n_side)
    corner = square.cells[: len(square.cells) // 2, 0]
    right, up, across = corner + n_side, corner + 1, corner + n_side + 1
    is_odd = (np.add(*np.divmod(corner, n_side)) % 2 == 1)[:, None]
    lower = np.where(is_odd, np.stack([corner, right, up], 1), np.stack([corner, right, across], 1))
    upper = np.where(is_odd, np.stack([right, across, up], 1), np.stack([corner, across, up], 1))
    return with_diffusion(make_domain(square.points, np.concatenate([lower, upper])), tensor)


def moved_square(max_cell: float, tensor: Float[np.ndarray, "dim dim"], seed: int = 0) -> Domain:
    """A square with randomly moved nodes and one K everywhere."""
    return with_diffusion(perturbed_square(max_cell, np.random.default_rng(seed)), tensor)


def turning_fibre_angle(points: Float[np.ndarray, "node 2"]) -> Float[np.ndarray, " node"]:
    """The angle of T3 in physics.md: no two places alike, no symmetry anywhere."""
    x, y = points.T
    return 0.7 + x + np.sin(2 * y)


def turning_square(max_cell: float, ratio: float = 9.0, seed: int = 0) -> Domain:
    """A square with randomly moved nodes whose fibres turn from place to place; it has no symmetry."""
    mesh = perturbed_square(max_cell, np.random.default_rng(seed))
    angle = turning_fibre_angle(mesh.points)
    tensors = fibre_tensors(np.stack([np.cos(angle), np.sin(angle)], 1), ratio, 1.0)
    return make_domain(mesh.points, mesh.cells, tensors)


def rotated_tensor(angle: float, along: float, across: float) -> Float[np.ndarray, "2 2"]:
    return fibre_tensors(np.array([[np.cos(angle), np.sin(angle)]]), along, across)[0]


def sphere(n_refinements: int) -> Domain:
    """The unit sphere: an icosahedron, every triangle cut into four and pushed out again and again; K = identity."""
    golden = (1 + np.sqrt(5)) / 2
    points = np.array([[0, a, b * golden] for a in (-1, 1) for b in (-1, 1)], dtype=float)
    points = np.concatenate([np.roll(points, shift, axis=1) for shift in range(3)])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    gap = np.linalg.norm(points[:, None] - points[None], axis=2)
    is_edge = (gap > 0) & (gap < 1.1)
    triples = [(i, j, k) for i in range(12) for j in range(i) for k in range(j)]
    cells = np.array([(i, j, k) for i, j, k in triples if is_edge[i, j] and is_edge[j, k] and is_edge[i, k]])
    domain = make_domain(points, cells)
    for _ in range(n_refinements):
        points, cells = refined(domain)
        domain = make_domain(points / np.linalg.norm(points, axis=1, keepdims=True), cells)
    return domain


def box(n_side: int, sides: tuple[float, float, float] = (1.0, 0.8, 0.6)) -> Domain:
    """A box of n_side^3 nodes, each brick cut into six tetrahedra along its diagonal; K = identity."""
    grid = np.stack(np.meshgrid(*[np.arange(n_side)] * 3, indexing="ij"), -1).reshape(-1, 3)
    stride = np.array([n_side**2, n_side, 1])
    first = grid[(grid < n_side - 1).all(axis=1)] @ stride
    walks = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    cells = [
        np.stack([first, first + stride[a], first + stride[a] + stride[b], first + stride.sum()], 1) for a, b, _ in walks
    ]
    return make_domain(grid / (n_side - 1) * np.array(sides), np.concatenate(cells))


def shaken_box(n_side: int, tensor: Float[np.ndarray, "3 3"], seed: int = 0) -> Domain:
    """A box of tetrahedra with randomly moved nodes and one K everywhere."""
    domain = box(n_side)
    move = np.random.default_rng(seed).uniform(-0.1, 0.1, domain.points.shape) / (n_side - 1)
    return with_diffusion(replace(domain, points=domain.points + move), tensor)


def cloud(n_nodes: int, tensor: Float[np.ndarray, "dim dim"], seed: int = 0, grading: float = 1.0) -> Domain:
    """Random points of the unit square or cube without cells; x = u^grading crowds them towards x = 0."""
    points = np.random.default_rng(seed).uniform(size=(n_nodes, len(tensor)))
    points[:, 0] **= grading
    return make_domain(points, diffusion=np.tile(tensor, (n_nodes, 1, 1)))


def sliver_mesh(seed: int = 0) -> Domain:
    """A Delaunay mesh of random points pressed flat: thin triangles of every kind, obtuse ones too."""
    mesh = Delaunay(np.random.default_rng(seed).uniform(size=(60, 2)))
    return make_domain(mesh.points * np.array([1.0, 0.01]), mesh.simplices.astype(np.int64))


def batch_of(
    *domains: Domain, n_modes: int = 9, how: Discretisation | None = None, dtype: torch.dtype = torch.float64
) -> Batch:
    """Domains with their Laplacians and lowest modes, packed."""
    matrices = [laplacian(domain, how) for domain in domains]
    return pack([(domain, each, lowest_modes(each, n_modes)) for domain, each in zip(domains, matrices, strict=True)], dtype)


def random_field(n_batch: int, n_nodes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n_batch, n_nodes, 1, generator=torch.Generator().manual_seed(1), dtype=dtype)


def seeded(config: NetworkConfig) -> nn.Module:
    """The same network every time, its real parameters in float64."""
    torch.manual_seed(2)
    return make_operator(config).double()


def relabelled(domain: Domain, order: Int[np.ndarray, " node"]) -> Domain:
    """The same domain; its node i was order[i] before."""
    place = np.argsort(order)
    diffusion = domain.diffusion[order] if domain.diffusion_at == "node" else domain.diffusion
    return replace(
        domain, points=domain.points[order], cells=place[domain.cells], diffusion=diffusion, fibres=domain.fibres[order]
    )


def turned(domain: Domain, rotation: Float[np.ndarray, "dim dim"]) -> Domain:
    """Points, K and fibres rotated together."""
    return replace(
        domain,
        points=domain.points @ rotation.T,
        diffusion=rotation @ domain.diffusion @ rotation.T,
        fibres=domain.fibres @ rotation.T,
    )


def stretched(domain: Domain, factor: float) -> Domain:
    """Lengths times the factor, K with them: the same tissue in another unit."""
    return replace(domain, points=factor * domain.points, diffusion=factor**2 * domain.diffusion)


def random_rotation(n_dims: int, seed: int) -> Float[np.ndarray, "dim dim"]:
    if n_dims == 3:
        return Rotation.random(rng=np.random.default_rng(seed)).as_matrix()
    angle = np.random.default_rng(seed).uniform(0, 2 * np.pi)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def rayleigh_quotient(laplacian: Laplacian, field: Float[np.ndarray, " node"]) -> float:
    return float(field @ (laplacian.stiffness @ field) / (field @ (laplacian.mass @ field)))


def effective_anisotropy(domain: Domain, laplacian: Laplacian) -> float:
    """How much faster a wave along x decays than one along y: K_xx / K_yy if the Laplacian is right."""
    along, across = np.cos(np.pi * domain.points[:, :2]).T
    return rayleigh_quotient(laplacian, along) / rayleigh_quotient(laplacian, across)


@dataclass(frozen=True, kw_only=True)
class SmoothField:
    """A field of the plane with its first and second derivatives."""

    value: Callable[[np.ndarray], np.ndarray]
    gradient: Callable[[np.ndarray], np.ndarray]
    hessian: Callable[[np.ndarray], np.ndarray]


def _of_products(f: Callable, df: Callable, d2f: Callable) -> SmoothField:
    """f(x) f(y)."""

    def hessian(p: np.ndarray) -> np.ndarray:
        x, y = p.T
        mixed = df(x) * df(y)
        return np.stack([np.stack([d2f(x) * f(y), mixed], -1), np.stack([mixed, f(x) * d2f(y)], -1)], -2)

    return SmoothField(
        value=lambda p: f(p[:, 0]) * f(p[:, 1]),
        gradient=lambda p: np.stack([df(p[:, 0]) * f(p[:, 1]), f(p[:, 0]) * df(p[:, 1])], 1),
        hessian=hessian,
    )


pi = np.pi
# No flux through the sides of the unit square if K is diagonal.
cosines = _of_products(lambda s: np.cos(pi * s), lambda s: -pi * np.sin(pi * s), lambda s: -(pi**2) * np.cos(pi * s))
# Flat along all four sides: no flux whatever K is.
bump = _of_products(
    lambda s: np.sin(pi * s) ** 2, lambda s: pi * np.sin(2 * pi * s), lambda s: 2 * pi**2 * np.cos(2 * pi * s)
)
# Flux through every side.
slanted = _of_products(lambda s: np.sin(2 * s + 0.4), lambda s: 2 * np.cos(2 * s + 0.4), lambda s: -4 * np.sin(2 * s + 0.4))


def turning_divergence(field: SmoothField, points: Float[np.ndarray, "node 2"], ratio: float) -> Float[np.ndarray, " node"]:
    """div(K grad u) for the fibres of `turning_fibre_angle`: (div K) . grad u + K : hessian u."""
    angle, twice = turning_fibre_angle(points), 2 * turning_fibre_angle(points)
    tensors = fibre_tensors(np.stack([np.cos(angle), np.sin(angle)], 1), ratio, 1.0)
    by_angle = (ratio - 1) * np.array([[-np.sin(twice), np.cos(twice)], [np.cos(twice), np.sin(twice)]])
    angle_gradient = np.stack([np.ones(len(points)), 2 * np.cos(2 * points[:, 1])])
    row_divergence = np.einsum("ijn,jn->ni", by_angle, angle_gradient)
    return np.einsum("ni,ni->n", row_divergence, field.gradient(points)) + np.einsum(
        "nij,nij->n", tensors, field.hessian(points)
    )


def boundary_load(domain: Domain, field: SmoothField) -> Float[np.ndarray, " node"]:
    """The flux n . K grad u through the rim of a planar mesh, integrated over the hat functions of its nodes."""
    sides = np.concatenate([domain.cells[:, [0, 1]], domain.cells[:, [1, 2]], domain.cells[:, [2, 0]]])
    opposite = np.concatenate([domain.cells[:, 2], domain.cells[:, 0], domain.cells[:, 1]])
    _, first, count = np.unique(np.sort(sides, axis=1), axis=0, return_index=True, return_counts=True)
    rim, inner = sides[first[count == 1]], opposite[first[count == 1]]
    along = domain.points[rim[:, 1]] - domain.points[rim[:, 0]]
    normal = np.stack([along[:, 1], -along[:, 0]], 1)  # as long as the side
    inward = np.einsum("si,si->s", normal, domain.points[inner] - domain.points[rim[:, 0]]) > 0
    normal[inward] *= -1
    flow = np.einsum("nij,nj->ni", domain.node_diffusion(), field.gradient(domain.points))
    through = np.einsum("si,sai->sa", normal, flow[rim])
    load = through @ np.array([[2, 1], [1, 2]]) / 6
    return np.bincount(rim.ravel(), load.ravel(), minlength=domain.n_nodes)
