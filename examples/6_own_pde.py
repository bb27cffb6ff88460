"""A population that grows and spreads, du/dt = div(K grad u) + r u (1 - u): solved, learned, predicted (docs/own-pde.md)."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from gfunk import Domain, Fem, GFuNK, GFuNKConfig, fibre_tensors, laplacian, make_domain, rectangle
from gfunk.batch import TrajectorySet, pack_trajectories
from gfunk.evaluation import evaluate
from gfunk.operators.modes import ExactModes, ExactModesConfig
from gfunk.rollout import FlowMap, rollout
from gfunk.simulation import View, prepare_fresh, split_seeds
from gfunk.sparse_solver import symmetric_solver
from gfunk.store import Sample
from gfunk.training import TrainingConfig, train

TIMES = np.linspace(0.0, 1.6, 9)
SAVE = float(TIMES[1])


def reaction(u: np.ndarray) -> np.ndarray:
    return 4.0 * u * (1 - u)


def solved(domain: Domain, initial: np.ndarray, steps_per_save: int = 20) -> np.ndarray:
    """Half a step of reaction, one of diffusion (Crank-Nicolson), half a step of reaction: of order 2."""
    matrices, dt = laplacian(domain), SAVE / steps_per_save
    implicit = symmetric_solver(matrices.mass + dt / 2 * matrices.stiffness)
    u, saved = initial, [initial]
    for _ in TIMES[1:]:
        for _ in range(steps_per_save):
            u = u + dt / 2 * reaction(u + dt / 4 * reaction(u))
            u = implicit(matrices.mass @ u - dt / 2 * (matrices.stiffness @ u))
            u = u + dt / 2 * reaction(u + dt / 4 * reaction(u))
        saved.append(u)
    return np.stack(saved)


class Population:
    def sample(self, seed: int) -> Sample:
        rng = np.random.default_rng(seed)
        sheet = rectangle(*rng.uniform(0.8, 1.4, 2), edge=0.06)
        angle = rng.uniform(0, np.pi)
        fibres = np.tile([np.cos(angle), np.sin(angle)], (sheet.n_nodes, 1))
        domain = make_domain(sheet.points, sheet.cells, fibre_tensors(fibres, along=0.02, across=0.005))
        start = rng.uniform(0.1, 0.9, 2) * sheet.points.max(axis=0)
        initial = np.exp(-((sheet.points - start) ** 2).sum(axis=1) / 0.02)
        return Sample(seed=seed, domain=domain, times=TIMES, values=solved(domain, initial)[None])


VIEW = View(discretisation=Fem(), n_modes=40)  # what the operator sees of a domain
STEPS = FlowMap(longest_step=SAVE)  # how it is stepped


def samples(split: str, n: int) -> TrajectorySet:
    """Solved, with their modes, as tensors; the seeds of splits never meet."""
    parts = list(prepare_fresh(Population(), split_seeds(split, n), VIEW, n_workers=1))
    return pack_trajectories(parts, offset=0.0, scale=1.0)


def main():
    network = GFuNKConfig(width=32, n_layers=2, n_modes=40, filter_width=32, learned_scale=0.3, time_scale=SAVE)
    training = TrainingConfig(
        epochs=40, batch_size=4, learning_rate=0.01, optimizer="muon", first_horizon=1, growth=0.8, validate_every=5
    )
    torch.manual_seed(0)
    operator, test = GFuNK(network), samples("test", 8)
    with TemporaryDirectory() as folder:  # a folder that stays can be resumed: train(..., resume=True)
        train(operator, samples("train", 48), samples("val", 4), STEPS, training, Path(folder) / "run")

    print(f"diffusion alone: {evaluate(ExactModes(ExactModesConfig(n_modes=40)), test, STEPS).rel_l2:.4f}")
    print(f"learned: {evaluate(operator, test, STEPS).rel_l2:.4f}")
    with torch.no_grad():
        predicted = rollout(operator, test.values[:, 0], test.batch, [0.3, 0.3, 1.0], STEPS)  # any durations
    taken = float(predicted[0, -1, test.batch.is_node[0]].mean())
    print(f"mean over the first rectangle, at the end: {taken:.2f}")


if __name__ == "__main__":
    main()
