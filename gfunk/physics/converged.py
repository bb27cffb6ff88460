"""Waves as edges and steps go to nothing, from waves solved with some."""

import numpy as np
from jaxtyping import Float

from gfunk.physics.monodomain import Paced

Shift = Float[np.ndarray, "trajectory node"]


def converged_shifts(coarse: Paced, by_steps: tuple[Paced, Paced, Paced], finest: Paced) -> tuple[Shift, Shift]:
    """How late the true wave is, in ms, behind the finest and the coarse one.

    finest: on edges so short that its error is that of its steps. This is the same on any mesh, within a few percent: so it
    is found on one with longer edges, from waves in steps as long, half as long (by_steps) and a quarter, the last two of
    which are off by their squares. Nodes that one of the waves never reaches are shifted by nothing.
    """
    whole, half, quarter = (each.activation_ms for each in by_steps)
    late = whole - (4 * quarter - half) / 3
    arrival = finest.activation_ms - late
    return np.nan_to_num(-late), np.nan_to_num(arrival - coarse.activation_ms)


def shifted(
    finest: Paced, coarse: Paced, shifts: tuple[Shift, Shift], times_ms: Float[np.ndarray, " time"]
) -> Float[np.ndarray, "trajectory time node"]:
    """v at the times: the finest wave's as far as it goes, then the coarse one's, each node's later by its own shift.

    Errors of edge and step shift a wave far more than they change its shape, and least of all what comes after it. Both
    waves are at evenly spaced times.
    """
    until_ms = finest.times_ms[-1] - np.abs(shifts[0]).max()
    return np.stack(
        [_later(finest, time, shifts[0]) if time <= until_ms else _later(coarse, time, shifts[1]) for time in times_ms],
        axis=1,
    )


def _later(wave: Paced, time_ms: float, shift_ms: Shift) -> Float[np.ndarray, "trajectory node"]:
    """Each trace later by its shift, on a cubic through the four times around."""
    first_ms, spacing_ms = wave.times_ms[0], wave.times_ms[1] - wave.times_ms[0]
    place = np.clip((time_ms - shift_ms - first_ms) / spacing_ms, 0, len(wave.times_ms) - 1)
    before = np.clip(np.floor(place).astype(np.int64), 1, len(wave.times_ms) - 3)
    x = place - before
    inner, outer = x * (x - 1), (x + 1) * (x - 2)
    weights = -inner * (x - 2) / 6, outer * (x - 1) / 2, -outer * x / 2, inner * (x + 1) / 6
    around = np.take_along_axis(wave.values_mV, before[:, None] + np.arange(-1, 3)[None, :, None], axis=1)
    return np.einsum("wtn,twn->tn", np.stack(weights), around).astype(np.float32)
