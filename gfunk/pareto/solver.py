"""The solver as a way to get the waves: its settings, and what they cost."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from gfunk.bench import timed
from gfunk.pareto.frontier import NOTHING, Cost, Method
from gfunk.pareto.study import (
    Mesh,
    Steps,
    Study,
    WaveProblem,
    Waves,
    cost_of,
    edge_mm,
    errors,
    mean_cost,
    solved_waves,
    steps_on,
    waves_on,
)
from gfunk.physics.diffusion import HalfStep
from gfunk.physics.schemes import SCHEMES, Scheme
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.tissue_data import Experiment

# The recipe's edge over that of the mesh, where edges can be chosen; an atrium's are halved.
FLAT_FACTORS, ATRIUM_FACTORS = (0.4, 0.5, 2 / 3, 1.0, 2.0), (0.5, 1.0, 2.0)
STEPS = (1, 2, 4)  # of `accurate`'s; on meshes finer than the recipe's, as much shorter
WARM_MS = 3.0  # past the stimulus: nothing new is compiled later


def settings(problem: WaveProblem, refine: int) -> dict[float, list[Scheme]]:
    """Schemes to try by how much finer than the recipe's the mesh is; the recipe's own and the paper's among them."""
    factors = FLAT_FACTORS
    if isinstance(problem, AtriumProblem):
        # No mesh is coarser than what is kept.
        factors = [factor for factor in ATRIUM_FACTORS if factor * 2 ** (problem.n_halvings - problem.coarser) >= 1]
    ways = [(SCHEMES["balanced"], 1), *((SCHEMES["accurate"], times) for times in STEPS)]
    tried = {
        factor: [replace(scheme, dt_ms=scheme.dt_ms * times / max(1.0, factor)) for scheme, times in ways]
        for factor in sorted({*factors, refine / 2})
        if factor < refine
    }
    tried[1.0] = list(dict.fromkeys([*tried[1.0], SCHEMES["paper"], SCHEMES[problem.pacing.scheme]]))
    return tried


def solver_name(problem: WaveProblem, factor: float, scheme: Scheme) -> str:
    how = next((name for name, each in SCHEMES.items() if replace(each, dt_ms=scheme.dt_ms) == scheme), "")
    name = f"solver, {edge_mm(problem) / factor:.3g} mm, {scheme.dt_ms:.3g} ms, {how}"
    return f"{name} (the recipe's)" if (factor, scheme) == (1.0, SCHEMES[problem.pacing.scheme]) else name


def solver_method(study: Study, name: str, meshes: Callable[[], Sequence[Mesh]], scheme: Scheme, true: Waves) -> Method:
    steps = steps_on(study, meshes(), scheme)
    waves = waves_on(study, meshes(), steps, scheme)
    return Method(
        name=name, kind="solver", nodes=round(np.mean([mesh.tissue.n_nodes for mesh in meshes()])), parameters=None,
        **errors(waves, true, study.times, study.problem.report_every, study.threshold),
        start=NOTHING, run=solver_cost(study, meshes(), steps, scheme),
    )  # fmt: skip


def solver_cost(study: Study, meshes: Sequence[Mesh], steps: Steps, scheme: Scheme) -> Cost:
    """To reach the reported times from bare meshes, with nothing left to compile; means over the domains."""

    def one(mesh: Mesh, step: HalfStep, setup: float, experiment: Experiment) -> Cost:
        def seconds(n_trajectories: int) -> float:
            how = mesh.tissue, [experiment.stimuli[0]] * n_trajectories, scheme
            if n_trajectories != len(experiment.stimuli):
                # For as many as that, finding the errors has compiled all.
                solved_waves(study, *how, np.array([WARM_MS]), step, mesh.told)
            _, taken = timed(lambda: solved_waves(study, *how, study.reported_ms, step, mesh.told), study.device)
            return taken / n_trajectories

        return cost_of(setup, seconds, study.together)

    each = zip(meshes, steps, study.experiments, strict=True)
    return mean_cost([one(mesh, *made, experiment) for mesh, made, experiment in each])


def data_method(study: Study, true: Waves) -> Method:
    """What operators learn from where that is none of the solver's waves but made of several."""
    problem = study.problem

    def one(experiment: Experiment) -> tuple[Float[np.ndarray, "trajectory time _"], Cost]:
        [sample], seconds = timed(lambda: list(problem.solved([experiment], str(study.device))), study.device)
        each_ms = 1e3 * seconds / len(experiment.stimuli)
        values = (sample.values.astype(np.float64) - problem.offset) / problem.scale
        return values, Cost(setup_ms=0.0, alone_ms=each_ms, together_ms=each_ms)

    waves, costs = zip(*map(one, study.experiments), strict=True)
    return Method(
        name="solver, several waves made one (the recipe's data)", kind="solver", parameters=None,
        nodes=round(np.mean([each.tissue.n_nodes for each in study.experiments])),
        **errors(list(waves), true, study.times, problem.report_every, study.threshold),
        start=NOTHING, run=mean_cost(costs),
    )  # fmt: skip
