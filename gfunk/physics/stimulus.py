"""Stimuli: where and when current flows into tissue, and what each time step sees of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gfunk.domain import Domain
from gfunk.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Stimulus:
    """A current into every node near one of its sites, for a while."""

    sites: tuple[tuple[float, ...], ...]
    start_ms: float = 0.0
    duration_ms: float = 2.0
    strength: float = 50.0  # mV/ms
    radius_mm: float = 1.0


def stimulated_nodes(domain: Domain, stimulus: Stimulus) -> np.ndarray:
    """The nodes within the radius of any of the sites; each site must reach one."""
    chosen = []
    for site in stimulus.sites:
        if len(site) != domain.points.shape[1]:
            raise InputError(f"site {site} has {len(site)} coordinates, the domain's points have {domain.points.shape[1]}")
        distance = np.linalg.norm(domain.points - np.asarray(site), axis=1)
        near = np.flatnonzero(distance <= stimulus.radius_mm)
        if not near.size:
            nearest = int(distance.argmin())
            raise InputError(
                f"no node within {stimulus.radius_mm:g} mm of site {site}: the nearest is {distance[nearest]:.3g} mm away, "
                f"at {domain.points[nearest].tolist()}"
            )
        chosen.append(near)
    return np.unique(np.concatenate(chosen))


@dataclass(frozen=True, kw_only=True)
class Pulses:
    """Stimuli of domains side by side, each on one domain and in one trajectory, and the nodes they reach."""

    stimuli: tuple[Stimulus, ...]
    domains: Int[np.ndarray, " _"]
    trajectories: Int[np.ndarray, " _"]
    # All nodes of all stimuli, and the stimulus of each. None has a node twice.
    nodes: Int[Tensor, " node"]
    stimulus_of: Int[Tensor, " node"]
    sizes: tuple[int, ...]  # nodes of each domain
    n_trajectories: int


def pulses(domains: Sequence[Domain], protocols: Sequence[Sequence[Sequence[Stimulus]]]) -> Pulses:
    first = np.cumsum([0] + [domain.n_nodes for domain in domains])
    given = [
        (number, trajectory, stimulus)
        for number, each in enumerate(protocols)
        for trajectory, protocol in enumerate(each)
        for stimulus in protocol
    ]
    nodes = [first[number] + stimulated_nodes(domains[number], stimulus) for number, _, stimulus in given]
    return Pulses(
        stimuli=tuple(stimulus for *_, stimulus in given),
        domains=np.array([number for number, *_ in given], dtype=np.int64),
        trajectories=np.array([trajectory for _, trajectory, _ in given], dtype=np.int64),
        nodes=torch.from_numpy(np.concatenate([first[:0], *nodes])),
        stimulus_of=torch.from_numpy(np.repeat(np.arange(len(nodes)), [len(each) for each in nodes])),
        sizes=tuple(domain.n_nodes for domain in domains),
        n_trajectories=len(protocols[0]),
    )


class Currents:
    """The stimulus of each step: its mean over the step, so that charge does not depend on where steps fall."""

    def __init__(self, pulses: Pulses, dt: float, nothing: Float[Tensor, "node trajectory"]):
        self.pulses, self.nothing = pulses, nothing
        starts, lasting, self.strengths = (
            np.array([getattr(stimulus, name) for stimulus in pulses.stimuli], dtype=np.float64)
            for name in ("start_ms", "duration_ms", "strength")
        )
        # In steps, not ms.
        self.starts, self.ends = starts / dt, (starts + lasting) / dt
        nodes, trajectories, self.stimulus_of, self.sizes = (
            each.to(nothing.device)
            for each in (
                pulses.nodes, torch.from_numpy(pulses.trajectories), pulses.stimulus_of, torch.tensor(pulses.sizes)
            )
        )  # fmt: skip
        self.places = nodes * pulses.n_trajectories + trajectories[self.stimulus_of]
        self.current = np.zeros(len(starts)), nothing
        self.rough = np.zeros(len(starts), dtype=bool), torch.zeros_like(nothing, dtype=torch.bool)

    def of_step(self, step: int) -> Float[Tensor, "node trajectory"]:
        """mV/ms at every node; the same tensor while nothing changes."""
        parts = np.minimum(step + 1, self.ends) - np.maximum(step, self.starts)
        # What rounding makes of a stimulus' edges is no part of it.
        shares = np.where(parts > 1e-6, parts.round(9), 0.0)
        if not np.array_equal(shares, self.current[0]):
            strengths = torch.from_numpy(shares * self.strengths).to(self.nothing.device)
            # In double precision, as stimuli may overlap, and a GPU adds them up in any order.
            current = torch.zeros(self.nothing.numel(), dtype=torch.float64, device=self.nothing.device)
            current.index_add_(0, self.places, strengths[self.stimulus_of])
            self.current = shares, current.to(self.nothing).view_as(self.nothing)
        return self.current[1]

    def rough_at(self, step: int) -> Bool[Tensor, "node trajectory"]:
        """Which trajectories, on which domains, have a jump near."""
        jumps = self._jumps(step, 1)
        if not np.array_equal(jumps, self.rough[0]):
            rough = np.zeros((len(self.sizes), self.pulses.n_trajectories), dtype=bool)
            np.logical_or.at(rough, (self.pulses.domains, self.pulses.trajectories), jumps)
            each = torch.from_numpy(rough).to(self.nothing.device)
            self.rough = jumps, each.repeat_interleave(self.sizes, dim=0, output_size=len(self.nothing))
        return self.rough[1]

    def has_jump(self, step: int, n_steps: int = 1) -> bool:
        return bool(self._jumps(step, n_steps).any())

    def _jumps(self, step: int, n_steps: int) -> np.ndarray:
        """Which stimuli begin or end in these steps, or did in the two before."""
        near = [(edges > step - 2 - 1e-6) & (edges < step + n_steps - 1e-6) for edges in (self.starts, self.ends)]
        return near[0] | near[1]
