"""Error and cost measured: operators beside the solver at several edges and steps, against the same waves solved finely."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log2
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array, eye_array
from torch import Tensor, nn

from gfunk.activation import ACTIVE_MV, arrival_errors
from gfunk.batch import Batch, pack
from gfunk.batched_modes import batched_modes
from gfunk.bench import median_seconds, timed
from gfunk.domain import Domain, halved, interpolation
from gfunk.errors import InputError
from gfunk.first_waves import FirstWave, first_waves, first_waves_together, tissue_on
from gfunk.frontier import NOTHING, Comparison, Cost, Method
from gfunk.laplacian import Laplacian
from gfunk.operators.make import n_parameters
from gfunk.physics.compiling import can_compile
from gfunk.physics.diffusion import HalfStep
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import SCHEMES, Scheme, coupling, solving
from gfunk.physics.stimulus import Stimulus
from gfunk.physics.waves import Paced
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.recipe import RecipeProblem, Variant
from gfunk.recipes.tissue_data import Experiment, FibreSquareProblem, RectangleProblem
from gfunk.replay import Replay
from gfunk.rollout import Adaptive, Direct, FlowMap, rollout
from gfunk.simulation import viewed_domain
from gfunk.spectrum import Spectrum, lowest_modes

WaveProblem = RectangleProblem | FibreSquareProblem | AtriumProblem

# The recipe's edge over that of the mesh, where edges can be chosen; an atrium's are halved.
FLAT_FACTORS, ATRIUM_FACTORS = (0.4, 0.5, 2 / 3, 1.0, 2.0), (0.5, 1.0, 2.0)
STEPS = (1, 2, 4)  # of `accurate`'s; on meshes finer than the recipe's, as much shorter
WARM_MS = 3.0  # past the stimulus: nothing new is compiled later


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A trained operator."""

    name: str
    operator: nn.Module
    variant: Variant
    problem: RecipeProblem  # that it has learned: it starts from such first states


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


def compared(
    problem: WaveProblem,
    seeds: Sequence[int],
    contenders: Sequence[Contender] = (),
    *,
    device: torch.device,
    refine: int = 4,
    together: int = 1,
    on_part: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """The solver and the contenders on these seeds, against solutions with edge and step shorter by `refine`.

    together: how many trajectories are taken at once where there are many. Making meshes is counted for nobody.
    """
    _check(problem, contenders, refine)
    study = _Study(
        problem=problem, experiments=[problem.experiment(seed) for seed in seeds], device=device, together=together
    )
    best, own = SCHEMES["balanced"], SCHEMES[problem.pacing.scheme]
    on_part(f"the truth: edges of {edge_mm(problem) / refine:.3g} mm")
    finest = _meshes(study, float(refine))
    finest_steps = _steps(study, finest, scheme := replace(best, dt_ms=best.dt_ms / refine))
    true = _waves(study, finest, finest_steps, scheme)
    methods, start, truth_rel_l2 = [], NOTHING, float("nan")
    for factor, schemes in settings(problem, refine).items():
        meshes = _meshes(study, factor)
        for scheme in schemes:
            name = _solver_name(problem, factor, scheme)
            on_part(name)
            steps = _steps(study, meshes, scheme)
            waves = _waves(study, meshes, steps, scheme)
            method = Method(
                name=name, kind="solver", nodes=round(np.mean([mesh.tissue.n_nodes for mesh in meshes])), parameters=None,
                **errors(waves, true, study.times, problem.report_every, study.threshold),
                start=NOTHING, run=_solver_cost(study, meshes, steps, scheme, study.reported_ms),
            )  # fmt: skip
            methods.append(method)
            if (factor, scheme) == (1.0, own) and contenders:
                start = _solver_cost(study, meshes, steps, scheme, np.array([problem.pacing.first_ms]))
            if (factor, scheme) == (refine / 2, schemes[0]):
                # Edge and step are twice the truth's. Of order 2: if that is off by e, this is by 4 e, so 3 e from it.
                truth_rel_l2 = method.rel_l2 / 3
    if isinstance(problem, AtriumProblem) and problem.is_converged:
        on_part("the recipe's data")
        methods.append(_data_method(study, true))
    for each in contenders:
        on_part(each.name)
        methods.append(_operator_method(study, each, true, start))
    return Comparison(methods=tuple(methods), truth_rel_l2=truth_rel_l2)


def _check(problem: WaveProblem, contenders: Sequence[Contender], refine: int):
    if refine < 2:
        raise InputError(f"the truth is at least twice as fine as the recipe's data, not {refine} times")
    if problem.report_every > problem.pacing.n_saves:
        raise InputError("no save is late enough to take an error: raise pacing.n_saves or lower pacing.report_ms")
    for each in contenders:
        if each.variant.view.grid_side is not None:
            raise InputError(f"{each.name} sees waves on a grid: only operators on the nodes themselves can be compared")


@dataclass(frozen=True, kw_only=True)
class _Study:
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
class _Mesh:
    """What a seed's waves are solved on."""

    tissue: Domain
    coupled: Callable[[Scheme], HalfStep]
    told: Int[np.ndarray, " _"]  # nodes whose values are asked for
    to_kept: csr_array  # what takes these to the recipe's points: linear between nodes


Steps = list[tuple[HalfStep, float]]  # on each mesh, and the seconds it took to make them


def _meshes(study: _Study, factor: float) -> list[_Mesh]:
    problem = at_resolution(study.problem, factor)
    if isinstance(problem, AtriumProblem):
        return [_halved_atrium(each.kept, problem.n_halvings) for each in study.experiments]
    return [_flat(problem.experiment(each.seed).tissue, each) for each in study.experiments]


def _halved_atrium(kept: Domain, n_halvings: int) -> _Mesh:
    """The recipe's points are its first nodes."""
    tissue = halved(kept, n_halvings)
    return _Mesh(
        tissue=tissue, coupled=lambda scheme: coupling(tissue, scheme, solving(kept, scheme, n_halvings)),
        told=np.arange(kept.n_nodes), to_kept=csr_array(eye_array(kept.n_nodes)),
    )  # fmt: skip


def _flat(tissue: Domain, experiment: Experiment) -> _Mesh:
    to_kept = interpolation(tissue, experiment.tissue.points[experiment.nearest])
    return _Mesh(tissue=tissue, coupled=partial(coupling, tissue), told=np.arange(tissue.n_nodes), to_kept=to_kept)


def _steps(study: _Study, meshes: Sequence[_Mesh], scheme: Scheme) -> Steps:
    return [timed(partial(mesh.coupled, scheme), study.device) for mesh in meshes]


def _waves(study: _Study, meshes: Sequence[_Mesh], steps: Steps, scheme: Scheme) -> Waves:
    """All saves at the recipe's points, solved on other meshes."""
    found, times = [], study.problem.pacing.first_ms + study.times
    for mesh, (step, _), each in zip(meshes, steps, study.experiments, strict=True):
        v_mV = _solved(study, mesh.tissue, each.stimuli, scheme, times, step, mesh.told).values_mV
        kept = np.stack([trajectory @ mesh.to_kept.T for trajectory in v_mV.astype(np.float64)])
        found.append((kept - study.problem.offset) / study.problem.scale)
    return found


def _solved(
    study: _Study, tissue: Domain, stimuli: Sequence[Stimulus], scheme: Scheme, times_ms: Float[np.ndarray, " time"],
    step: HalfStep, told: Int[np.ndarray, " _"],
) -> Paced:  # fmt: skip
    [paced] = simulate_many(
        [tissue], [[[stimulus] for stimulus in stimuli]], times_ms,
        cell=study.problem.pacing.cell, scheme=scheme, device=study.device, couplings=[step], kept=[told],
    )  # fmt: skip
    return paced


def _solver_cost(
    study: _Study, meshes: Sequence[_Mesh], steps: Steps, scheme: Scheme, times_ms: Float[np.ndarray, " time"]
) -> Cost:
    """To reach the times from bare meshes, with nothing left to compile; means over the domains."""

    def one(mesh: _Mesh, step: HalfStep, setup: float, experiment: Experiment) -> Cost:
        def seconds(n_trajectories: int) -> float:
            how = mesh.tissue, [experiment.stimuli[0]] * n_trajectories, scheme
            if n_trajectories != len(experiment.stimuli):
                # For as many as that, finding the errors has compiled all.
                _solved(study, *how, np.array([WARM_MS]), step, mesh.told)
            _, taken = timed(lambda: _solved(study, *how, times_ms, step, mesh.told), study.device)
            return taken / n_trajectories

        return _cost(setup, seconds, study.together)

    each = zip(meshes, steps, study.experiments, strict=True)
    return _mean_cost([one(mesh, *made, experiment) for mesh, made, experiment in each])


def _data_method(study: _Study, true: Waves) -> Method:
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
        start=NOTHING, run=_mean_cost(costs),
    )  # fmt: skip


@torch.no_grad()
def _operator_method(study: _Study, contender: Contender, true: Waves, start: Cost) -> Method:
    operator, variant = contender.operator.to(study.device).eval(), contender.variant
    problem = _started_as(study.problem, contender.problem)
    if study.device.type == "cuda":
        _batches(study, variant)  # libraries wake up
    batches, setup = timed(lambda: _batches(study, variant), study.device)
    every, times = study.problem.report_every, study.times
    if isinstance(variant.integrator, FlowMap) and variant.integrator.longest_step > 1.01 * times[1]:
        # Steps from one reported time to the next say nothing of those between.
        true, times, every = [each[:, ::every] for each in true], times[::every], 1
    waves, costs = [], []
    for batch, experiment in zip(batches, study.experiments, strict=True):
        state = _first_states(study, problem, experiment)
        initial = torch.from_numpy(state[..., None]).to(study.device, torch.float32)
        waves.append(
            rollout(operator, initial, batch, np.diff(times).tolist(), variant.integrator)[..., 0].double().cpu().numpy()
        )
        costs.append(_operator_cost(study, operator, variant, batch, initial[:1], setup / len(batches)))
    if isinstance(problem, AtriumProblem):
        started = _patched_start if study.device.type == "cpu" else _start_cut_out
        start = _mean_cost([started(study, problem, *each) for each in zip(study.experiments, batches, strict=True)])
    return Method(
        name=contender.name,
        kind="operator",
        nodes=round(np.mean([batch.points.shape[1] for batch in batches])),
        parameters=n_parameters(operator),
        **errors(waves, true, times, every, study.threshold),
        start=start,
        run=_mean_cost(costs),
    )


def _started_as(problem: WaveProblem, learned: RecipeProblem) -> WaveProblem:
    """The problem, with first states as an operator has learned them."""
    if isinstance(problem, AtriumProblem) and isinstance(learned, AtriumProblem):
        pacing = replace(problem.pacing, scheme=learned.pacing.scheme)
        return replace(problem, pacing=pacing, n_halvings=learned.n_halvings, coarser=0, is_converged=False)
    return problem


def _first_states(study: _Study, problem: WaveProblem, experiment: Experiment) -> Float[np.ndarray, "trajectory _"]:
    """In model space, at the recipe's points."""
    alike = experiment if problem == study.problem else problem.experiment(experiment.seed)
    scheme, first_ms = SCHEMES[problem.pacing.scheme], np.array([problem.pacing.first_ms])
    v_mV = _solved(study, alike.tissue, experiment.stimuli, scheme, first_ms, alike.coupling, alike.nearest).values_mV
    return (v_mV[:, 0].astype(np.float64) - problem.offset) / problem.scale


def _patched_start(study: _Study, problem: AtriumProblem, experiment: Experiment, batch: Batch) -> Cost:
    """The solver's first state as predictions get it: on a CPU near the stimulus alone, not compiled."""
    how, setup = timed(lambda: solving(experiment.kept, problem.pacing.scheme, problem.n_halvings), study.device)

    def seconds(n_trajectories: int) -> float:
        def solved() -> list[FirstWave]:
            return first_waves(
                experiment.kept, batch, [experiment.stimuli[0]] * n_trajectories, np.array([problem.pacing.first_ms]),
                problem.pacing, problem.n_halvings, whole=how, compiles=False,
            )  # fmt: skip

        return median_seconds(solved, study.device) / n_trajectories

    return _cost(setup, seconds, study.together)


def _start_cut_out(study: _Study, problem: AtriumProblem, experiment: Experiment, batch: Batch) -> Cost:
    """The same on a GPU: patches are cut out there, and compiled before the clock runs."""
    pacing, compiles = problem.pacing, can_compile(study.device)
    halves = halved(experiment.kept, problem.n_halvings)
    how, sizing = timed(lambda: solving(experiment.kept, pacing.scheme, problem.n_halvings), study.device)
    step, setup = timed(lambda: coupling(halves, pacing.scheme, how), study.device)
    tissue, moving = timed(lambda: tissue_on(study.device, experiment.kept, halves, step), study.device)

    def seconds(n_trajectories: int) -> float:
        stimuli = [experiment.stimuli[0]] * n_trajectories

        def solved() -> list[FirstWave]:
            times = np.array([pacing.first_ms])
            return first_waves_together(experiment.kept, batch, stimuli, times, pacing, tissue, compiles=compiles)

        return median_seconds(solved, study.device) / n_trajectories

    return _cost(sizing + setup + moving, seconds, study.together)


def _batches(study: _Study, variant: Variant) -> list[Batch]:
    """Each domain as the operator sees it, with its modes."""
    viewed = [viewed_domain(each.kept, variant.view) for each in study.experiments]
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


def _operator_cost(
    study: _Study, operator: nn.Module, variant: Variant, batch: Batch, initial: Tensor, setup: float
) -> Cost:
    durations = np.diff(study.reported_ms, prepend=study.problem.pacing.first_ms).tolist()
    # Launched one by one, a step's kernels take longer than they run. How long a front is carried on can't be recorded.
    replay = Replay(study.device.type == "cuda" and not isinstance(variant.integrator, Direct | Adaptive))

    def work(states: Tensor) -> tuple[Tensor]:
        return (rollout(operator, states, batch, durations, variant.integrator),)

    def seconds(n_trajectories: int) -> float:
        states = initial.expand(n_trajectories, -1, -1).contiguous()
        return median_seconds(lambda: replay(n_trajectories, work, states), study.device) / n_trajectories

    return _cost(setup, seconds, study.together)


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


def _solver_name(problem: WaveProblem, factor: float, scheme: Scheme) -> str:
    how = next((name for name, each in SCHEMES.items() if replace(each, dt_ms=scheme.dt_ms) == scheme), "")
    name = f"solver, {edge_mm(problem) / factor:.3g} mm, {scheme.dt_ms:.3g} ms, {how}"
    return f"{name} (the recipe's)" if (factor, scheme) == (1.0, SCHEMES[problem.pacing.scheme]) else name


def _cost(setup: float, seconds: Callable[[int], float], together: int) -> Cost:
    alone = seconds(1)
    return Cost(
        setup_ms=1e3 * setup, alone_ms=1e3 * alone, together_ms=1e3 * (alone if together == 1 else seconds(together))
    )


def _mean_cost(costs: Sequence[Cost]) -> Cost:
    rows = [asdict(each) for each in costs]
    return Cost(**{name: float(np.mean([row[name] for row in rows])) for name in rows[0]})
