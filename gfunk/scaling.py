"""What an iteration of training and a prediction cost as domains get more nodes and operators more modes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gfunk.batch import Batch, TrajectorySet, pack
from gfunk.batched_modes import batched_modes
from gfunk.bench import forget_peak, median_seconds, peak_bytes, timed, whole_draw
from gfunk.domain import Domain, fibre_tensors, make_domain, rectangle
from gfunk.errors import InputError
from gfunk.experiments import seeded_operator
from gfunk.laplacian import Laplacian
from gfunk.physics.schemes import diffusivity
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.heat_data import HeatProblem
from gfunk.recipes.recipe import Recipe, RecipeProblem, Variant
from gfunk.replay import Replay
from gfunk.rollout import Direct, rollout
from gfunk.simulation import viewed_domain
from gfunk.spectrum import Spectrum, lowest_modes
from gfunk.training import can_replay, make_optimizers, put_gradients, with_firsts

EIGENSOLVE_NODES = 20_000  # beyond, finding true modes on a core takes longer than all else here


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size. Times of a trajectory are shares of a batch; None where memory was full, or modes not looked for.

    memory_mib: the peak of training on a GPU; on a CPU that of the whole process so far.
    """

    nodes: int
    modes: int
    batch: int
    iteration_ms: float | None
    epoch_seconds: float | None
    predict_ms: float | None
    memory_mib: float | None
    eigensolve_seconds: float | None  # of one domain, true modes


@dataclass(frozen=True, kw_only=True)
class Scaling:
    rows: tuple[Row, ...]

    def exponents(self, what: str) -> dict[str, float | None]:
        """p in time ~ nodes^p with most modes and in time ~ modes^p with most nodes, and the first from the last two alone.

        Small sizes cost little but launching and calling, so that p may rise with size: the last two tell.
        """
        there = [row for row in self.rows if getattr(row, what) is not None]
        n_nodes, n_modes = (max((getattr(row, name) for row in there), default=0) for name in ("nodes", "modes"))
        by_nodes = sorted((row.nodes, getattr(row, what)) for row in there if row.modes == n_modes)
        by_modes = sorted((row.modes, getattr(row, what)) for row in there if row.nodes == n_nodes)
        return {"nodes": exponent(by_nodes), "modes": exponent(by_modes), "nodes_at_the_end": exponent(by_nodes[-2:])}


def exponent(points: Sequence[tuple[int, float]]) -> float | None:
    """p of the power law nearest to pairs (size, time), by least squares of logarithms; None from less than two sizes."""
    if len({size for size, _ in points}) < 2:
        return None
    sizes, times = np.log(points).T
    return float(np.polyfit(sizes, times, 1)[0])


def measured(
    recipe: Recipe,
    variant: Variant,
    nodes: Sequence[int],
    modes: Sequence[int],
    *,
    batch_size: int,
    device: torch.device,
    on_row: Callable[[], None] = lambda: None,
) -> Scaling:
    """Every size of the nodes with every number of modes, smallest first.

    Domains are squares of the recipe's kind of tissue, always of one size, so more nodes lie closer; each trajectory has its
    own. Modes are random numbers of the right size: what they cost does not depend on what they are.
    """
    if not hasattr(variant.network, "n_modes"):
        raise InputError(f"variant {variant.name} uses no modes: it can't be scaled by their number")
    if variant.training is None or variant.view.grid_side is not None:
        raise InputError(f"variant {variant.name} learns nothing, or on a grid: take one that learns on the nodes")
    nodes, modes = sorted(set(nodes)), sorted(set(modes))
    if modes[-1] >= nodes[0]:
        raise InputError(f"{modes[-1]} modes can't be had from {nodes[0]} nodes")
    rows = []
    for n_nodes in nodes:
        domain, matrices = viewed_domain(square(n_nodes, recipe.problem), variant.view)
        packed = pack([(domain, matrices, random_modes(matrices, modes[-1]))])
        for n_modes in modes:
            solving = _eigensolve_seconds(matrices, n_modes, device)
            sized = replace(variant, network=replace(variant.network, n_modes=n_modes))  # pyright: ignore[reportCallIssue]
            times = _costs(recipe, sized, packed.with_modes(n_modes), batch_size, device)
            rows.append(Row(nodes=domain.n_nodes, modes=n_modes, batch=batch_size, eigensolve_seconds=solving, **times))
            on_row()
    return Scaling(rows=tuple(rows))


def square(n_nodes: int, problem: RecipeProblem) -> Domain:
    """About so many nodes: heat's unit square, 2 cm of flat tissue, or 10 cm of it in space, as much as an atrium."""
    side, across, ratio = 1.0, 1.0, 9.0
    if not isinstance(problem, HeatProblem):
        side = 100.0 if isinstance(problem, AtriumProblem) else 20.0
        across, ratio = diffusivity(problem.pacing.base_conductivity), 5.0
    flat = rectangle(side, side, side / max(1, round(n_nodes**0.5) - 1))
    points = flat.points
    if isinstance(problem, AtriumProblem):
        points = np.pad(points, ((0, 0), (0, 1)))
    fibres = np.zeros_like(points)
    fibres[:, 0] = 1
    return make_domain(points, flat.cells, fibre_tensors(fibres, ratio * across, across), fibres=fibres)


def random_modes(matrices: Laplacian, n_modes: int) -> Spectrum:
    """Columns of random numbers, nearly M-orthonormal, with eigenvalues that rise evenly, as they do in two dimensions."""
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((matrices.n_nodes, n_modes), dtype=np.float32)
    total = float(matrices.lumped_mass().sum())
    return Spectrum(eigenvalues=4 * np.pi / total * np.arange(n_modes), eigenvectors=columns / np.float32(total**0.5))


def _eigensolve_seconds(matrices: Laplacian, n_modes: int, device: torch.device) -> float | None:
    if device.type == "cuda":
        # Libraries wake up in the first.
        return min(timed(lambda: list(batched_modes([matrices], n_modes, device=device)), device)[1] for _ in range(2))
    if matrices.n_nodes > EIGENSOLVE_NODES:
        return None
    return timed(lambda: lowest_modes(matrices, n_modes), device)[1]


def _costs(recipe: Recipe, variant: Variant, packed: Batch, batch_size: int, device: torch.device) -> dict[str, Any]:
    try:
        return _measured_costs(recipe, variant, packed, batch_size, device)
    except RuntimeError as error:
        # While work is recorded, another error follows and hides it.
        if not any(isinstance(each, torch.OutOfMemoryError) for each in (error, error.__context__)):
            raise
        return dict.fromkeys(("iteration_ms", "epoch_seconds", "predict_ms", "memory_mib"))
    finally:
        if device.type == "cuda":
            # What one size held must not be missing for the next.
            torch.cuda.empty_cache()


def _measured_costs(
    recipe: Recipe, variant: Variant, packed: Batch, batch_size: int, device: torch.device
) -> dict[str, float | None]:
    training, integrator = variant.training, variant.integrator
    assert training is not None  # by measured
    forget_peak(device)
    operator = seeded_operator(variant).to(device)
    optimizers = make_optimizers(operator, training)
    data = _random_set(recipe.problem, packed, batch_size, device)
    if isinstance(integrator, Direct):
        data = with_firsts(operator, data, training)
    draw, times = whole_draw(training, integrator, data), data.times.tolist()
    replay = Replay(can_replay(data, integrator))

    def learn():
        put_gradients(operator, operator, data, times, integrator, training, draw, replay)
        nn.utils.clip_grad_norm_(operator.parameters(), training.clip)
        for optimizer in optimizers:
            optimizer.step()

    learning = median_seconds(learn, device)
    memory = peak_bytes(device)

    @torch.no_grad()
    def predict():
        rollout(operator, data.values[:, 0], data.batch, np.diff(times).tolist(), integrator)

    n_trajectories = recipe.n_train * getattr(recipe.problem, "n_sites", 1)
    return {
        "iteration_ms": 1e3 * learning,
        "epoch_seconds": learning * n_trajectories / batch_size,
        "predict_ms": 1e3 * median_seconds(predict, device) / batch_size,
        "memory_mib": memory / 2**20,
    }


def _random_set(problem: RecipeProblem, packed: Batch, batch_size: int, device: torch.device) -> TrajectorySet:
    """A wave about to leave a corner, and random numbers for what comes of it, each on a copy of the domain."""
    if isinstance(problem, HeatProblem):
        times = torch.linspace(0, problem.until, problem.n_saves + 1, dtype=torch.float64)
    else:
        times = problem.pacing.every_ms * torch.arange(problem.pacing.n_saves + 1, dtype=torch.float64)
    batch = packed.to(device).select(torch.zeros(batch_size, dtype=torch.int64, device=device))
    distance = batch.points.norm(dim=-1)
    values = torch.rand(batch_size, len(times), distance.shape[1], 1, device=device)
    values[:, 0, :, 0] = torch.where(distance < 0.1 * distance.max(), 0.9, 0.01)
    return TrajectorySet(
        batch=batch, domain_of=torch.arange(batch_size, device=device), seeds=tuple(range(batch_size)),
        times=times.to(device), values=values,
    )  # fmt: skip
