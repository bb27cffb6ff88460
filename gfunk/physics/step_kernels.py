"""Steps on a GPU where nothing is compiled by torch: what would be dozens of passes over memory, in one each.

It needs Triton, which comes with torch for CUDA on Linux; a kernel is compiled in a second, and kept from then on.
"""

from typing import no_type_check

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float
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


def begun(
    v: Float[Tensor, "node trajectory"], guess: Float[Tensor, "node trajectory"], step: HalfStep, weight: Float[Tensor, "2"]
) -> tuple[Tensor, Tensor, Tensor]:
    """`diffusion.begun`."""
    z, change, residual = (torch.empty_like(guess) for _ in range(3))
    grid, sizes = _sizes(guess)
    _begun[grid](  # pyright: ignore[reportIndexIssue]
        v.contiguous(), guess.contiguous(), step.neighbors, step.couplings, step.pulls, weight, z, change, residual, *sizes,
        SLOTS=len(step.neighbors), PLACES=AT_ONCE,
    )  # fmt: skip
    return z, change, residual


def gone_on(
    z: Float[Tensor, "node trajectory"],
    change: Float[Tensor, "node trajectory"],
    residual: Float[Tensor, "node trajectory"],
    step: HalfStep,
    weight: Float[Tensor, "2"],
) -> tuple[Tensor, Tensor, Tensor]:
    """`diffusion.gone_on`."""
    # Others read the change while this is written.
    later = torch.empty_like(change)
    grid, sizes = _sizes(change)
    _gone_on[grid](  # pyright: ignore[reportIndexIssue]
        z, change, residual, later, step.neighbors, step.couplings, weight, *sizes, SLOTS=len(step.neighbors), PLACES=AT_ONCE
    )
    return z, later, residual


def _sizes(field: Tensor) -> tuple[tuple[int], tuple[int, int]]:
    return (triton.cdiv(field.numel(), AT_ONCE),), (len(field), field.shape[1])


@triton.jit
@no_type_check
def _begun(
    v, guess, neighbors, couplings, pulls, weight, z, change, residual, n_nodes, n_trajectories,
    SLOTS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    node, trajectory = places // n_trajectories, places % n_trajectories
    is_place = node < n_nodes
    here, first = tl.load(v + places, mask=is_place), tl.load(guess + places, mask=is_place)
    pulled, product = tl.zeros_like(here), first
    for slot in tl.static_range(SLOTS):
        at = slot * n_nodes + node
        other = tl.load(neighbors + at, mask=is_place, other=0).to(tl.int64) * n_trajectories + trajectory
        pulled += tl.load(pulls + at, mask=is_place) * (tl.load(v + other, mask=is_place) - here)
        product += tl.load(couplings + at, mask=is_place) * tl.load(guess + other, mask=is_place)
    left = pulled - product
    taken = tl.load(weight + 1) * left
    tl.store(residual + places, left, mask=is_place)
    tl.store(change + places, taken, mask=is_place)
    tl.store(z + places, first + taken, mask=is_place)


@triton.jit
@no_type_check
def _gone_on(
    z, change, residual, later, neighbors, couplings, weight, n_nodes, n_trajectories,
    SLOTS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    node, trajectory = places // n_trajectories, places % n_trajectories
    is_place = node < n_nodes
    here = tl.load(change + places, mask=is_place)
    product = here
    for slot in tl.static_range(SLOTS):
        at = slot * n_nodes + node
        other = tl.load(neighbors + at, mask=is_place, other=0).to(tl.int64) * n_trajectories + trajectory
        product += tl.load(couplings + at, mask=is_place) * tl.load(change + other, mask=is_place)
    left = tl.load(residual + places, mask=is_place) - product
    taken = tl.load(weight) * here + tl.load(weight + 1) * left
    tl.store(residual + places, left, mask=is_place)
    tl.store(later + places, taken, mask=is_place)
    tl.store(z + places, tl.load(z + places, mask=is_place) + taken, mask=is_place)
