"""What an operator tells of a wave from its first state: when it comes, and values at any time since."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import log
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from threadpoolctl import threadpool_limits
from torch import Tensor

from gfunk.activation import activation_times
from gfunk.first_waves import FirstWave, threads_for
from gfunk.operators.arrival import Arrival
from gfunk.readiness import Ready
from gfunk.rollout import rollout

NODES_AT_ONCE = 512  # told of by a thread: of more a cache holds too little, with fewer threads wait for Python
# Where the wave has been for a while, v would jump by some mV as the operator takes over: what it misses then is added,
# and fades, e times in so long. At the front itself, which moves on, that would be wrong.
BEHIND_MS, FADING_MS = 1.0, 2.0

# Of its arrival, in the network's unit of time; and how finely that is looked through.
RISEN_WITHIN, N_RISES = 0.1, 17

# A wave is felt where u has come so far from rest to the threshold, 5 ms before it arrives; there the operator's own errors
# are larger, 2e-4. And how far u may be from rest in tissue that none has touched.
UNFELT, AT_REST = 1e-5, 2e-3

# Tells values in mV at times since the stimulus, all after the first state.
Tell = Callable[[Float[np.ndarray, " time"]], Float[np.ndarray, "time _"]]


@torch.no_grad()
def foretold(ready: Ready, first: FirstWave) -> tuple[Tell, Float[np.ndarray, " _"] | None]:
    """What tells of a wave, and when it arrives, if the operator knows."""
    u = _scaled(ready, first.values_mV[-1:])
    if not isinstance(ready.operator, Arrival):
        return partial(_rolled_out, ready, u), None
    # As a rollout would, but what is found on the way is kept.
    told = ready.operator.arrival(_known(ready, ready.operator, u), ready.batch)
    arrival = _activated(ready.operator, u, *told)[0].cpu().numpy() + np.float32(ready.first_ms)
    return partial(_read_off, ready, ready.operator, first, u, *told), arrival


@torch.no_grad()
def foretold_arrivals(ready: Ready, operator: Arrival, firsts: Sequence[FirstWave]) -> Float[np.ndarray, "batch _"]:
    """When each of several waves comes, in ms; seen together."""
    u = _scaled(ready, np.stack([first.values_mV[-1] for first in firsts]))
    told = operator.arrival(_known(ready, operator, u), ready.batch)
    return _activated(operator, u, *told).cpu().numpy() + np.float32(ready.first_ms)


def _scaled(ready: Ready, values_mV: Float[np.ndarray, "batch _"]) -> Float[Tensor, "batch _ 1"]:
    return (torch.from_numpy(values_mV).to(ready.device)[..., None] - ready.problem.offset) / ready.problem.scale


@torch.no_grad()
def _rolled_out(
    ready: Ready, u: Float[Tensor, "1 _ 1"], times_ms: Float[np.ndarray, " time"]
) -> Float[np.ndarray, "time _"]:
    steps = np.diff(times_ms, prepend=ready.first_ms).tolist()
    values = rollout(ready.operator, u, ready.batch, steps, ready.variant.integrator)[0, 1:, :, 0]
    return (values * ready.problem.scale + ready.problem.offset).cpu().numpy()


@torch.no_grad()
def _read_off(
    ready: Ready,
    operator: Arrival,
    first: FirstWave,
    u: Float[Tensor, "1 _ 1"],
    arrival: Float[Tensor, "1 _ 1"],
    latents: Float[Tensor, "1 _ feature"],
    times_ms: Float[np.ndarray, " time"],
) -> Float[np.ndarray, "time _"]:
    since = times_ms - ready.first_ms
    values = _told(operator, u, arrival, latents, torch.from_numpy(np.append(0.0, since)).to(u))
    is_behind = torch.from_numpy(first.activation_ms <= ready.first_ms - BEHIND_MS).to(u.device)[:, None]
    fading = torch.from_numpy(np.exp(-since / FADING_MS)).to(u)[:, None, None]
    values = values[:, 1:] + fading * torch.where(is_behind, u - values[:, 0], 0)[:, None]
    return (values[0, :, :, 0] * ready.problem.scale + ready.problem.offset).cpu().numpy()


def _known(ready: Ready, operator: Arrival, u: Float[Tensor, "batch _ channel"]) -> Float[Tensor, "batch _ input"]:
    if ready.device.type != "cpu":
        return operator.first(u, ready.batch)
    # SciPy's BLAS has threads of its own, which wait for each other as long: on busy cores that took 2.6 times as long.
    with threads_for(ready.even.n_nodes), threadpool_limits(1, "blas"):
        return operator.first(u, ready.batch)


def _told(
    operator: Arrival,
    u: Float[Tensor, "batch _ channel"],
    arrival: Float[Tensor, "batch _ 1"],
    latents: Float[Tensor, "batch _ feature"],
    times: Float[Tensor, " time"],
) -> Float[Tensor, "batch time _ channel"]:
    """`operator.told`, but tissue at rest is left as it is until the wave can be felt: a CPU then need not ask."""
    ahead = log(1 / UNFELT) / operator.config.speed**2
    felt = torch.where((u - operator.config.resting).abs() < AT_REST, arrival - ahead, times[0])

    def told_from(start: int, u: Tensor, arrival: Tensor, latents: Tensor, felt: Tensor) -> Tensor:
        values = operator.told(u, arrival, latents, times[start:])
        return torch.where(times[start:, None, None] < felt[:, None], u[:, None], values)

    if u.device.type != "cpu":
        return told_from(0, u, arrival, latents, felt)
    values = u[:, None].repeat(1, len(times), 1, 1)

    def tell(nodes: Tensor):
        some = [each[:, nodes] for each in (u, arrival, latents, felt)]
        start = int(torch.searchsorted(times, some[-1].min()))
        values[:, start:, nodes] = told_from(start, *some)

    # In the order in which the wave comes, so that those told of together have as much to be left out.
    _in_threads(tell, felt.amin((0, 2)).argsort().split(NODES_AT_ONCE))
    return values


def _by_nodes(found: Callable[..., Tensor], *fields: Float[Tensor, "batch node _"]) -> Tensor:
    """What is found of each node by itself; its axis is the last but one.

    On a CPU of few nodes at a time, as its cache holds no more: that takes 0.4 of the time.
    """
    if fields[0].device.type != "cpu":
        return found(*fields)
    return torch.cat(_in_threads(found, *(field.split(NODES_AT_ONCE, dim=1) for field in fields)), dim=-2)


def _in_threads(found: Callable[..., Any], *columns: Sequence[Tensor]) -> list[Any]:
    """A thread for each, not all threads for each: those wait for each other wherever a core has something else to do."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool, threads_for(0):
        return list(pool.map(torch.no_grad()(found), *columns))


def _activated(
    operator: Arrival,
    u: Float[Tensor, "batch _ channel"],
    arrival: Float[Tensor, "batch _ 1"],
    latents: Float[Tensor, "batch _ feature"],
) -> Float[Tensor, "batch _"]:
    """When u rises through the threshold: near its arrival, but nobody told the profile to do so at that very time."""
    since = torch.linspace(-RISEN_WITHIN, RISEN_WITHIN, N_RISES).to(arrival) * operator.config.time_scale
    rising = _by_nodes(partial(operator.told, times=since), u, torch.zeros_like(arrival), latents)[..., 0]
    late = activation_times(rising, since, operator.config.threshold)
    return arrival[..., 0] + late.nan_to_num(0.0).to(arrival)
