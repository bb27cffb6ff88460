from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import seeded, turning_square
from scipy.linalg import expm

from gfunk.batch import Batch, TrajectorySet, pack_trajectories
from gfunk.domain import Domain
from gfunk.errors import InputError
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
    assert [(row.seed, row.number) for row in result.rows] == [(11, 0), (11, 1), (12, 0)]
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
        correlation = np.corrcoef((error + true).ravel(), true.ravel())[0, 1]
        assert row.cross_correlation == pytest.approx(correlation, abs=1e-5)


def test_means_are_over_rows(data: TrajectorySet, operator: torch.nn.Module):
    result = evaluate(operator, data, METHOD)
    assert result.rel_l2 == pytest.approx(np.mean([row.rel_l2 for row in result.rows]))
    assert result.rel_h1 == pytest.approx(np.mean([row.rel_h1 for row in result.rows]))
    summary = result.summary()
    for name, value in {"rel_l2": result.rel_l2, "rel_h1": result.rel_h1, "n": 3, "seconds": result.seconds}.items():
        assert summary[name] == value
    assert summary["times"] == TIMES[1:].tolist()
    assert summary["rel_l2_by_time"] == pytest.approx(np.mean([row.rel_l2_by_time for row in result.rows], axis=0).tolist())
    assert summary["cross_correlation"] == pytest.approx(np.mean([row.cross_correlation for row in result.rows]))


def test_heat_does_not_arrive_though_it_correlates(data: TrajectorySet, operator: torch.nn.Module):
    summary = evaluate(operator, data, METHOD).summary()
    assert all(summary[name] is None for name in ("lat_error_ms", "lat_error_ms_95", "lag_ms", "n_wrongly_active"))
    assert -1 <= summary["cross_correlation"] <= 1


def test_errors_at_every_second_save_are_those_of_these_saves_alone(data: TrajectorySet):
    # A rate that does not depend on u, so that saves left out change nothing.
    method = FlowMap(longest_step=1.0)

    def steady(u: torch.Tensor, batch: Batch, tau: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(u)

    kept = replace(data, times=data.times[::2], values=data.values[:, ::2])
    thinned, alone = evaluate(steady, data, method, every=2), evaluate(steady, kept, method)
    whole = evaluate(steady, data, method)
    assert thinned.times == alone.times == (0.005,)
    for one, other, all_saves in zip(thinned.rows, alone.rows, whole.rows, strict=True):
        for name in ("rel_l2", "rel_h1", "cross_correlation", "rel_l2_by_time"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-5)
        assert one.rel_l2_by_time == all_saves.rel_l2_by_time[1::2]


@pytest.mark.parametrize("every", [0, 4])
def test_saves_too_few_to_pick_from_are_refused(data: TrajectorySet, operator: torch.nn.Module, every: int):
    with pytest.raises(InputError, match=f"every {every}-th save of 3"):
        evaluate(operator, data, METHOD, every=every)


RAMP_TIMES = np.arange(0.0, 41.0)


@pytest.fixture(scope="module")
def ramps() -> tuple[TrajectorySet, list[np.ndarray]]:
    """Three trajectories on two domains that rise by 1 a ms, and when each node passes 0."""
    samples, arrivals = [], []
    for seed, (cell, n_trajectories) in enumerate([(0.04, 2), (0.02, 1)]):
        domain = turning_square(cell)
        arrival = np.random.default_rng(seed).uniform(1, 19, (n_trajectories, domain.n_nodes))
        arrivals += list(arrival)
        values = RAMP_TIMES[:, None] - arrival[:, None]
        samples.append(Sample(seed=seed, domain=domain, times=RAMP_TIMES, values=values))
    view = View(discretisation=Fem(), n_modes=3)
    return pack_trajectories([prepared(sample, view, None) for sample in samples], 0.0, 1.0), arrivals


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.25])
@pytest.mark.parametrize("every", [1, 10])
def test_waves_that_rise_more_slowly_arrive_late_by_what_a_ramp_says(speed: float, every: int, ramps: tuple):
    data, arrivals = ramps
    result = evaluate(
        lambda u, batch, tau: torch.full_like(u, speed), data, FlowMap(longest_step=1.0), threshold=0.0, every=every
    )
    for row, arrival in zip(result.rows, arrivals, strict=True):
        late = arrival / speed - arrival
        assert row.lag_ms == pytest.approx(late.mean(), abs=1e-4)
        assert row.lat_error_ms == pytest.approx(np.abs(late).mean(), abs=1e-4)
        assert row.lat_error_ms_95 == pytest.approx(np.quantile(np.abs(late), 0.95), abs=1e-4)
        assert row.n_wrongly_active == 0
    assert len(result.times) == 40 // every
    assert result.summary()["lag_ms"] == pytest.approx(np.mean([row.lag_ms for row in result.rows]))


def test_a_wave_too_slow_to_arrive_is_counted_and_not_timed(ramps: tuple):
    data, arrivals = ramps
    result = evaluate(lambda u, batch, tau: torch.full_like(u, 0.2), data, FlowMap(longest_step=1.0), threshold=0.0)
    assert [row.n_wrongly_active for row in result.rows] == [int((arrival / 0.2 > 40).sum()) for arrival in arrivals]


@pytest.mark.parametrize(("errors", "worst"), [((0.1, 0.3, 0.2), 1), ((0.1, 0.3, float("nan")), 2)])
def test_the_worst_row_has_the_largest_error_and_what_blew_up_is_worse(
    data: TrajectorySet, operator: torch.nn.Module, errors: tuple, worst: int
):
    result = evaluate(operator, data, METHOD)
    rows = tuple(replace(row, rel_l2=error) for row, error in zip(result.rows, errors, strict=True))
    assert replace(result, rows=rows).worst == worst


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
