"""Error and cost measured: operators beside the solver at several edges and steps, against the same waves solved finely."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch

from gfunk.errors import InputError
from gfunk.pareto.frontier import Comparison
from gfunk.pareto.kept import NOWHERE, Kept, identity
from gfunk.pareto.operators import Contender, operator_method
from gfunk.pareto.solver import data_method, settings, solver_method, solver_name
from gfunk.pareto.study import Study, WaveProblem, Waves, edge_mm, meshes_at, steps_on, waves_on
from gfunk.physics.schemes import SCHEMES
from gfunk.recipes.atrium_data import AtriumProblem


def compared(
    problem: WaveProblem,
    seeds: Sequence[int],
    contenders: Sequence[Contender] = (),
    *,
    device: torch.device,
    refine: int = 4,
    together: int = 1,
    kept: Kept = NOWHERE,
    on_part: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """The solver and the contenders on these seeds, against solutions with edge and step shorter by `refine`.

    together: how many trajectories are taken at once where there are many. Making meshes is counted for nobody.
    kept: what is measured, from now on and before.
    """
    _check(problem, contenders, refine)
    study = Study(
        problem=problem, experiments=[problem.experiment(seed) for seed in seeds], device=device, together=together
    )
    on_part(f"the truth: edges of {edge_mm(problem) / refine:.3g} mm")
    true = kept.true(partial(_finest, study, refine))
    methods, truth_rel_l2 = [], float("nan")
    for factor, schemes in settings(problem, refine).items():
        meshes = cache(partial(meshes_at, study, factor))
        for scheme in schemes:
            on_part(name := solver_name(problem, factor, scheme))
            method = kept.method(name, partial(solver_method, study, name, meshes, scheme, true))
            methods.append(method)
            if (factor, scheme) == (refine / 2, schemes[0]):
                # Edge and step are twice the truth's. Of order 2: if that is off by e, this is by 4 e, so 3 e from it.
                truth_rel_l2 = method.rel_l2 / 3
    if isinstance(problem, AtriumProblem) and problem.is_converged:
        on_part("the recipe's data")
        methods.append(kept.method("the recipe's data", partial(data_method, study, true)))
    for each in contenders:
        on_part(each.name)
        methods.append(kept.method(each.name, partial(operator_method, study, each, true), of=identity(each)))
    return Comparison(methods=tuple(methods), truth_rel_l2=truth_rel_l2)


def _finest(study: Study, refine: int) -> Waves:
    best = SCHEMES["balanced"]
    meshes = meshes_at(study, float(refine))
    steps = steps_on(study, meshes, scheme := replace(best, dt_ms=best.dt_ms / refine))
    return waves_on(study, meshes, steps, scheme)


def _check(problem: WaveProblem, contenders: Sequence[Contender], refine: int):
    if refine < 2:
        raise InputError(f"the truth is at least twice as fine as the recipe's data, not {refine} times")
    if problem.report_every > problem.pacing.n_saves:
        raise InputError("no save is late enough to take an error: raise pacing.n_saves or lower pacing.report_ms")
    for each in contenders:
        if each.variant.view.grid_side is not None:
            raise InputError(f"{each.name} sees waves on a grid: only operators on the nodes themselves can be compared")
        if each.n_halvings and not isinstance(problem, AtriumProblem):
            raise InputError(f"{each.name}: only the edges of atria are halved")
