"""Waves by when they arrive: a front carried across the mesh at one speed, what a network adds to its time, and a profile.

A front is steep, its arrival time is smooth. So the spectral layers correct the time, once for a whole trajectory, and every
output time is read off a learned profile of the time since arrival, place by place.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.errors import InputError
from gfunk.operators.gfunk import FilterBank, diffusion, spectral_features, to_modes, to_nodes


@dataclass(frozen=True, kw_only=True)
class ArrivalConfig:
    """For waves that pass each place once, in tissue at rest ahead of them; first values are those of atrial tissue."""

    width: int = 128
    n_layers: int = 6
    n_modes: int = 200
    filter_width: int = 64
    n_latents: int = 8  # what a place tells its profile beside the time
    profile_width: int = 64
    # A plane wave runs at speed * sqrt(K), and ahead of it u rises from rest as exp(speed^2 t): so u says when it will come.
    speed: float = 1.47
    resting: float = 0.0075
    threshold: float = 45 / 105  # u where the wave has arrived: -40 mV
    # The network's unit of time, in the data's.
    time_scale: float = 10.0
    # Where there are some, the network is told what slows the front on its way to each place: how much it runs along fibres,
    # how coarse the mesh is to it, and its curvature, which is found by diffusing its times for so long.
    ray_times: tuple[float, ...] = ()

    @property
    def n_met(self) -> int:
        return 3 + len(self.ray_times) if self.ray_times else 0

    @property
    def n_carried(self) -> int:
        """What comes to a place along its ray: all that is met, summed, and as it began."""
        return 1 + 2 * self.n_met if self.ray_times else 0


# In the network's unit of time: what the layers can tell apart of the front's times, and the profile of times since arrival.
FRONT_TIMES = (0.1, 0.3, 1.0, 3.0, 10.0)
PROFILE_TIMES = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TIMES_AT_ONCE = 16  # more would only take memory


class Arrival(nn.Module):
    """u at any times from the first state alone. It depends on modes through their eigenvalues and on K through lengths."""

    front_times: Tensor

    def __init__(self, config: ArrivalConfig):
        super().__init__()
        self.config = config
        self.register_buffer("front_times", config.time_scale * torch.tensor(FRONT_TIMES), persistent=False)
        self.lift = nn.Linear(1 + 2 * len(FRONT_TIMES) + config.n_carried + config.n_met, config.width)
        self.layers = nn.ModuleList(MixingLayer(config) for _ in range(config.n_layers))
        self.hidden, self.last = nn.Linear(config.width, 64), nn.Linear(64, 1 + config.n_latents)
        self.profile = Profile(config)
        self.slowed = nn.Linear(1 + config.n_carried, 1, bias=False) if config.ray_times else None
        with torch.no_grad():
            # At first the front runs at its one speed, less its curvature.
            self.last.weight[0] *= 0.01
            self.last.bias[0] = 0
            if self.slowed is not None:
                self.slowed.weight.zero_()

    def first(self, u: Float[Tensor, "batch node channel"], batch: Batch) -> Float[Tensor, "batch node input"]:
        """u, when the front will arrive, how long ago it came, and what it met on its way."""
        ahead, behind = front_times(u, batch, self.config)
        if not self.config.ray_times:
            return torch.cat([u, ahead, behind], dim=-1)
        ahead = slowed_front(u, ahead, batch, self.config)
        return torch.cat([u, ahead, behind, met_on_the_way(u, ahead, batch, self.config)], dim=-1)

    def forward(
        self, first: Float[Tensor, "batch node input"], batch: Batch, times: Float[Tensor, " time"]
    ) -> Float[Tensor, "batch time node channel"]:
        return self.values(first, *self.arrival(first, batch), batch, times)

    def arrival(
        self, first: Float[Tensor, "batch node input"], batch: Batch
    ) -> tuple[Float[Tensor, "batch node 1"], Float[Tensor, "batch node feature"]]:
        """When the wave arrives at each place, negative where it has been, and what the place tells its profile."""
        batch = batch.with_modes(self.config.n_modes)
        n_met, n_carried, scale = self.config.n_met, self.config.n_carried, self.config.time_scale
        u, ahead, behind, carried, there = first.split([1, 1, 1, n_carried, n_met], dim=-1)
        step = torch.ones((), dtype=u.dtype, device=u.device)
        features = spectral_features(batch.eigenvalues * scale, step)
        # Sums grow with the way: the layers are told of their mean. How they began is over soon.
        summed, begun = carried.split([n_met, n_carried - n_met], dim=-1)
        told = [torch.tanh(each / self.front_times) for each in (ahead, behind)]
        told += [summed / (ahead + scale), begun * self.config.speed**2, there]
        field = self.lift(torch.cat([u, *told], dim=-1))
        for layer in self.layers:
            field = layer(field, batch, features)
        with torch.autocast(u.device.type, enabled=False):
            found = self.last(nn.functional.gelu(self.hidden(field.to(u.dtype))))
            late, latents = found.split([1, self.config.n_latents], dim=-1)
            if self.slowed is not None:
                late = late + self.slowed(torch.cat([ahead, carried], dim=-1))
            return ahead - behind + late, latents

    def values(
        self,
        first: Float[Tensor, "batch node input"],
        arrival: Float[Tensor, "batch node 1"],
        latents: Float[Tensor, "batch node feature"],
        batch: Batch,
        times: Float[Tensor, " time"],
    ) -> Float[Tensor, "batch time node channel"]:
        """u at the times, of a wave whose `arrival` is known."""
        # Not in half precision: u is steep in the time.
        with torch.autocast(first.device.type, enabled=False):
            place = torch.cat([first[..., :1], latents], dim=-1)
            parts = [self.profile(some[:, None, None] - arrival[:, None], place) for some in times.split(TIMES_AT_ONCE)]
        return torch.where(batch.is_node[:, None, :, None], torch.cat(parts, dim=1), 0)


class MixingLayer(nn.Module):
    """x + GELU(mixed filtered x + W x), each filter a smooth function of the eigenvalue."""

    def __init__(self, config: ArrivalConfig):
        super().__init__()
        self.filters = FilterBank(config.filter_width, config.width)
        self.mix = nn.Linear(config.width, config.width, bias=False)
        self.pointwise = nn.Linear(config.width, config.width)

    def forward(
        self, field: Float[Tensor, "batch node width"], batch: Batch, features: Float[Tensor, "domain mode feature"]
    ) -> Float[Tensor, "batch node width"]:
        # Mixed among modes, of which there are fewer than nodes.
        modes = self.mix(self.filters(features) * to_modes(field, batch))
        return field + nn.functional.gelu(to_nodes(modes, batch) + self.pointwise(field))


class Profile(nn.Module):
    """u a time after the wave's arrival, by what the place tells."""

    times: Tensor

    def __init__(self, config: ArrivalConfig):
        super().__init__()
        self.register_buffer("times", config.time_scale * torch.tensor(PROFILE_TIMES), persistent=False)
        width = config.profile_width
        self.of_time, self.of_place = nn.Linear(2 * len(PROFILE_TIMES), width), nn.Linear(1 + config.n_latents, width)
        self.hidden, self.last = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(
        self, since: Float[Tensor, "batch time node 1"], place: Float[Tensor, "batch node feature"]
    ) -> Float[Tensor, "batch time node 1"]:
        scaled = since / self.times
        steps_and_bumps = torch.cat([torch.tanh(scaled), 1 / (1 + scaled.square())], dim=-1)
        field = nn.functional.gelu(self.of_time(steps_and_bumps) + self.of_place(place)[:, None])
        return self.last(nn.functional.gelu(self.hidden(field)))


NEVER = 1e4  # in the network's unit of time
LEAST_RISE = 0.03  # of the way to the threshold; less may be another front's foot, or rounding


@torch.no_grad()
def front_times(
    u: Float[Tensor, "batch node channel"], batch: Batch, config: ArrivalConfig
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


SWEEPS_AT_ONCE = 16  # before it is asked whether anything has changed, for which a GPU has to wait


def marched(start: Float[Tensor, "_ batch node"], batch: Batch) -> Float[Tensor, "_ batch node"]:
    """The earliest times from those given, |grad T|_K = 1: each from its triangles, again until nothing changes."""
    side, offset, height = _triangles(batch, start.dtype)
    if start.device.type == "cpu":
        # The same steps, less those of nodes around which nothing has changed: a front is a line, so most are.
        found = start.clone()
        for number, now in enumerate(found.unbind(1)):
            domain = number if batch.n_domains > 1 else 0
            shape = torch.stack([side[domain], offset[domain], height[domain]], dim=-1)
            for each in now:
                _march_where_it_changes(each, batch.ends[domain], shape)
        return found
    n_starts, n_batch, n_nodes = start.shape
    first, second = (each.flatten(1).expand(n_starts, n_batch, -1) for each in batch.ends.unbind(-1))
    now, before = start, None
    for sweep in range(n_nodes + SWEEPS_AT_ONCE):
        if sweep % SWEEPS_AT_ONCE == 0:
            if before is not None and torch.equal(now, before):
                break
            before = now
        from_first, from_second = (now.gather(-1, each).unflatten(-1, batch.ends.shape[1:3]) for each in (first, second))
        now = torch.minimum(now, across(from_first, from_second, side, offset, height).amin(-1))
    return now


def _march_where_it_changes(
    now: Float[Tensor, " node"], ends: Int[Tensor, "node triangle 2"], shape: Float[Tensor, "node triangle 3"]
):
    """In place."""
    nodes = torch.arange(len(now))
    while len(nodes):
        from_first, from_second = now[ends[nodes]][None, None].unbind(-1)
        times = across(from_first, from_second, *shape[nodes][None].unbind(-1))[0, 0].amin(-1)
        is_sooner = times < now[nodes]
        changed = nodes[is_sooner]
        now[changed] = times[is_sooner]
        is_near = torch.zeros(len(now), dtype=torch.bool)
        is_near[ends[changed].flatten()] = True
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

    def bulge(self, field: Float[Tensor, "batch node 1"], batch: Batch) -> Float[Tensor, "batch node 1"]:
        """How much more the field is there than `before` says, to which it is linear along the side: by its slopes."""
        slope, points = slopes(field, batch), batch.points.expand(len(field), -1, -1)
        first, second = (each[..., None] for each in self.ends.unbind(-1))
        along = taken(points, second) - taken(points, first)
        rise = taken(field, second) - taken(field, first)
        # Hermite's cubic less the straight line.
        at_first, at_second = ((taken(slope, each) * along).sum(-1, keepdim=True) - rise for each in (first, second))
        share, other = self.shares.split(1, dim=-1)
        return share * other * (share * at_first - other * at_second)

    def carried(self, added: Float[Tensor, "batch node feature"], accuracy: float) -> Float[Tensor, "batch node feature"]:
        """What is added at each node, summed up along the rays."""
        rows = torch.cat([torch.ones_like(self.lasting), (self.lasting > 0) * -self.shares], dim=-1)
        return solved(with_itself(self.ends), rows, added, torch.zeros_like(added), accuracy)


def rays_of(ahead: Float[Tensor, "batch node 1"], batch: Batch, speed: float, *, only_forwards: bool = False) -> Rays:
    """The rays of a front that arrives at these times.

    only_forwards: each from where the front was before, though it may be sooner from elsewhere. So all of them begin.
    """
    metric, (side, offset, height) = speed * ahead[..., 0], _triangles(batch, ahead.dtype)
    ends = batch.ends.expand(len(metric), -1, -1, -1)
    first, second = (metric.gather(1, each.flatten(1)).unflatten(1, each.shape[1:])[None] for each in ends.unbind(-1))
    is_triangle = ends[..., 0] != torch.arange(metric.shape[1], device=ends.device)[:, None]
    places = place_left(first, second, side, offset, height)[0]
    if only_forwards:
        is_triangle = is_triangle & (torch.lerp(first[0], second[0], places) < metric[..., None])
    arrivals = torch.where(is_triangle, across(first, second, side, offset, height)[0], torch.inf)
    soonest, triangle = arrivals.min(-1, keepdim=True)
    place = places.gather(2, triangle)
    rays = Rays(
        ends=ends.gather(2, triangle[..., None].expand(-1, -1, -1, 2))[:, :, 0],
        shares=torch.cat([1 - place, place], dim=-1),
        lasting=torch.zeros_like(ahead),
    )
    comes = (ahead > 0) & (soonest < torch.inf)
    return replace(rays, lasting=torch.where(comes, soonest / speed - rays.before(ahead), 0))


def taken(
    field: Float[Tensor, "batch node feature"], places: Int[Tensor, "batch node 1"]
) -> Float[Tensor, "batch node feature"]:
    """The field at one place for each node."""
    return field.gather(1, places.expand(field.shape))


THINNEST = 1e-3  # triangle that tells of slopes: its area, by the lengths of two sides


def slopes(field: Float[Tensor, "batch node 1"], batch: Batch) -> Float[Tensor, "batch node dim"]:
    """The field's gradient at each node: the mean of its triangles', by their size."""
    first, second = to_ends(batch.points, batch)
    rise, other_rise = to_ends(field, batch)
    product = (first * second).sum(-1, keepdim=True)
    squared, other_squared = (each.square().sum(-1, keepdim=True) for each in (first, second))
    gradient = (other_squared * rise - product * other_rise) * first + (squared * other_rise - product * rise) * second
    sizes, tiny = doubled_sizes(batch), torch.finfo(field.dtype).tiny
    is_wide = sizes.square() > THINNEST**2 * squared * other_squared
    total = torch.where(is_wide, gradient / sizes.clamp_min(tiny), 0).sum(2)
    return total / torch.where(is_wide, sizes, 0).sum(2).clamp_min(tiny)


def doubled_sizes(batch: Batch) -> Float[Tensor, "domain node triangle 1"]:
    """Twice the area of each node's triangles, 0 of those that are none."""
    first, second = to_ends(batch.points, batch)
    squared, other_squared = (each.square().sum(-1, keepdim=True) for each in (first, second))
    return (squared * other_squared - (first * second).sum(-1, keepdim=True).square()).clamp_min(0).sqrt()


def to_ends(
    field: Float[Tensor, "batch node feature"], batch: Batch
) -> tuple[Float[Tensor, "batch node triangle feature"], Float[Tensor, "batch node triangle feature"]]:
    """From each node to both ends of its triangles' sides opposite, how much the field differs."""
    index = batch.ends.expand(len(field), -1, -1, -1).flatten(1)[..., None].expand(-1, -1, field.shape[-1])
    first, second = (field.gather(1, index).unflatten(1, batch.ends.shape[1:]) - field[:, :, None, None]).unbind(3)
    return first, second


@torch.no_grad()
def slowed_front(
    u: Float[Tensor, "batch node channel"], ahead: Float[Tensor, "batch node 1"], batch: Batch, config: ArrivalConfig
) -> Float[Tensor, "batch node 1"]:
    """When the front will arrive, slowed by its own curvature: speed^2 grad T . K grad T = (1 + div K grad T)^2.

    ahead: when it would at its one speed. Howard's iteration: along given rays T - before(T) = lasting (1 - S T / inertia)
    + bulge, which is that of the last T, is linear; what solves it has rays of its own.
    """
    pulls = _pulls(batch)
    is_told = (_risen(u, config) > LEAST_RISE) | (ahead <= 0) | (ahead > NEVER / 2 * config.time_scale)
    now = ahead
    for _ in range(N_BENDS):
        rays = rays_of(now, batch, config.speed)
        slowing = rays.lasting * pulls
        rows = torch.cat([1 + slowing.sum(-1, keepdim=True), -rays.shares, -slowing], dim=-1)
        rows = torch.where(is_told, torch.eye(1, rows.shape[-1], dtype=rows.dtype, device=rows.device), rows)
        places = with_itself(torch.cat([rays.ends, batch.neighbors.expand(len(ahead), -1, -1)], dim=-1))
        right = torch.where(is_told, ahead, rays.lasting + torch.where(rays.lasting > 0, rays.bulge(now, batch), 0))
        found = solved(places, rows, right, now, SLOWED_ACCURACY * config.time_scale)
        # Rounded, a front that was there at first might seem to be still ahead.
        now = torch.where(is_told, ahead, found.clamp(ahead / MOST_BENT, MOST_BENT * ahead))
    return now


@torch.no_grad()
def met_on_the_way(
    u: Float[Tensor, "batch node channel"], ahead: Float[Tensor, "batch node 1"], batch: Batch, config: ArrivalConfig
) -> Float[Tensor, "batch node feature"]:
    """What the front met on its ray to each place, summed over time; how long ago its ray began, and what it met by then;
    and what it meets there.

    That is: how much it runs along fibres; how coarse the mesh is to it; its curvature, which is the part of its speed that
    it loses: K's divergence of the gradient of times, whatever their unit. A ray begins where u tells the time, and what it
    met until then is what it meets there.
    """

    def around(field: Tensor) -> list[Tensor]:
        return diffusion(field, batch, config.ray_times, MET_ACCURACY)

    rays = rays_of(ahead, batch, config.speed, only_forwards=True)
    points, fibres = (each.expand(len(ahead), -1, -1) for each in (batch.points, batch.fibres))
    way = points - rays.before(points)
    lengths = (way.square().sum(-1) * fibres.square().sum(-1)).clamp_min(torch.finfo(way.dtype).tiny)
    along = ((way * fibres).sum(-1).square() / lengths)[..., None]
    curved = (torch.cat(around(ahead), dim=-1) - ahead) / ahead.new_tensor(config.ray_times)
    coarse = torch.stack(around(coarseness(ahead, batch, config))).mean(0)
    met = torch.cat([along, coarse, curved], dim=-1)
    begins = (_risen(u, config) > LEAST_RISE) & (rays.lasting > 0)
    rays = replace(rays, shares=torch.where(begins, 0, rays.shares), lasting=torch.where(begins, ahead, rays.lasting))
    begun = torch.where(begins, rays.lasting, 0)
    added = torch.cat([rays.lasting * met, begun, begun * met], dim=-1)
    there = torch.where(rays.lasting > 0, torch.tanh(met), 0)
    return torch.cat([rays.carried(added, MET_ACCURACY * config.time_scale), there], dim=-1)


def coarseness(ahead: Float[Tensor, "batch node 1"], batch: Batch, config: ArrivalConfig) -> Float[Tensor, "batch node 2"]:
    """How coarse the mesh is to a front, in the network's unit of time: squared times from node to node, times the squared
    speed, in the mean by couplings and by masses.

    A wave u(t - T) on a mesh feels sum_j S_ij (T_j - T_i)^4 and sum_j M_ij (T_j - T_i)^2, which the PDE does not know: the
    dispersion of finite elements. On the mesh cut in four, on which it was solved, both are a quarter.
    """
    others = batch.neighbors.expand(len(ahead), -1, -1)
    passing = ahead.gather(1, others.flatten(1)[..., None]).unflatten(1, others.shape[1:])[..., 0] - ahead
    by_couplings = config.speed**4 * (_pulls(batch) * passing**4).sum(-1, keepdim=True)
    first, second = to_ends(ahead, batch)
    sizes = doubled_sizes(batch)
    squares = (sizes * (first.square() + second.square())).sum(2) / sizes.sum(2).clamp_min(torch.finfo(ahead.dtype).tiny)
    return torch.cat([by_couplings, config.speed**2 * squares], dim=-1) / config.time_scale


def with_itself(places: Int[Tensor, "batch node _"]) -> Int[Tensor, "batch node neighbor"]:
    """Each node before the places it is given."""
    nodes = torch.arange(places.shape[1], device=places.device)[:, None]
    return torch.cat([nodes.expand(len(places), -1, 1), places], dim=-1)


def solved(
    places: Int[Tensor, "batch node neighbor"],
    rows: Float[Tensor, "batch node neighbor"],
    right: Float[Tensor, "batch node feature"],
    start: Float[Tensor, "batch node feature"],
    accuracy: float,
) -> Float[Tensor, "batch node feature"]:
    """The fields whose rows, each at its places, of which the first is the node itself, sum up to the right side."""
    if right.device.type == "cpu":
        return torch.stack([_factorised(*each) for each in zip(places, rows, right, strict=True)])
    return swept(places, rows, right, start, accuracy)


def swept(
    places: Int[Tensor, "batch node neighbor"],
    rows: Float[Tensor, "batch node neighbor"],
    right: Float[Tensor, "batch node feature"],
    start: Float[Tensor, "batch node feature"],
    accuracy: float,
) -> Float[Tensor, "batch node feature"]:
    """The same by sweeps over all nodes at once, until sixteen of them change no more than the accuracy."""
    # No row moves its node by more than the others pull, or couplings that push would swing up.
    share = 1 / torch.maximum(rows[..., :1], rows[..., 1:].abs().sum(-1, keepdim=True))
    weights = torch.eye(1, rows.shape[-1], dtype=rows.dtype, device=rows.device) - share * rows
    right, now = share * right, start
    index = places.flatten(1)[..., None].expand(-1, -1, right.shape[-1])
    for _ in range(start.shape[1]):
        before = now
        for _ in range(SWEEPS_AT_ONCE):
            now = right + (weights[..., None] * now.gather(1, index).unflatten(1, places.shape[1:])).sum(2)
        if (now - before).abs().max() <= accuracy:
            break
    return now


def _factorised(
    places: Int[Tensor, "node neighbor"], rows: Float[Tensor, "node neighbor"], right: Float[Tensor, "node feature"]
) -> Float[Tensor, "node feature"]:
    node = np.repeat(np.arange(len(places)), places.shape[1])
    entries = rows.double().numpy().ravel(), (node, places.numpy().ravel())
    found = splu(csc_array(entries, shape=(len(places), len(places)))).solve(right.double().numpy())
    return torch.from_numpy(found).to(right.dtype)


def _risen(u: Tensor, config: ArrivalConfig) -> Tensor:
    """How far u has come from rest to the threshold."""
    return (u - config.resting) / (config.threshold - config.resting)


def _pulls(batch: Batch) -> Float[Tensor, "domain node slot"]:
    """Couplings by inertia: S / inertia, whose rows sum up to nothing."""
    return batch.couplings / batch.inertia[..., None].clamp_min(torch.finfo(batch.inertia.dtype).tiny)


def _triangles(batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    side, offset, height = batch.sides.to(dtype).unbind(-1)
    # Triangles that are none have no side, and the node itself at both ends.
    return side.clamp_min(torch.finfo(dtype).tiny ** 0.5), offset, height


def across(
    first: Float[Tensor, "_ batch node triangle"],
    second: Float[Tensor, "_ batch node triangle"],
    side: Float[Tensor, "domain node triangle"],
    offset: Float[Tensor, "domain node triangle"],
    height: Float[Tensor, "domain node triangle"],
) -> Float[Tensor, "_ batch node triangle"]:
    """The soonest a front comes across each triangle from the side opposite, along which its time is linear."""
    place = place_left(first, second, side, offset, height)
    # Not first + rise at the second end: where the first is late beyond all, that would round the second.
    leaving = torch.where(place < 1, first + place * (second - first), second)
    return leaving + torch.sqrt(side * (place + offset).square() + height)


def place_left(
    first: Float[Tensor, "_ batch node triangle"],
    second: Float[Tensor, "_ batch node triangle"],
    side: Float[Tensor, "domain node triangle"],
    offset: Float[Tensor, "domain node triangle"],
    height: Float[Tensor, "domain node triangle"],
) -> Float[Tensor, "_ batch node triangle"]:
    """Where on the side opposite the soonest way leaves it: 0 at the first end, 1 at the second."""
    rise = second - first
    # The straight way at right angles to the front leaves the side at this place; where the front is too slant, from an end.
    slack = side - rise.square()
    bend = -rise * torch.sqrt(height / (side * slack.clamp_min(1e-6 * side)))
    return torch.where(slack > 0, (bend - offset).clamp(0, 1), (rise < 0).to(side.dtype))
