"""Error against cost: ways to get the same waves, those that no other beats, and what the solver costs at equal error."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import numpy as np

from gfunk.errors import InputError

MANY = 100  # trajectories on a domain, over which what is done once for it is shared


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What is done once for a domain, then a trajectory alone, and one of many taken together."""

    setup_ms: float
    alone_ms: float
    together_ms: float

    def ms(self, n_trajectories: int) -> float:
        """A trajectory's share, of so many on a domain."""
        return self.setup_ms / n_trajectories + (self.alone_ms if n_trajectories == 1 else self.together_ms)


NOTHING = Cost(setup_ms=0.0, alone_ms=0.0, together_ms=0.0)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to get the waves: how far off it is on average, and what it costs.

    start: the solver's first milliseconds, which an operator starts from; a solver has them in its run.
    """

    name: str
    kind: Literal["solver", "operator"]
    nodes: int  # mean over the domains
    parameters: int | None
    rel_l2: float
    lat_error_ms: float | None
    start: Cost
    run: Cost

    def ms(self, n_trajectories: int) -> float:
        return self.start.ms(n_trajectories) + self.run.ms(n_trajectories)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times more the solver costs at equal error. A bound where no setting tried errs as much, or as little."""

    times: float
    bound: Literal["", "at least", "at most"] = ""

    def __str__(self) -> str:
        return f"{self.bound} {self.times:.3g}".strip()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """truth_rel_l2: how far the truth itself may be off, if errors fall as the square of edge and step."""

    methods: tuple[Method, ...]
    truth_rel_l2: float

    def ratio(self, method: Method, n_trajectories: int) -> Ratio | None:
        """None for the solver itself and for what is no number."""
        solver = [(each.rel_l2, each.ms(n_trajectories)) for each in self.methods if each.kind == "solver"]
        if method.kind == "solver" or not isfinite(method.rel_l2):
            return None
        return cheaper_by(method.rel_l2, method.ms(n_trajectories), solver)

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row a method: start and run are those of a trajectory alone, ms the whole, by trajectories on a domain."""
        rows = []
        for each in self.methods:
            row: dict[str, Any] = {
                name: getattr(each, name) for name in ("name", "kind", "nodes", "parameters", "rel_l2", "lat_error_ms")
            }
            row |= {"setup_ms": each.start.setup_ms + each.run.setup_ms}
            row |= {"start_ms": each.start.alone_ms, "run_ms": each.run.alone_ms}
            for n_trajectories in (1, MANY):
                ratio = self.ratio(each, n_trajectories)
                row[f"ms_{n_trajectories}"] = each.ms(n_trajectories)
                row[f"cheaper_{n_trajectories}"] = None if ratio is None else ratio.times
                row[f"bound_{n_trajectories}"] = None if ratio is None else ratio.bound or None
            rows.append(row)
        return rows

    def answers(self) -> list[str]:
        """The question a user has, answered in words for each operator."""
        said = []
        for each in self.methods:
            alone, many = self.ratio(each, 1), self.ratio(each, MANY)
            if alone is not None:
                said.append(
                    f"{each.name}: at its error of {each.rel_l2:.4f} the solver costs {alone} times as much "
                    f"for one trajectory on a domain, {many} times for each of {MANY}"
                )
        return said


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of pairs (error, cost) those that no other beats in both, cheapest first."""
    best: list[tuple[float, float]] = []
    for error, cost in sorted(points, key=lambda point: (point[1], point[0])):
        if isfinite(error) and (not best or error < best[-1][0]):
            best.append((error, cost))
    return best


def cheaper_by(error: float, cost: float, solver: Sequence[tuple[float, float]]) -> Ratio:
    """The solver's cost at this error over the cost given, on straight lines between logarithms of its best settings."""
    best = frontier(solver)
    if not best:
        raise InputError("no setting of the solver gave a wave to compare with")
    if error > best[0][0]:
        return Ratio(times=best[0][1] / cost, bound="at most")
    if error < best[-1][0]:
        return Ratio(times=best[-1][1] / cost, bound="at least")
    errors, costs = np.log(best[::-1]).T
    return Ratio(times=float(np.exp(np.interp(np.log(error), errors, costs)) / cost))
