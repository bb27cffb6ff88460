"""Electrical waves in heart tissue, dv/dt = div(D grad v) - I_ion / C_m + stimulus: many trajectories at once, CPU or GPU.

Strang splitting: half a step of diffusion, a step of every cell, half a step of diffusion. Two neighbouring halves are one
Crank-Nicolson step, whose implicit midpoint is the solution at the full step: it costs nothing extra.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gfunk.domain import Domain, halved
from gfunk.errors import InputError
from gfunk.laplacian import Mass
from gfunk.physics.cells import (
    HAS_TRITON,
    Cell,
    MovingCells,
    StepTables,
    TabulableCell,
    step_tables,
    stepped,
    stepped_by_tables,
)
from gfunk.physics.diffusion import (
    HalfStep,
    Solving,
    begun,
    coupling_matrix,
    diffused,
    gone_on,
    half_step,
    joined,
    solving_when_halved,
)
from gfunk.physics.models import CELLS
from gfunk.physics.stimulus import Currents, Pulses, Stimulus, pulses
from gfunk.replay import Replay

SURFACE_TO_VOLUME = 140.0  # 1/mm
CAPACITANCE = 0.01  # uF/mm^2


def diffusivity(conductivity_mS_per_mm: float) -> float:
    """D = sigma / (beta Cm), mm^2/ms: what a Domain's diffusion holds for tissue of this conductivity."""
    return conductivity_mS_per_mm / (SURFACE_TO_VOLUME * CAPACITANCE)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How to step."""

    dt_ms: float
    mass: Mass = "consistent"
    order: Literal[1, 2] = 2  # of the cells' steps
    # What each diffusion solve leaves of its first guess's error. The guess is the step before, so little is enough:
    # activation times with 0.1 and 1e-6 differ by 0.005 ms at steps of 0.05 ms.
    reduction: float = 0.1


SCHEMES = {
    # Twice the cells' work a step, but steps may be several times longer for the same error. Mixed mass errs little
    # more than half as much on meshes of 0.1 and 0.2 mm, and is solved in fewer iterations (docs/verification.md).
    "accurate": Scheme(dt_ms=0.05, mass="mixed"),
    # On edges well below a front's width the better one, on atria half the error already at 0.5 mm. But where edges are long
    # it is late, so on the paper's sheets, 0.2 mm, it errs twice as much; and the recipes' models have learned the other.
    "balanced": Scheme(dt_ms=0.05, mass="balanced"),
    # A.2.1: Crank-Nicolson with 0.2 ms. It overshoots the peak and slows waves (docs/verification.md).
    "paper": Scheme(dt_ms=0.2, order=1),
}


@dataclass(frozen=True, kw_only=True)
class Paced:
    """What happened on one domain. Times are NaN where a node was never activated, or not repolarised yet."""

    times_ms: Float[np.ndarray, " time"]
    values_mV: Float[np.ndarray, "trajectory time node"]
    activation_ms: Float[np.ndarray, "trajectory node"]
    repolarisation_ms: Float[np.ndarray, "trajectory node"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """All domains at one asked time, one after the other, and what was activated or repolarised up to then (else NaN)."""

    v_mV: Float[np.ndarray, "node trajectory"]
    activation_ms: Float[np.ndarray, "node trajectory"]
    repolarisation_ms: Float[np.ndarray, "node trajectory"]


class Seen(NamedTuple):
    """A moment where it was found: on the device. What comes after it may write over its times: `times_seen` copies."""

    v: Float[Tensor, "node trajectory"]
    activation: Float[Tensor, "node trajectory"]
    repolarisation: Float[Tensor, "node trajectory"]
    time_ms: float

    def times_seen(self) -> tuple[Tensor, Tensor]:
        # The step went a little further than the asked time.
        activation, repolarisation = (
            torch.where(each.float() <= self.time_ms, each, torch.nan) for each in (self.activation, self.repolarisation)
        )
        return activation, repolarisation


def coupling(domain: Domain, scheme: str | Scheme = "accurate", known: Solving | None = None) -> HalfStep:
    """What the domain's nodes mean to each other in a step of this scheme. known: `solving` of it, where that was found."""
    how = _known(SCHEMES, scheme, "scheme")
    return half_step(domain, how.dt_ms, how.mass, known)


def solving(domain: Domain, scheme: str | Scheme, n_halvings: int) -> Solving:
    """How steps of this scheme are solved on the domain with its triangles halved so often."""
    how = _known(SCHEMES, scheme, "scheme")
    found = solving_when_halved(domain, how.dt_ms, how.mass, n_halvings)
    return found or coupling(halved(domain, n_halvings), how).solving


def simulate(
    domain: Domain,
    sites: Sequence[Sequence[float]],
    *,
    until_ms: float,
    every_ms: float = 1.0,
    radius_mm: float = 1.0,
    cell: str | Cell = "courtemanche",
    scheme: str | Scheme = "accurate",
    device: torch.device | str = "cpu",
) -> Paced:
    """The wave that a stimulus at these sites, at time 0, sends over one domain; `simulate_many` can do more."""
    if not (until_ms > 0 and every_ms > 0):
        raise InputError(f"until_ms and every_ms must be positive, not {until_ms} and {every_ms}")
    stimulus = Stimulus(sites=tuple(tuple(float(x) for x in site) for site in sites), radius_mm=radius_mm)
    times = every_ms * np.arange(floor(until_ms / every_ms + 1e-9) + 1)
    return simulate_many([domain], [[[stimulus]]], times, cell=cell, scheme=scheme, device=device)[0]


def simulate_many(
    domains: Sequence[Domain],
    protocols: Sequence[Sequence[Sequence[Stimulus]]],
    times_ms: Sequence[float] | Float[np.ndarray, " time"],
    *,
    cell: str | Cell = "courtemanche",
    scheme: str | Scheme = "accurate",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    compiles: bool | None = None,
    activated_mV: float = -20.0,
    repolarised_mV: float = -70.0,
    couplings: Sequence[HalfStep] | None = None,
    kept: Sequence[Int[np.ndarray, " _"]] | None = None,
    shortcuts: bool = False,
    on_step: Callable[[int], None] = lambda _: None,
) -> list[Paced]:
    """v at the asked times on every domain, from rest at time 0, once for each of its protocols (lists of stimuli).

    compiles: fuse each step's work first, which takes half a minute and makes it five times faster; None: where it can.
    couplings: each domain's `coupling` with this scheme, if it was made before, perhaps on other cores.
    kept: the nodes of each domain to tell of, in this order; None: all.
    shortcuts: where steps are not compiled and the cell allows it, do almost the same in far fewer operations: gates are
    read off tables, and on a CPU cells at rest are not stepped (`cells.MovingCells`).

    Domains have equally many protocols and are stepped together, which pays on a GPU; none changes another's result.
    A node is activated when v first rises through activated_mV, repolarised when it then falls through repolarised_mV.
    """
    how = _known(SCHEMES, scheme, "scheme")
    times = _checked_times(times_ms, how)
    _checked_protocols(domains, protocols)
    if couplings is None:
        couplings = [coupling(domain, how) for domain in domains]
    # Only what is solved in the same number of iterations goes together, so that a domain's company changes nothing.
    alike: dict[tuple[float, ...], list[int]] = {}
    for number, each in enumerate(couplings):
        alike.setdefault((each.smallest, each.largest, each.n_iterations(how.reduction)), []).append(number)
    if kept is None:
        kept = [np.arange(domain.n_nodes) for domain in domains]
    found: dict[int, Paced] = {}
    for numbers in alike.values():
        first = np.cumsum([0] + [domains[number].n_nodes for number in numbers])
        nodes = torch.from_numpy(np.concatenate([kept[number] + at for number, at in zip(numbers, first[:-1], strict=True)]))
        seen = _moments(
            joined([couplings[number] for number in numbers]).to(device, dtype),
            pulses([domains[number] for number in numbers], [protocols[number] for number in numbers]),
            times, cell, how, compiles, activated_mV, repolarised_mV, on_step, shortcuts,
        )  # fmt: skip
        parts = [len(kept[number]) for number in numbers]
        found |= dict(zip(numbers, told(seen, times, nodes, parts), strict=True))
    return [found[number] for number in range(len(domains))]


def told(moments: Iterator[Seen], times: Float[np.ndarray, " time"], nodes: Tensor, parts: Sequence[int]) -> list[Paced]:
    """All moments at these nodes, so many of each domain."""
    frames, seen = [], None
    for seen in moments:
        nodes = nodes.to(seen.v.device)
        # Chosen and put in order where they were found: what leaves a GPU slowly is to be little, and ready.
        frames.append(seen.v[nodes].float())
    assert seen is not None  # there is at least one time
    fields = torch.stack(frames).permute(2, 0, 1), *(each[nodes].float().T for each in seen.times_seen())
    names = "values_mV", "activation_ms", "repolarisation_ms"
    return [
        Paced(times_ms=times, **dict(zip(names, (part.contiguous().cpu().numpy() for part in each), strict=True)))
        for each in zip(*(field.split(list(parts), dim=-1) for field in fields), strict=True)
    ]


def moments(
    domains: Sequence[Domain],
    protocols: Sequence[Sequence[Sequence[Stimulus]]],
    times_ms: Sequence[float] | Float[np.ndarray, " time"],
    *,
    cell: str | Cell = "courtemanche",
    scheme: str | Scheme = "accurate",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    compiles: bool | None = None,
    activated_mV: float = -20.0,
    repolarised_mV: float = -70.0,
    couplings: Sequence[HalfStep] | None = None,
    on_step: Callable[[int], None] = lambda _: None,
) -> Iterator[Moment]:
    """The asked times one by one, as they are reached: memory never holds more than one of them.

    All domains are stepped together, however unlike, so their company may change the last digits.
    """
    how = _known(SCHEMES, scheme, "scheme")
    times = _checked_times(times_ms, how)
    _checked_protocols(domains, protocols)
    if couplings is None:
        couplings = [coupling(domain, how) for domain in domains]
    for seen in _moments(
        joined(couplings).to(device, dtype), pulses(domains, protocols), times, cell, how, compiles, activated_mV,
        repolarised_mV, on_step,
    ):  # fmt: skip
        fields = (each.to("cpu", torch.float32, copy=True).numpy() for each in (seen.v, *seen.times_seen()))
        yield Moment(**dict(zip(("v_mV", "activation_ms", "repolarisation_ms"), fields, strict=True)))


def seen_moments(
    together: HalfStep,
    given: Pulses,
    times_ms: Sequence[float] | Float[np.ndarray, " time"],
    *,
    cell: str | Cell = "courtemanche",
    scheme: str | Scheme = "accurate",
    compiles: bool | None = None,
    activated_mV: float = -20.0,
    repolarised_mV: float = -70.0,
    shortcuts: bool = False,
    on_step: Callable[[int], None] = lambda _: None,
) -> Iterator[Seen]:
    """The asked times one by one, of domains that were joined before, and pulses into their nodes: where and as precisely
    as `together` is, and left there."""
    how = _known(SCHEMES, scheme, "scheme")
    times = _checked_times(times_ms, how)
    return _moments(
        together, given, times, cell, how, compiles, activated_mV, repolarised_mV, on_step, shortcuts
    )  # fmt: skip


def _moments(
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
    model = _known(CELLS, cell, "cell model")
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
            states = list(react(model, dict(zip(names, states, strict=True)), dt, current, how.order).values())
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
        n_steps = at_once if until - done >= at_once and not currents.has_jump(done, at_once) else 1
        current, rough, any_rough = currents.of_step(done), currents.rough_at(done), currents.has_jump(done)
        starts = torch.tensor([(done + number) * dt for number in range(n_steps)], dtype=dtype, device=device)
        now = replay((n_steps, any_rough), partial(run, n_steps, any_rough), starts, current, rough, *now)
        done += n_steps
        on_step(done)


# Steps recorded as one on a GPU; elsewhere it saves nothing, and costs nothing.
STEPS_AT_ONCE = 10
COMPILING: dict[str, Any] = {
    # Neighbours are in range and shapes are right, as they were made here: checking them at each step takes a fifth of the
    # time.
    "assert_indirect_indexing": False,
    "size_asserts": False,
    # A product and a sum in one instruction, rounded once: a tenth of the time.
    "cpp.enable_floating_point_contract_flag": "fast",
}
# All of a cell in one loop, where torch would make ten of it, with memory between.
ONE_LOOP = {"max_fusion_size": 1000}


def can_compile(device: torch.device) -> bool:
    """Whether torch can compile for the device here: it needs a C++ compiler, or Triton. GFUNK_COMPILE=0 says no."""
    if os.environ.get("GFUNK_COMPILE") == "0":
        return False
    if device.type == "cuda":
        return HAS_TRITON
    return shutil.which(os.environ.get("CXX", "g++")) is not None or shutil.which("clang++") is not None


def _stepped_in_place(cell: Cell, state: dict[str, Tensor], dt_ms: float, stimulus: Tensor, order: int) -> dict[str, Tensor]:
    """For a CPU: what is written where it was read stays in its cache. A GPU was slower so."""
    for name, later in stepped(cell, state, dt_ms, stimulus, order).items():
        state[name].copy_(later)
    return state


def _stepped_by_tables(
    cell: TabulableCell, tables: StepTables, _cell: Cell, state: dict[str, Tensor], _dt: float, stimulus: Tensor, _order: int
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


Known = TypeVar("Known")


def _known(known: dict[str, Known], asked: str | Known, what: str) -> Known:
    if not isinstance(asked, str):
        return asked
    if asked not in known:
        raise InputError(f"{what} {asked!r} is none of {', '.join(known)}")
    return known[asked]


def _checked_times(times_ms: Sequence[float] | np.ndarray, scheme: Scheme) -> np.ndarray:
    times = np.asarray(times_ms, dtype=np.float64)
    if not (scheme.dt_ms > 0 and 0 < scheme.reduction < 1):
        raise InputError(f"a step of {scheme.dt_ms} ms, or reduction by {scheme.reduction}, makes no sense")
    if times.ndim != 1 or not len(times) or not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) <= 0).any():
        raise InputError("the asked times must be finite, not negative, and rise")
    return times


def _checked_protocols(domains: Sequence[Domain], protocols: Sequence[Sequence[Sequence[Stimulus]]]) -> int:
    counts = {len(each) for each in protocols}
    if len(domains) != len(protocols) or len(counts) != 1 or counts == {0}:
        raise InputError(
            f"{len(domains)} domains need as many lists of protocols, all as long, not {[len(p) for p in protocols]}"
        )
    for stimulus in (stimulus for each in protocols for protocol in each for stimulus in protocol):
        fine = (
            stimulus.duration_ms > 0 and stimulus.radius_mm > 0 and np.isfinite([stimulus.start_ms, stimulus.strength]).all()
        )
        if not (fine and stimulus.start_ms >= 0 and stimulus.sites):
            raise InputError(f"{stimulus} needs sites, a start not before 0, and positive duration and radius")
    return counts.pop()
