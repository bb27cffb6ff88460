"""Excitable cells: how voltage, gates and concentrations of a spot of tissue change, and steps that follow them in time."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gfunk.errors import InputError


@dataclass(frozen=True)
class Gate:
    """A state that relaxes towards `target` with time constant `tau_ms`."""

    target: Tensor
    tau_ms: Tensor


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

    Order 1: Rush and Larsen, gates exactly with target and tau held, all else by Euler. Order 2: the same with rates of the
    middle of the step, where an order-1 half step leads (Perego and Veneziani 2009). Where rates jump (Courtemanche's h and
    j at -40 mV, Mitchell and Schaeffer's h) the step across the jump is of order 1.
    """
    if order not in (1, 2):
        raise InputError(f"cells step with order 1 or 2, not {order}")
    found_at = state if order == 1 else stepped(cell, state, dt_ms / 2, stimulus, order=1)
    rates = cell.rates(found_at)
    later = {name: _later(value, rates[name], dt_ms) for name, value in state.items()}
    return {**later, "v": later["v"] + dt_ms * stimulus}


def opening_and_closing(opening: Tensor, closing: Tensor) -> Gate:
    """A gate that opens and closes at these rates per ms."""
    return Gate(opening / (opening + closing), 1 / (opening + closing))


def ramp(x: Tensor) -> Tensor:
    """x / (1 - exp(-x)): 0 far below zero, x far above, smooth between."""
    is_near = x.abs() < 1e-3
    # Where the quotient is 0 / 0 or nearly so, its series; the quotient not taken is kept finite.
    return torch.where(is_near, 1 + x * (0.5 + x / 12), x / -torch.expm1(-torch.where(is_near, 1, x)))


def _later(value: Tensor, rate: Gate | Tensor, dt_ms: float) -> Tensor:
    if isinstance(rate, Gate):
        # As a change, not as target + rest * exp: slow gates keep their digits in float32, and [0, 1] is never left.
        return value - (rate.target - value) * torch.expm1(-dt_ms / rate.tau_ms)
    return value + dt_ms * rate
