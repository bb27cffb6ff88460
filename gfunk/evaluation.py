"""An operator and a test set -> one row a trajectory."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

import torch
from torch import Tensor

from gfunk.activation import ArrivalErrors, arrival_errors, cross_correlation
from gfunk.batch import TrajectorySet
from gfunk.errors import InputError
from gfunk.norms import relative_energy, relative_l2
from gfunk.rollout import Direct, Integrator, rollout


@dataclass(frozen=True, kw_only=True)
class Row(ArrivalErrors):
    """The error of one predicted trajectory over its times after the first."""

    seed: int
    number: int  # its place among the trajectories of that seed
    rel_l2: float
    rel_h1: float
    rel_l2_by_time: tuple[float, ...]
    cross_correlation: float | None  # None where prediction or truth is constant


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All rows, in the order of the trajectories, and the time the predictions took once the domains were prepared."""

    rows: tuple[Row, ...]
    seconds: float
    times: tuple[float, ...]  # of rel_l2_by_time

    @property
    def rel_l2(self) -> float:
        return sum(row.rel_l2 for row in self.rows) / len(self.rows)

    @property
    def rel_h1(self) -> float:
        return sum(row.rel_h1 for row in self.rows) / len(self.rows)

    @property
    def worst(self) -> int:
        """The trajectory with the largest relative l2; one that is not a number is worse than any that is."""
        return max(range(len(self.rows)), key=lambda place: (isnan(self.rows[place].rel_l2), self.rows[place].rel_l2))

    def summary(self) -> dict[str, Any]:
        """Means over rows, each over those that have the number: lat_error_ms_95 is the mean of their percentiles."""
        by_time = torch.tensor([row.rel_l2_by_time for row in self.rows], dtype=torch.float64).mean(dim=0)
        waves = ("lat_error_ms", "lat_error_ms_95", "lag_ms", "correlation_lag_ms", "n_wrongly_active", "cross_correlation")
        return {
            "rel_l2": self.rel_l2, "rel_h1": self.rel_h1, "n": len(self.rows), "seconds": self.seconds,
            **{name: _mean([getattr(row, name) for row in self.rows]) for name in waves},
            "times": list(self.times), "rel_l2_by_time": by_time.tolist(),
        }  # fmt: skip


@torch.no_grad()
def evaluate(
    operator: Callable[..., Tensor],
    data: TrajectorySet,
    integrator: Integrator | Direct,
    *,
    batch_size: int | None = None,
    every: int = 1,
    threshold: float | None = None,
    on_batch: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Predict every trajectory from its first state and compare. rel_h1 is the relative error of the gradients.

    every: rel_l2, rel_h1 and cross_correlation are those of every so-many-th save; arrivals are read off all of them.
    threshold: a node is active from this value on, in model space, times in ms; None where nothing is to arrive. batch_size:
    trajectories at a time, by default 20 on a GPU and one on a CPU, which takes up to 2.7 times as long with more.
    """
    if not 1 <= every < len(data.times):
        raise InputError(f"every {every}-th save of {len(data.times) - 1} after the first: none is left to compare")
    batch_size = batch_size or (1 if data.values.device.type == "cpu" else 20)
    rows: list[Row] = []
    seconds = 0.0
    sizes = data.n_nodes()
    for chosen in torch.arange(data.n_trajectories, device=data.values.device).split(batch_size):
        batch, true = data.take(chosen, n_nodes=int(sizes[chosen.cpu()].max()))
        started = _clock(true)
        predicted = rollout(operator, true[:, 0], batch, torch.diff(data.times).tolist(), integrator)
        seconds += _clock(true) - started
        later = predicted[:, every::every], true[:, every::every]
        by_time = [relative_l2(predicted[:, t, None], true[:, t, None], batch) for t in range(every, len(data.times), every)]
        arrivals = [ArrivalErrors() for _ in chosen]
        if threshold is not None:
            arrivals = arrival_errors(predicted[..., 0], true[..., 0], data.times, batch.is_node, threshold)
        columns = zip(
            chosen.tolist(),
            relative_l2(*later, batch).tolist(),
            relative_energy(*later, batch).tolist(),
            torch.stack(by_time, dim=1).tolist(),
            cross_correlation(*later, batch).tolist(),
            arrivals,
            strict=True,
        )
        rows += [
            Row(
                seed=data.seeds[trajectory],
                number=trajectory - data.seeds.index(data.seeds[trajectory]),
                rel_l2=l2,
                rel_h1=h1,
                rel_l2_by_time=tuple(times),
                cross_correlation=correlation if isfinite(correlation) else None,
                **vars(arrival),
            )
            for trajectory, l2, h1, times, correlation, arrival in columns
        ]
        on_batch(len(chosen))
    return Evaluation(rows=tuple(rows), seconds=seconds, times=tuple(data.times[every::every].tolist()))


def _mean(numbers: list[float | int | None]) -> float | None:
    there = [number for number in numbers if number is not None]
    return sum(there) / len(there) if there else None


def _clock(like: Tensor) -> float:
    if like.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
