"""Excitable cells: how voltage, gates and concentrations of a spot of tissue change, and steps that follow them in time."""

from dataclasses import dataclass
from math import expm1
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gfunk.errors import InputError


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


def stepped(
    cell: Cell, state: dict[str, Tensor], dt_ms: float, stimulus: Tensor | float = 0.0, order: int = 1
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


def _later(value: Tensor, rate: Gate | Tensor, dt_ms: float) -> Tensor:
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
