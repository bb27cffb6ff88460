"""The first milliseconds of a wave, by the solver, near the stimulus alone: what operators start from.

In ten milliseconds a wave gets only so far. All that it can't have reached is at rest, and need not be stepped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gfunk.activation import ACTIVE_MV
from gfunk.batch import Batch
from gfunk.domain import Domain, halved, make_domain
from gfunk.operators.eikonal import marched
from gfunk.operators.fronts import NEVER
from gfunk.physics.compiling import compiling_pays
from gfunk.physics.diffusion import HalfStep, Solving
from gfunk.physics.models import CELLS
from gfunk.physics.monodomain import seen_moments, simulate_many
from gfunk.physics.schemes import coupling
from gfunk.physics.stimulus import Pulses, Stimulus, stimulated_nodes
from gfunk.physics.waves import Paced
from gfunk.recipes.tissue_data import Pacing
from gfunk.surface import edge_lengths

# A plane wave runs at FASTEST * sqrt(K), rounder ones more slowly. Ahead of it v rises by e in half a millisecond: a round
# one is not to be seen yet where it would come MARGIN_MS later, a plane one, as in a vein, WIDER_MS after that.
FASTEST = 1.47
MARGIN_MS = 2.0
WIDER_MS = 2.5  # the next patch, where the first was too small
QUIET_MV = 0.05  # of 105: where a patch was cut out, v may have changed by no more
# Fewer nodes are stepped by one thread: on two idle cores two are no faster, on busy ones they were ten times slower.
THREADED_FROM = 50_000
# On a device, of all sites together: a few GB each.
STEPPED_AT_ONCE, MARCHED_AT_ONCE = 4_000_000, 2_000_000
# Nodes that fill up to so many: a CPU steps those at the end of a row by other instructions, which round otherwise.
FULL_ROWS = 64

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
    solve: Solve = simulate_many,
) -> list[FirstWave]:
    """One wave a stimulus, on the nodes of the domain, all solved together on its triangles halved n_halvings times.

    batch: the domain, packed alone; it says on which device to work. whole: `solving` of the halved domain: with it all
    patches are solved as the whole of it would be. compiles: None decides by the number of nodes. solve: for patches.
    """
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
                couplings=[_coupled(patch.tissue, pacing.scheme, whole) for patch in patches],
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


@dataclass(frozen=True, kw_only=True)
class Tissue:
    """A domain whose triangles were halved, on the device where patches of it are to be stepped."""

    domain: Domain  # the halved one; its first nodes are those before
    coarse: Int[Tensor, "cell 3"]  # the triangles before
    nodes_within: Int[Tensor, "cell _"]  # what each of these holds of the halved domain, some several times
    points: Float[Tensor, "node dim"]
    step: HalfStep


def tissue_on(device: torch.device, domain: Domain, halves: Domain, step: HalfStep) -> Tissue:
    """halves: the domain `halved`. step: their `coupling`."""
    n_cells = len(domain.cells)
    # Parts of a triangle are as far apart as there are triangles.
    within = halves.cells.reshape(-1, n_cells, 3).swapaxes(0, 1).reshape(n_cells, -1)
    coarse, within, points = (torch.from_numpy(each).to(device) for each in (domain.cells, within, halves.points))
    return Tissue(domain=halves, coarse=coarse, nodes_within=within, points=points, step=step.to(device, torch.float32))


@torch.no_grad()
def first_waves_together(
    domain: Domain,
    batch: Batch,
    stimuli: Sequence[Stimulus],
    times_ms: Float[np.ndarray, " time"],
    pacing: Pacing,
    tissue: Tissue,
    *,
    compiles: bool | None = None,
    margin_ms: float = MARGIN_MS,
    shortcuts: bool = True,
) -> list[FirstWave]:
    """The same for many stimuli, where the tissue is: patches are cut out of it there, and nothing is made anew.

    All around a patch is held at rest. No wave depends on which others are asked for. shortcuts: as `simulate_many` has
    them, where it is not compiled.
    """
    device, until = tissue.points.device, float(times_ms[-1])
    values = torch.empty(len(stimuli), len(times_ms), domain.n_nodes, device=device)
    activation = torch.empty(len(stimuli), domain.n_nodes, device=device)
    n_stepped = np.zeros(len(stimuli), dtype=np.int64)
    open_, reach_ms = np.arange(len(stimuli)), until + margin_ms
    while len(open_):
        bounds = _bounds(domain, batch, [stimuli[number] for number in open_.tolist()], reach_ms + WIDER_MS)
        is_inside = _whole_triangles(bounds <= reach_ms, tissue)
        n_stepped[open_] = is_inside.sum(1).cpu().numpy()
        if compiles is None:
            compiles = compiling_pays(int(n_stepped.sum()), until, device, shortcuts=True)
        is_quiet = []
        ends = np.flatnonzero(np.diff(np.cumsum(n_stepped[open_]) // STEPPED_AT_ONCE)) + 1
        for numbers, inside in zip(np.split(open_, ends), is_inside.tensor_split(ends.tolist()), strict=True):
            some = [stimuli[number] for number in numbers.tolist()]
            waves = _stepped(_cut_out(tissue, inside), some, times_ms, pacing, tissue, domain.n_nodes, compiles, shortcuts)
            at = torch.from_numpy(numbers).to(device)
            values[at], activation[at] = waves.values_mV, waves.activation_ms
            is_quiet.append(waves.is_quiet.cpu().numpy())
        open_, reach_ms = open_[~np.concatenate(is_quiet)], reach_ms + WIDER_MS
    rows = zip(values.cpu().numpy(), activation.cpu().numpy(), n_stepped.tolist(), strict=True)
    return [
        FirstWave(times_ms=times_ms, values_mV=each, activation_ms=came, n_stepped=n_nodes) for each, came, n_nodes in rows
    ]


@dataclass(frozen=True, kw_only=True)
class _CutOut:
    """Patches of a tissue side by side, node by node. In `step` more nodes follow, at rest: the first is all around them."""

    step: HalfStep
    patch_of: Int[Tensor, " node"]
    node: Int[Tensor, " node"]  # of the tissue
    is_cut: Bool[Tensor, " node"]  # beside what is around


class _Waves(NamedTuple):
    values_mV: Float[Tensor, "trajectory time node"]
    activation_ms: Float[Tensor, "trajectory node"]
    is_quiet: Bool[Tensor, " trajectory"]  # where its patch was cut out


def _stepped(
    patches: _CutOut,
    stimuli: Sequence[Stimulus],
    times_ms: Float[np.ndarray, " time"],
    pacing: Pacing,
    tissue: Tissue,
    n_nodes: int,
    compiles: bool,
    shortcuts: bool,
) -> _Waves:
    """One stimulus a patch; of each wave, what is seen of it on the first nodes of the tissue."""
    resting, device = CELLS[pacing.cell].resting["v"], tissue.points.device
    values = torch.full((len(stimuli), len(times_ms), n_nodes), resting, device=device)
    activation = torch.full((len(stimuli), n_nodes), torch.nan, device=device)
    is_quiet = torch.ones(len(stimuli), dtype=torch.bool, device=device)
    told = (patches.node < n_nodes).nonzero()[:, 0]
    patch, node = patches.patch_of[told], patches.node[told]
    for number, seen in enumerate(
        seen_moments(
            patches.step,
            _pulses_into(patches, stimuli, tissue),
            times_ms,
            cell=pacing.cell,
            scheme=pacing.scheme,
            compiles=compiles,
            activated_mV=ACTIVE_MV,
            shortcuts=shortcuts,
        )
    ):
        v, came = seen.v[: len(patches.node), 0], seen.times_seen()[0][:, 0]
        values[patch, number, node], activation[patch, node] = v[told], came[told]
        is_quiet[patches.patch_of[patches.is_cut & ((v - resting).abs() > QUIET_MV)]] = False
    return _Waves(values, activation, is_quiet)


def _whole_triangles(is_inside: Bool[Tensor, "trajectory _"], tissue: Tissue) -> Bool[Tensor, "trajectory node"]:
    """Of coarse nodes, those inside; of the tissue, all nodes of coarse triangles with a node inside."""
    patch, cell = is_inside[:, tissue.coarse].any(-1).nonzero().unbind(1)
    found = is_inside.new_zeros(len(is_inside), len(tissue.points))
    found.view(-1)[(patch[:, None] * len(tissue.points) + tissue.nodes_within[cell]).flatten()] = True
    return found


def _cut_out(tissue: Tissue, is_inside: Bool[Tensor, "trajectory node"]) -> _CutOut:
    whole, (patch_of, node) = tissue.step, is_inside.nonzero().unbind(1)
    # The number of what is in no patch.
    around, n_whole = len(node), len(tissue.points)
    place = torch.full((is_inside.numel(),), around, dtype=whole.neighbors.dtype, device=node.device)
    place[patch_of * n_whole + node] = torch.arange(around, dtype=place.dtype, device=node.device)
    neighbors = place[patch_of * n_whole + whole.neighbors[:, node]]
    padded = partial(torch.nn.functional.pad, pad=(0, FULL_ROWS - around % FULL_ROWS))
    return _CutOut(
        # With the bounds of the whole, which hold for parts: so all are solved alike, alone or with others.
        step=replace(
            whole,
            neighbors=padded(neighbors, value=around),
            couplings=padded(whole.couplings[:, node]),
            pulls=padded(whole.pulls[:, node]),
        ),
        patch_of=patch_of,
        node=node,
        is_cut=(neighbors == around).any(0),
    )


def _pulses_into(patches: _CutOut, stimuli: Sequence[Stimulus], tissue: Tissue) -> Pulses:
    """One stimulus a patch."""
    sites, radii = _sites(stimuli, tissue.points)
    points, radius = tissue.points[patches.node], radii[patches.patch_of]
    is_near = torch.zeros_like(patches.is_cut)
    for place in sites.unbind(1):
        is_near_this = _distance(points, place[patches.patch_of]) <= radius
        is_reached = place.isnan().any(1)
        is_reached[patches.patch_of[is_near_this]] = True
        for number in (~is_reached).nonzero()[:, 0].tolist():
            stimulated_nodes(tissue.domain, stimuli[number])  # says what is wrong with it
        is_near |= is_near_this
    nodes, sizes = is_near.nonzero()[:, 0], patches.patch_of.bincount(minlength=len(stimuli)).tolist()
    return Pulses(
        stimuli=tuple(stimuli),
        domains=np.arange(len(stimuli)),
        trajectories=np.zeros(len(stimuli), dtype=np.int64),
        nodes=nodes,
        stimulus_of=patches.patch_of[nodes],
        sizes=(*sizes, patches.step.neighbors.shape[1] - sum(sizes)),
        n_trajectories=1,
    )


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
    return _bounds(domain, batch, stimuli, latest_ms).cpu().numpy()


def _bounds(domain: Domain, batch: Batch, stimuli: Sequence[Stimulus], latest_ms: float) -> Float[Tensor, "trajectory node"]:
    longest = float(edge_lengths(domain.points, domain.cells).max())
    points = torch.from_numpy(domain.points).to(batch.points.device)
    sites, radii = _sites(stimuli, points)
    at_once, found = max(1, MARCHED_AT_ONCE // domain.n_nodes), []
    for some, reach in zip(sites.split(at_once), (radii + longest).split(at_once), strict=True):
        # Between its nodes there are finer ones, which the stimulus may reach though it reaches none of these.
        is_near = torch.stack([_distance(points, site[:, None]) <= reach[:, None] for site in some.unbind(1)]).any(0)
        starts = torch.where(is_near, 0.0, latest_ms * FASTEST).to(batch.points.dtype)
        found.append(marched(starts[None], batch)[0])
    return torch.cat(found) / FASTEST


def _sites(
    stimuli: Sequence[Stimulus], like: Float[Tensor, "node dim"]
) -> tuple[Float[Tensor, "trajectory place dim"], Float[Tensor, " trajectory"]]:
    """Of each stimulus, filled up with NaN, from which nothing is near; and its radius."""
    most, nowhere = max(len(stimulus.sites) for stimulus in stimuli), (np.nan,) * like.shape[1]
    places = [[*stimulus.sites, *[nowhere] * (most - len(stimulus.sites))] for stimulus in stimuli]
    radii = [stimulus.radius_mm for stimulus in stimuli]
    return like.new_tensor(places), like.new_tensor(radii)


def _distance(points: Tensor, sites: Tensor) -> Tensor:
    # One coordinate after the other, as NumPy adds them: what is near is so on all devices.
    x, *others = (points - sites).square().unbind(-1)
    return sum(others, x).sqrt()


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


def _coupled(patch: Domain, scheme: str, whole: Solving | None) -> HalfStep:
    """With the bounds of the whole, so that it is solved in as many iterations, alone or with others; and with as many
    slots, else what was compiled for one patch would not do for the next."""
    step = coupling(patch, scheme, whole)
    if whole is None:
        return step
    n_more, n_nodes = max(0, whole.n_slots - len(step.neighbors)), step.neighbors.shape[1]
    own = torch.arange(n_nodes, dtype=step.neighbors.dtype).expand(n_more, -1)
    return replace(
        step,
        neighbors=torch.cat([step.neighbors, own]),
        couplings=torch.nn.functional.pad(step.couplings, (0, 0, 0, n_more)),
        pulls=torch.nn.functional.pad(step.pulls, (0, 0, 0, n_more)),
    )
