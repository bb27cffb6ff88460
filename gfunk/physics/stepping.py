"""From rest at time 0 to all asked times, step by step, on one device.

Strang splitting: half a step of diffusion, a step of every cell, half a step of diffusion. Two neighbouring halves are one
Crank-Nicolson step, whose implicit midpoint is the solution at the full step: it costs nothing extra.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gfunk.errors import InputError
from gfunk.physics.cells import (
    Cell,
    MovingCells,
    StepTables,
    TabulableCell,
    step_tables,
    stepped,
    stepped_by_tables,
)
from gfunk.physics.compiling import COMPILING, HAS_TRITON, ONE_LOOP, can_compile
from gfunk.physics.diffusion import HalfStep, begun, coupling_matrix, diffused, gone_on
from gfunk.physics.models import CELLS
from gfunk.physics.schemes import Scheme, named
from gfunk.physics.stimulus import Currents, Pulses
from gfunk.physics.waves import Seen
from gfunk.replay import Replay

# Steps recorded as one on a GPU; elsewhere it saves nothing, and costs nothing.
STEPS_AT_ONCE = 10


def reached_moments(
    together: HalfStep,
    given: Pulses,
    times: np.ndarray,
    cell: str | Cell,
    how: Scheme,
    compiles: bool | None,
    activated_mV: float,
    repolarised_mV: float,
    on_step: Callable[[int], None],
    shortcuts: bool = False,
) -> Iterator[Seen]:
    """All that is handed over stays on the device; times seen are overwritten by the steps that follow."""
    model = named(CELLS, cell, "cell model")
    device, dtype = together.couplings.device, together.couplings.dtype
    dt, weights = how.dt_ms, together.weights(together.n_iterations(how.reduction))
    compiles = can_compile(device) if compiles is None else compiles
    # Compiled apart, as one changes with the cell, the other with the mesh, and both for any number of nodes; cells by
    # marking them, as dynamic=True makes variables of a cell's constants too, which takes a quarter longer. States are in
    # one row, nodes and trajectories alike: what steps one trajectory steps a hundred.
    is_gpu = device.type == "cuda"
    react: Callable[..., dict[str, Tensor]] = stepped if is_gpu else _stepped_in_place
    react = torch.compile(react, options=COMPILING if is_gpu else COMPILING | ONE_LOOP) if compiles else react
    # A GPU goes through memory once an iteration anyway. In parts, what is compiled doesn't depend on how many there are:
    # an atrium whose mesh needs one more would take a quarter of a minute more.
    parts: tuple[Callable[..., Any], ...] = (begun, gone_on, _seen)
    if is_gpu and HAS_TRITON and not compiles:
        from gfunk.physics import step_kernels

        parts = step_kernels.begun, step_kernels.gone_on, _seen
    if compiles and is_gpu:
        parts = tuple(torch.compile(part, dynamic=True, options=COMPILING) for part in parts)
    spread = partial(_spread, parts)
    if compiles and not is_gpu:
        spread = torch.compile(spread, dynamic=True, options=COMPILING)
    nothing = torch.zeros(together.neighbors.shape[1], given.n_trajectories, dtype=dtype, device=device)
    # Numbers that may differ from run to run go in as tensors: at every call, torch would make them into such.
    numbers = torch.tensor([dt, activated_mV, repolarised_mV], dtype=dtype, device=device).unbind()
    # So steps of another length are no other cell to compile, which takes half a minute.
    step_ms = numbers[0] if compiles else dt
    names = list(model.resting)
    if names[0] != "v":
        raise InputError(f"the first state of {type(model).__name__} is {names[0]!r}, not its voltage, 'v'")
    replay, at_once = Replay(is_gpu), STEPS_AT_ONCE
    tabulable = model if shortcuts and isinstance(model, TabulableCell) and not compiles else None
    if tabulable is not None and is_gpu:
        # All cells, as what is recorded is the same each time. A step not compiled has a thousand operations: recording many
        # steps takes longer than it saves.
        tables, at_once = step_tables(tabulable, dt, how.order, nothing), 1
        react = partial(_stepped_by_tables, tabulable, tables)
    elif tabulable is not None:
        moving, matrix = MovingCells(tabulable, nothing.flatten(), dt, how.order), coupling_matrix(together)
        names, inferring = ["v"], torch.inference_mode()  # each operation takes a tenth less so
        react = inferring(lambda _cell, state, _dt, push, _order: {"v": moving.stepped(state["v"], push)})
        spread = inferring(partial(_spread, (partial(begun, matrix=matrix), partial(gone_on, matrix=matrix), _seen)))

    def run(
        n_steps: int, any_rough: bool, starts: Tensor, current: Tensor, rough: Tensor, *now: Tensor
    ) -> tuple[Tensor, ...]:
        """Some steps on; `now` is v, v a step before, the last increment of diffusion, both times seen, and the state."""
        v, before, increment, activation, repolarisation, *states = now
        current = current.flatten()
        for field in (current, *states) if compiles else ():
            torch._dynamo.maybe_mark_dynamic(field, 0)
        for number in range(n_steps):
            before = v
            states = list(react(model, dict(zip(names, states, strict=True)), step_ms, current, how.order).values())
            v, states[0], increment, activation, repolarisation = spread(
                states[0], increment, together, weights, v, activation, repolarisation, starts[number], *numbers
            )
            if any_rough:
                # After a jump of the stimulus Crank-Nicolson would ring: there both halves are implicit.
                both = v + diffused(v, increment, together, weights)
                states[0] = torch.where(rough.flatten(), both.flatten(), states[0])
        return v, before, increment, activation, repolarisation, *states

    if compiles:
        # A study of many cells, orders and meshes would soon have compiled as often as torch allows at first.
        run = torch._dynamo.config.patch(recompile_limit=64)(run)
    states = [torch.full_like(nothing.flatten(), model.resting[name]) for name in names]
    at_rest, never = torch.full_like(nothing, model.resting["v"]), torch.full_like(nothing, torch.nan)
    now: tuple[Tensor, ...] = (at_rest, at_rest, nothing, never, never, *states)
    currents = Currents(given, dt, nothing)
    done, asked = 0, 0
    while True:
        while asked < len(times) and times[asked] <= done * dt * (1 + 1e-9):
            v, before, _, activation, repolarisation, *_ = now
            yield Seen(v - (done - times[asked] / dt) * (v - before), activation, repolarisation, float(times[asked]))
            asked += 1
        if asked == len(times):
            return
        # As many steps at once as are alike and lead to no asked time, but of few lengths: each length is recorded once.
        until = ceil(times[asked] / dt - 1e-9)
        n_steps = next((n for n in (at_once, 2) if done + n <= until and not currents.has_jump(done, n)), 1)
        current, rough, any_rough = currents.of_step(done), currents.rough_at(done), currents.has_jump(done)
        starts = torch.tensor([(done + number) * dt for number in range(n_steps)], dtype=dtype, device=device)
        now = replay((n_steps, any_rough), partial(run, n_steps, any_rough), starts, current, rough, *now)
        done += n_steps
        on_step(done)


def _stepped_in_place(
    cell: Cell, state: dict[str, Tensor], dt_ms: float | Tensor, stimulus: Tensor, order: int
) -> dict[str, Tensor]:
    """For a CPU: what is written where it was read stays in its cache. A GPU was slower so."""
    for name, later in stepped(cell, state, dt_ms, stimulus, order).items():
        state[name].copy_(later)
    return state


def _stepped_by_tables(
    cell: TabulableCell,
    tables: StepTables,
    _cell: Cell,
    state: dict[str, Tensor],
    _dt: float | Tensor,
    stimulus: Tensor,
    _order: int,
) -> dict[str, Tensor]:
    return stepped_by_tables(cell, tables, state, stimulus)


def _spread(
    parts: tuple[Callable[..., Any], ...],
    v: Tensor,
    guess: Tensor,
    step: HalfStep,
    weights: Tensor,
    before: Tensor,
    *others: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """v half a step of diffusion later and, as Crank-Nicolson goes as far again, a whole one; the increment; the times seen.

    v comes and goes, a whole step later, in one row. parts: `begun`, `gone_on` and `_seen`, perhaps compiled.
    """
    begin, go_on, see = parts
    v = v.view_as(before)
    return see(v, diffused(v, guess, step, weights, begin, go_on), before, *others)


def _seen(
    v: Tensor,
    increment: Tensor,
    before: Tensor,
    activation: Tensor,
    repolarisation: Tensor,
    start: Tensor,
    dt: Tensor,
    level: Tensor,
    low: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The times seen are when v passed the levels since the step before, the first of each, on a straight line between."""
    middle = v + increment
    rises = (before < level) & (middle >= level) & activation.isnan()
    falls = (before > low) & (middle <= low) & repolarisation.isnan() & ~activation.isnan()
    rise, fall = (start + dt * (passed - before) / (middle - before) for passed in (level, low))
    activation, repolarisation = torch.where(rises, rise, activation), torch.where(falls, fall, repolarisation)
    return middle, (middle + increment).flatten(), increment, activation, repolarisation
