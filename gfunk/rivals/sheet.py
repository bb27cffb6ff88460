"""The work that every solver is given, and how it is timed. Only numpy: other solvers' interpreters import this too."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from resource import RUSAGE_CHILDREN, getrusage

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A square of healthy atrial tissue with fibres along x, at rest, stimulated at its corner."""

    dt_ms: float
    side_mm: float = 20.0
    edge_mm: float = 0.2
    along_mS_per_mm: float = 0.3125
    across_mS_per_mm: float = 0.0625
    strength_mV_per_ms: float = 50.0
    duration_ms: float = 2.0
    stimulated_mm: float = 1.5
    until_ms: float = 20.0
    activated_mV: float = -20.0

    @property
    def n_side(self) -> int:
        return round(self.side_mm / self.edge_mm) + 1

    @property
    def n_nodes(self) -> int:
        return self.n_side**2

    @property
    def n_steps(self) -> int:
        return round(self.until_ms / self.dt_ms)

    @property
    def warm_up_ms(self) -> float:
        """Every kind of step there is has been done by then: with the stimulus, at its end, without."""
        return min(self.until_ms, self.duration_ms + 1.0)

    def points_mm(self) -> np.ndarray:
        """One row a node; y runs fastest."""
        line = np.linspace(0, self.side_mm, self.n_side)
        return np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)

    def stimulated_shares(self) -> np.ndarray:
        """How much of each node's surroundings lies in the stimulated corner: 0 or 1 at 0.2 mm, so that all can do it.

        Finer meshes cut the corner's edge, and shares make them converge to the same problem.
        """
        return np.clip((self.stimulated_mm - self.points_mm()) / self.edge_mm + 0.5, 0, 1).round(9).prod(axis=1)


def asked_sheet() -> Sheet:
    """The sheet in this script's first argument."""
    return Sheet(**json.loads(sys.argv[1]))


def as_argument(sheet: Sheet) -> str:
    return json.dumps(asdict(sheet))


def clock() -> tuple[float, float]:
    """Seconds on the wall and of processor time, children that ended included, since some moment."""
    children = getrusage(RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


def seconds_of(action: Callable[[], object]) -> tuple[float, float]:
    """What it took, on the wall and of processor time."""
    wall, cpu = clock()
    action()
    wall_after, cpu_after = clock()
    return wall_after - wall, cpu_after - cpu


def print_result(
    sheet: Sheet, version: str, setup: tuple[float, float], stepping: tuple[float, float], activation_ms: np.ndarray
):
    """One line of JSON, the last one of every script. Activation times are by node, NaN where there is none."""
    found = {
        "version": version,
        "nodes": sheet.n_nodes,
        "steps": sheet.n_steps,
        "setup_seconds": setup[0],
        "wall_seconds": stepping[0],
        "cpu_seconds": stepping[1],
        "activation_ms": [None if np.isnan(time_ms) else round(float(time_ms), 4) for time_ms in activation_ms],
        "points_mm": sheet.points_mm().round(6).tolist(),
    }
    print(json.dumps(found))
