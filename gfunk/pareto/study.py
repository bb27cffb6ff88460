"""The waves that all are asked for, solved on meshes of any edge; and how errors and seconds are taken."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log2
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array, eye_array

from gfunk.activation import ACTIVE_MV, arrival_errors
from gfunk.bench import timed
from gfunk.domain import Domain, halved, interpolation
from gfunk.errors import InputError
from gfunk.pareto.frontier import Cost
from gfunk.physics.diffusion import HalfStep
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import Scheme, coupling, solving
from gfunk.physics.stimulus import Stimulus
from gfunk.physics.waves import Paced
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.tissue_data import Experiment, FibreSquareProblem, RectangleProblem

WaveProblem = RectangleProblem | FibreSquareProblem | AtriumProblem


def at_resolution(problem: WaveProblem, factor: float) -> WaveProblem:
    """The same waves solved on edges shorter by the factor."""
    if isinstance(problem, AtriumProblem):
        n_halvings = problem.n_halvings - problem.coarser + log2(factor)
        if n_halvings < 0 or n_halvings != round(n_halvings):
            raise InputError(f"an atrium's edges of {edge_mm(problem):g} mm can be halved, not divided by {factor:g}")
        return replace(problem, n_halvings=round(n_halvings), coarser=0, is_converged=False)
    return replace(problem, pacing=replace(problem.pacing, edge_mm=problem.pacing.edge_mm / factor))


def edge_mm(problem: WaveProblem) -> float:
    """Of the mesh it is solved on, but for the first state of converged waves."""
    if isinstance(problem, AtriumProblem):
        return problem.kept_edge_mm / 2 ** (problem.n_halvings - problem.coarser)
    return problem.pacing.edge_mm


@dataclass(frozen=True, kw_only=True)
class Study:
    """The waves to get, and where."""

    problem: WaveProblem
    experiments: list[Experiment]
    device: torch.device
    together: int

    @property
    def times(self) -> Float[np.ndarray, " time"]:
        """Of all saves, after the first."""
        return self.problem.pacing.every_ms * np.arange(self.problem.pacing.n_saves + 1)

    @property
    def reported_ms(self) -> Float[np.ndarray, " time"]:
        """After the stimulus: when errors are taken, and all that is asked for where time is."""
        return self.problem.pacing.first_ms + self.times[:: self.problem.report_every][1:]

    @property
    def threshold(self) -> float:
        return (ACTIVE_MV - self.problem.offset) / self.problem.scale


Waves = list[Float[np.ndarray, "trajectory time _"]]  # in model space, of each seed


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """What a seed's waves are solved on."""

    tissue: Domain
    coupled: Callable[[Scheme], HalfStep]
    told: Int[np.ndarray, " _"]  # nodes whose values are asked for
    to_kept: csr_array  # what takes these to the recipe's points: linear between nodes


Steps = list[tuple[HalfStep, float]]  # on each mesh, and the seconds it took to make them


def meshes_at(study: Study, factor: float) -> list[Mesh]:
    problem = at_resolution(study.problem, factor)
    if isinstance(problem, AtriumProblem):
        return [_halved_atrium(each.kept, problem.n_halvings) for each in study.experiments]
    return [_flat(problem.experiment(each.seed).tissue, each) for each in study.experiments]


def _halved_atrium(kept: Domain, n_halvings: int) -> Mesh:
    """The recipe's points are its first nodes."""
    tissue = halved(kept, n_halvings)
    return Mesh(
        tissue=tissue, coupled=lambda scheme: coupling(tissue, scheme, solving(kept, scheme, n_halvings)),
        told=np.arange(kept.n_nodes), to_kept=csr_array(eye_array(kept.n_nodes)),
    )  # fmt: skip


def _flat(tissue: Domain, experiment: Experiment) -> Mesh:
    to_kept = interpolation(tissue, experiment.tissue.points[experiment.nearest])
    return Mesh(tissue=tissue, coupled=partial(coupling, tissue), told=np.arange(tissue.n_nodes), to_kept=to_kept)


def steps_on(study: Study, meshes: Sequence[Mesh], scheme: Scheme) -> Steps:
    return [timed(partial(mesh.coupled, scheme), study.device) for mesh in meshes]


def waves_on(study: Study, meshes: Sequence[Mesh], steps: Steps, scheme: Scheme) -> Waves:
    """All saves at the recipe's points, solved on other meshes."""
    found, times = [], study.problem.pacing.first_ms + study.times
    for mesh, (step, _), each in zip(meshes, steps, study.experiments, strict=True):
        v_mV = solved_waves(study, mesh.tissue, each.stimuli, scheme, times, step, mesh.told).values_mV
        kept = np.stack([trajectory @ mesh.to_kept.T for trajectory in v_mV.astype(np.float64)])
        found.append((kept - study.problem.offset) / study.problem.scale)
    return found


def solved_waves(
    study: Study, tissue: Domain, stimuli: Sequence[Stimulus], scheme: Scheme, times_ms: Float[np.ndarray, " time"],
    step: HalfStep, told: Int[np.ndarray, " _"],
) -> Paced:  # fmt: skip
    [paced] = simulate_many(
        [tissue], [[[stimulus] for stimulus in stimuli]], times_ms,
        cell=study.problem.pacing.cell, scheme=scheme, device=study.device, couplings=[step], kept=[told],
    )  # fmt: skip
    return paced


def errors(values: Waves, true: Waves, times: Float[np.ndarray, " time"], every: int, threshold: float) -> dict[str, Any]:
    """Means over trajectories: relative l2 at every so-many-th save after the first, error of activation times at all."""
    rel_l2, late = [], []
    for predicted, exact in zip(values, true, strict=True):
        later, known = predicted[:, every::every], exact[:, every::every]
        rel_l2 += (np.linalg.norm(later - known, axis=(1, 2)) / np.linalg.norm(known, axis=(1, 2))).tolist()
        is_node = torch.ones(1, exact.shape[2], dtype=torch.bool)
        both = torch.from_numpy(predicted), torch.from_numpy(exact)
        late += [row.lat_error_ms for row in arrival_errors(*both, torch.from_numpy(times), is_node, threshold)]
    there = [each for each in late if each is not None]
    return {"rel_l2": float(np.mean(rel_l2)), "lat_error_ms": float(np.mean(there)) if there else None}


def cost_of(setup: float, seconds: Callable[[int], float], together: int) -> Cost:
    alone = seconds(1)
    return Cost(
        setup_ms=1e3 * setup, alone_ms=1e3 * alone, together_ms=1e3 * (alone if together == 1 else seconds(together))
    )


def mean_cost(costs: Sequence[Cost]) -> Cost:
    rows = [asdict(each) for each in costs]
    return Cost(**{name: float(np.mean([row[name] for row in rows])) for name in rows[0]})
