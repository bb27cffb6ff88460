"""How long training takes: iterations and validations timed, and how many epochs fit into so many seconds."""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from statistics import fmean

import numpy as np
import torch
from torch import nn

from gfunk.batch import TrajectorySet
from gfunk.experiments import seeded_operator
from gfunk.recipes.recipe import Variant
from gfunk.replay import Replay
from gfunk.rollout import Direct
from gfunk.training import (
    Draw,
    TrainingConfig,
    can_replay,
    draws,
    horizon,
    make_optimizers,
    mean_loss,
    n_batches,
    put_gradients,
    step_of,
    with_firsts,
)

N_TRIAL = 1000  # epochs of a training whose kinds of epochs are looked at
N_TIMED = 16  # iterations of a kind


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of an epoch at its shortest and longest horizon, in coarse steps (True) or not, and of a validation."""

    epoch: dict[bool, dict[int, float]]
    validation: float


def epochs_within(seconds: float, config: TrainingConfig, n_saves: int, pace: Pace) -> int:
    """The most epochs whose iterations and validations take no longer; one at least.

    An epoch between the horizons measured takes what lies between their times, as each save takes the same.
    """

    def total(epochs: int) -> float:
        trial = replace(config, epochs=epochs)
        kinds = Counter(_kind(trial, epoch, n_saves) for epoch in range(epochs))
        learning = sum(
            count * _interpolated(n, pace.epoch.get(coarse) or pace.epoch[not coarse])
            for (coarse, n), count in kinds.items()
        )
        return learning + -(-epochs // config.validate_every) * pace.validation

    shortest = min(min(times.values()) for times in pace.epoch.values())
    return max(1, bisect_right(range(1, int(seconds / shortest) + 2), seconds, key=total))


def measured_pace(
    variant: Variant, data: TrajectorySet, validation: TrajectorySet, *, limit_seconds: float, compiles: bool = False
) -> Pace:
    """Times some iterations of the epochs with the fewest and with the most saves, on an operator that is thrown away.

    Each is done once beforehand, so compiling and recording don't count: N_TIMED of them, which come in random order, or
    as many as fit into limit_seconds; then all again and again for as long, of which the mean counts, as some iterations of
    SOAP take much longer than others. Nothing is learned (a rate of 0), so nothing can blow up.
    """
    assert variant.training is not None
    integrator, device = variant.integrator, data.values.device
    config = replace(variant.training, epochs=N_TRIAL, learning_rate=0.0)
    operator = seeded_operator(variant).to(device)
    step = step_of(operator, variant.training, compiles)
    if isinstance(integrator, Direct):
        data, validation = with_firsts(operator, data, config, config.starts), with_firsts(operator, validation, config)
    replay = Replay(can_replay(data, integrator))
    optimizers = make_optimizers(operator, config)
    times, sizes = data.times.tolist(), data.n_nodes()

    def iterate(draw: Draw):
        put_gradients(operator, step, data, times, integrator, config, draw, replay)
        nn.utils.clip_grad_norm_(operator.parameters(), config.clip)
        for optimizer in optimizers:
            optimizer.step()

    epochs: dict[bool, dict[int, float]] = {}
    example = {_kind(config, epoch, len(times) - 1): epoch for epoch in range(N_TRIAL)}
    for is_coarse in {coarse for coarse, _ in example}:
        horizons = [n for coarse, n in example if coarse == is_coarse]
        for n in {min(horizons), max(horizons)}:
            # An epoch may have but a few: of other seeds, more of the same kind.
            seeds = (replace(config, seed=seed) for seed in range(N_TIMED))
            drawn = chain.from_iterable(draws(each, example[is_coarse, n], sizes, len(times), integrator) for each in seeds)
            actions = [partial(iterate, draw) for draw in islice(drawn, N_TIMED)]
            iteration = _seconds_each(actions, device, limit_seconds)
            epochs.setdefault(is_coarse, {})[n] = iteration * n_batches(config, data.n_trajectories)
    validate = partial(mean_loss, step, validation, integrator, config, replay)
    return Pace(epoch=epochs, validation=_seconds_each([validate], device, limit_seconds))


def _kind(config: TrainingConfig, epoch: int, n_saves: int) -> tuple[bool, int]:
    """What the time of an epoch depends on: whether its steps are coarse, and how many saves it predicts."""
    return epoch < config.coarse_part * config.epochs, horizon(config, epoch, n_saves)


def _interpolated(n: int, known: dict[int, float]) -> float:
    horizons = sorted(known)
    return float(np.interp(n, horizons, [known[each] for each in horizons]))


def _seconds_each(actions: Sequence[Callable[[], object]], device: torch.device, limit_seconds: float) -> float:
    started, warm = _clock(device), 0
    while warm < len(actions) and (warm == 0 or _clock(device) - started < limit_seconds):
        actions[warm]()
        warm += 1
    passes: list[float] = []
    while not passes or sum(passes) < limit_seconds:
        started = _clock(device)
        for action in actions[:warm]:
            action()
        passes.append(_clock(device) - started)
    return fmean(passes) / warm


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
