"""From operators to trajectories: Euler, RK4, adaptive solvers with or without adjoint, the tau-step flow map, in one go."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gfunk.batch import Batch
from gfunk.errors import InputError
from gfunk.operators import DirectOperator, Operator


@runtime_checkable
class Integrator(Protocol):
    """Carries u over one interval between saved times."""

    def advance(self, operator: Operator, u: Tensor, batch: Batch, duration: float) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class FlowMap:
    """u + tau N(u, tau): the operator gives the mean rate over the step, so steps may be as long as it has learned.

    Each interval is cut into equal steps no longer than `longest_step`.
    """

    longest_step: float

    def advance(self, operator: Operator, u: Tensor, batch: Batch, duration: float) -> Tensor:
        n_steps, tau = _steps(duration, self.longest_step, u)
        for _ in range(n_steps):
            u = u + tau * operator(u, batch, tau)
        return u


@dataclass(frozen=True, kw_only=True)
class Euler:
    """u + dt N(u): the paper's integrator (A.1.2)."""

    step: float
    order: ClassVar[int] = 1

    def advance(self, operator: Operator, u: Tensor, batch: Batch, duration: float) -> Tensor:
        n_steps, dt = _steps(duration, self.step, u)
        now = torch.zeros_like(dt)
        for _ in range(n_steps):
            u = u + dt * operator(u, batch, now)
        return u


@dataclass(frozen=True, kw_only=True)
class RK4:
    """The classical Runge-Kutta method."""

    step: float
    order: ClassVar[int] = 4

    def advance(self, operator: Operator, u: Tensor, batch: Batch, duration: float) -> Tensor:
        n_steps, dt = _steps(duration, self.step, u)
        now = torch.zeros_like(dt)
        for _ in range(n_steps):
            first = operator(u, batch, now)
            second = operator(u + dt / 2 * first, batch, now)
            third = operator(u + dt / 2 * second, batch, now)
            fourth = operator(u + dt * third, batch, now)
            u = u + dt / 6 * (first + 2 * second + 2 * third + fourth)
        return u


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """torchdiffeq's adaptive solvers; with `adjoint`, gradients come from a second ODE in constant memory (Eq. 13)."""

    method: str = "dopri5"
    rtol: float = 1e-5
    atol: float = 1e-7
    adjoint: bool = False

    def advance(self, operator: Operator, u: Tensor, batch: Batch, duration: float) -> Tensor:
        try:
            import torchdiffeq
        except ImportError as error:
            raise InputError("adaptive integration needs torchdiffeq: pip install 'gfunk[adaptive]'") from error
        times = torch.tensor([0.0, duration], dtype=u.dtype, device=u.device)
        now = times[0]

        def rate(_: Tensor, state: Tensor) -> Tensor:
            return operator(state, batch, now)

        settings = {"method": self.method, "rtol": self.rtol, "atol": self.atol}
        if not self.adjoint:
            return torch.as_tensor(torchdiffeq.odeint(rate, u, times, **settings)[-1])
        is_module = isinstance(operator, torch.nn.Module)
        if torch.is_grad_enabled() and not is_module:
            raise InputError("the adjoint needs an nn.Module: of a bare function it can't know the parameters")
        parameters = tuple(operator.parameters()) if is_module else ()
        return torch.as_tensor(torchdiffeq.odeint_adjoint(rate, u, times, adjoint_params=parameters, **settings)[-1])


@dataclass(frozen=True, kw_only=True)
class Direct:
    """Each output time from the first state, in one go: for operators that take times (`DirectOperator`)."""


def rollout(
    operator: Operator | DirectOperator,
    initial: Float[Tensor, "batch node channel"],
    batch: Batch,
    durations: list[float],
    integrator: Integrator | Direct,
    *,
    saves_memory: bool = False,
    between: Callable[[], None] | None = None,
) -> Float[Tensor, "batch time node channel"]:
    """u after each of the consecutive durations; the first saved value is the initial one.

    saves_memory: of several intervals, activations inside each are computed again in the backward pass instead of kept.
    between: called after each interval, to show progress.
    """
    for duration in durations:
        if not 0 < duration < inf:
            raise InputError(f"output times must rise: one lies {duration} after the one before")
    if isinstance(integrator, Direct):
        if not hasattr(operator, "first"):
            raise InputError("this operator gives rates of change: it needs steps, so another integrator than Direct")
        times = torch.tensor(durations, dtype=initial.dtype, device=initial.device).cumsum(0)
        return torch.cat([initial[:, None], operator(operator.first(initial, batch), batch, times)], dim=1)  # pyright: ignore
    stepping: Operator = operator  # pyright: ignore[reportAssignmentType]
    advance = integrator.advance
    if saves_memory and len(durations) > 1:
        # No operator draws random numbers, so there is no state of them to put back.
        advance = partial(checkpoint, integrator.advance, use_reentrant=False, preserve_rng_state=False)
    # Cut out of a longer trajectory, u's layout would depend on that one's length: compiled steps would compile again.
    saved = [initial.contiguous()]
    for duration in durations:
        saved.append(advance(stepping, saved[-1], batch, duration))
        if between is not None:
            between()
    return torch.stack(saved, dim=1)


def _steps(duration: float, longest: float, like: Tensor) -> tuple[int, Tensor]:
    """How many equal steps of at most `longest` make up the duration, and their length."""
    if not longest > 0:
        raise InputError(f"a step must be positive, not {longest}")
    n_steps = max(1, ceil(duration / longest - 1e-6))
    return n_steps, torch.full((), duration / n_steps, dtype=like.dtype, device=like.device)
