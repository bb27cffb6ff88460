import numpy as np
import pytest
import torch
from problems import seeded, turning_square
from scipy.linalg import expm

from gfunk.batch import TrajectorySet, pack_trajectories
from gfunk.domain import Domain
from gfunk.evaluation import evaluate
from gfunk.laplacian import Fem, laplacian
from gfunk.operators.gfunk import GFuNKConfig
from gfunk.operators.modes import ExactModes, ExactModesConfig
from gfunk.rollout import FlowMap, rollout
from gfunk.simulation import View, prepared
from gfunk.store import Sample

TIMES = np.array([0.0, 0.002, 0.005, 0.011])
METHOD = FlowMap(longest_step=0.004)


def heat_sample(domain: Domain, seed: int, n_trajectories: int) -> Sample:
    """Random fields under exact diffusion."""
    starts = np.random.default_rng(seed).standard_normal((n_trajectories, domain.n_nodes))
    matrices = laplacian(domain)
    generator = -matrices.stiffness.toarray() / matrices.lumped_mass()[:, None]
    values = np.stack([starts @ expm(time * generator).T for time in TIMES], axis=1)
    return Sample(seed=seed, domain=domain, times=TIMES, values=values)


@pytest.fixture(scope="module")
def data() -> TrajectorySet:
    """Three trajectories on two domains of different sizes."""
    samples = [heat_sample(turning_square(0.04), 11, 2), heat_sample(turning_square(0.02), 12, 1)]
    return pack_trajectories([prepared(s, View(discretisation=Fem(), n_modes=9), None) for s in samples], 0.0, 2.0)


@pytest.fixture(scope="module")
def operator() -> torch.nn.Module:
    return seeded(GFuNKConfig(width=6, n_layers=1, n_modes=9, filter_width=6, time_scale=0.01)).float()


def test_rows_carry_their_seed_and_equal_a_computation_by_hand(data: TrajectorySet, operator: torch.nn.Module):
    result = evaluate(operator, data, METHOD)
    assert [row.seed for row in result.rows] == [11, 11, 12]
    for number, row in enumerate(result.rows):
        batch = data.batch.select(data.domain_of[number : number + 1])
        true = data.values[number]
        with torch.no_grad():
            predicted = rollout(operator, true[None, 0], batch, np.diff(TIMES).tolist(), METHOD)[0]
        domain = turning_square(0.04 if row.seed == 11 else 0.02)
        stiffness = laplacian(domain).stiffness
        error, true = (field[1:, : domain.n_nodes, 0].double().numpy() for field in (predicted - true, true))
        l2_by_time = np.linalg.norm(error, axis=1) / np.linalg.norm(true, axis=1)
        energy = np.sqrt(np.sum(error.T * (stiffness @ error.T)) / np.sum(true.T * (stiffness @ true.T)))
        assert row.rel_l2 == pytest.approx(np.linalg.norm(error) / np.linalg.norm(true), rel=1e-4)
        assert row.rel_h1 == pytest.approx(energy, rel=1e-4)
        assert row.rel_l2_by_time == pytest.approx(l2_by_time.tolist(), rel=1e-4)


def test_means_are_over_rows(data: TrajectorySet, operator: torch.nn.Module):
    result = evaluate(operator, data, METHOD)
    assert result.rel_l2 == pytest.approx(np.mean([row.rel_l2 for row in result.rows]))
    assert result.rel_h1 == pytest.approx(np.mean([row.rel_h1 for row in result.rows]))
    summary = {"rel_l2": result.rel_l2, "rel_h1": result.rel_h1, "n": 3, "seconds": result.seconds}
    assert result.summary() == summary


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_size_of_batches_does_not_matter(data: TrajectorySet, operator: torch.nn.Module, batch_size: int):
    sizes: list[int] = []
    together = evaluate(operator, data, METHOD)
    apart = evaluate(operator, data, METHOD, batch_size=batch_size, on_batch=sizes.append)
    assert sizes == {1: [1, 1, 1], 2: [2, 1]}[batch_size]
    for one, other in zip(apart.rows, together.rows, strict=True):
        assert one.seed == other.seed
        assert one.rel_l2 == pytest.approx(other.rel_l2, rel=1e-5)
        assert one.rel_h1 == pytest.approx(other.rel_h1, rel=1e-5)
        assert one.rel_l2_by_time == pytest.approx(other.rel_l2_by_time, rel=1e-5)


def test_diffusion_in_nearly_all_modes_predicts_diffusion_and_in_few_does_not():
    domain = turning_square(0.04)
    n_modes = domain.n_nodes - 1
    view = View(discretisation=Fem(), n_modes=n_modes)
    data = pack_trajectories([prepared(heat_sample(domain, 5, 2), view, None)], 0.0, 1.0)
    many, few = (evaluate(ExactModes(ExactModesConfig(n_modes=n)), data, METHOD) for n in (n_modes, 3))
    # The one mode that can't be had is gone at the end.
    assert max(row.rel_l2_by_time[-1] for row in many.rows) < 1e-5
    assert min(row.rel_l2_by_time[-1] for row in few.rows) > 0.1


def test_evaluation_leaves_no_gradients_behind(data: TrajectorySet, operator: torch.nn.Module):
    evaluate(operator, data, METHOD)
    assert all(parameter.grad is None for parameter in operator.parameters())
