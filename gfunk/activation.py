"""When a wave arrives: activation times of sampled trajectories, how late a predicted one is, how well it correlates."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gfunk.batch import Batch

# On a straight line between saves 1 ms apart this is off by 0.08 ms on average; the solver's own level of -20 mV, where the
# upstroke bends, by 0.13 ms.
ACTIVE_MV = -40.0
# Saves 2 ms apart are off by 0.3 ms, 10 ms apart by 2 ms: more than what is to be measured.
LONGEST_GAP_MS = 2.0


@dataclass(frozen=True, kw_only=True)
class ArrivalErrors:
    """How far a predicted wave is from the true one in time, over nodes that both activate after the first save.

    All None where saves are too far apart to say; all but the count where no node is activated by both.
    """

    # Activation times, predicted minus true: mean size, 95th percentile of the sizes, mean (positive: late).
    lat_error_ms: float | None = None
    lat_error_ms_95: float | None = None
    lag_ms: float | None = None
    # The lag again, by the shift in time at which each node's trace correlates best with the true one.
    correlation_lag_ms: float | None = None
    # Nodes that only one of the two activates.
    n_wrongly_active: int | None = None


def arrival_errors(
    predicted: Float[Tensor, "batch time node"],
    true: Float[Tensor, "batch time node"],
    times: Float[Tensor, " time"],
    is_node: Bool[Tensor, "domain node"],
    threshold: float,
) -> list[ArrivalErrors]:
    """One record a trajectory; saves must be at most LONGEST_GAP_MS apart, and evenly spaced for the correlation's lag."""
    gaps = torch.diff(times)
    if gaps.max() > LONGEST_GAP_MS * (1 + 1e-6):
        return [ArrivalErrors() for _ in true]
    is_even = torch.allclose(gaps, gaps[0], rtol=1e-4, atol=0.0)
    gap_ms = float(gaps.mean())
    arrivals = activation_times(predicted, times, threshold), activation_times(true, times, threshold)
    late_ms = arrivals[0] - arrivals[1]
    one, other = (arrival.isfinite() & is_node for arrival in arrivals)
    n_wrong = (one ^ other).sum(dim=1).tolist()
    rows = []
    for number, both in enumerate(one & other):
        if not both.any():
            rows.append(ArrivalErrors(n_wrongly_active=n_wrong[number]))
            continue
        late = late_ms[number, both]
        traces = predicted[number][:, both], true[number][:, both]
        rows.append(
            ArrivalErrors(
                lat_error_ms=float(late.abs().mean()),
                lat_error_ms_95=float(late.abs().quantile(0.95)),
                lag_ms=float(late.mean()),
                correlation_lag_ms=gap_ms * float(correlation_lags(*traces).mean()) if is_even else None,
                n_wrongly_active=n_wrong[number],
            )
        )
    return rows


def activation_times(
    values: Float[Tensor, "batch time node"], times: Float[Tensor, " time"], threshold: float
) -> Float[Tensor, "batch node"]:
    """When each node first rises to the threshold, on a straight line between saves; NaN if never, or if active at first."""
    is_active = values >= threshold
    rises = is_active[:, 1:] & ~is_active[:, :-1]
    last_below = rises.byte().argmax(dim=1)  # the first of equals
    below, above = (values.gather(1, (last_below + step)[:, None])[:, 0].double() for step in (0, 1))
    start, end = times.double()[last_below], times.double()[last_below + 1]
    arrival = start + (end - start) * (threshold - below) / (above - below)
    return torch.where(rises.any(dim=1) & ~is_active[:, 0], arrival, torch.nan)


def correlation_lags(predicted: Float[Tensor, "time node"], true: Float[Tensor, "time node"]) -> Float[Tensor, " node"]:
    """By how many saves each predicted trace is late: the shift, up to half of all saves, at which it correlates best.

    The correlation is that over the times both have after the shift, its maximum that of a parabola through three shifts.
    """
    n_times = len(true)
    half = n_times // 2
    shifts = torch.arange(-half, half + 1, device=true.device)
    predicted, true = predicted.double(), true.double()
    ones = torch.ones_like(true[:, :1])

    def overlap(late: Tensor, early: Tensor) -> Tensor:
        """Sums over t of late(t + shift) early(t)."""
        spectrum = torch.fft.rfft(late, 2 * n_times, dim=0) * torch.fft.rfft(early, 2 * n_times, dim=0).conj()
        return torch.fft.irfft(spectrum, 2 * n_times, dim=0)[shifts]

    n_common = overlap(ones, ones)
    sum_late, sum_early = overlap(predicted, ones), overlap(ones, true)
    spread_late = overlap(predicted.square(), ones) - sum_late.square() / n_common
    spread_early = overlap(ones, true.square()) - sum_early.square() / n_common
    covariance = overlap(predicted, true) - sum_late * sum_early / n_common
    # The floor keeps stretches of rest, alike but for rounding, from counting as correlated.
    floor = 1e-6 * true.var(dim=0, correction=0) * n_times
    correlation = covariance / ((spread_late.clamp_min(0) + floor) * (spread_early.clamp_min(0) + floor)).sqrt()

    best = correlation.argmax(dim=0)
    before, at, after = (correlation.gather(0, (best + step).clamp(0, 2 * half)[None])[0] for step in (-1, 0, 1))
    bend = before - 2 * at + after
    # At either end of the shifts there is no third.
    has_vertex = (best > 0) & (best < 2 * half) & (bend < 0)
    return shifts[best] + torch.where(has_vertex, (before - after) / (2 * bend), 0.0)


def cross_correlation(
    predicted: Float[Tensor, "batch time node channel"], true: Float[Tensor, "batch time node channel"], batch: Batch
) -> Float[Tensor, " batch"]:
    """The correlation coefficient of predicted and true values over all times and nodes; NaN if either is constant."""
    real = batch.is_node[:, None, :, None].double()
    count = real.expand(true.shape).sum(dim=(1, 2, 3), keepdim=True)
    predicted, true = (
        (field - (field * real).sum(dim=(1, 2, 3), keepdim=True) / count) * real for field in (predicted, true)
    )
    return (predicted * true).sum(dim=(1, 2, 3)) / (_squares(predicted) * _squares(true)).sqrt()


def _squares(field: Tensor) -> Tensor:
    return field.square().sum(dim=(1, 2, 3))
