"""Operators as ways to get the waves: what they tell from the first state, and what all of that costs from the bare mesh."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gfunk.batch import Batch, pack
from gfunk.batched_modes import batched_modes
from gfunk.bench import median_seconds, timed
from gfunk.domain import Domain, halved
from gfunk.first_waves import FirstWave, first_waves, first_waves_together, tissue_on
from gfunk.laplacian import Laplacian, laplacian
from gfunk.operators.make import n_parameters
from gfunk.pareto.frontier import Cost, Method
from gfunk.pareto.study import Study, WaveProblem, Waves, cost_of, errors, mean_cost, solved_waves
from gfunk.physics.compiling import can_compile
from gfunk.physics.schemes import SCHEMES, coupling, solving
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.recipe import RecipeProblem, Variant
from gfunk.recipes.tissue_data import Experiment, Pacing
from gfunk.replay import Replay
from gfunk.rollout import Adaptive, Direct, FlowMap, rollout
from gfunk.simulation import viewed_domain
from gfunk.spectrum import Spectrum, lowest_modes


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A trained operator. Where edges are halved, so are those that its first state is solved on; atria's alone can be."""

    name: str
    operator: nn.Module
    variant: Variant
    problem: RecipeProblem  # that it has learned: it starts from such first states
    n_halvings: int = 0


@torch.no_grad()
def operator_method(study: Study, contender: Contender, true: Waves) -> Method:
    operator, variant = contender.operator.to(study.device).eval(), contender.variant
    problem = _started_as(study.problem, contender.problem)
    seen = [_seen(study, problem, each, contender.n_halvings) for each in study.experiments]
    if study.device.type == "cuda":
        _batches(study, seen, variant)  # libraries wake up
    batches, setup = timed(lambda: _batches(study, seen, variant), study.device)
    every, times = study.problem.report_every, study.times
    if isinstance(variant.integrator, FlowMap) and variant.integrator.longest_step > 1.01 * times[1]:
        # Steps from one reported time to the next say nothing of those between.
        true, times, every = [each[:, ::every] for each in true], times[::every], 1
    waves, costs = [], []
    for batch, experiment, exact in zip(batches, seen, true, strict=True):
        state = _first_states(study, problem, experiment)
        initial = torch.from_numpy(state[..., None]).to(study.device, torch.float32)
        found = rollout(operator, initial, batch, np.diff(times).tolist(), variant.integrator)[..., 0]
        waves.append(found[..., : exact.shape[2]].double().cpu().numpy())
        costs.append(_operator_cost(study, operator, variant, batch, initial[:1], setup / len(batches)))
    started = _patched_start if study.device.type == "cpu" else _start_cut_out
    begun = [_begun_on(study, problem, *each) for each in zip(seen, batches, strict=True)]
    return Method(
        name=contender.name,
        kind="operator",
        nodes=round(np.mean([batch.points.shape[1] for batch in batches])),
        parameters=n_parameters(operator),
        **errors(waves, true, times, every, study.threshold),
        start=mean_cost([started(study, problem.pacing, *each) for each in zip(seen, begun, strict=True)]),
        run=mean_cost(costs),
    )


def _started_as(problem: WaveProblem, learned: RecipeProblem) -> WaveProblem:
    """The problem, with first states as an operator has learned them."""
    if isinstance(problem, AtriumProblem) and isinstance(learned, AtriumProblem):
        pacing = replace(problem.pacing, scheme=learned.pacing.scheme)
        return replace(problem, pacing=pacing, n_halvings=learned.n_halvings, coarser=0, is_converged=False)
    return problem


def _seen(study: Study, problem: WaveProblem, experiment: Experiment, n_halvings: int) -> Experiment:
    """As the operator sees the domain and starts on it; the recipe's points are the first of its nodes."""
    if n_halvings == 0:
        return experiment if problem == study.problem else problem.experiment(experiment.seed)
    assert isinstance(problem, AtriumProblem)  # by `compared`
    kept, scheme = halved(experiment.kept, n_halvings), problem.pacing.scheme
    tissue = halved(kept, problem.n_halvings)
    step = coupling(tissue, scheme, solving(kept, scheme, problem.n_halvings)).to("cpu", torch.float32)
    return replace(experiment, tissue=tissue, coupling=step, kept=kept, nearest=np.arange(kept.n_nodes), finer=None)


def _first_states(study: Study, problem: WaveProblem, experiment: Experiment) -> Float[np.ndarray, "trajectory _"]:
    """In model space, at the points that the operator sees."""
    scheme, first_ms = SCHEMES[problem.pacing.scheme], np.array([problem.pacing.first_ms])
    how = experiment.tissue, experiment.stimuli, scheme, first_ms, experiment.coupling, experiment.nearest
    v_mV = solved_waves(study, *how).values_mV
    return (v_mV[:, 0].astype(np.float64) - problem.offset) / problem.scale


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """What first states are solved on, halved so often; in the batch it is found where the wave can be by then."""

    domain: Domain
    n_halvings: int
    batch: Batch
    seconds: float  # to make the batch, where the operator does not have it anyway


def _begun_on(study: Study, problem: WaveProblem, experiment: Experiment, batch: Batch) -> _Begun:
    if isinstance(problem, AtriumProblem):
        return _Begun(domain=experiment.kept, n_halvings=problem.n_halvings, batch=batch, seconds=0.0)
    # What is kept of flat tissue is no mesh of which the solver's is the halved one.
    tissue = experiment.tissue

    def packed() -> Batch:
        matrices = laplacian(tissue)
        return pack([(tissue, matrices, _constant_mode(matrices))]).to(study.device)

    own, seconds = timed(packed, study.device)
    return _Begun(domain=tissue, n_halvings=0, batch=own, seconds=seconds)


def _patched_start(study: Study, pacing: Pacing, experiment: Experiment, on: _Begun) -> Cost:
    """The solver's first state as predictions get it: on a CPU near the stimulus alone; compiled before the clock runs."""
    how, sizing = timed(lambda: solving(on.domain, pacing.scheme, on.n_halvings), study.device)

    def seconds(n_trajectories: int) -> float:
        def solved() -> list[FirstWave]:
            return first_waves(
                on.domain, on.batch, [experiment.stimuli[0]] * n_trajectories, np.array([pacing.first_ms]),
                pacing, on.n_halvings, whole=how, compiles=can_compile(study.device),
            )  # fmt: skip

        return median_seconds(solved, study.device) / n_trajectories

    return cost_of(on.seconds + sizing, seconds, study.together)


def _start_cut_out(study: Study, pacing: Pacing, experiment: Experiment, on: _Begun) -> Cost:
    """The same on a GPU: patches are cut out there."""
    compiles, halves = can_compile(study.device), halved(on.domain, on.n_halvings)
    how, sizing = timed(lambda: solving(on.domain, pacing.scheme, on.n_halvings), study.device)
    step, setup = timed(lambda: coupling(halves, pacing.scheme, how), study.device)
    tissue, moving = timed(lambda: tissue_on(study.device, on.domain, halves, step), study.device)

    def seconds(n_trajectories: int) -> float:
        stimuli = [experiment.stimuli[0]] * n_trajectories

        def solved() -> list[FirstWave]:
            times = np.array([pacing.first_ms])
            return first_waves_together(on.domain, on.batch, stimuli, times, pacing, tissue, compiles=compiles)

        return median_seconds(solved, study.device) / n_trajectories

    return cost_of(on.seconds + sizing + setup + moving, seconds, study.together)


def _batches(study: Study, seen: Sequence[Experiment], variant: Variant) -> list[Batch]:
    """Each domain as the operator sees it, with its modes."""
    viewed = [viewed_domain(each.kept, variant.view) for each in seen]
    matrices = [each for _, each in viewed]
    n_modes = variant.view.n_modes
    if n_modes == 1:
        # Operators that use no modes get the constant, which is free.
        spectra = [_constant_mode(each) for each in matrices]
    elif study.device.type == "cuda":
        spectra = list(batched_modes(matrices, n_modes, device=study.device))
    else:
        spectra = [lowest_modes(each, n_modes) for each in matrices]
    return [pack([(*each, spectrum)]).to(study.device) for each, spectrum in zip(viewed, spectra, strict=True)]


def _constant_mode(matrices: Laplacian) -> Spectrum:
    total = matrices.lumped_mass().sum()
    return Spectrum(eigenvalues=np.zeros(1), eigenvectors=np.full((matrices.n_nodes, 1), total**-0.5))


def _operator_cost(study: Study, operator: nn.Module, variant: Variant, batch: Batch, initial: Tensor, setup: float) -> Cost:
    durations = np.diff(study.reported_ms, prepend=study.problem.pacing.first_ms).tolist()
    # Launched one by one, a step's kernels take longer than they run. How long a front is carried on can't be recorded.
    replay = Replay(study.device.type == "cuda" and not isinstance(variant.integrator, Direct | Adaptive))

    def work(states: Tensor) -> tuple[Tensor]:
        return (rollout(operator, states, batch, durations, variant.integrator),)

    def seconds(n_trajectories: int) -> float:
        states = initial.expand(n_trajectories, -1, -1).contiguous()
        return median_seconds(lambda: replay(n_trajectories, work, states), study.device) / n_trajectories

    return cost_of(setup, seconds, study.together)
