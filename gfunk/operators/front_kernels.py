"""Fronts on a GPU, where a step of all nodes would carry them one node further, and take as long to launch as to run.

Here each block of threads has some nodes that a front comes to at about the same time, and steps them several times before
all go on from what the others found. It needs Triton, which comes with torch for CUDA on Linux.
"""

from typing import no_type_check

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float, Int
from torch import Tensor

LAUNCHES = 16  # before it is asked whether anything has changed, for which the GPU has to wait
MARCHED, MARCHES = 256, 4  # nodes of a block, and steps of theirs a launch
SOLVED, SWEEPS = 1024, 8
DIFFUSED = 256
# What a launch may change of the accuracy asked for, as those to come would add up.
STILL = 0.3


def marched(
    start: Float[Tensor, "_ batch node"],
    points: Float[Tensor, "domain node dim"],
    ends: Int[Tensor, "domain node triangle 2"],
    ways: Float[Tensor, "5 domain node triangle"],
) -> Float[Tensor, "_ batch node"]:
    """The earliest times from those given, none of which is negative, as `eikonal.marched` has them."""
    now, ends, ways = start.clone(memory_format=torch.contiguous_format), ends.int().contiguous(), ways.contiguous()
    n_starts, n_batch, n_nodes = now.shape
    is_open = start > 0
    # A front is some way round the middle of what it starts from, so nodes as far from there are near each other, or
    # reached at about the same time. Where they are not it takes longer.
    is_known = (start < start.amax(-1, keepdim=True)).to(points.dtype)[..., None]
    middle = (is_known * points).sum(2, keepdim=True) / is_known.sum(2, keepdim=True).clamp_min(1)
    far = (points - middle).square().sum(-1)
    order = torch.where(is_open, far, torch.inf).argsort(-1).int()
    n_open = is_open.sum(-1, dtype=torch.int32)
    changed = torch.zeros(LAUNCHES, dtype=torch.int32, device=start.device)
    grid = n_starts * n_batch, triton.cdiv(int(n_open.max()), MARCHED)
    for _ in range(n_nodes // LAUNCHES + 2 if grid[1] else 0):
        changed.zero_()
        for launch in range(LAUNCHES):
            _march[grid](  # pyright: ignore[reportIndexIssue]
                now, order, n_open, ends, ways, changed[launch:], n_nodes, ends.shape[2], len(points), ways[0].numel(),
                NODES=MARCHED, SLOTS=triton.next_power_of_2(ends.shape[2]), STEPS=MARCHES, num_warps=8,
            )  # fmt: skip
        if not changed[-1]:
            break
    return now


@triton.jit
@no_type_check
def _march(
    now, order, n_open, ends, ways, changed, n_nodes, n_slots, n_meshes, of_kind,
    NODES: tl.constexpr, SLOTS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    now += row * n_nodes
    order += row * n_nodes
    mesh = row % n_meshes * n_nodes * n_slots
    ends += 2 * mesh
    ways += mesh

    numbers, slots = tl.program_id(1) * NODES + tl.arange(0, NODES), tl.arange(0, SLOTS)[None, :]
    is_node = numbers < tl.load(n_open + row)
    nodes = tl.load(order + numbers, mask=is_node, other=0)
    is_way, at = is_node[:, None] & (slots < n_slots), nodes[:, None] * n_slots + slots
    first_ends = tl.load(ends + 2 * at, mask=is_way, other=0)
    second_ends = tl.load(ends + 2 * at + 1, mask=is_way, other=0)
    side = tl.load(ways + at, mask=is_way, other=0.0)
    offset = tl.load(ways + of_kind + at, mask=is_way, other=0.0)
    height = tl.load(ways + 2 * of_kind + at, mask=is_way, other=0.0)
    to_first = tl.load(ways + 3 * of_kind + at, mask=is_way, other=0.0)
    to_second = tl.load(ways + 4 * of_kind + at, mask=is_way, other=0.0)
    before = tl.load(now + nodes, mask=is_node, other=0.0)
    found = before
    for _ in range(STEPS):
        # As `eikonal.across`. Others may write meanwhile: times only ever fall, and to the same.
        first = tl.load(now + first_ends, mask=is_way, other=1.0)
        second = tl.load(now + second_ends, mask=is_way, other=1.0)
        fall = first - second
        climb = tl.sqrt(side - fall * fall)
        place = height * fall - offset * climb
        straight = first + offset * fall + height * climb
        along = tl.minimum(first + to_first, second + to_second)
        times = tl.where((place > 0) & (place < climb), straight, along)
        found = tl.minimum(found, tl.min(tl.where(is_way, times, float("inf")), axis=1))
        tl.store(now + nodes, found, mask=is_node)
        tl.debug_barrier()
    if tl.sum((is_node & (found < before)).to(tl.int32)) > 0:
        tl.store(changed, 1)


def rays(
    metric: Float[Tensor, "batch node"],
    ends: Int[Tensor, "domain node triangle 2"],
    triangles: Float[Tensor, "3 domain node triangle"],
    only_forwards: bool,
) -> tuple[Int[Tensor, "batch node 2"], Float[Tensor, "batch node 2"], Float[Tensor, "batch node 1"]]:
    """Ends, shares and lengths of the rays of a front that comes so far, as `eikonal.rays_of` finds them; 0 long where it
    comes from nowhere."""
    n_batch, n_nodes = metric.shape
    found = ends.new_empty(n_batch, n_nodes, 2), metric.new_empty(n_batch, n_nodes, 2), metric.new_empty(n_batch, n_nodes, 1)
    _rays[n_batch, triton.cdiv(n_nodes, MARCHED)](  # pyright: ignore[reportIndexIssue]
        metric.contiguous(), ends.contiguous(), triangles.contiguous(), *found, n_nodes, ends.shape[2], len(ends),
        triangles[0].numel(),
        FORWARDS=only_forwards, NODES=MARCHED, SLOTS=triton.next_power_of_2(ends.shape[2]), num_warps=8,
    )  # fmt: skip
    return found


@triton.jit
@no_type_check
def _rays(
    metric, ends, triangles, found_ends, found_shares, found_lengths, n_nodes, n_slots, n_meshes, of_kind,
    FORWARDS: tl.constexpr, NODES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    metric += row * n_nodes
    mesh = row % n_meshes * n_nodes * n_slots
    nodes, slots = tl.program_id(1) * NODES + tl.arange(0, NODES), tl.arange(0, SLOTS)[None, :]
    is_node = nodes < n_nodes
    is_slot, at = is_node[:, None] & (slots < n_slots), mesh + nodes[:, None] * n_slots + slots
    first_ends = tl.load(ends + 2 * at, mask=is_slot, other=0)
    second_ends = tl.load(ends + 2 * at + 1, mask=is_slot, other=0)
    side = tl.load(triangles + at, mask=is_slot, other=1.0)
    offset = tl.load(triangles + of_kind + at, mask=is_slot, other=0.0)
    height = tl.load(triangles + 2 * of_kind + at, mask=is_slot, other=0.0)
    first = tl.load(metric + first_ends, mask=is_slot, other=0.0)
    second = tl.load(metric + second_ends, mask=is_slot, other=0.0)
    # As `eikonal.place_left`.
    rise = second - first
    slack = side - rise * rise
    bend = -rise * tl.sqrt(height / (side * tl.maximum(slack, 1e-6 * side)))
    straight = tl.minimum(tl.maximum(bend - offset, 0.0), 1.0)
    place = tl.where(slack > 0, straight, tl.where(rise < 0, 1.0, 0.0))
    leaving = tl.where(place < 1, first + place * rise, second)
    length = tl.sqrt(height + side * (place + offset) * (place + offset))
    is_way = is_slot & (first_ends != nodes[:, None])
    if FORWARDS:
        is_way = is_way & (leaving < tl.load(metric + nodes, mask=is_node, other=0.0)[:, None])
    soonest, best = tl.min(tl.where(is_way, leaving + length, float("inf")), axis=1, return_indices=True)
    is_best = slots == best[:, None]
    share = tl.sum(tl.where(is_best, place, 0.0), axis=1)
    out = row * n_nodes + nodes
    tl.store(found_ends + 2 * out, tl.sum(tl.where(is_best, first_ends, 0), axis=1), mask=is_node)
    tl.store(found_ends + 2 * out + 1, tl.sum(tl.where(is_best, second_ends, 0), axis=1), mask=is_node)
    tl.store(found_shares + 2 * out, 1 - share, mask=is_node)
    tl.store(found_shares + 2 * out + 1, share, mask=is_node)
    found = tl.where(soonest < float("inf"), tl.sum(tl.where(is_best, length, 0.0), axis=1), 0.0)
    tl.store(found_lengths + out, found, mask=is_node)


def solved(
    order: Int[Tensor, "batch node"],
    places: Int[Tensor, "batch node neighbor"],
    rows: Float[Tensor, "batch node neighbor"],
    right: Float[Tensor, "batch node feature"],
    start: Float[Tensor, "batch node feature"],
    accuracy: float,
) -> Float[Tensor, "batch node feature"]:
    """The fields whose rows, each at its places, of which the first is the node itself, sum up to the right side.

    order: in which the front comes to the nodes.
    """
    n_batch, n_nodes, n_places = places.shape
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(n_nodes, device=order.device).expand_as(order))

    def in_order(field: Tensor) -> Tensor:
        return field.gather(1, order[..., None].expand(-1, -1, field.shape[-1]))

    rows = in_order(rows)
    places = rank.gather(1, in_order(places).flatten(1)).unflatten(1, (n_nodes, n_places)).mT.int().contiguous()
    # No row moves its node by more than the others pull, or couplings that push would swing up.
    share = 1 / torch.maximum(rows[..., :1], rows[..., 1:].abs().sum(-1, keepdim=True))
    # A node's next value is a sum of its places' by weights: where those no longer change, nor does it, to the last bit.
    weights = (torch.eye(1, n_places, dtype=rows.dtype, device=rows.device) - share * rows).mT.contiguous()
    now, added = (in_order(each).mT.contiguous() for each in (start, right))
    added, other = added * share.mT, torch.empty_like(now)
    grid = n_batch, now.shape[1], triton.cdiv(n_nodes, SOLVED)
    for _ in range(n_nodes // LAUNCHES + 2):
        for _ in range(LAUNCHES):
            _sweep[grid](  # pyright: ignore[reportIndexIssue]
                now, other, places, weights, added, n_nodes, NODES=SOLVED, PLACES=n_places, STEPS=SWEEPS, num_warps=32
            )
            now, other = other, now
        change, size = torch.stack([(now - other).abs().max(), now.abs().max()]).tolist()
        # Its last digits may never be still.
        if change <= max(STILL * accuracy, 4 * torch.finfo(now.dtype).eps * size):
            break
    return now.mT.gather(1, rank[..., None].expand(-1, -1, now.shape[1]))


@triton.jit
@no_type_check
def _sweep(now, later, places, weights, added, n_nodes, NODES: tl.constexpr, PLACES: tl.constexpr, STEPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    field = (row * tl.num_programs(1) + tl.program_id(1)) * n_nodes
    now += field
    later += field
    begin = tl.program_id(2) * NODES
    nodes = begin + tl.arange(0, NODES)
    is_node = nodes < n_nodes
    places += row * n_nodes * PLACES + nodes
    weights += row * n_nodes * PLACES + nodes
    # Of its own nodes the block has the latest, of all others those before the launch: so what it finds does not depend on
    # when others are done.
    outside = tl.load(added + field + nodes, mask=is_node, other=0.0)
    for number in tl.static_range(PLACES):
        other = tl.load(places + number * n_nodes, mask=is_node, other=0)
        is_outside = is_node & ((other < begin) | (other >= begin + NODES))
        weight = tl.load(weights + number * n_nodes, mask=is_outside, other=0.0)
        outside += weight * tl.load(now + other, mask=is_outside, other=0.0)
    tl.store(later + nodes, tl.load(now + nodes, mask=is_node, other=0.0), mask=is_node)
    tl.debug_barrier()
    for _ in range(STEPS):
        found = outside
        for number in tl.static_range(PLACES):
            other = tl.load(places + number * n_nodes, mask=is_node, other=0)
            is_own = is_node & (other >= begin) & (other < begin + NODES)
            weight = tl.load(weights + number * n_nodes, mask=is_own, other=0.0)
            found += weight * tl.load(later + other, mask=is_own, other=0.0)
        # All have read before any writes, and all have written before any reads again.
        tl.debug_barrier()
        tl.store(later + nodes, found, mask=is_node)
        tl.debug_barrier()


def next_term(
    neighbors: Int[Tensor, "domain node slot"],
    couplings: Float[Tensor, "domain node slot"],
    term: Float[Tensor, "batch node width"],
    last: Float[Tensor, "batch node width"],
    sums: Float[Tensor, "time batch node width"],
    doubled: Float[Tensor, "domain node 1"],
    weight: Float[Tensor, "time 1 1 1"],
) -> tuple[Float[Tensor, "batch node width"], Float[Tensor, "time batch node width"]]:
    """The recurrence of `gfunk.diffusion` in one pass over memory, written over the last term and the sums."""
    n_batch, n_nodes, width = term.shape
    _chebyshev[n_batch, triton.cdiv(n_nodes, DIFFUSED)](  # pyright: ignore[reportIndexIssue]
        term, last, sums, neighbors, couplings, doubled, weight, n_nodes, neighbors.shape[2], len(neighbors), term.numel(),
        NODES=DIFFUSED, SLOTS=triton.next_power_of_2(neighbors.shape[2]), WIDTH=width, TIMES=len(weight), num_warps=8,
    )  # fmt: skip
    return last, sums


@triton.jit
@no_type_check
def _chebyshev(
    term, last, sums, neighbors, couplings, doubled, weight, n_nodes, n_slots, n_meshes, of_time,
    NODES: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    field, mesh = row * n_nodes * WIDTH, row % n_meshes * n_nodes
    nodes, slots = tl.program_id(1) * NODES + tl.arange(0, NODES), tl.arange(0, SLOTS)[None, :]
    is_node = nodes < n_nodes
    is_slot, at = is_node[:, None] & (slots < n_slots), mesh * n_slots + nodes[:, None] * n_slots + slots
    others = tl.load(neighbors + at, mask=is_slot, other=0)
    pulls = tl.load(couplings + at, mask=is_slot, other=0.0)
    stretch = tl.load(doubled + mesh + nodes, mask=is_node, other=0.0)
    for channel in tl.static_range(WIDTH):
        place = field + nodes * WIDTH + channel
        now = tl.load(term + place, mask=is_node, other=0.0)
        around = tl.load(term + field + others * WIDTH + channel, mask=is_slot, other=0.0)
        product = tl.sum(tl.where(is_slot, pulls * (now[:, None] - around), 0.0), axis=1)
        later = stretch * product - tl.load(last + place, mask=is_node, other=0.0) - 2 * now
        tl.store(last + place, later, mask=is_node)
        for time in tl.static_range(TIMES):
            total = tl.load(sums + time * of_time + place, mask=is_node, other=0.0)
            tl.store(sums + time * of_time + place, total + tl.load(weight + time) * later, mask=is_node)
