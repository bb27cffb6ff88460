"""Stimuli: where and when current flows into tissue, and what each time step sees of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
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


class Currents:
    """The stimulus of each step: its mean over the step, so that charge does not depend on where steps fall."""

    def __init__(
        self, domains: Sequence[Domain], protocols: Sequence[Sequence[Sequence[Stimulus]]], dt: float, nothing: Tensor
    ):
        pulses = _pulses(domains, protocols)
        self.pulses, self.nothing = pulses, nothing
        # In steps, not ms.
        self.starts, self.ends = (np.array([getattr(pulse, name) for pulse in pulses]) / dt for name in ("start", "end"))
        self.current = np.zeros(len(pulses)), nothing
        self.rough = np.zeros(len(pulses), dtype=bool), torch.zeros_like(nothing, dtype=torch.bool)

    def of_step(self, step: int) -> Tensor:
        """mV/ms at every node; the same tensor while nothing changes."""
        parts = np.minimum(step + 1, self.ends) - np.maximum(step, self.starts)
        # What rounding makes of a pulse's edges is no part of it.
        shares = np.where(parts > 1e-6, parts.round(9), 0.0)
        if not np.array_equal(shares, self.current[0]):
            current = np.zeros(self.nothing.shape)
            for pulse, share in zip(self.pulses, shares, strict=True):
                current[pulse.nodes, pulse.trajectory] += share * pulse.strength
            self.current = shares, torch.from_numpy(current).to(self.nothing)
        return self.current[1]

    def rough_at(self, step: int) -> Tensor:
        """Which trajectories, on which domains, have a jump near."""
        jumps = self._jumps(step, 1)
        if not np.array_equal(jumps, self.rough[0]):
            rough = np.zeros(self.nothing.shape, dtype=bool)
            for pulse, jump in zip(self.pulses, jumps, strict=True):
                rough[pulse.domain, pulse.trajectory] |= jump
            self.rough = jumps, torch.from_numpy(rough).to(self.nothing.device)
        return self.rough[1]

    def has_jump(self, step: int, n_steps: int = 1) -> bool:
        return bool(self._jumps(step, n_steps).any())

    def _jumps(self, step: int, n_steps: int) -> np.ndarray:
        """Which pulses begin or end in these steps, or did in the two before."""
        near = [(edges > step - 2 - 1e-6) & (edges < step + n_steps - 1e-6) for edges in (self.starts, self.ends)]
        return near[0] | near[1]


@dataclass(frozen=True)
class _Pulse:
    """A stimulus as the stepper sees it: how strong where, and when."""

    start: float
    end: float
    nodes: np.ndarray
    trajectory: int
    strength: float
    domain: slice  # all nodes of its domain


def _pulses(domains: Sequence[Domain], protocols: Sequence[Sequence[Sequence[Stimulus]]]) -> list[_Pulse]:
    first = np.cumsum([0] + [domain.n_nodes for domain in domains])
    return [
        _Pulse(
            stimulus.start_ms, stimulus.start_ms + stimulus.duration_ms,
            int(first[number]) + stimulated_nodes(domain, stimulus), trajectory, stimulus.strength,
            slice(int(first[number]), int(first[number + 1])),
        )
        for number, domain in enumerate(domains)
        for trajectory, protocol in enumerate(protocols[number])
        for stimulus in protocol
    ]  # fmt: skip
