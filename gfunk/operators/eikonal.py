"""Fronts of one speed across triangles, |grad T|_K = 1: the earliest times, and the rays by which they come."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gfunk.batch import Batch
from gfunk.operators.front_solver import solver, with_itself
from gfunk.physics.compiling import HAS_TRITON

MARCHES_AT_ONCE = 4  # before it is asked whether anything has changed, for which a GPU has to wait
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
