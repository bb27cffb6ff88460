"""How fast the solver steps on this device, beside the time it takes to move what a step must move."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from gfunk.bench import measured_ceilings
from gfunk.domain import Domain, fibre_tensors, make_domain, rectangle
from gfunk.physics.diffusion import joined
from gfunk.physics.models import CELLS
from gfunk.physics.monodomain import moments
from gfunk.physics.schemes import SCHEMES, coupling, diffusivity
from gfunk.physics.stimulus import Stimulus

CELL = "courtemanche-af"
ACROSS = {
    "sheets": diffusivity(0.0625),
    "tube": diffusivity(0.625),
}  # the paper's for rectangles and atria; along: five times


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tissue to step: many sheets with a stimulus each, or one closed surface with many."""

    name: str
    domains: list[Domain]
    protocols: list[list[list[Stimulus]]]
    until_ms: float


@dataclass(frozen=True, kw_only=True)
class SolverCost:
    """A node-step is one step of one node of one trajectory.

    seconds: of the whole simulation, set-up included; first_seconds: of a short one (5 ms) before it, with compiling.
    floor_fraction: the time to move what a step must move, at the rate of a large copy, over the time it took.
    """

    case: str
    domains: int
    nodes: int  # of all domains
    trajectories: int  # of each domain
    dt_ms: float
    until_ms: float
    iterations: int  # of the implicit half step
    first_seconds: float
    setup_seconds: float
    seconds: float
    node_steps_per_second: float
    floor_fraction: float


def sheets(n_domains: int, until_ms: float) -> Case:
    """Rectangles as the paper's: sides of 15 to 30 mm, edges of 0.2 mm."""
    sides = np.random.default_rng(0).uniform(15, 30, (n_domains, 2))
    return Case(
        name="sheets",
        domains=[_tissue(rectangle(width, height, 0.2), "sheets") for width, height in sides],
        protocols=[[[Stimulus(sites=((0.0, 0.0),))]] for _ in sides],
        until_ms=until_ms,
    )


def tube(n_nodes: int, n_stimuli: int, until_ms: float) -> Case:
    """A sheet rolled up, of about as many nodes as asked, edges of 0.5 mm and the size of an atrium at 50,000."""
    side = 0.5 * (n_nodes**0.5 - 1)
    flat = rectangle(side, side, 0.5)
    radius = side / 6  # not quite closed
    angle, height = flat.points[:, 0] / radius, flat.points[:, 1]
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)
    sites = points[np.random.default_rng(0).choice(len(points), n_stimuli, replace=False)]
    around = np.stack([-np.sin(angle), np.cos(angle), 0 * angle], axis=1)
    return Case(
        name="tube",
        domains=[_tissue(make_domain(points, flat.cells, fibres=around), "tube")],
        protocols=[[[Stimulus(sites=(tuple(site),), radius_mm=2.0)] for site in sites.tolist()]],
        until_ms=until_ms,
    )


def solver_cost(case: Case, device: torch.device, scheme: str = "accurate") -> SolverCost:
    how, n_states = SCHEMES[scheme], len(CELLS[CELL].resting)
    n_nodes, n_trajectories = sum(domain.n_nodes for domain in case.domains), len(case.protocols[0])

    started = time.perf_counter()
    couplings = [coupling(domain, how) for domain in case.domains]
    preparing = time.perf_counter() - started

    def marks(*times_ms: float) -> list[float]:
        """Seconds until each of the times is reached, from the bare domains on."""
        started = time.perf_counter() - preparing
        reached = moments(case.domains, case.protocols, times_ms, cell=CELL, scheme=how, device=device, couplings=couplings)
        return [time.perf_counter() - started for _ in reached]

    # Past the stimulus: all there is to compile and record has been.
    short_ms = 5.0
    [first] = marks(short_ms)
    short, whole = marks(short_ms, case.until_ms)
    stepping = (whole - short) / (case.until_ms - short_ms)
    together = joined(couplings)
    n_slots, n_iterations = len(together.neighbors), together.n_iterations(how.reduction)
    floor = bytes_a_node_step(n_states, n_slots, n_iterations, n_trajectories) / measured_ceilings(device).bytes_per_second
    rate = n_nodes * n_trajectories / (stepping * how.dt_ms)
    return SolverCost(
        case=case.name,
        domains=len(case.domains),
        nodes=n_nodes,
        trajectories=n_trajectories,
        dt_ms=how.dt_ms,
        until_ms=case.until_ms,
        iterations=n_iterations,
        first_seconds=first,
        setup_seconds=short - short_ms * stepping,
        seconds=whole,
        node_steps_per_second=rate,
        floor_fraction=floor * rate,
    )


def bytes_a_node_step(n_states: int, n_slots: int, n_iterations: int, n_trajectories: int) -> float:
    """What a step of this method moves if nothing is moved twice; a neighbour's value counts as at hand.

    States in and out. The half step's right-hand side: v and the guess in, three fields out; each further iteration:
    three fields in and out. Matrices once a product for all trajectories: a neighbour's number and its weights. Last, v in
    and the times seen in and out.
    """
    fields = 2 * n_states + 5 + 6 * (n_iterations - 1) + 5
    matrices = n_slots * (3 + 2 * (n_iterations - 1))
    return 4 * (fields + matrices / n_trajectories)


def _tissue(shape: Domain, kind: str) -> Domain:
    fibres = shape.fibres if kind == "tube" else np.tile([1.0, 0.0], (shape.n_nodes, 1))
    return make_domain(shape.points, shape.cells, fibre_tensors(fibres, 5 * ACROSS[kind], ACROSS[kind]), fibres=fibres)
