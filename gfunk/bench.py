"""What an operator costs, beside the least it could cost: operations and bytes counted, both ceilings measured here."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from resource import RUSAGE_SELF, getrusage
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gfunk.batch import Batch, TrajectorySet
from gfunk.operators.arrival import ArrivalConfig
from gfunk.operators.diffusion_net import DiffusionNetConfig
from gfunk.operators.gfunk import GFuNKConfig, PaperGFuNKConfig
from gfunk.operators.gnn import GNNConfig
from gfunk.operators.make import NetworkConfig
from gfunk.operators.modes import ExactModesConfig
from gfunk.recipes.recipe import Variant
from gfunk.replay import Replay
from gfunk.rollout import Direct, Integrator, rollout
from gfunk.training import Draw, TrainingConfig, can_replay, put_gradients, with_firsts

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What this device does at best: products of large matrices (float32, bfloat16), and a large copy (read and written)."""

    flops_per_second: float
    half_flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds and bytes, measured; floors are the larger of counted operations and counted bytes over the ceilings.

    An epoch predicts whole trajectories, as its last one does where the horizon grows, in the variant's own precision.
    memory_mib is the peak of training on a GPU; on a CPU that of the whole process so far.
    """

    variant: str
    nodes: int
    predict_ms: float
    predict_floor_ms: float
    predict_gflop: float
    predict_gbyte: float
    epoch_seconds: float
    epoch_floor_seconds: float
    memory_mib: float


def measured_ceilings(device: torch.device) -> Ceilings:
    size = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(2, size, size, device=device)
    half_a, half_b = a.bfloat16(), b.bfloat16()
    product = median_seconds(lambda: a @ b, device)
    half_product = median_seconds(lambda: half_a @ half_b, device)
    long = torch.randn(2**28 if device.type == "cuda" else 2**24, device=device)
    copy = median_seconds(lambda: long.clone(), device)
    return Ceilings(
        flops_per_second=2 * size**3 / product,
        half_flops_per_second=2 * size**3 / half_product,
        bytes_per_second=2 * long.numel() * 4 / copy,
    )


def cost(
    operator: nn.Module, step: Callable[..., Tensor], variant: Variant, data: TrajectorySet, n_epoch: int, ceilings: Ceilings
) -> Cost:
    """Cost of predicting one of the trajectories (all of `data` at once) and of an epoch over n_epoch of them."""
    device = data.values.device
    chosen = torch.arange(data.n_trajectories, device=device)
    batch, true = data.take(chosen)
    durations = torch.diff(data.times).tolist()

    is_direct = isinstance(variant.integrator, Direct)
    replay = Replay(can_replay(data, variant.integrator))

    @torch.no_grad()
    def predict():
        # How long a front is carried on depends on where it is: that can't be recorded.
        predicting = Replay(False) if is_direct else replay
        predicting("predict", lambda first: (rollout(step, first, batch, durations, variant.integrator),), true[:, 0])

    training = replace(variant.training or TrainingConfig(epochs=1, batch_size=1, learning_rate=1.0), starts=(0,))
    whole = whole_draw(training, variant.integrator, data)
    times = data.times.tolist()
    if is_direct:
        data = with_firsts(operator, data, training)

    def learn():
        put_gradients(operator, step, data, times, variant.integrator, training, whole, replay)

    predict_seconds = median_seconds(predict, device) / data.n_trajectories
    forget_peak(device)
    has_parameters = any(True for _ in operator.parameters())
    learn_seconds = median_seconds(learn, device) / data.n_trajectories if has_parameters else 0.0
    memory = peak_bytes(device)
    n_calls = _n_calls(variant, data)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        if is_direct:
            rollout(operator, true[:, 0], batch, durations, variant.integrator)
        else:
            operator(true[:, 0], batch, torch.tensor(durations[0], device=device, dtype=true.dtype))
    flops = counter.get_total_flops() * n_calls / data.n_trajectories
    moved = _bytes_a_call(operator, variant.network, data) * n_calls / data.n_trajectories
    learn_flops = ceilings.half_flops_per_second if training.half_precision else ceilings.flops_per_second
    floor = max(flops / ceilings.flops_per_second, moved / ceilings.bytes_per_second)
    learn_floor = max(flops / learn_flops, moved / ceilings.bytes_per_second)
    return Cost(
        variant=variant.name,
        nodes=data.values.shape[2],
        predict_ms=1e3 * predict_seconds,
        predict_floor_ms=1e3 * floor,
        predict_gflop=flops / 1e9,
        predict_gbyte=moved / 1e9,
        epoch_seconds=learn_seconds * n_epoch,
        # The backward pass does twice the forward's work.
        epoch_floor_seconds=3 * learn_floor * n_epoch if has_parameters else 0.0,
        memory_mib=memory / 2**20,
    )


def whole_draw(training: TrainingConfig, integrator: Integrator | Direct, data: TrajectorySet) -> Draw:
    """All trajectories at all saves, or at as many as a direct operator learns from at a time."""
    n_saves = 1 + training.n_times if isinstance(integrator, Direct) else None
    saves = tuple(range(len(data.times)))[:n_saves]
    return Draw(chosen=np.arange(data.n_trajectories), saves=saves, n_nodes=data.values.shape[2])


def _n_calls(variant: Variant, data: TrajectorySet) -> int:
    """How often a prediction calls the operator."""
    if isinstance(variant.integrator, Direct):
        return 1
    calls = 0

    def counting(u: Tensor, batch: Batch, tau: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.zeros_like(u)

    for duration in torch.diff(data.times).tolist():
        variant.integrator.advance(counting, data.values[:, 0], data.batch, duration)
    return calls


def _bytes_a_call(operator: nn.Module, network: NetworkConfig, data: TrajectorySet) -> int:
    """The fewest bytes a call must move: weights, modes and graph where used, u in and out; all else could stay on chip."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in operator.parameters())
    batch = data.batch
    modes = graph = 0
    if isinstance(network, GFuNKConfig | PaperGFuNKConfig | ExactModesConfig | ArrivalConfig | DiffusionNetConfig):
        used = batch.with_modes(network.n_modes)
        modes = (used.analysis.numel() + used.synthesis.numel()) * batch.synthesis.element_size()
    if isinstance(network, GNNConfig) or (isinstance(network, GFuNKConfig) and network.local_width):
        graph = batch.neighbors.numel() * (batch.neighbors.element_size() + batch.couplings.element_size())
    return weights + modes + graph + 2 * data.values[:, 0].numel() * data.values.element_size()


def median_seconds(action: Callable[[], object], device: torch.device) -> float:
    """After a first time that doesn't count."""
    action()
    seconds = []
    for _ in range(5):
        seconds.append(timed(action, device)[1])
        if sum(seconds) > 20:
            break
    return sorted(seconds)[len(seconds) // 2]


def timed(action: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """What it gives, and the seconds it took."""
    _wait(device)
    started = time.perf_counter()
    result = action()
    _wait(device)
    return result, time.perf_counter() - started


def forget_peak(device: torch.device):
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: torch.device) -> int:
    """The most memory in use on a GPU since the peak was forgotten; on a CPU the most this process ever held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    # macOS reports bytes, others kilobytes.
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _wait(device: torch.device):
    if device.type == "cuda":
        torch.cuda.synchronize()
