"""An operator and a test set -> one row a trajectory."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gfunk.batch import TrajectorySet
from gfunk.norms import relative_energy, relative_l2
from gfunk.rollout import Integrator, rollout


@dataclass(frozen=True, kw_only=True)
class Row:
    """The error of one predicted trajectory over its times after the first."""

    seed: int
    rel_l2: float
    rel_h1: float
    rel_l2_by_time: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All rows, and the time the predictions took once the domains were prepared."""

    rows: tuple[Row, ...]
    seconds: float

    @property
    def rel_l2(self) -> float:
        return sum(row.rel_l2 for row in self.rows) / len(self.rows)

    @property
    def rel_h1(self) -> float:
        return sum(row.rel_h1 for row in self.rows) / len(self.rows)

    def summary(self) -> dict[str, float | int]:
        return {"rel_l2": self.rel_l2, "rel_h1": self.rel_h1, "n": len(self.rows), "seconds": self.seconds}


@torch.no_grad()
def evaluate(
    operator: Callable[..., Tensor],
    data: TrajectorySet,
    integrator: Integrator,
    *,
    batch_size: int = 20,
    on_batch: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Predict every trajectory from its first state and compare. rel_h1 is the relative error of the gradients."""
    durations = torch.diff(data.times).tolist()
    rows: list[Row] = []
    seconds = 0.0
    for chosen in torch.arange(data.n_trajectories, device=data.values.device).split(batch_size):
        batch, true = data.take(chosen)
        started = _clock(true)
        predicted = rollout(operator, true[:, 0], batch, durations, integrator)
        seconds += _clock(true) - started
        later = predicted[:, 1:], true[:, 1:]
        by_time = [relative_l2(predicted[:, t, None], true[:, t, None], batch) for t in range(1, len(data.times))]
        columns = zip(
            chosen.tolist(),
            relative_l2(*later, batch).tolist(),
            relative_energy(*later, batch).tolist(),
            torch.stack(by_time, dim=1).tolist(),
            strict=True,
        )
        rows += [
            Row(seed=data.seeds[trajectory], rel_l2=l2, rel_h1=h1, rel_l2_by_time=tuple(times))
            for trajectory, l2, h1, times in columns
        ]
        on_batch(len(chosen))
    return Evaluation(rows=tuple(rows), seconds=seconds)


def _clock(like: Tensor) -> float:
    if like.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
