"""From a surface and a few sites to the wave on its own nodes: its first ms solved, the rest foretold, all carried back."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from gfunk.activation import ACTIVE_MV, ArrivalErrors, activation_times, arrival_errors
from gfunk.atria.anatomy import Place
from gfunk.domain import Domain
from gfunk.doubts import doubts_of_waves
from gfunk.errors import InputError
from gfunk.experiments import active_from
from gfunk.first_waves import FirstWave, Solve, first_waves, first_waves_together
from gfunk.foretelling import foretold, foretold_arrivals
from gfunk.norms import relative_energy, relative_l2
from gfunk.operators.arrival import Arrival
from gfunk.physics.compiling import compiling_pays
from gfunk.physics.converged import converged_waves, finer
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import SCHEMES
from gfunk.physics.waves import Paced
from gfunk.readiness import Ready, Stage, Stages, made_ready, stimulus_at
from gfunk.sites import said_place, site_at
from gfunk.trust import Bounds, said

TIMES_AT_ONCE = 16  # carried back; more would only take memory


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A wave on the user's nodes, times since its stimulus. Activation is NaN where it does not come within them."""

    times_ms: Float[np.ndarray, " time"]
    values_mV: Float[np.ndarray, "time node"]
    activation_ms: Float[np.ndarray, " node"]
    sites: Float[np.ndarray, "place 3"]
    even_mV: Float[np.ndarray, "time _"]  # the same on the nodes of `Ready.even`
    first_ms: float
    seconds: Mapping[str, float]  # by stage; of several protocols, each has its share
    # What speaks against believing it, one sentence each.
    warnings: tuple[str, ...] = ()
    bounds: Bounds | None = None  # of its errors; None where something speaks against it, or nothing is known

    @property
    def trust(self) -> str:
        """How far to trust it, in a sentence."""
        if self.bounds is not None:
            return said(self.bounds)
        if self.warnings:
            return "unlike what the model has learned: only the solver can tell how far it is off"
        return "nothing speaks against it, but how far this model may be off, asked like this, was never measured"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A prediction beside the solver on the same tissue, over the times after `first_ms`."""

    rel_l2: float  # of values scaled as the model's errors are, all asked times, nodes of `Ready.even`
    rel_h1: float
    # Of the activation times given, mean size over the user's nodes that both activate after `first_ms`.
    activation_error_ms: float | None
    arrival: ArrivalErrors  # the same as evaluation takes it: by the values, on `Ready.even`
    truth_mV: Float[np.ndarray, "time node"]  # the solver's wave on the user's nodes
    truth_activation_ms: Float[np.ndarray, " node"]
    solver_seconds: float  # without compiling, where that paid
    prediction_seconds: float

    @property
    def speedup(self) -> float:
        return self.solver_seconds / self.prediction_seconds


def predict(
    domain: Domain,
    sites: Sequence[Place | str],
    *,
    until_ms: float = 100.0,
    every_ms: float = 1.0,
    model: str | Path = "atria",
    edge_mm: float | None = None,
    device: str = "cpu",
) -> Prediction:
    """The wave that a stimulus at all these sites, at time 0, sends over a surface. A site: x, y, z, a node or a region.

    edge_mm: `made_ready` tells.
    """
    times = asked_times(until_ms, every_ms)
    ready = made_ready(domain, model, edge_mm=edge_mm, device=device)
    (found,) = predicted(ready, [sites], times)
    return replace(found, seconds={**ready.seconds, **found.seconds})


def asked_times(until_ms: float, every_ms: float) -> Float[np.ndarray, " time"]:
    if not (0 < every_ms <= until_ms < np.inf):
        raise InputError(f"times go from 0 to {until_ms:g} ms by {every_ms:g} ms: both must be positive, the second smaller")
    return every_ms * np.arange(floor(until_ms / every_ms + 1e-9) + 1)


def predicted(
    ready: Ready,
    protocols: Sequence[Sequence[Place | str]],
    times_ms: Float[np.ndarray, " time"],
    *,
    compiles: bool | None = None,
    solve: Solve = simulate_many,
    on_stage: Stage = lambda _name, _seconds: None,
    begun_ms: float = 0.0,
    on_begun: Callable[[Prediction], None] = lambda _: None,
) -> list[Prediction]:
    """The waves of some protocols, each a stimulus at one or several sites; times since the stimulus.

    compiles: for the solver's part; None decides by how much there is to do. solve: what does that part near each stimulus.
    on_begun: given each wave up to begun_ms, with all of its activation, while the rest is still to be found; not where the
    operator can't tell activation without it.
    """
    times = checked_times(times_ms, ready.first_ms)
    stages = Stages(on_stage)
    if not protocols:
        return []
    places = _places(ready, protocols)
    is_early = times <= ready.first_ms
    with stages("first wave"):
        firsts = _first_waves(ready, places, np.union1d(times[is_early], ready.first_ms), compiles, solve)
    firsts_mV = np.stack([first.values_mV[-1] for first in firsts])
    doubted = doubts_of_waves(firsts_mV, float(times[-1]), ready.batch, ready.problem, ready.trust)

    def wave(number: int, later_mV: Float[np.ndarray, "_ place"], arrival: Float[np.ndarray, " place"] | None) -> Prediction:
        first, said = firsts[number], doubted[number]
        even_mV = np.concatenate([first.values_mV[: is_early.sum()], later_mV])
        return Prediction(
            times_ms=times[: len(even_mV)],
            values_mV=carried_back(ready, even_mV),
            activation_ms=_activation(ready, first, times, later_mV, arrival),
            sites=places[number],
            even_mV=even_mV,
            first_ms=ready.first_ms,
            seconds={},
            warnings=(*ready.warnings, *said),
            bounds=None if ready.warnings or said else ready.bounds,
        )

    later, later_ms = [], times[~is_early]
    with stages("operator"):
        for number, first in enumerate(firsts):
            tell, arrival = foretold(ready, first)
            begins = arrival is not None and later_ms[0] <= begun_ms < later_ms[-1]
            parts = np.split(later_ms, [int((later_ms <= begun_ms).sum())]) if begins else [later_ms]
            values = tell(parts[0])
            for part in parts[1:]:
                on_begun(wave(number, values, arrival))
                values = np.concatenate([values, tell(part)])
            later.append((values, arrival))
    with stages("carry back"):
        found = [wave(number, *each) for number, each in enumerate(later)]
    seconds = {name: seconds / len(protocols) for name, seconds in stages.seconds.items()}
    return [replace(each, seconds=seconds) for each in found]


@torch.no_grad()
def predicted_activation(
    ready: Ready,
    places: Sequence[Float[np.ndarray, "_ 3"]],
    times_ms: Float[np.ndarray, " time"],
    *,
    compiles: bool | None = None,
    at_once: int | None = None,
) -> Float[np.ndarray, "trajectory node"]:
    """`activation_ms` of the same predictions; where the operator can tell it, no values are found on the way.

    places: of each protocol, on the surface (`site_at`). at_once: protocols that the operator sees together; None: all on a
    GPU, one on a CPU, whose cache holds no more.
    """
    times = checked_times(times_ms, ready.first_ms)
    firsts = _first_waves(ready, places, np.array([ready.first_ms]), compiles)
    rows = np.empty((len(firsts), ready.domain.n_nodes), dtype=np.float32)
    if not isinstance(ready.operator, Arrival):
        for row, first in zip(rows, firsts, strict=True):
            tell, _ = foretold(ready, first)
            row[:] = _activation(ready, first, times, tell(times[times > ready.first_ms]), None)
        return rows
    at_once = at_once or (1 if ready.device.type == "cpu" else max(1, len(firsts)))
    for start in range(0, len(firsts), at_once):
        some = slice(start, start + at_once)
        arrivals = foretold_arrivals(ready, ready.operator, firsts[some])
        for row, first, arrival in zip(rows[some], firsts[some], arrivals, strict=True):
            row[:] = _activation(ready, first, times, first.values_mV[:0], arrival)
    return rows


def compared(
    ready: Ready, prediction: Prediction, *, compiles: bool | None = None, on_step: Callable[[int], None] = lambda _: None
) -> Comparison:
    """The same wave by the solver all the way, on the tissue its model would have been trained on; for a model of converged
    waves, as edges and steps go to nothing."""
    pacing, times, stimulus = ready.problem.pacing, prediction.times_ms, stimulus_at(ready, prediction.sites)
    # Made here, as that is not what is timed.
    tissue, step, scheme = ready.tissue, ready.coupling, SCHEMES[pacing.scheme]
    other = finer(ready.problem.coarse(ready.even), [stimulus], scheme) if ready.problem.is_converged else None
    if compiles is None:
        compiles = compiling_pays(tissue.n_nodes, float(times[-1]), ready.device)

    def solved(until: Float[np.ndarray, " time"]) -> Paced:
        how = {"cell": pacing.cell, "scheme": scheme, "device": ready.device, "compiles": compiles, "on_step": on_step}
        if other is None:
            [wave] = simulate_many([tissue], [[[stimulus]]], until, couplings=[step], activated_mV=ACTIVE_MV, **how)
        else:
            [wave] = converged_waves(
                [tissue], [[stimulus]], [step], [other], [np.arange(ready.even.n_nodes)], until,
                first_ms=ready.first_ms, activated_mV=ACTIVE_MV, **how,
            )  # fmt: skip
        return wave

    if compiles:
        # Neither is compiling.
        solved(np.array([0.1]))
    started = time.perf_counter()
    wave = solved(times)
    solver_seconds = time.perf_counter() - started
    true_mV = wave.values_mV[0][:, : ready.even.n_nodes]
    truth_activation = _carried_times(ready, wave.activation_ms[0, : ready.even.n_nodes])
    is_asked = times >= ready.first_ms
    since = torch.from_numpy(times[is_asked] - ready.first_ms)
    found, true = (
        (torch.from_numpy(values[is_asked])[None, :, :, None].to(ready.device) - ready.problem.offset) / ready.problem.scale
        for values in (prediction.even_mV, true_mV)
    )
    later = found[:, since > 0], true[:, since > 0]
    arrival, threshold = ArrivalErrors(), active_from(ready.problem)
    if threshold is not None and len(since) > 1:
        (arrival,) = arrival_errors(found[..., 0], true[..., 0], since, ready.batch.is_node, threshold)
    return Comparison(
        rel_l2=float(relative_l2(*later, ready.batch)),
        rel_h1=float(relative_energy(*later, ready.batch)),
        activation_error_ms=_mean_gap(prediction.activation_ms, truth_activation, ready.first_ms),
        arrival=arrival,
        truth_mV=carried_back(ready, true_mV),
        truth_activation_ms=truth_activation,
        solver_seconds=solver_seconds,
        prediction_seconds=sum(prediction.seconds[name] for name in ("first wave", "operator", "carry back")),
    )


def carried_back(ready: Ready, even_values: Float[np.ndarray, "time _"]) -> Float[np.ndarray, "time node"]:
    """From the nodes of the even mesh to the user's."""
    if ready.back is None:
        return even_values
    found = np.empty((len(even_values), ready.domain.n_nodes), dtype=np.float32)
    for start in range(0, len(even_values), TIMES_AT_ONCE):
        some = slice(start, start + TIMES_AT_ONCE)
        found[some] = (ready.back @ even_values[some].T).T
    return found


def checked_times(times_ms: Float[np.ndarray, " time"], first_ms: float) -> Float[np.ndarray, " time"]:
    times = np.asarray(times_ms, dtype=np.float64)
    if times.ndim != 1 or not len(times) or not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) <= 0).any():
        raise InputError("the asked times must be finite, not negative, and rise")
    if times[-1] <= first_ms:
        raise InputError(
            f"asked for up to {times[-1]:g} ms: the model starts {first_ms:g} ms after the stimulus, so ask for later times"
        )
    return times


def _places(ready: Ready, protocols: Sequence[Sequence[Place | str]]) -> list[Float[np.ndarray, "_ 3"]]:
    return [np.array([site_at(ready.domain, place, ready.onto) for place in each]).reshape(-1, 3) for each in protocols]


def _first_waves(
    ready: Ready,
    places: Sequence[Float[np.ndarray, "_ 3"]],
    times_ms: Float[np.ndarray, " time"],
    compiles: bool | None,
    solve: Solve = simulate_many,
) -> list[FirstWave]:
    pacing, stimuli = ready.problem.pacing, [stimulus_at(ready, sites) for sites in places]
    if ready.device.type != "cpu":
        firsts = first_waves_together(
            ready.even, ready.batch, stimuli, times_ms, pacing, ready.tissue_there, compiles=compiles
        )
    else:
        firsts = first_waves(
            ready.even, ready.batch, stimuli, times_ms, pacing, ready.problem.n_halvings, whole=ready.solving,
            compiles=compiles, solve=solve,
        )  # fmt: skip
    for first, sites in zip(firsts, places, strict=True):
        _check_uncovered(ready, first, sites)
    return firsts


def _check_uncovered(ready: Ready, first: FirstWave, sites: Float[np.ndarray, "place 3"]):
    if np.isfinite(first.activation_ms).all():
        raise InputError(
            f"the wave from {' and '.join(map(said_place, sites))} has been everywhere after {ready.first_ms:g} ms, when "
            "the model begins: the surface is too small, or has too many sites"
        )


def _activation(
    ready: Ready,
    first: FirstWave,
    times_ms: Float[np.ndarray, " time"],
    later_mV: Float[np.ndarray, "_ place"],
    arrival: Float[np.ndarray, " place"] | None,
) -> Float[np.ndarray, " node"]:
    """When the wave came: as the solver saw it, then as the operator says, else as its values show."""
    if arrival is None:
        values = torch.from_numpy(np.concatenate([first.values_mV[-1:], later_mV]))[None]
        since = torch.from_numpy(np.concatenate([[ready.first_ms], times_ms[times_ms > ready.first_ms]]))
        arrival = activation_times(values, since, ACTIVE_MV)[0].float().numpy()
    came = np.where(np.isfinite(first.activation_ms), first.activation_ms, np.maximum(arrival, ready.first_ms))
    carried = _carried_times(ready, came)
    return np.where(carried <= times_ms[-1], carried, np.float32(np.nan))


def _carried_times(ready: Ready, came_ms: Float[np.ndarray, " _"]) -> Float[np.ndarray, " node"]:
    """Between nodes that the wave reaches and others, as most of those around."""
    if ready.back is None:
        return came_ms
    is_known = np.isfinite(came_ms)
    weight = ready.back @ is_known.astype(np.float32)
    mean = ready.back @ np.where(is_known, came_ms, 0).astype(np.float32) / np.maximum(weight, np.float32(1e-6))
    return np.where(weight > 0.5, mean, np.float32(np.nan))


def _mean_gap(found: Float[np.ndarray, " node"], true: Float[np.ndarray, " node"], after_ms: float) -> float | None:
    both = np.isfinite(found) & np.isfinite(true) & (true > after_ms)
    return float(np.abs(found[both] - true[both]).mean()) if both.any() else None
