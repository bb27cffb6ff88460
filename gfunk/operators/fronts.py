"""Fronts across a mesh: when they arrive, at one speed or slowed by their curvature, and what they meet on the way.

Nothing here is learned: all is found of a first state, of triangles and of K, by which lengths are measured.
"""

from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from gfunk.batch import Batch
from gfunk.errors import InputError
from gfunk.operators.eikonal import marched, rays_of
from gfunk.operators.front_solver import solver, with_itself
from gfunk.operators.gfunk import Recurrence, diffusion
from gfunk.physics.compiling import HAS_TRITON


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


MET_ACCURACY = 1e-6  # of sums along rays, in the network's unit of time, and of diffusion
SLOWED_ACCURACY = 1e-4  # of a front slowed by its curvature, in the network's unit of time
# Rays are found so often, as curvature bends them. Each time changes a tenth of the last; some place between two ways that
# are almost equally soon may never choose.
N_BENDS = 4
# No curvature makes a front so many times as late, or as soon; among thin triangles, whose couplings push, a bend might.
MOST_BENT = 10.0
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


def _risen(u: Tensor, config: FrontConfig) -> Tensor:
    """How far u has come from rest to the threshold."""
    return (u - config.resting) / (config.threshold - config.resting)


def _pulls(batch: Batch) -> Float[Tensor, "domain node slot"]:
    """Couplings by inertia: S / inertia, whose rows sum up to nothing."""
    return batch.couplings / batch.inertia[..., None].clamp_min(torch.finfo(batch.inertia.dtype).tiny)
