"""Steps on a GPU by kernels of our own: what would be dozens of passes over memory, in one each.

It needs Triton, which comes with torch for CUDA on Linux; a kernel is compiled in a second, and kept from then on.
"""

from dataclasses import dataclass
from typing import no_type_check

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float, Int
from torch import Tensor

from gfunk.physics.diffusion import HalfStep

AT_ONCE = 256


def gates_later(
    v: Float[Tensor, " node"],
    gates: Float[Tensor, "_ node"],
    lower: Float[Tensor, "_ _"],
    gain: Float[Tensor, "_ _"],
    first_mV: int,
    last_mV: int,
    per_mV: int,
) -> Float[Tensor, "_ node"]:
    """`cells.GateTable.later`: lower and gain are the table's, a row for each target, then one for each share."""
    found, n_nodes = torch.empty_like(gates), v.numel()
    _gates_later[(triton.cdiv(n_nodes, AT_ONCE),)](  # pyright: ignore[reportIndexIssue]
        v, gates, lower, gain, found, n_nodes, lower.shape[1], first_mV, last_mV, per_mV, GATES=len(gates), NODES=AT_ONCE
    )
    return found


@triton.jit
@no_type_check
def _gates_later(
    v, gates, lower, gain, found, n_nodes, n_intervals, first_mV, last_mV, per_mV,
    GATES: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    nodes = tl.program_id(0).to(tl.int64) * NODES + tl.arange(0, NODES)
    is_node = nodes < n_nodes
    v = tl.load(v + nodes, mask=is_node, other=0.0)
    # Compared, not clamped: what is not a number stays so.
    place = tl.where(v < first_mV, first_mV, tl.where(v > last_mV, last_mV, v)) * per_mV
    whole = tl.floor(place)
    interval = tl.minimum(tl.maximum(whole.to(tl.int32) - first_mV * per_mV, 0), n_intervals - 1)
    part = place - whole
    for _ in range(GATES):
        shares = GATES * n_intervals + interval
        target = tl.load(lower + interval, mask=is_node) + part * tl.load(gain + interval, mask=is_node)
        share = tl.load(lower + shares, mask=is_node) + part * tl.load(gain + shares, mask=is_node)
        now = tl.load(gates + nodes, mask=is_node)
        tl.store(found + nodes, now + share * (target - now), mask=is_node)
        interval += n_intervals
        nodes += n_nodes


@dataclass(frozen=True, kw_only=True)
class Slots:
    """How many neighbours the nodes of each block have at most: of a mesh's nodes nearly all have six, a few have ten.

    usual: so many are read at once, in all blocks; more only where there are more.
    """

    by_block: Int[Tensor, " block"]
    usual: int


def slots_of(step: HalfStep, n_trajectories: int) -> Slots:
    n_slots, n_nodes = step.neighbors.shape
    numbers = torch.arange(1, n_slots + 1, dtype=torch.int32, device=step.neighbors.device)[:, None]
    filled = ((step.couplings != 0) * numbers).amax(dim=0).repeat_interleave(n_trajectories)
    n_blocks = triton.cdiv(n_nodes * n_trajectories, AT_ONCE)
    by_block = torch.nn.functional.pad(filled, (0, n_blocks * AT_ONCE - len(filled))).view(n_blocks, AT_ONCE).amax(dim=1)
    return Slots(by_block=by_block, usual=int(by_block.median()))


def begun(
    v: Float[Tensor, "node trajectory"],
    guess: Float[Tensor, "node trajectory"],
    step: HalfStep,
    weight: Float[Tensor, "2"],
    slots: Slots,
) -> tuple[Tensor, Tensor, Tensor]:
    """`diffusion.begun`."""
    z, change, residual = (torch.empty_like(guess) for _ in range(3))
    _begun[(len(slots.by_block),)](  # pyright: ignore[reportIndexIssue]
        v.contiguous(), guess.contiguous(), step.neighbors, step.couplings, step.pulls, weight, z, change, residual,
        slots.by_block, *guess.shape, **_constants(step, guess, slots),
    )  # fmt: skip
    return z, change, residual


def gone_on(
    z: Float[Tensor, "node trajectory"],
    change: Float[Tensor, "node trajectory"],
    residual: Float[Tensor, "node trajectory"],
    step: HalfStep,
    weight: Float[Tensor, "2"],
    slots: Slots,
) -> tuple[Tensor, Tensor, Tensor]:
    """`diffusion.gone_on`."""
    # Others read the change while this is written.
    later = torch.empty_like(change)
    _gone_on[(len(slots.by_block),)](  # pyright: ignore[reportIndexIssue]
        z, change, residual, later, step.neighbors, step.couplings, weight, slots.by_block, *change.shape,
        **_constants(step, change, slots),
    )  # fmt: skip
    return z, later, residual


def _constants(step: HalfStep, field: Tensor, slots: Slots) -> dict[str, int | bool]:
    # Places divided by trajectories: with 64 bits that takes longer than all else.
    is_wide = max(step.neighbors.numel(), field.numel()) + AT_ONCE >= 2**31
    return {"USUAL": slots.usual, "IS_WIDE": is_wide, "PLACES": AT_ONCE}


@triton.jit
@no_type_check
def _places(n_trajectories, IS_WIDE: tl.constexpr, PLACES: tl.constexpr):
    block = tl.program_id(0)
    if IS_WIDE:
        block = block.to(tl.int64)
    places = block * PLACES + tl.arange(0, PLACES)
    return places, places // n_trajectories, places % n_trajectories


@triton.jit
@no_type_check
def _pulled(v, here, guess, neighbors, couplings, pulls, at, is_place, n_trajectories, trajectory):
    """What a slot adds: what pulls, and to the product with the guess."""
    other = tl.load(neighbors + at, mask=is_place, other=0).to(trajectory.dtype) * n_trajectories + trajectory
    pulled = tl.load(pulls + at, mask=is_place) * (tl.load(v + other, mask=is_place) - here)
    return pulled, tl.load(couplings + at, mask=is_place) * tl.load(guess + other, mask=is_place)


@triton.jit
@no_type_check
def _coupled(change, neighbors, couplings, at, is_place, n_trajectories, trajectory):
    other = tl.load(neighbors + at, mask=is_place, other=0).to(trajectory.dtype) * n_trajectories + trajectory
    return tl.load(couplings + at, mask=is_place) * tl.load(change + other, mask=is_place)


@triton.jit
@no_type_check
def _begun(
    v, guess, neighbors, couplings, pulls, weight, z, change, residual, n_filled, n_nodes, n_trajectories,
    USUAL: tl.constexpr, IS_WIDE: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    places, node, trajectory = _places(n_trajectories, IS_WIDE, PLACES)
    is_place = node < n_nodes
    here, first = tl.load(v + places, mask=is_place), tl.load(guess + places, mask=is_place)
    pulled, product = tl.zeros_like(here), first
    for slot in tl.static_range(USUAL):
        more = _pulled(
            v, here, guess, neighbors, couplings, pulls, slot * n_nodes + node, is_place, n_trajectories, trajectory
        )
        pulled, product = pulled + more[0], product + more[1]
    number = USUAL
    while number < tl.load(n_filled + tl.program_id(0)):
        more = _pulled(
            v, here, guess, neighbors, couplings, pulls, number * n_nodes + node, is_place, n_trajectories, trajectory
        )
        pulled, product = pulled + more[0], product + more[1]
        number += 1
    left = pulled - product
    taken = tl.load(weight + 1) * left
    tl.store(residual + places, left, mask=is_place)
    tl.store(change + places, taken, mask=is_place)
    tl.store(z + places, first + taken, mask=is_place)


@triton.jit
@no_type_check
def _gone_on(
    z, change, residual, later, neighbors, couplings, weight, n_filled, n_nodes, n_trajectories,
    USUAL: tl.constexpr, IS_WIDE: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    places, node, trajectory = _places(n_trajectories, IS_WIDE, PLACES)
    is_place = node < n_nodes
    here = tl.load(change + places, mask=is_place)
    product = here
    for slot in tl.static_range(USUAL):
        product += _coupled(change, neighbors, couplings, slot * n_nodes + node, is_place, n_trajectories, trajectory)
    number = USUAL
    while number < tl.load(n_filled + tl.program_id(0)):
        product += _coupled(change, neighbors, couplings, number * n_nodes + node, is_place, n_trajectories, trajectory)
        number += 1
    left = tl.load(residual + places, mask=is_place) - product
    taken = tl.load(weight) * here + tl.load(weight + 1) * left
    tl.store(residual + places, left, mask=is_place)
    tl.store(later + places, taken, mask=is_place)
    tl.store(z + places, tl.load(z + places, mask=is_place) + taken, mask=is_place)
