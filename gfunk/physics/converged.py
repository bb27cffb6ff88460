"""Waves as edges and steps go to nothing, from waves solved with some."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int

from gfunk.domain import Domain, halved
from gfunk.physics.diffusion import HalfStep
from gfunk.physics.monodomain import seen_moments, simulate_many
from gfunk.physics.schemes import Scheme, coupling, solving
from gfunk.physics.stimulus import Pulses, Stimulus, pulses
from gfunk.physics.waves import Paced, told

Shift = Float[np.ndarray, "trajectory node"]

STEPS = 2, 1, 1 / 2  # of the scheme's, on the coarse tissue; the longest on the finest mesh too
FINEST_HALVINGS = 2  # of the coarse tissue's edges: 0.125 mm, less than a front across fibres is wide
SAVED_STEPS = 4  # of the scheme's from one save to the next of waves that are shifted: 0.2 ms
# How much longer waves are solved than the coarse one takes to be everywhere: the longest steps make them 3 % later.
PAST_MS, PAST = 3.0, 1.05


@dataclass(frozen=True, kw_only=True)
class Finer:
    """What all but the first state is solved with: made before, on other cores, as a GPU solves them in less time."""

    coarse: Domain
    step: HalfStep  # of the scheme, on the coarse tissue, and of others
    by_steps: tuple[HalfStep, ...]
    finest: HalfStep
    finest_pulses: Pulses


def finer(coarse: Domain, stimuli: Sequence[Stimulus], scheme: Scheme) -> Finer:
    """stimuli: one a trajectory."""
    ways = _ways(scheme)
    finest = halved(coarse, FINEST_HALVINGS)
    step, *by_steps = (coupling(coarse, each).to("cpu", torch.float32) for each in (scheme, *ways))
    return Finer(
        coarse=coarse,
        step=step,
        by_steps=tuple(by_steps),
        finest=coupling(finest, ways[0], solving(coarse, ways[0], FINEST_HALVINGS)).to("cpu", torch.float32),
        finest_pulses=pulses([finest], [[[stimulus] for stimulus in stimuli]]),
    )


def converged_waves(
    tissues: Sequence[Domain],
    stimuli: Sequence[Sequence[Stimulus]],
    couplings: Sequence[HalfStep],
    others: Sequence[Finer],
    kept: Sequence[Int[np.ndarray, " _"]],
    times_ms: Float[np.ndarray, " time"],
    *,
    first_ms: float,
    cell: str,
    scheme: Scheme,
    device: torch.device | str,
    compiles: bool | None = None,
    activated_mV: float = -20.0,
    on_step: Callable[[int], None] = lambda _: None,
) -> Iterator[Paced]:
    """What happens in each tissue, at the kept nodes, which are nodes of the coarse one too. Up to first_ms it is solved as
    ever, on the tissue in the scheme's steps: that is what an operator starts from when it is used.

    couplings: of the tissues with the scheme. on_step: of the finest wave, which takes the longest, in steps of the scheme.
    """
    last_ms, saved_ms = float(times_ms[-1]) + PAST_MS, SAVED_STEPS * scheme.dt_ms
    protocols = [[[stimulus] for stimulus in each] for each in stimuli]

    def solved(on: Sequence[Domain], times: np.ndarray, how: Scheme, by: Sequence[HalfStep]) -> list[Paced]:
        return simulate_many(
            on, protocols, times, cell=cell, scheme=how, device=device, couplings=by, kept=kept, compiles=compiles,
            activated_mV=activated_mV,
        )  # fmt: skip

    early = times_ms[times_ms <= first_ms]
    firsts = solved(tissues, np.union1d(early, first_ms), scheme, couplings)
    evenly, coarse = np.arange(0.0, last_ms, saved_ms), [each.coarse for each in others]
    waves = solved(coarse, evenly, scheme, [each.step for each in others])
    # Once a wave has been everywhere, nothing is left to find out.
    ends = [min(last_ms, PAST * float(np.nanmax(each.activation_ms, initial=0.0)) + PAST_MS) for each in waves]
    ways = _ways(scheme)
    by_steps = [
        waves if how == scheme else solved(coarse, np.array([max(ends)]), how, [each.by_steps[number] for each in others])
        for number, how in enumerate(ways)
    ]
    for number, (first, wave, other, until_ms) in enumerate(zip(firsts, waves, others, ends, strict=True)):
        times = np.arange(0.0, until_ms, saved_ms)
        moments = seen_moments(
            other.finest.to(device, torch.float32), other.finest_pulses, times, cell=cell, scheme=ways[0],
            compiles=compiles, activated_mV=activated_mV, on_step=lambda done: on_step(round(done * STEPS[0])),
        )  # fmt: skip
        # The coarse tissue's nodes come first on the halved one.
        [finest] = told(moments, times, torch.from_numpy(kept[number]), [len(kept[number])])
        shifts = converged_shifts(wave, tuple(_cut(each[number], until_ms) for each in by_steps), finest)
        later = shifted(finest, wave, shifts, times_ms[len(early) :])
        yield Paced(
            times_ms=times_ms,
            values_mV=np.concatenate([first.values_mV[:, : len(early)], later], axis=1),
            activation_ms=np.where(first.activation_ms <= first_ms, first.activation_ms, wave.activation_ms + shifts[1]),
            repolarisation_ms=wave.repolarisation_ms + shifts[1],
        )


def _ways(scheme: Scheme) -> list[Scheme]:
    """Of order 2, as `converged_shifts` takes them to be."""
    return [replace(scheme, mass="balanced", order=2, dt_ms=scheme.dt_ms * each) for each in STEPS]


def _cut(wave: Paced, until_ms: float) -> Paced:
    """As if it had been solved no further: others solved with it may take longer."""
    return replace(wave, activation_ms=np.where(wave.activation_ms <= until_ms, wave.activation_ms, np.nan))


def converged_shifts(coarse: Paced, by_steps: tuple[Paced, ...], finest: Paced) -> tuple[Shift, Shift]:
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
    found = np.empty((*shifts[0].shape[:1], len(times_ms), *shifts[0].shape[1:]), dtype=np.float32)
    for number, time in enumerate(times_ms):
        found[:, number] = _later(finest, time, shifts[0]) if time <= until_ms else _later(coarse, time, shifts[1])
    return found


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
