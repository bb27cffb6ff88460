"""From a surface and a few sites to the wave on its own nodes: made even, its modes found, its first ms solved, the rest
predicted by an operator, all carried back."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import floor, log
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from gfunk.activation import ACTIVE_MV, ArrivalErrors, activation_times, arrival_errors
from gfunk.atria.anatomy import Place
from gfunk.batch import Batch, pack
from gfunk.batched_modes import batched_modes
from gfunk.domain import Domain, halved, make_domain
from gfunk.doubts import doubts, doubts_of_shape, doubts_of_waves
from gfunk.errors import InputError
from gfunk.experiments import active_from, chosen_device, operator_named, trust_in
from gfunk.first_waves import (
    FEW_WAVES,
    FirstWave,
    Solve,
    Tissue,
    compiling_pays,
    first_waves,
    first_waves_together,
    threads_for,
    tissue_on,
)
from gfunk.laplacian import Laplacian
from gfunk.nearest import OntoSurface, nearest_on_triangles
from gfunk.norms import relative_energy, relative_l2
from gfunk.operators.arrival import Arrival
from gfunk.physics.diffusion import HalfStep, Solving
from gfunk.physics.monodomain import coupling, simulate_many, solving
from gfunk.physics.stimulus import Stimulus
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.recipe import Variant
from gfunk.remeshing import EVEN, remeshed
from gfunk.resampling import carried_tensors, surface_interpolation
from gfunk.rollout import rollout
from gfunk.simulation import viewed_domain
from gfunk.sites import said_place, site_at
from gfunk.spectrum import Spectrum
from gfunk.store import CorruptFile, cached_modes, fingerprint, read_arrays, write_arrays
from gfunk.surface import edge_lengths
from gfunk.trust import Bounds, Trust
from gfunk.user_cache import trim_cache, usable_cache, user_cache

TIMES_AT_ONCE = 16  # carried back; more would only take memory
NODES_AT_ONCE = 512  # told of by a thread: of more a cache holds too little, with fewer threads wait for Python
# Where the wave has been for a while, v would jump by some mV as the operator takes over: what it misses then is added,
# and fades, e times in so long. At the front itself, which moves on, that would be wrong.
BEHIND_MS, FADING_MS = 1.0, 2.0

# Of its arrival, in the network's unit of time; and how finely that is looked through.
RISEN_WITHIN, N_RISES = 0.1, 17

# A wave is felt where u has come so far from rest to the threshold, 5 ms before it arrives; there the operator's own errors
# are larger, 2e-4. And how far u may be from rest in tissue that none has touched.
UNFELT, AT_REST = 1e-5, 2e-3

Stage = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A domain made ready for one operator: everything that does not depend on the stimulus."""

    domain: Domain  # the user's own
    even: Domain  # what the solver has; the operator sees it as its view says, in `batch`
    back: csr_array | None  # (node, node of `even`); None where they are one
    onto: OntoSurface  # the user's
    batch: Batch
    solving: Solving  # of the solver, on `tissue`
    operator: nn.Module
    problem: AtriumProblem
    variant: Variant
    model: str
    device: torch.device
    seconds: Mapping[str, float]
    warnings: tuple[str, ...]
    trust: Trust = field(default_factory=Trust)

    @cached_property
    def tissue(self) -> Domain:
        """`even`, halved as the solver needs it."""
        return halved(self.even, self.problem.n_halvings)

    @cached_property
    def coupling(self) -> HalfStep:
        """Of `tissue`. Only to cut patches out of it on a GPU, to compare, or to compile its steps."""
        return coupling(self.tissue, self.problem.pacing.scheme)

    @cached_property
    def tissue_there(self) -> Tissue:
        """`tissue` on the device, for patches to be cut out of it."""
        return tissue_on(self.device, self.even, self.tissue, self.coupling)

    @cached_property
    def batch_here(self) -> Batch:
        """`batch` on the CPU, which solves few waves sooner than a GPU."""
        return self.batch.to("cpu")

    @property
    def first_ms(self) -> float:
        """Up to this time after the stimulus the solver tells, from then on the operator."""
        return self.problem.pacing.first_ms


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
    device: str = "cpu",
) -> Prediction:
    """The wave that a stimulus at all these sites, at time 0, sends over a surface. A site: x, y, z, a node or a region."""
    times = asked_times(until_ms, every_ms)
    ready = made_ready(domain, model, device=device)
    (found,) = predicted(ready, [sites], times)
    return replace(found, seconds={**ready.seconds, **found.seconds})


def asked_times(until_ms: float, every_ms: float) -> Float[np.ndarray, " time"]:
    if not (0 < every_ms <= until_ms < np.inf):
        raise InputError(f"times go from 0 to {until_ms:g} ms by {every_ms:g} ms: both must be positive, the second smaller")
    return every_ms * np.arange(floor(until_ms / every_ms + 1e-9) + 1)


def made_ready(
    domain: Domain,
    model: str | Path = "atria",
    *,
    device: str = "cpu",
    cache: Path | Literal["user"] | None = "user",
    on_stage: Stage = lambda _name, _seconds: None,
) -> Ready:
    """All that can be done before a stimulus is known.

    cache: a folder where even meshes and modes are kept, by default `user_cache()`; None: nowhere. on_stage: called as each
    stage ends, with the seconds it took.
    """
    _check_surface(domain)
    stages = _Stages(on_stage)
    kept = usable_cache(user_cache()) if cache == "user" else cache
    with stages("model"):
        torch_device = chosen_device(device)
        (operator, recipe, problem, variant), trust = operator_named(str(model)), trust_in(str(model))
        if not isinstance(problem, AtriumProblem):
            raise InputError(f"{model} was trained on {recipe}, not on atria: it can't predict waves on a surface")
    with stages("resample"):
        even = _even(domain, problem.kept_edge_mm, kept)
        back = None if even is domain else _single(surface_interpolation(even.points, even.cells, domain.points))
        onto = nearest_on_triangles(domain.points, domain.cells)
    with stages("modes"):
        viewed, matrices = viewed_domain(even, variant.view)
        spectrum = _modes(matrices, variant.view.n_modes, kept, torch_device)
        batch = pack([(viewed, matrices, spectrum)]).to(torch_device)
        step = solving(even, problem.pacing.scheme, problem.n_halvings)
        if kept is not None:
            trim_cache(kept)
    return Ready(
        domain=domain,
        even=even,
        back=back,
        onto=onto,
        batch=batch,
        solving=step,
        operator=operator.to(torch_device).eval(),
        problem=problem,
        variant=variant,
        model=str(model),
        device=torch_device,
        seconds=stages.seconds,
        warnings=(*doubts(even, problem), *doubts_of_shape(even, batch, trust)),
        trust=trust,
    )


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
    stages = _Stages(on_stage)
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
            bounds=None if ready.warnings or said else ready.trust.bounds,
        )

    later, later_ms = [], times[~is_early]
    with stages("operator"):
        for number, first in enumerate(firsts):
            tell, arrival = _foretold(ready, first)
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
            tell, _ = _foretold(ready, first)
            row[:] = _activation(ready, first, times, tell(times[times > ready.first_ms]), None)
        return rows
    at_once = at_once or (1 if ready.device.type == "cpu" else max(1, len(firsts)))
    for start in range(0, len(firsts), at_once):
        some = slice(start, start + at_once)
        u = _scaled(ready, np.stack([first.values_mV[-1] for first in firsts[some]]))
        arrivals = _arrivals(ready, ready.operator, u)
        for row, first, arrival in zip(rows[some], firsts[some], arrivals, strict=True):
            row[:] = _activation(ready, first, times, first.values_mV[:0], arrival)
    return rows


def compared(
    ready: Ready, prediction: Prediction, *, compiles: bool | None = None, on_step: Callable[[int], None] = lambda _: None
) -> Comparison:
    """The same wave by the solver all the way, on the tissue its model would have been trained on."""
    pacing, times = ready.problem.pacing, prediction.times_ms
    # Made here, as that is not what is timed.
    tissue, step = ready.tissue, ready.coupling
    if compiles is None:
        compiles = compiling_pays(tissue.n_nodes, float(times[-1]), ready.device)

    def solved(until: Float[np.ndarray, " time"]):
        return simulate_many(
            [tissue], [[[stimulus_at(ready, prediction.sites)]]], until, cell=pacing.cell, scheme=pacing.scheme,
            device=ready.device, compiles=compiles, activated_mV=ACTIVE_MV, couplings=[step], on_step=on_step,
        )[0]  # fmt: skip

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


class _Stages:
    """Times what is done under a name."""

    def __init__(self, on_stage: Stage):
        self.seconds: dict[str, float] = {}
        self.on_stage = on_stage

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        self.on_stage(name, self.seconds[name])


def _check_surface(domain: Domain):
    if domain.points.shape[1] != 3 or not domain.has_cells or domain.cells.shape[1] != 3:
        what = "tetrahedra" if domain.cells.shape[1] == 4 and domain.has_cells else "no triangles in space"
        raise InputError(f"waves are predicted on surfaces of triangles; this mesh has {what}")


def _even(domain: Domain, edge_mm: float, cache: Path | None) -> Domain:
    """The domain itself if its edges are about this long, else remeshed, K carried over."""
    relative = edge_lengths(domain.points, domain.cells) / edge_mm
    if EVEN[0] < relative.min() and relative.max() < EVEN[1]:
        return domain
    tensors = domain.cell_diffusion()
    key = fingerprint({"points": domain.points, "cells": domain.cells, "diffusion": tensors}, edge_mm=edge_mm, version=1)
    path = None if cache is None else cache / "meshes" / f"{key}.safetensors"
    try:
        arrays = {} if path is None else read_arrays(path)[0]
    except (FileNotFoundError, CorruptFile):
        arrays = {}
    if not arrays:
        points, cells = remeshed(domain.points, domain.cells, edge_mm)
        arrays = {
            "points": points, "cells": cells,
            "diffusion": carried_tensors(domain.points, domain.cells, tensors, points, cells),
        }  # fmt: skip
        if path is not None:
            write_arrays(path, arrays)
    return make_domain(arrays["points"], arrays["cells"], arrays["diffusion"], diffusion_at="cell")


def _modes(matrices: Laplacian, n_modes: int, cache: Path | None, device: torch.device) -> Spectrum:
    if device.type == "cpu":
        return cached_modes(matrices, n_modes, None if cache is None else cache / "modes")

    def found_there(matrices: Laplacian, n_modes: int) -> Spectrum:
        (spectrum,) = batched_modes([matrices], n_modes, device=device)
        return spectrum

    # Rounded to what an operator sees.
    return cached_modes(matrices, n_modes, None if cache is None else cache / "rounded-modes", found_there)


def _single(matrix: csr_array) -> csr_array:
    return csr_array((matrix.data.astype(np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


def stimulus_at(ready: Ready, sites: Float[np.ndarray, "place 3"]) -> Stimulus:
    if not len(sites):
        raise InputError("a protocol needs at least one site")
    pacing = ready.problem.pacing
    return replace(pacing.stimulus((0.0, 0.0, 0.0)), sites=tuple((x, y, z) for x, y, z in sites.tolist()))


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
    if ready.device.type != "cpu" and (compiles or len(places) > FEW_WAVES):
        firsts = first_waves_together(
            ready.even, ready.batch, stimuli, times_ms, pacing, ready.tissue_there, compiles=compiles
        )
    else:
        firsts = first_waves(
            ready.even, ready.batch_here, stimuli, times_ms, pacing, ready.problem.n_halvings, whole=ready.solving,
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


# Tells values in mV at times since the stimulus, all after the first state.
Tell = Callable[[Float[np.ndarray, " time"]], Float[np.ndarray, "time _"]]


@torch.no_grad()
def _foretold(ready: Ready, first: FirstWave) -> tuple[Tell, Float[np.ndarray, " _"] | None]:
    """What tells of a wave, and when it arrives, if the operator knows."""
    u = _scaled(ready, first.values_mV[-1:])
    if not isinstance(ready.operator, Arrival):
        return partial(_rolled_out, ready, u), None
    # As a rollout would, but what is found on the way is kept.
    told = ready.operator.arrival(_known(ready, ready.operator, u), ready.batch)
    arrival = _activated(ready.operator, u, *told)[0].cpu().numpy() + np.float32(ready.first_ms)
    return partial(_read_off, ready, ready.operator, first, u, *told), arrival


def _scaled(ready: Ready, values_mV: Float[np.ndarray, "batch _"]) -> Float[Tensor, "batch _ 1"]:
    return (torch.from_numpy(values_mV).to(ready.device)[..., None] - ready.problem.offset) / ready.problem.scale


@torch.no_grad()
def _rolled_out(
    ready: Ready, u: Float[Tensor, "1 _ 1"], times_ms: Float[np.ndarray, " time"]
) -> Float[np.ndarray, "time _"]:
    steps = np.diff(times_ms, prepend=ready.first_ms).tolist()
    values = rollout(ready.operator, u, ready.batch, steps, ready.variant.integrator)[0, 1:, :, 0]
    return (values * ready.problem.scale + ready.problem.offset).cpu().numpy()


@torch.no_grad()
def _read_off(
    ready: Ready,
    operator: Arrival,
    first: FirstWave,
    u: Float[Tensor, "1 _ 1"],
    arrival: Float[Tensor, "1 _ 1"],
    latents: Float[Tensor, "1 _ feature"],
    times_ms: Float[np.ndarray, " time"],
) -> Float[np.ndarray, "time _"]:
    since = times_ms - ready.first_ms
    values = _told(operator, u, arrival, latents, torch.from_numpy(np.append(0.0, since)).to(u))
    is_behind = torch.from_numpy(first.activation_ms <= ready.first_ms - BEHIND_MS).to(u.device)[:, None]
    fading = torch.from_numpy(np.exp(-since / FADING_MS)).to(u)[:, None, None]
    values = values[:, 1:] + fading * torch.where(is_behind, u - values[:, 0], 0)[:, None]
    return (values[0, :, :, 0] * ready.problem.scale + ready.problem.offset).cpu().numpy()


def _known(ready: Ready, operator: Arrival, u: Float[Tensor, "batch _ channel"]) -> Float[Tensor, "batch _ input"]:
    if ready.device.type != "cpu":
        return operator.first(u, ready.batch)
    # SciPy's BLAS has threads of its own, which wait for each other as long: on busy cores that took 2.6 times as long.
    with threads_for(ready.even.n_nodes), threadpool_limits(1, "blas"):
        return operator.first(u, ready.batch)


def _told(
    operator: Arrival,
    u: Float[Tensor, "batch _ channel"],
    arrival: Float[Tensor, "batch _ 1"],
    latents: Float[Tensor, "batch _ feature"],
    times: Float[Tensor, " time"],
) -> Float[Tensor, "batch time _ channel"]:
    """`operator.told`, but tissue at rest is left as it is until the wave can be felt: a CPU then need not ask."""
    ahead = log(1 / UNFELT) / operator.config.speed**2
    felt = torch.where((u - operator.config.resting).abs() < AT_REST, arrival - ahead, times[0])

    def told_from(start: int, u: Tensor, arrival: Tensor, latents: Tensor, felt: Tensor) -> Tensor:
        values = operator.told(u, arrival, latents, times[start:])
        return torch.where(times[start:, None, None] < felt[:, None], u[:, None], values)

    if u.device.type != "cpu":
        return told_from(0, u, arrival, latents, felt)
    values = u[:, None].repeat(1, len(times), 1, 1)

    def tell(nodes: Tensor):
        some = [each[:, nodes] for each in (u, arrival, latents, felt)]
        start = int(torch.searchsorted(times, some[-1].min()))
        values[:, start:, nodes] = told_from(start, *some)

    # In the order in which the wave comes, so that those told of together have as much to be left out.
    _in_threads(tell, felt.amin((0, 2)).argsort().split(NODES_AT_ONCE))
    return values


def _by_nodes(found: Callable[..., Tensor], *fields: Float[Tensor, "batch node _"]) -> Tensor:
    """What is found of each node by itself; its axis is the last but one.

    On a CPU of few nodes at a time, as its cache holds no more: that takes 0.4 of the time.
    """
    if fields[0].device.type != "cpu":
        return found(*fields)
    return torch.cat(_in_threads(found, *(field.split(NODES_AT_ONCE, dim=1) for field in fields)), dim=-2)


def _in_threads(found: Callable[..., Any], *columns: Sequence[Tensor]) -> list[Any]:
    """A thread for each, not all threads for each: those wait for each other wherever a core has something else to do."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool, threads_for(0):
        return list(pool.map(torch.no_grad()(found), *columns))


def _arrivals(ready: Ready, operator: Arrival, u: Float[Tensor, "batch _ channel"]) -> Float[np.ndarray, "batch _"]:
    """When each wave comes, in ms, from what it is at the first time."""
    told = operator.arrival(_known(ready, operator, u), ready.batch)
    return _activated(operator, u, *told).cpu().numpy() + np.float32(ready.first_ms)


def _activated(
    operator: Arrival,
    u: Float[Tensor, "batch _ channel"],
    arrival: Float[Tensor, "batch _ 1"],
    latents: Float[Tensor, "batch _ feature"],
) -> Float[Tensor, "batch _"]:
    """When u rises through the threshold: near its arrival, but nobody told the profile to do so at that very time."""
    since = torch.linspace(-RISEN_WITHIN, RISEN_WITHIN, N_RISES).to(arrival) * operator.config.time_scale
    rising = _by_nodes(partial(operator.told, times=since), u, torch.zeros_like(arrival), latents)[..., 0]
    late = activation_times(rising, since, operator.config.threshold)
    return arrival[..., 0] + late.nan_to_num(0.0).to(arrival)


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
