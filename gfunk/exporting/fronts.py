"""Fronts across a mesh in numpy: what an exported network of waves is given, for those who have no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csc_array, csr_array, diags_array, eye_array
from scipy.sparse.linalg import splu
from scipy.special import ive

from gfunk.corners import corners
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, inertia, row_rates


@dataclass(frozen=True, kw_only=True)
class Front:
    """What a file says of its fronts, as `front`. What the numbers mean is told in `gfunk.operators.fronts`."""

    speed: float
    resting: float
    threshold: float
    time_scale: float
    ray_times: Sequence[float]
    least_rise: float
    never: float
    n_bends: int
    most_bent: float
    thinnest: float


def front_inputs(
    u: Float[np.ndarray, "trajectory node"], domain: Domain, matrices: Laplacian, front: Front
) -> dict[str, np.ndarray]:
    """All that a file of waves has to be given of their fronts, by name: `ahead`, `behind` and, where it reads it, `met`.

    u is in model space. The file says of which discretisation the matrices have to be, and whether the domain is to be
    `gfunk.homogenising.homogenised`. The same as `gfunk.operators.fronts` finds, to the rounding there, where reasons are
    given.
    """
    mesh = _mesh(domain, matrices, front)
    found = [_inputs(each, mesh, front) for each in u.astype(np.float64)]
    return {name: np.stack([each[name] for each in found]).astype(u.dtype) for name in found[0]}


@dataclass(frozen=True, kw_only=True)
class _Mesh:
    """Each node's triangles, with both ends of the side opposite; and S / inertia."""

    points: Float[np.ndarray, "node dim"]
    fibres: Float[np.ndarray, "node dim"]
    ends: Int[np.ndarray, "node triangle 2"]
    # As in `Corners`, but lengths are what a plane front takes.
    sides: Float[np.ndarray, "node triangle 3"]
    sizes: Float[np.ndarray, "node triangle"]
    to_slopes: Float[np.ndarray, "node triangle 2 dim"]  # what is added to a field's slope by its rise to each end
    rates: csr_array
    fastest_rate: float

    def rises(self, field: Float[np.ndarray, " node"]) -> Float[np.ndarray, "node triangle 2"]:
        return field[self.ends] - field[:, None, None]


def _mesh(domain: Domain, matrices: Laplacian, front: Front) -> _Mesh:
    around = corners(domain)
    if not around.steps.shape[1]:
        raise InputError("waves by arrival need a mesh of triangles, and this domain has none")
    ends = np.arange(domain.n_nodes)[:, None, None] + around.steps
    tiny = np.finfo(np.float64).tiny
    sides = np.maximum(around.shape / [front.speed**2, 1, front.speed**2], [tiny**0.5, -np.inf, 0])
    ways = domain.points[ends] - domain.points[:, None, None]
    products = ways @ ways.swapaxes(2, 3)
    squares = products[..., 0, 0] * products[..., 1, 1]
    sizes = np.sqrt(np.maximum(squares - products[..., 0, 1] ** 2, 0))
    is_wide = sizes**2 > front.thinnest**2 * squares
    share = is_wide * sizes / np.maximum((is_wide * sizes).sum(axis=1, keepdims=True), tiny)
    to_slopes = share[..., None, None] * np.linalg.inv(np.where(is_wide[..., None, None], products, np.eye(2))) @ ways
    pulls = (-matrices.stiffness).maximum(0).sum(axis=1)
    slow = inertia(pulls, matrices.lumped_mass())
    return _Mesh(
        points=domain.points, fibres=domain.fibres, ends=ends, sides=sides, sizes=sizes, to_slopes=to_slopes,
        rates=csr_array(diags_array(1 / slow) @ matrices.stiffness), fastest_rate=row_rates(pulls, slow).max(),
    )  # fmt: skip


def _inputs(u: Float[np.ndarray, " node"], mesh: _Mesh, front: Front) -> dict[str, np.ndarray]:
    risen, is_active = (u - front.resting) / (front.threshold - front.resting), u >= front.threshold
    is_told = risen > front.least_rise
    rising = np.where(is_told, -np.log(np.maximum(risen, front.least_rise)) / front.speed**2, front.never)
    ahead = _marched(np.where(is_active, 0, rising), mesh)
    behind = _marched(np.where(is_active, front.never, 0), mesh)
    if not front.ray_times:
        return {"ahead": ahead, "behind": behind}
    ahead = _slowed(ahead, is_told | (ahead <= 0) | (ahead > front.never / 2), mesh, front)
    return {"ahead": ahead, "behind": behind, "met": _met(ahead, is_told, mesh, front)}


def _marched(start: Float[np.ndarray, " node"], mesh: _Mesh) -> Float[np.ndarray, " node"]:
    """The earliest times from those given: sweeps over all triangles until nothing changes."""
    now, before = start, None
    while before is None or not np.array_equal(now, before):
        _, leaving, lasting = _across(now, mesh)
        now, before = np.minimum(now, (leaving + lasting).min(axis=1)), now
    return now


def _slowed(
    ahead: Float[np.ndarray, " node"], is_known: Bool[np.ndarray, " node"], mesh: _Mesh, front: Front
) -> Float[np.ndarray, " node"]:
    """When the front will arrive, slowed by its own curvature, but where it is known."""
    known, one, now = diags_array(is_known * 1.0), eye_array(len(ahead)), ahead
    for _ in range(front.n_bends):
        rays = _rays(now, mesh)
        rows = one + (one - known) @ (diags_array(rays.lasting) @ mesh.rates - rays.before())
        right = np.where(is_known, ahead, rays.lasting + (rays.lasting > 0) * rays.bulge(now, mesh))
        found = splu(csc_array(rows)).solve(right).clip(ahead / front.most_bent, front.most_bent * ahead)
        now = np.where(is_known, ahead, found)
    return now


def _met(
    ahead: Float[np.ndarray, " node"], is_told: Bool[np.ndarray, " node"], mesh: _Mesh, front: Front
) -> Float[np.ndarray, "node feature"]:
    """What the front met on its ray to each node, summed; how long ago its ray began and what it met by then; and there."""
    rays, durations = _rays(ahead, mesh, only_forwards=True), np.array(front.ray_times)
    way = mesh.points - rays.before() @ mesh.points
    lengths = (way**2).sum(axis=1) * (mesh.fibres**2).sum(axis=1)
    along = (way * mesh.fibres).sum(axis=1) ** 2 / np.maximum(lengths, np.finfo(np.float64).tiny)
    times, *coarse = _diffused(np.column_stack([ahead, _coarseness(ahead, mesh, front)]), mesh, durations).swapaxes(0, 1)
    curved = (times - ahead[:, None]) / durations
    met = np.column_stack([along, *(each.mean(axis=1) for each in coarse), curved])
    comes = rays.lasting > 0
    begun = np.where(comes & is_told, ahead, 0)[:, None]
    # A sum up to a node is that up to where its ray comes from, unless it begins here, and what is added from there.
    added = np.where(begun > 0, begun, rays.lasting[:, None]) * met
    rows = eye_array(len(ahead)) - diags_array((comes & ~is_told) * 1.0) @ rays.before()
    summed = splu(csc_array(rows)).solve(np.hstack([added, begun, begun * met]))
    return np.hstack([summed, comes[:, None] * np.tanh(met)])


def _coarseness(ahead: Float[np.ndarray, " node"], mesh: _Mesh, front: Front) -> Float[np.ndarray, "node 2"]:
    """How coarse the mesh is to a front, by couplings and by masses."""
    rates = mesh.rates.tocoo()
    node, other = rates.coords
    by_rates = np.bincount(node, rates.data * (ahead[other] - ahead[node]) ** 4, minlength=len(ahead))
    total = np.maximum(mesh.sizes.sum(axis=1), np.finfo(np.float64).tiny)
    by_masses = (mesh.sizes * (mesh.rises(ahead) ** 2).sum(axis=2)).sum(axis=1) / total
    return np.stack([-(front.speed**4) * by_rates, front.speed**2 * by_masses], axis=1) / front.time_scale


SMALLEST_WEIGHT = 1e-12  # of a polynomial; those left out fall faster and faster


def _diffused(
    fields: Float[np.ndarray, "node feature"], mesh: _Mesh, durations: Float[np.ndarray, " _"]
) -> Float[np.ndarray, "node feature _"]:
    """exp(-duration S / inertia) of the fields for each of the durations, by Chebyshev's polynomials."""
    # Its eigenvalues x are from -1 to 1, where exp(-s (1 + x)) is the sum of these weights times T_k(x).
    stretched = 2 / mesh.fastest_rate * mesh.rates - eye_array(len(fields))
    s, k = durations * mesh.fastest_rate / 2, 0
    weights, term, later, total = ive(0, s), fields, stretched @ fields, np.zeros((*fields.shape, len(durations)))
    while np.abs(weights).max() > SMALLEST_WEIGHT:
        total += np.multiply.outer(term, weights)
        term, later, k = later, 2 * (stretched @ later) - term, k + 1
        weights = 2 * (-1) ** k * ive(k, s)
    return total


@dataclass(frozen=True, kw_only=True)
class _Rays:
    """How a front comes to each node: from a place on the opposite side of one of its triangles."""

    ends: Int[np.ndarray, "node 2"]
    shares: Float[np.ndarray, "node 2"]
    lasting: Float[np.ndarray, " node"]  # 0 where the front was at first, or never comes

    def before(self) -> csr_array:
        """The matrix that gives a field where each node's ray comes from, linear along the side."""
        n = len(self.ends)
        return csr_array((self.shares.ravel(), self.ends.ravel(), np.arange(0, 2 * n + 1, 2)), shape=(n, n))

    def bulge(self, field: Float[np.ndarray, " node"], mesh: _Mesh) -> Float[np.ndarray, " node"]:
        """How much more the field is there, by its slopes."""
        slopes = np.einsum("nte,ntei->ni", mesh.rises(field), mesh.to_slopes)
        side, rise = (each[self.ends[:, 1]] - each[self.ends[:, 0]] for each in (mesh.points, field))
        at_first, at_second = np.einsum("nei,ni->en", slopes[self.ends], side) - rise
        share, other = self.shares.T
        return share * other * (share * at_first - other * at_second)


def _rays(ahead: Float[np.ndarray, " node"], mesh: _Mesh, *, only_forwards: bool = False) -> _Rays:
    place, leaving, lasting = _across(ahead, mesh)
    is_way = mesh.ends[..., 0] != mesh.ends[..., 1]
    if only_forwards:
        is_way = is_way & (leaving < ahead[:, None])
    soonest = np.where(is_way, leaving + lasting, np.inf).argmin(axis=1)
    chosen = np.arange(len(ahead)), soonest
    share = place[chosen]
    comes = (ahead > 0) & is_way[chosen]
    return _Rays(
        ends=mesh.ends[chosen], shares=np.stack([1 - share, share], axis=1), lasting=np.where(comes, lasting[chosen], 0)
    )


def _across(ahead: Float[np.ndarray, " node"], mesh: _Mesh) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each node's triangles: where on the side opposite the soonest way leaves it, when, and how long it takes."""
    (first, second), (side, offset, height) = np.moveaxis(ahead[mesh.ends], 2, 0), np.moveaxis(mesh.sides, 2, 0)
    rise = second - first
    slack = side - rise**2
    bend = -rise * np.sqrt(height / (side * np.maximum(slack, 1e-6 * side)))
    place = np.where(slack > 0, np.clip(bend - offset, 0, 1), rise < 0)
    leaving = np.where(place < 1, first + place * rise, second)
    return place, leaving, np.sqrt(side * (place + offset) ** 2 + height)
