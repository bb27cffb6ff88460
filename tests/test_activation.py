from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import batch_of, turning_square
from torch import Tensor

from gfunk.activation import (
    ACTIVE_MV,
    ArrivalErrors,
    activation_times,
    arrival_errors,
    correlation_lags,
    cross_correlation,
)
from gfunk.domain import fibre_tensors, make_domain, rectangle
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import diffusivity
from gfunk.physics.stimulus import Stimulus

THRESHOLD = 45 / 105
TIMES = torch.arange(0.0, 90.5, 1.0, dtype=torch.float64)
ARRIVALS = torch.linspace(12.0, 70.0, 40, dtype=torch.float64)
REAL = torch.ones(1, 40, dtype=torch.bool)
EMPTY = ArrivalErrors()


def wave(arrivals: Tensor, times: Tensor = TIMES) -> Tensor:
    """An upstroke of a few ms that passes the threshold at the arrival, then a slow return; one row a time."""
    since = times[:, None] - arrivals
    start = float(np.log(THRESHOLD / (1 - THRESHOLD)))
    return torch.sigmoid(since / 1.2 + start) * torch.exp(-since.clamp_min(0) / 200)


def errors(predicted: Tensor, true: Tensor, is_node: Tensor = REAL, times: Tensor = TIMES) -> ArrivalErrors:
    (found,) = arrival_errors(predicted[None], true[None], times, is_node, THRESHOLD)
    return found


@given(
    st.lists(st.floats(0.05, 2.0), min_size=3, max_size=12), st.floats(0.01, 5.0), st.floats(0.001, 0.999), st.floats(-1, 1)
)
def test_a_ramp_is_active_exactly_when_it_passes_the_threshold(gaps: list[float], slope: float, share: float, level: float):
    times = torch.tensor([0.0, *gaps], dtype=torch.float64).cumsum(0)
    arrival = share * times[-1]
    found = activation_times((level + slope * (times - arrival))[None, :, None], times, level)
    assert float(found) == pytest.approx(float(arrival), abs=1e-9)


def test_a_node_never_active_or_active_from_the_start_has_no_activation_time():
    traces = torch.tensor([[0.0, 0.1, 0.4], [0.9, 0.2, 0.9], [0.5, 0.6, 0.7], [0.0, torch.nan, torch.nan]])
    found = activation_times(traces.T[None], torch.arange(3.0), 0.5)
    assert found.isnan().all()


def test_only_the_first_of_several_rises_counts():
    trace = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    assert float(activation_times(trace[None, :, None], torch.arange(5.0), 0.25)) == 0.25


@given(st.integers(-10, 10))
def test_a_wave_late_by_whole_saves_has_that_lag_to_the_last_digit(late: int):
    found = errors(wave(ARRIVALS + late), wave(ARRIVALS))
    for size in (found.lat_error_ms, found.lat_error_ms_95):
        assert size == pytest.approx(abs(late), abs=1e-9)
    assert found.lag_ms == pytest.approx(late, abs=1e-9)
    assert found.correlation_lag_ms == pytest.approx(late, abs=0.02)
    assert found.n_wrongly_active == 0


@given(st.floats(-10, 10), st.sampled_from([0.5, 1.0, 2.0]))
def test_both_definitions_of_the_lag_agree_on_a_shifted_wave_within_a_fraction_of_the_saves(late: float, gap: float):
    times = torch.arange(0.0, 90.5, gap, dtype=torch.float64)
    found = errors(wave(ARRIVALS + late, times), wave(ARRIVALS, times), times=times)
    assert found.lag_ms == pytest.approx(late, abs=0.1 * gap)
    assert found.correlation_lag_ms == pytest.approx(late, abs=0.1 * gap)


def test_the_lag_of_correlation_does_not_see_how_high_a_wave_is():
    true = wave(ARRIVALS)
    lags = correlation_lags(0.3 + 0.5 * wave(ARRIVALS - 4), true)
    np.testing.assert_allclose(lags, -4, atol=0.05)


def test_a_perfect_prediction_is_off_by_nothing():
    found = errors(wave(ARRIVALS), wave(ARRIVALS))
    assert (found.lat_error_ms, found.lat_error_ms_95, found.lag_ms, found.n_wrongly_active) == (0, 0, 0, 0)
    assert found.correlation_lag_ms == pytest.approx(0, abs=1e-9)


def test_late_and_early_nodes_cancel_in_the_lag_and_not_in_the_error():
    sign = torch.where(torch.arange(40) % 2 == 0, 1.0, -1.0)
    found = errors(wave(ARRIVALS + 3 * sign), wave(ARRIVALS))
    assert (found.lat_error_ms, found.lag_ms) == (pytest.approx(3), pytest.approx(0, abs=1e-9))
    assert found.correlation_lag_ms == pytest.approx(0, abs=0.02)


def test_the_95th_percentile_is_that_of_the_latest_or_earliest_nodes():
    late = torch.zeros(40, dtype=torch.float64)
    late[[3, 11]], late[[20, 30]] = 6.0, -6.0
    found = errors(wave(ARRIVALS + late), wave(ARRIVALS))
    assert (found.lat_error_ms, found.lat_error_ms_95) == (pytest.approx(0.6), pytest.approx(6))


def test_nodes_that_only_one_activates_are_counted_and_left_out():
    missed, extra = ARRIVALS.clone(), ARRIVALS.clone()
    missed[:3], extra[30:] = 1e3, 1e3
    found = errors(wave(missed + 2), wave(extra))
    assert found.n_wrongly_active == 13
    assert found.lag_ms == pytest.approx(2)
    nothing = errors(wave(ARRIVALS + 1e3), wave(ARRIVALS))
    assert nothing == ArrivalErrors(n_wrongly_active=40)


@given(st.integers(0, 100), st.integers(1, 20))
def test_neither_the_numbers_of_nodes_nor_padding_change_anything(seed: int, n_padding: int):
    rng = np.random.default_rng(seed)
    predicted, true = wave(ARRIVALS + torch.from_numpy(rng.uniform(-5, 5, 40))), wave(ARRIVALS)
    order = torch.from_numpy(rng.permutation(40))
    is_node = torch.cat([REAL[0], torch.zeros(n_padding, dtype=torch.bool)])[None]
    padded = [
        torch.cat([field[:, order], torch.from_numpy(rng.uniform(0, 1, (len(TIMES), n_padding)))], dim=1)
        for field in (predicted, true)
    ]
    before, after = errors(predicted, true), errors(*padded, is_node)
    for field in fields(ArrivalErrors):
        assert getattr(after, field.name) == pytest.approx(getattr(before, field.name), abs=1e-9)


def test_trajectories_side_by_side_have_the_errors_of_each_alone():
    true = torch.stack([wave(ARRIVALS), wave(ARRIVALS.flip(0))])
    predicted = torch.stack([wave(ARRIVALS + 1), wave(ARRIVALS.flip(0) - 2.5)])
    together = arrival_errors(predicted, true, TIMES, REAL, THRESHOLD)
    assert together == [errors(*pair) for pair in zip(predicted, true, strict=True)]


@pytest.mark.parametrize(("gap", "is_told"), [(1.0, True), (2.0, True), (2.5, False), (10.0, False)])
def test_arrivals_between_saves_far_apart_are_not_told(gap: float, is_told: bool):
    times = torch.arange(0.0, 90.5, gap, dtype=torch.float64)
    found = errors(wave(ARRIVALS + 1, times), wave(ARRIVALS, times), times=times)
    assert (found != EMPTY) == is_told


def test_times_read_off_saves_are_those_the_solver_saw_within_a_fraction_of_the_saves():
    sheet = rectangle(8.0, 0.4, 0.2)
    along = fibre_tensors(np.tile([1.0, 0.0], (sheet.n_nodes, 1)), 5 * diffusivity(0.0625), diffusivity(0.0625))
    times = np.arange(0.0, 23.0)
    (found,) = simulate_many(
        [make_domain(sheet.points, sheet.cells, along)], [[[Stimulus(sites=((0.0, 0.2),), radius_mm=1.0, strength=50.0)]]],
        times, cell="courtemanche-af", compiles=False, activated_mV=ACTIVE_MV,
    )  # fmt: skip
    values = torch.from_numpy(found.values_mV)
    for every, mean_ms in ((1, 0.12), (2, 0.4)):
        read = activation_times(values[:, ::every], torch.from_numpy(times[::every]), ACTIVE_MV).numpy()
        off = np.abs(read - found.activation_ms)[np.isfinite(read) & np.isfinite(found.activation_ms)]
        assert len(off) > 0.8 * sheet.n_nodes and off.mean() < mean_ms


def test_unevenly_spaced_saves_have_activation_times_but_no_shift_to_try():
    times = torch.cat([TIMES[:50], TIMES[50::2]])
    found = errors(wave(ARRIVALS + 1, times), wave(ARRIVALS, times), times=times)
    assert found.lag_ms == pytest.approx(1, abs=0.2) and found.correlation_lag_ms is None


def fields_on(batch, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    shape = (batch.n_domains, 4, batch.points.shape[1], 1)
    true = rng.standard_normal(shape)
    return torch.from_numpy(true + rng.standard_normal(shape)), torch.from_numpy(true)


@pytest.fixture(scope="module")
def batch():
    """Two domains of different sizes."""
    return batch_of(turning_square(0.04), turning_square(0.02))


@given(seed=st.integers(0, 100))
def test_cross_correlation_is_the_coefficient_over_all_times_and_nodes_but_padding(batch, seed: int):
    predicted, true = fields_on(batch, seed)
    found = cross_correlation(predicted, true, batch)
    for number, is_node in enumerate(batch.is_node):
        known = np.corrcoef(*(field[number][:, is_node].numpy().ravel() for field in (predicted, true)))[0, 1]
        assert float(found[number]) == pytest.approx(known, abs=1e-12)


@given(factor=st.floats(0.01, 100), shift=st.floats(-10, 10))
def test_neither_scale_nor_offset_of_the_prediction_changes_its_correlation(batch, factor: float, shift: float):
    predicted, true = fields_on(batch, 1)
    known = cross_correlation(predicted, true, batch)
    np.testing.assert_allclose(cross_correlation(factor * predicted + shift, true, batch), known, atol=1e-9)
    np.testing.assert_allclose(cross_correlation(-factor * predicted + shift, true, batch), -known, atol=1e-9)


def test_what_equals_the_truth_correlates_fully_and_what_is_constant_not_at_all(batch):
    _, true = fields_on(batch, 1)
    np.testing.assert_allclose(cross_correlation(true, true, batch), 1, atol=1e-12)
    assert cross_correlation(torch.zeros_like(true), true, batch).isnan().all()
