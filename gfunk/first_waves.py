"""The first milliseconds of a wave, by the solver, near the stimulus alone: what operators start from.

In ten milliseconds a wave gets only so far. All that it can't have reached is at rest, and need not be stepped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from gfunk.activation import ACTIVE_MV
from gfunk.batch import Batch
from gfunk.domain import Domain, halved, make_domain
from gfunk.operators.arrival import NEVER, marched
from gfunk.physics.diffusion import HalfStep, Solving
from gfunk.physics.models import CELLS
from gfunk.physics.monodomain import Paced, can_compile, coupling, simulate_many
from gfunk.physics.stimulus import Stimulus
from gfunk.recipes.tissue_data import Pacing
from gfunk.surface import edge_lengths

# A plane wave runs at FASTEST * sqrt(K), rounder ones more slowly. Ahead of it v rises by e in half a millisecond: a round
# one is not to be seen yet where it would come MARGIN_MS later, a plane one, as in a vein, WIDER_MS after that.
FASTEST = 1.47
MARGIN_MS = 2.0
WIDER_MS = 2.5  # the next patch, where the first was too small
QUIET_MV = 0.05  # of 105: where a patch was cut out, v may have changed by no more
# Compiling takes half a minute, and then a step a fifth of the time: it pays from so many nodes times ms on. Beside
# shortcuts, which a CPU takes for patches, a step takes about half the time: it pays later.
COMPILED_FROM, COMPILED_BESIDE_SHORTCUTS_FROM = 2e6, 2e7
# Fewer nodes are stepped by one thread: on two idle cores two are no faster, on busy ones they were ten times slower.
THREADED_FROM = 50_000

Solve = Callable[..., list[Paced]]  # called as `simulate_many` is


@dataclass(frozen=True, kw_only=True)
class FirstWave:
    """What a stimulus did up to the last of these times; activation is NaN where the wave has not been yet."""

    times_ms: Float[np.ndarray, " time"]
    values_mV: Float[np.ndarray, "time node"]
    activation_ms: Float[np.ndarray, " node"]
    n_stepped: int  # nodes that were not at rest by assumption


def first_waves(
    domain: Domain,
    batch: Batch,
    stimuli: Sequence[Stimulus],
    times_ms: Float[np.ndarray, " time"],
    pacing: Pacing,
    n_halvings: int,
    *,
    whole: Solving | None = None,
    compiles: bool | None = None,
    margin_ms: float = MARGIN_MS,
    everywhere: tuple[Domain, HalfStep] | None = None,
    solve: Solve = simulate_many,
) -> list[FirstWave]:
    """One wave a stimulus, on the nodes of the domain, all solved together on its triangles halved n_halvings times.

    batch: the domain, packed alone; it says on which device to work. whole: `solving` of the halved domain: with it all
    patches are solved as the whole of it would be. compiles: None decides by the number of nodes. everywhere: the halved
    domain and its `coupling`: all of it is stepped, not patches alone; a GPU does so sooner than patches are made. solve:
    for patches.
    """
    if everywhere is not None:
        return _everywhere(domain, batch, stimuli, times_ms, pacing, *everywhere, compiles)
    until, resting = float(times_ms[-1]), CELLS[pacing.cell].resting["v"]
    found: dict[int, FirstWave] = {}
    reach_ms = until + margin_ms
    while len(found) < len(stimuli):
        open_ = [number for number in range(len(stimuli)) if number not in found]
        with threads_for(domain.n_nodes):
            bounds = arrival_bounds(domain, batch, [stimuli[number] for number in open_], reach_ms + WIDER_MS)
        patches = [_patch(domain, bound <= reach_ms, n_halvings) for bound in bounds]
        n_nodes = sum(patch.tissue.n_nodes for patch in patches)
        device = batch.points.device
        with threads_for(n_nodes):
            waves = solve(
                [patch.tissue for patch in patches],
                [[[stimuli[number]]] for number in open_],
                times_ms,
                cell=pacing.cell,
                scheme=pacing.scheme,
                device=device,
                compiles=compiling_pays(n_nodes, until, device, shortcuts=True) if compiles is None else compiles,
                activated_mV=ACTIVE_MV,
                couplings=[_stepped_like(coupling(patch.tissue, pacing.scheme), whole) for patch in patches],
                shortcuts=True,
            )
        for number, patch, wave in zip(open_, patches, waves, strict=True):
            values = wave.values_mV[0][:, : len(patch.nodes)]
            if np.abs(values[:, patch.is_cut] - resting).max(initial=0) > QUIET_MV:
                continue
            filled = np.full((len(times_ms), domain.n_nodes), resting, dtype=np.float32)
            filled[:, patch.nodes] = values
            activation = np.full(domain.n_nodes, np.nan, dtype=np.float32)
            activation[patch.nodes] = wave.activation_ms[0, : len(patch.nodes)]
            found[number] = FirstWave(
                times_ms=times_ms, values_mV=filled, activation_ms=activation, n_stepped=patch.tissue.n_nodes
            )
        reach_ms += WIDER_MS
    return [found[number] for number in range(len(stimuli))]


def _everywhere(
    domain: Domain,
    batch: Batch,
    stimuli: Sequence[Stimulus],
    times_ms: Float[np.ndarray, " time"],
    pacing: Pacing,
    tissue: Domain,
    step: HalfStep,
    compiles: bool | None,
) -> list[FirstWave]:
    device = batch.points.device
    if compiles is None:
        compiles = compiling_pays(len(stimuli) * tissue.n_nodes, float(times_ms[-1]), device)
    (waves,) = simulate_many(
        [tissue],
        [[[stimulus] for stimulus in stimuli]],
        times_ms,
        cell=pacing.cell,
        scheme=pacing.scheme,
        device=device,
        compiles=compiles,
        activated_mV=ACTIVE_MV,
        couplings=[step],
        kept=[np.arange(domain.n_nodes)],
    )
    return [
        FirstWave(times_ms=times_ms, values_mV=values, activation_ms=activation, n_stepped=tissue.n_nodes)
        for values, activation in zip(waves.values_mV, waves.activation_ms, strict=True)
    ]


def compiling_pays(n_nodes: int, until_ms: float, device: torch.device, *, shortcuts: bool = False) -> bool:
    """Whether a solve ends sooner if it is compiled first, as far as that can be told. shortcuts: as `simulate_many` has."""
    least = COMPILED_BESIDE_SHORTCUTS_FROM if shortcuts and device.type == "cpu" else COMPILED_FROM
    return n_nodes * until_ms > least and can_compile(device)


@contextmanager
def threads_for(n_nodes: int) -> Iterator[None]:
    """As many as pay for work that goes over so many nodes again and again."""
    usual = torch.get_num_threads()
    torch.set_num_threads(usual if n_nodes >= THREADED_FROM else 1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def arrival_bounds(
    domain: Domain, batch: Batch, stimuli: Sequence[Stimulus], latest_ms: float = NEVER
) -> Float[np.ndarray, "trajectory node"]:
    """When each stimulus' wave comes at the soonest, in ms: along the fastest ways, from all that it may touch.

    latest_ms: all that is later is said to come then, and found sooner.
    """
    longest = float(edge_lengths(domain.points, domain.cells).max())
    starts = torch.full((1, len(stimuli), domain.n_nodes), latest_ms * FASTEST)
    for number, stimulus in enumerate(stimuli):
        for site in stimulus.sites:
            # Between its nodes there are finer ones, which the stimulus may reach though it reaches none of these.
            is_near = np.linalg.norm(domain.points - np.asarray(site), axis=1) <= stimulus.radius_mm + longest
            starts[0, number, torch.from_numpy(is_near)] = 0.0
    starts = starts.to(batch.points.device)
    return np.concatenate([marched(some, batch)[0].cpu().numpy() for some in starts.split(8, dim=1)]) / FASTEST


@dataclass(frozen=True, kw_only=True)
class _Patch:
    """A part of a domain, halved: its first nodes are these of the domain; at the cut they have lost triangles."""

    tissue: Domain
    nodes: Int[np.ndarray, " _"]
    is_cut: Bool[np.ndarray, " _"]


def _patch(domain: Domain, is_inside: Bool[np.ndarray, " node"], n_halvings: int) -> _Patch:
    """All triangles with a node inside."""
    is_kept = is_inside[domain.cells].any(axis=1)
    nodes, cells = np.unique(domain.cells[is_kept], return_inverse=True)
    tensors = domain.cell_diffusion()[is_kept]
    part = make_domain(domain.points[nodes], cells.reshape(-1, 3), tensors, diffusion_at="cell", fibres=domain.fibres[nodes])
    outside = np.zeros(domain.n_nodes, dtype=bool)
    outside[domain.cells[~is_kept]] = True
    return _Patch(tissue=halved(part, n_halvings), nodes=nodes, is_cut=outside[nodes])


def _stepped_like(patch: HalfStep, whole: Solving | None) -> HalfStep:
    """With the bounds of the whole, so that it is solved in as many iterations, alone or with others; and with as many
    slots, else what was compiled for one patch would not do for the next."""
    if whole is None:
        return patch
    n_more, n_nodes = max(0, whole.n_slots - len(patch.neighbors)), patch.neighbors.shape[1]
    own = torch.arange(n_nodes, dtype=patch.neighbors.dtype).expand(n_more, -1)
    return replace(
        patch,
        neighbors=torch.cat([patch.neighbors, own]),
        couplings=torch.nn.functional.pad(patch.couplings, (0, 0, 0, n_more)),
        pulls=torch.nn.functional.pad(patch.pulls, (0, 0, 0, n_more)),
        smallest=min(patch.smallest, whole.smallest),
        largest=max(patch.largest, whole.largest),
        stiffest=max(patch.stiffest, whole.stiffest),
    )
