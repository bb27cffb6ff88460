"""Excitable cells: how voltage, gates and concentrations of a spot of tissue change, and steps that follow them in time."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad

from gfunk.errors import InputError
from gfunk.physics.compiling import HAS_TRITON


@dataclass(frozen=True)
class Gate:
    """A state that relaxes towards `target` at this rate, the inverse of its time constant."""

    target: Tensor
    rate_per_ms: Tensor | float


@runtime_checkable
class Cell(Protocol):
    """An ionic model: what a user writes to add one."""

    @property
    def resting(self) -> dict[str, float]:
        """Every state at rest by name, the voltage "v" (mV) first."""
        ...

    def rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        """For every state a Gate, or its rate of change per ms; that of "v" is -(sum of currents) / Cm, without stimulus."""
        ...


@runtime_checkable
class TabulableCell(Cell, Protocol):
    """An ionic model that says which of its gates follow the voltage alone: they can be read off tables."""

    def voltage_gates(self, v: Tensor) -> dict[str, Gate]:
        """The part of `rates` that needs nothing but v."""
        ...

    def other_rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        """The rest of it."""
        ...


def stepped(
    cell: Cell, state: dict[str, Tensor], dt_ms: float | Tensor, stimulus: Tensor | float = 0.0, order: int = 1
) -> dict[str, Tensor]:
    """Every state a step later; stimulus in mV/ms.

    Order 1: Rush and Larsen, gates exponentially with target and rate held, all else by Euler. Order 2: the same with rates
    of the middle of the step, where an order-1 half step leads (Perego and Veneziani 2009). Where rates jump (Courtemanche's
    h and j at -40 mV, Mitchell and Schaeffer's h) the step across the jump is of order 1.
    """
    if order not in (1, 2):
        raise InputError(f"cells step with order 1 or 2, not {order}")
    found_at = state if order == 1 else stepped(cell, state, dt_ms / 2, stimulus, order=1)
    rates = cell.rates(found_at)
    later = {name: _later(value, rates[name], dt_ms) for name, value in state.items()}
    return {**later, "v": later["v"] + dt_ms * stimulus}


# What follows steps cells in fewer operations, for where nothing is compiled: there each takes microseconds, however little
# it does, and a step has hundreds.

TABLE_MV = (-128, 128)
MOVED_MV = 1e-3


@dataclass(frozen=True)
class GateTable:
    """Targets of gates that follow the voltage alone, and what share of the way there a step goes, by straight lines."""

    names: tuple[str, ...]
    # A row for each target, then one for each share; a column for each interval of the voltage.
    lower: Tensor
    gain: Tensor  # from the lower end of the interval to the upper
    per_mV: int

    def later(self, state: dict[str, Tensor], v: Tensor) -> dict[str, Tensor]:
        """These gates a step later, with target and rate held at v; beyond the table, at its end."""
        gates = torch.stack([state[name] for name in self.names])
        if v.is_cuda and HAS_TRITON:
            from gfunk.physics.step_kernels import gates_later

            later = gates_later(v, gates, self.lower, self.gain, *TABLE_MV, self.per_mV)
            return dict(zip(self.names, later.unbind(), strict=True))
        place = v.clamp(*TABLE_MV) * self.per_mV
        whole = place.floor()
        # What is not a number is in no interval: any will do, it stays what it is.
        interval = (whole.int() - TABLE_MV[0] * self.per_mV).clamp(0, self.lower.shape[1] - 1)
        found = torch.addcmul(self.lower.index_select(1, interval), self.gain.index_select(1, interval), place - whole)
        return dict(zip(self.names, torch.lerp(gates, *found.chunk(2)).unbind(), strict=True))


def gate_table(cell: TabulableCell, dt_ms: float, like: Tensor, per_mV: int = 32) -> GateTable:
    """For steps of this length, of fields like this one.

    per_mV: intervals, a power of two: that of a voltage is found without rounding, so what jumps at whole mV still does.
    """
    ends = torch.arange(TABLE_MV[0] * per_mV, TABLE_MV[1] * per_mV + 2, dtype=torch.float64) / per_mV
    # Just below its upper end: there another formula may begin.
    sides = [cell.voltage_gates(v) for v in (ends[:-1], ends[1:].nextafter(ends[:-1]))]

    def rows(gates: Sequence[Gate]) -> Tensor:
        shares = [_relaxed(dt_ms * gate.rate_per_ms) * torch.ones_like(gate.target) for gate in gates]
        return torch.stack([*(gate.target for gate in gates), *shares])

    lower, upper = (rows(list(side.values())) for side in sides)
    return GateTable(tuple(sides[0]), lower.to(like), (upper - lower).to(like), per_mV)


StepTables = list[tuple[float, GateTable]]


def step_tables(cell: TabulableCell, dt_ms: float, order: int, like: Tensor) -> StepTables:
    """As in `stepped`: for order 2, half a step leads to where the rates of the whole one are found."""
    return [(step_ms, gate_table(cell, step_ms, like)) for step_ms in (dt_ms / 2, dt_ms)[-order:]]


def stepped_by_tables(
    cell: TabulableCell, tables: StepTables, state: dict[str, Tensor], stimulus: Tensor
) -> dict[str, Tensor]:
    """`stepped`, with gates read off the tables."""
    later = state
    for dt_ms, table in tables:
        rates, gates = cell.other_rates(later), table.later(state, later["v"])
        later = gates | {name: _soon(state[name], rate, dt_ms) for name, rate in rates.items()}
        later["v"] = later["v"].add(stimulus, alpha=dt_ms)
    return {name: later[name] for name in state}


class MovingCells:
    """Steps cells from rest, which is taken to be steady, and holds the states of those that have left it: no other changes.

    One has left if a stimulus has pushed it, or v has moved by MOVED_MV: ahead of a wave it soon moves by far more.
    """

    def __init__(self, cell: TabulableCell, v: Tensor, dt_ms: float, order: int):
        self.cell, self.resting = cell, cell.resting
        self.tables = step_tables(cell, dt_ms, order, v)
        self.has_left = torch.zeros_like(v, dtype=torch.bool)
        self.nodes = self.has_left.nonzero()[:, 0]
        self.others = {name: v[:0] for name in self.resting if name != "v"}

    def stepped(self, v: Tensor, stimulus: Tensor) -> Tensor:
        """v of all cells a step later."""
        self._leave(((v - self.resting["v"]).abs() > MOVED_MV) | (stimulus != 0))
        state = {"v": v[self.nodes], **self.others}
        later = stepped_by_tables(self.cell, self.tables, state, stimulus[self.nodes])
        moved = later.pop("v")
        self.others = later
        return v.index_copy(0, self.nodes, moved)

    def _leave(self, moves: Tensor):
        nodes = (moves & ~self.has_left).nonzero()[:, 0]
        if len(nodes):
            self.has_left |= moves
            self.nodes = torch.cat([self.nodes, nodes])
            self.others = {
                name: pad(value, (0, len(nodes)), value=self.resting[name]) for name, value in self.others.items()
            }


def opening_and_closing(opening: Tensor, closing: Tensor) -> Gate:
    """A gate that opens and closes at these rates per ms."""
    return Gate(opening / (opening + closing), opening + closing)


def relaxing(target: Tensor, tau_ms: Tensor) -> Gate:
    """A gate with this time constant."""
    return Gate(target, 1 / tau_ms)


def scaled(x: Tensor, zero: float, width: float) -> Tensor:
    """(x - zero) / width, as a product: compilers keep quotients by constants, which take several times as long."""
    return (x - zero) * (1 / width)


def ramp(x: Tensor, decay: Tensor | None = None) -> Tensor:
    """x / (1 - exp(-x)): 0 far below zero, x far above, smooth between; decay: exp(-x), where it is at hand."""
    decay = torch.exp(-x) if decay is None else decay
    is_near, square = x.abs() < 0.3, x * x
    # Near 0 its series; the quotient not taken is kept finite.
    series = 1 + x * (1 / 2) + square * (1 / 12 - square * (1 / 720 - square * (1 / 30240)))
    return torch.where(is_near, series, x / torch.where(is_near, 1, 1 - decay))


def _later(value: Tensor, rate: Gate | Tensor, dt_ms: float | Tensor) -> Tensor:
    if isinstance(rate, Gate):
        # As a change, not as target + rest * exp: slow gates keep their digits in float32, and [0, 1] is never left.
        return value + (rate.target - value) * _relaxed(dt_ms * rate.rate_per_ms)
    return value + dt_ms * rate


def _relaxed(x: Tensor | float) -> Tensor | float:
    """1 - exp(-x) for x >= 0, by the series of exp(x): float32's last digit below 0.5, within 0.0013 anywhere.

    Gates fast enough to see that are at their targets. No slower than exp; expm1, compiled, may lose small x's digits.
    """
    if not isinstance(x, Tensor):
        return -expm1(-x)
    x = x.clamp(max=64.0)  # x^7 stays finite
    growth = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040)))))))
    return growth / (1 + growth)


def _soon(value: Tensor, rate: Gate | Tensor, dt_ms: float) -> Tensor:
    """`_later` in fewer operations: not compiled, expm1 keeps all digits."""
    if isinstance(rate, Gate):
        x = dt_ms * rate.rate_per_ms
        return torch.lerp(value, rate.target, -torch.expm1(-x) if isinstance(x, Tensor) else -expm1(-x))
    return value.add(rate, alpha=dt_ms)
