"""Fronts across a mesh: when they arrive, at one speed or slowed by their curvature, and what they meet on the way.

Nothing here is learned: all is found of a first state, of triangles and of K, by which lengths are measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, SuperLU, bicgstab, spilu, splu
from torch import Tensor

from gfunk.batch import Batch
from gfunk.errors import InputError
from gfunk.operators.gfunk import Recurrence, diffusion


@runtime_checkable
class FrontConfig(Protocol):
    """What has to be known of a wave; its values and their reasons are those of `gfunk.operators.arrival.ArrivalConfig`."""

    @property
    def speed(self) -> float: ...
    @property
    def resting(self) -> float: ...
    @property
    def threshold(self) -> float: ...
    @property
    def time_scale(self) -> float: ...
    @property
    def ray_times(self) -> tuple[float, ...]: ...


NEVER = 1e4  # in the network's unit of time
LEAST_RISE = 0.03  # of the way to the threshold; less may be another front's foot, or rounding


@torch.no_grad()
def front_times(
    u: Float[Tensor, "batch node channel"], batch: Batch, config: FrontConfig
) -> tuple[Float[Tensor, "batch node 1"], Float[Tensor, "batch node 1"]]:
    """When the front will arrive at each place, 0 where it has been; how long ago it came, 0 where it has not."""
    if not batch.ends.shape[2]:
        raise InputError("waves by arrival need a mesh of triangles, and this domain has none")
    value, never = u[..., 0], NEVER * config.time_scale
    is_active = value >= config.threshold
    risen = _risen(value, config)
    rising = torch.where(risen > LEAST_RISE, -torch.log(risen.clamp_min(LEAST_RISE)) / config.speed**2, never)
    starts = torch.stack([torch.where(is_active, 0, rising), torch.where(is_active, never, 0)])
    found = marched(config.speed * starts, batch) / config.speed
    ahead, behind = torch.where(batch.is_node, found, 0)[..., None]
    return ahead, behind


# Before it is asked whether anything has changed, for which a GPU has to wait.
MARCHES_AT_ONCE, SWEEPS_AT_ONCE = 4, 16
HAS_TRITON = find_spec("triton") is not None
# Times that a CPU marches at once, in the mean time along an edge: in less it would take more passes, in more more work.
WINDOW = 4.0


def marched(start: Float[Tensor, "_ batch node"], batch: Batch) -> Float[Tensor, "_ batch node"]:
    """The earliest times from those given, |grad T|_K = 1: each from its triangles, again until nothing changes."""
    ways = ways_across(batch).to(start.dtype)
    if start.device.type == "cpu":
        # The same steps, less those of nodes around which nothing has changed: a front is a line, so most are.
        found = start.clone()
        for number, now in enumerate(found.unbind(1)):
            domain = number if batch.n_domains > 1 else 0
            ends, shape = batch.ends[domain].movedim(-1, 0).contiguous(), ways[:, domain].contiguous()
            for each in now:
                _march_where_it_changes(each, ends, shape)
        return found
    if HAS_TRITON:
        from gfunk.operators import front_kernels

        return front_kernels.marched(start, batch.points.to(start.dtype), batch.ends, ways)
    return swept_across(start, batch, ways)


def swept_across(
    start: Float[Tensor, "_ batch node"], batch: Batch, ways: Float[Tensor, "5 domain node triangle"]
) -> Float[Tensor, "_ batch node"]:
    """The same by steps of all nodes at once."""
    n_starts, n_batch, n_nodes = start.shape
    ends = batch.ends.movedim(-1, 1)
    index = ends.flatten(1).expand(n_starts, n_batch, -1)

    now = start
    for _ in range(n_nodes // MARCHES_AT_ONCE + 2):
        before = now
        for _ in range(MARCHES_AT_ONCE):
            first, second = now.gather(-1, index).unflatten(-1, ends.shape[1:]).unbind(2)
            now = torch.minimum(now, across(first, second, ways).amin(-1))
        if (now == before).all():
            break
    return now


def _march_where_it_changes(
    now: Float[Tensor, " node"], ends: Int[Tensor, "2 node triangle"], ways: Float[Tensor, "5 node triangle"]
):
    """In place, where the front is soonest first: what is told from far ahead of it would only change again."""
    along_sides, around = ways[3:], ends.movedim(0, 1).flatten(1).contiguous()
    window = WINDOW * along_sides.sum() / (along_sides > 0).sum().clamp_min(1)
    nodes, is_waiting = torch.arange(len(now)), torch.zeros(len(now), dtype=torch.bool)
    while len(nodes):
        some, before = ends.index_select(1, nodes), now.index_select(0, nodes)
        first, second = now.index_select(0, some.flatten()).view(2, 1, 1, *some.shape[1:])
        times = across(first, second, ways.index_select(1, nodes)[:, None])[0, 0].amin(-1)
        now[nodes] = torch.minimum(times, before)
        is_waiting[nodes] |= times < before
        waiting = torch.where(is_waiting, now, torch.inf)
        is_next = is_waiting & (waiting <= waiting.min() + window)
        is_waiting &= ~is_next
        is_near = torch.zeros(len(now), dtype=torch.bool)
        is_near[around[is_next].flatten()] = True
        nodes = is_near.nonzero()[:, 0]


MET_ACCURACY = 1e-6  # of sums along rays, in the network's unit of time, and of diffusion
SLOWED_ACCURACY = 1e-4  # of a front slowed by its curvature, in the network's unit of time
# Rays are found so often, as curvature bends them. Each time changes a tenth of the last; some place between two ways that
# are almost equally soon may never choose.
N_BENDS = 4
# No curvature makes a front so many times as late, or as soon; among thin triangles, whose couplings push, a bend might.
MOST_BENT = 10.0


@dataclass(frozen=True, kw_only=True)
class Rays:
    """How a front comes to each node: from a place on the opposite side of one of its triangles."""

    ends: Int[Tensor, "batch node 2"]
    shares: Float[Tensor, "batch node 2"]  # of the side's ends in that place
    # What a plane front takes from there; 0 where the front was at first, or never comes.
    lasting: Float[Tensor, "batch node 1"]

    def before(self, field: Float[Tensor, "batch node feature"]) -> Float[Tensor, "batch node feature"]:
        """The field where each node's ray comes from."""
        first, second = (taken(field, each[..., None]) for each in self.ends.unbind(-1))
        return self.shares[..., :1] * first + self.shares[..., 1:] * second

    def bulge(
        self, field: Float[Tensor, "batch node 1"], slope: Float[Tensor, "batch node dim"], batch: Batch
    ) -> Float[Tensor, "batch node 1"]:
        """How much more the field is there than `before` says, to which it is linear along the side: by its slopes."""
        points = batch.points.expand(len(field), -1, -1)
        first, second = (each[..., None] for each in self.ends.unbind(-1))
        along = taken(points, second) - taken(points, first)
        rise = taken(field, second) - taken(field, first)
        # Hermite's cubic less the straight line.
        at_first, at_second = ((taken(slope, each) * along).sum(-1, keepdim=True) - rise for each in (first, second))
        share, other = self.shares.split(1, dim=-1)
        return share * other * (share * at_first - other * at_second)

    def carried(
        self, added: Float[Tensor, "batch node feature"], ahead: Float[Tensor, "batch node 1"], accuracy: float
    ) -> Float[Tensor, "batch node feature"]:
        """What is added at each node, summed up along the rays of a front that arrives at these times."""
        rows = torch.cat([torch.ones_like(self.lasting), (self.lasting > 0) * -self.shares], dim=-1)
        return solver(ahead)(with_itself(self.ends), rows, added, torch.zeros_like(added), accuracy)


def rays_of(ahead: Float[Tensor, "batch node 1"], batch: Batch, speed: float, *, only_forwards: bool = False) -> Rays:
    """The rays of a front that arrives at these times.

    only_forwards: each from where the front was before, though it may be sooner from elsewhere. So all of them begin.
    """
    metric, (side, offset, height) = speed * ahead[..., 0], _triangles(batch, ahead.dtype)
    if ahead.device.type != "cpu" and HAS_TRITON:
        from gfunk.operators import front_kernels

        ends, shares, lengths = front_kernels.rays(metric, batch.ends, torch.stack([side, offset, height]), only_forwards)
        return Rays(ends=ends, shares=shares, lasting=torch.where(ahead > 0, lengths / speed, 0))
    ends = batch.ends.expand(len(metric), -1, -1, -1)
    first, second = metric.gather(1, ends.flatten(1)).unflatten(1, ends.shape[1:]).unbind(-1)
    is_way = ends[..., 0] != torch.arange(metric.shape[1], device=ends.device)[:, None]
    places = place_left(first, second, side, offset, height)
    # Not first + rise at the second end: where the first is late beyond all, that would round the second.
    leaving = torch.where(places < 1, torch.addcmul(first, places, second - first), second)
    if only_forwards:
        is_way = is_way & (leaving < metric[..., None])
    lasting = torch.sqrt(torch.addcmul(height, side, (places + offset).square()))
    soonest, triangle = torch.where(is_way, leaving + lasting, torch.inf).min(-1, keepdim=True)
    place = places.gather(2, triangle)
    comes = (ahead > 0) & (soonest < torch.inf)
    return Rays(
        ends=ends.gather(2, triangle[..., None].expand(-1, -1, -1, 2))[:, :, 0],
        shares=torch.cat([1 - place, place], dim=-1),
        lasting=torch.where(comes, lasting.gather(2, triangle) / speed, 0),
    )


def taken(
    field: Float[Tensor, "batch node feature"], places: Int[Tensor, "batch node 1"]
) -> Float[Tensor, "batch node feature"]:
    """The field at one place for each node."""
    return field.gather(1, places.expand(field.shape))


THINNEST = 1e-3  # triangle that tells of slopes: its area, by the lengths of two sides


def slopes(
    field: Float[Tensor, "batch node 1"], batch: Batch, weights: Float[Tensor, "domain node triangle 2 dim"]
) -> Float[Tensor, "batch node dim"]:
    """The field's gradient at each node, by the `slope_weights` of its rises."""
    rises = torch.stack(to_ends(field, batch), dim=3)
    return (weights * rises).sum((2, 3))


def slope_weights(batch: Batch) -> Float[Tensor, "domain node triangle 2 dim"]:
    """What a rise of one to each end of a triangle adds to the slope, which is the mean of all triangles', by their size."""
    first, second = to_ends(batch.points, batch)
    squared, other_squared, product = products(first, second)
    sizes, tiny = doubled_sizes(squared, other_squared, product), torch.finfo(batch.points.dtype).tiny
    is_wide = sizes.square() > THINNEST**2 * squared * other_squared
    total = torch.where(is_wide, sizes, 0).sum(2, keepdim=True).clamp_min(tiny)
    share = torch.where(is_wide, 1 / sizes.clamp_min(tiny), 0) / total
    gradients = [other_squared * first - product * second, squared * second - product * first]
    return share[..., None] * torch.stack(gradients, dim=3)


def doubled_sizes(squared: Tensor, other_squared: Tensor, product: Tensor) -> Float[Tensor, "domain node triangle 1"]:
    """Twice the area of triangles of two sides, by their `products`; 0 of those that are none."""
    return (squared * other_squared - product.square()).clamp_min(0).sqrt()


def products(
    first: Float[Tensor, "domain node triangle dim"], second: Float[Tensor, "domain node triangle dim"]
) -> list[Float[Tensor, "domain node triangle 1"]]:
    """Of the first with itself, the second with itself, and both."""
    pairs = ((first, first), (second, second), (first, second))
    return [(one * other).sum(-1, keepdim=True) for one, other in pairs]


def to_ends(
    field: Float[Tensor, "batch node feature"], batch: Batch
) -> tuple[Float[Tensor, "batch node triangle feature"], Float[Tensor, "batch node triangle feature"]]:
    """From each node to both ends of its triangles' sides opposite, how much the field differs."""
    index = batch.ends.expand(len(field), -1, -1, -1).flatten(1)[..., None].expand(-1, -1, field.shape[-1])
    first, second = (field.gather(1, index).unflatten(1, batch.ends.shape[1:]) - field[:, :, None, None]).unbind(3)
    return first, second


@torch.no_grad()
def slowed_front(
    u: Float[Tensor, "batch node channel"], ahead: Float[Tensor, "batch node 1"], batch: Batch, config: FrontConfig
) -> Float[Tensor, "batch node 1"]:
    """When the front will arrive, slowed by its own curvature: speed^2 grad T . K grad T = (1 + div K grad T)^2.

    ahead: when it would at its one speed. Howard's iteration: along given rays T - before(T) = lasting (1 - S T / inertia)
    + bulge, which is that of the last T, is linear; what solves it has rays of its own.
    """
    pulls, weights, solve = _pulls(batch), slope_weights(batch), solver(ahead, bends=True)
    is_told = (_risen(u, config) > LEAST_RISE) | (ahead <= 0) | (ahead > NEVER / 2 * config.time_scale)
    now = ahead
    for _ in range(N_BENDS):
        rays = rays_of(now, batch, config.speed)
        slowing = rays.lasting * pulls
        rows = torch.cat([1 + slowing.sum(-1, keepdim=True), -rays.shares, -slowing], dim=-1)
        rows = torch.where(is_told, torch.eye(1, rows.shape[-1], dtype=rows.dtype, device=rows.device), rows)
        places = with_itself(torch.cat([rays.ends, batch.neighbors.expand(len(ahead), -1, -1)], dim=-1))
        bulge = rays.bulge(now, slopes(now, batch, weights), batch)
        right = torch.where(is_told, ahead, rays.lasting + torch.where(rays.lasting > 0, bulge, 0))
        found = solve(places, rows, right, now, SLOWED_ACCURACY * config.time_scale)
        # Rounded, a front that was there at first might seem to be still ahead.
        now = torch.where(is_told, ahead, found.clamp(ahead / MOST_BENT, MOST_BENT * ahead))
    return now


@torch.no_grad()
def met_on_the_way(
    u: Float[Tensor, "batch node channel"], ahead: Float[Tensor, "batch node 1"], batch: Batch, config: FrontConfig
) -> Float[Tensor, "batch node feature"]:
    """What the front met on its ray to each place, summed over time; how long ago its ray began, and what it met by then;
    and what it meets there.

    That is: how much it runs along fibres; how coarse the mesh is to it; its curvature, which is the part of its speed that
    it loses: K's divergence of the gradient of times, whatever their unit. A ray begins where u tells the time, and what it
    met until then is what it meets there.
    """
    rays = rays_of(ahead, batch, config.speed, only_forwards=True)
    points, fibres = (each.expand(len(ahead), -1, -1) for each in (batch.points, batch.fibres))
    way = points - rays.before(points)
    lengths = (way.square().sum(-1) * fibres.square().sum(-1)).clamp_min(torch.finfo(way.dtype).tiny)
    along = ((way * fibres).sum(-1).square() / lengths)[..., None]
    around = torch.cat([ahead, coarseness(ahead, batch, config)], dim=-1)
    diffused = diffusion(around, batch, config.ray_times, MET_ACCURACY, _recurrence(batch))
    times, coarse = torch.stack(diffused, dim=-1).split([1, 2], dim=2)
    curved = (times[:, :, 0] - ahead) / ahead.new_tensor(config.ray_times)
    met = torch.cat([along, coarse.mean(-1), curved], dim=-1)
    begins = (_risen(u, config) > LEAST_RISE) & (rays.lasting > 0)
    rays = replace(rays, shares=torch.where(begins, 0, rays.shares), lasting=torch.where(begins, ahead, rays.lasting))
    begun = torch.where(begins, rays.lasting, 0)
    added = torch.cat([rays.lasting * met, begun, begun * met], dim=-1)
    there = torch.where(rays.lasting > 0, torch.tanh(met), 0)
    return torch.cat([rays.carried(added, ahead, MET_ACCURACY * config.time_scale), there], dim=-1)


def _recurrence(batch: Batch) -> Recurrence | None:
    if batch.points.device.type == "cpu" or not HAS_TRITON:
        return None
    from gfunk.operators import front_kernels

    return partial(front_kernels.next_term, batch.neighbors.int(), batch.couplings.contiguous())


def coarseness(ahead: Float[Tensor, "batch node 1"], batch: Batch, config: FrontConfig) -> Float[Tensor, "batch node 2"]:
    """How coarse the mesh is to a front, in the network's unit of time: squared times from node to node, times the squared
    speed, in the mean by couplings and by masses.

    A wave u(t - T) on a mesh feels sum_j S_ij (T_j - T_i)^4 and sum_j M_ij (T_j - T_i)^2, which the PDE does not know: the
    dispersion of finite elements. On the mesh cut in four, on which it was solved, both are a quarter.
    """
    others = batch.neighbors.expand(len(ahead), -1, -1)
    passing = ahead.gather(1, others.flatten(1)[..., None]).unflatten(1, others.shape[1:])[..., 0] - ahead
    by_couplings = config.speed**4 * (_pulls(batch) * passing**4).sum(-1, keepdim=True)
    first, second = to_ends(ahead, batch)
    sizes = doubled_sizes(*products(*to_ends(batch.points, batch)))
    squares = (sizes * (first.square() + second.square())).sum(2) / sizes.sum(2).clamp_min(torch.finfo(ahead.dtype).tiny)
    return torch.cat([by_couplings, config.speed**2 * squares], dim=-1) / config.time_scale


def with_itself(places: Int[Tensor, "batch node _"]) -> Int[Tensor, "batch node neighbor"]:
    """Each node before the places it is given."""
    nodes = torch.arange(places.shape[1], device=places.device)[:, None]
    return torch.cat([nodes.expand(len(places), -1, 1), places], dim=-1)


# (places, rows, right, start, accuracy) -> the fields whose rows, each at its places, of which the first is the node itself,
# sum up to the right side.
Solve = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def solver(ahead: Float[Tensor, "batch node 1"], *, bends: bool = False) -> Solve:
    """For rows of a front that arrives at about these times. bends: they will change a bit; fields are of one feature."""
    if ahead.device.type != "cpu":
        if not HAS_TRITON:
            return swept
        from gfunk.operators import front_kernels

        return partial(front_kernels.solved, ahead[..., 0].argsort(-1))
    in_order = [InOrder(each, bends) for each in ahead]

    def solve(places: Tensor, rows: Tensor, right: Tensor, start: Tensor, accuracy: float) -> Tensor:
        systems = zip(places, rows, right, start, strict=True)
        return torch.stack([each.solved(*system, accuracy) for each, system in zip(in_order, systems, strict=True)])

    return solve


def swept(
    places: Int[Tensor, "batch node neighbor"],
    rows: Float[Tensor, "batch node neighbor"],
    right: Float[Tensor, "batch node feature"],
    start: Float[Tensor, "batch node feature"],
    accuracy: float,
) -> Float[Tensor, "batch node feature"]:
    """By sweeps over all nodes at once, until sixteen of them change no more than the accuracy."""
    # No row moves its node by more than the others pull, or couplings that push would swing up.
    share = 1 / torch.maximum(rows[..., :1], rows[..., 1:].abs().sum(-1, keepdim=True))
    index = places.flatten(1)[..., None].expand(-1, -1, right.shape[-1])
    now = start
    for _ in range(start.shape[1]):
        before = now
        for _ in range(SWEEPS_AT_ONCE):
            values = now.gather(1, index).unflatten(1, places.shape[1:])
            now = now + share * (right - (rows[..., None] * values).sum(2))
        if float((now - before).abs().max()) <= accuracy:
            break
    return now


class InOrder:
    """Solves for one front, node by node in the order in which it comes: so rows are almost triangular, factors small."""

    def __init__(self, ahead: Float[Tensor, "node 1"], bends: bool):
        self.order, self.bends = ahead[:, 0].argsort().numpy(), bends
        self.rank = np.argsort(self.order).astype(np.int32)
        self.factors: SuperLU | None = None

    def solved(
        self,
        places: Int[Tensor, "node neighbor"],
        rows: Float[Tensor, "node neighbor"],
        right: Float[Tensor, "node feature"],
        start: Float[Tensor, "node feature"],
        accuracy: float,
    ) -> Float[Tensor, "node feature"]:
        n_nodes, n_places = places.shape
        entries = rows.double().numpy()[self.order].ravel(), self.rank[places.numpy()[self.order]].ravel()
        begins = np.arange(0, n_nodes * n_places + 1, n_places, dtype=np.int32)
        matrix = csr_array((*entries, begins), shape=(n_nodes, n_nodes))
        wanted, found = (each.double().numpy()[self.order] for each in (right, start))
        if self.bends:
            found = self._bent(matrix, wanted[:, 0], found[:, 0], accuracy)[:, None]
        else:
            found = splu(matrix.tocsc(), permc_spec="NATURAL").solve(wanted)
        return torch.from_numpy(found[self.rank]).to(right.dtype)

    def _bent(self, matrix: csr_array, right: np.ndarray, start: np.ndarray, accuracy: float) -> np.ndarray:
        """By steps with the factors there are, of rows not much different; what is missing in rows adds up along a ray."""
        factors, missing = self.factors or _incomplete_factors(matrix), right - matrix @ start
        nearly = LinearOperator(matrix.shape, factors.solve)
        step, failed = bicgstab(matrix, missing, M=nearly, rtol=0, atol=0.01 * accuracy, maxiter=30)
        if failed:
            factors = splu(matrix.tocsc())
            step = factors.solve(missing)
        self.factors = factors
        return start + step


def _incomplete_factors(matrix: csr_array) -> SuperLU:
    try:
        return spilu(matrix.tocsc(), drop_tol=0.02, fill_factor=3, permc_spec="NATURAL")
    except RuntimeError:
        # Among thin triangles, whose couplings push, what is left of a row may be nothing.
        return splu(matrix.tocsc())


def _risen(u: Tensor, config: FrontConfig) -> Tensor:
    """How far u has come from rest to the threshold."""
    return (u - config.resting) / (config.threshold - config.resting)


def _pulls(batch: Batch) -> Float[Tensor, "domain node slot"]:
    """Couplings by inertia: S / inertia, whose rows sum up to nothing."""
    return batch.couplings / batch.inertia[..., None].clamp_min(torch.finfo(batch.inertia.dtype).tiny)


def _triangles(batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    side, offset, height = batch.sides.to(dtype).unbind(-1)
    # Triangles that are none have no side, and the node itself at both ends.
    return side.clamp_min(torch.finfo(dtype).tiny ** 0.5), offset, height


def ways_across(batch: Batch) -> Float[Tensor, "5 domain node triangle"]:
    """All that `across` has to know of triangles: the side opposite, squared, the foot's offset from its first end and the
    height over it, in its lengths; and the lengths of the sides to its first end and its second.
    """
    side, offset, height = _triangles(batch, batch.sides.dtype)
    to_ends = [torch.sqrt(side * place.square() + height) for place in (offset, offset + 1)]
    return torch.stack([side, offset, torch.sqrt(height / side), *to_ends])


def across(
    first: Float[Tensor, "_ batch node triangle"],
    second: Float[Tensor, "_ batch node triangle"],
    ways: Float[Tensor, "5 domain node triangle"],
) -> Float[Tensor, "_ batch node triangle"]:
    """The soonest a front comes across each triangle from the side opposite, along which its time is linear."""
    side, offset, height, to_first, to_second = ways
    fall = first - second
    # Where the front is too slant this is not a number, so nothing is less: it comes along an edge.
    climb = torch.sqrt(torch.addcmul(side, fall, fall, value=-1))
    # The straight way at right angles to the front leaves the side at `place`, where its second end is at `climb`.
    place = torch.addcmul(height * fall, offset, climb, value=-1)
    straight = torch.addcmul(torch.addcmul(first, offset, fall), height, climb)
    return torch.where((place > 0) & (place < climb), straight, torch.minimum(first + to_first, second + to_second))


def place_left(
    first: Float[Tensor, "batch node triangle"],
    second: Float[Tensor, "batch node triangle"],
    side: Float[Tensor, "domain node triangle"],
    offset: Float[Tensor, "domain node triangle"],
    height: Float[Tensor, "domain node triangle"],
) -> Float[Tensor, "batch node triangle"]:
    """Where on the side opposite the soonest way leaves it: 0 at the first end, 1 at the second."""
    rise = second - first
    # The straight way at right angles to the front leaves the side at this place; where the front is too slant, from an end.
    slack = side - rise.square()
    bend = -rise * torch.sqrt(height / (side * slack.clamp_min(1e-6 * side)))
    return torch.where(slack > 0, (bend - offset).clamp(0, 1), (rise < 0).to(side.dtype))
