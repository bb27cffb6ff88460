"""Waves without the solver's error, from waves that have it."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float

from gfunk.domain import fibre_tensors, halved, make_domain, rectangle
from gfunk.physics.converged import converged_shifts, shifted
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import Scheme, diffusivity
from gfunk.physics.stimulus import Stimulus
from gfunk.physics.waves import Paced

ASKED_MS = np.array([10.0, 12.0, 20.5, 30.0, 44.0])


def shape(since_ms: np.ndarray) -> np.ndarray:
    """An upstroke of a ms or so and a slow way back."""
    return -85 + 105 / (1 + np.exp(-2 * since_ms)) * np.exp(-np.clip(since_ms, 0, None) / 80)


def wave(arrival_ms: Float[np.ndarray, " node"] | list[float], until_ms: float = 50.0) -> Paced:
    times = np.arange(0.0, until_ms, 0.25)
    activation = np.where(np.array(arrival_ms) < times[-1], arrival_ms, np.nan)[None]
    values = shape(times[:, None] - np.array(arrival_ms))[None]
    never = np.full_like(activation, np.nan)
    return Paced(times_ms=times, values_mV=values, activation_ms=activation, repolarisation_ms=never)


def converged(coarse: Paced, whole: Paced, half: Paced, quarter: Paced, finest: Paced) -> np.ndarray:
    return shifted(finest, coarse, converged_shifts(coarse, (whole, half, quarter), finest), ASKED_MS)


@given(
    arrivals=st.lists(st.floats(5, 34), min_size=1, max_size=6),
    by_steps=st.floats(-0.02, 0.02),
    by_edges=st.floats(-0.01, 0.01),
    until_ms=st.floats(38.0, 50.0),
)
def test_errors_of_steps_are_gone_whatever_the_mesh_does(
    arrivals: list[float], by_steps: float, by_edges: float, until_ms: float
):
    true = np.array(arrivals)

    def solved(step: float, edge: float, until_ms: float = 50.0) -> Paced:
        return wave(true * (1 + by_steps * step**2 + by_edges * edge), until_ms)

    # The coarse one needs no order at all.
    found = converged(wave(true * 1.04), solved(1, 1), solved(1 / 2, 1), solved(1 / 4, 1), solved(1, 0, until_ms))
    np.testing.assert_allclose(found[0], shape(ASKED_MS[:, None] - true), atol=0.4)  # mV: a cubic's error, 0.25 ms apart


def test_a_wave_that_steps_do_not_change_stays_as_it_is():
    one = wave([8.0, 20.0, 33.0])
    np.testing.assert_allclose(
        converged(one, one, one, one, one)[0], shape(ASKED_MS[:, None] - [8.0, 20.0, 33.0]), rtol=1e-6
    )


def test_where_no_wave_comes_nothing_is_shifted():
    never = 300.0
    late = wave([9.7, never, 60.0])
    found = converged(wave([10.0, never, 49.9]), late, late, late, late)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0, :, 1:], -85, atol=1e-3)


def test_each_trajectory_is_shifted_by_its_own_time():
    arrivals = np.array([[8.0, 20.0], [30.0, 12.0]])
    factors = 1.06, 1.04, 1.03, 1.02, 1.01

    def both(factor: float) -> Paced:
        one, other = (wave(row * factor) for row in arrivals)
        joined = {
            name: np.concatenate([getattr(one, name), getattr(other, name)])
            for name in ("values_mV", "activation_ms", "repolarisation_ms")
        }
        return replace(one, **joined)

    for row, arrival in zip(converged(*map(both, factors)), arrivals, strict=True):
        np.testing.assert_allclose(row, converged(*(wave(arrival * factor) for factor in factors))[0])


def test_a_solved_front_comes_nearer_to_the_true_speed_than_those_in_steps_as_long():
    # How a wave starts differs from mesh to mesh by chance, so what counts is the time it takes from place to place.
    strip = rectangle(14.0, 1.0, edge=0.25)
    along = np.tile([1.0, 0.0], (strip.n_nodes, 1))
    tissue = make_domain(strip.points, strip.cells, fibre_tensors(along, diffusivity(0.3), diffusivity(0.3)))

    def solved(n_halvings: int, dt_ms: float) -> Paced:
        [found] = simulate_many(
            [halved(tissue, n_halvings)], [[[Stimulus(sites=((0.0, 0.5),), radius_mm=2.3)]]], np.array([25.0]),
            cell="mitchell-schaeffer", scheme=Scheme(dt_ms=dt_ms, mass="balanced"), compiles=False,
            kept=[np.arange(tissue.n_nodes)],
        )  # fmt: skip
        return found

    def passage_ms(arrival: np.ndarray) -> float:
        start, end = (arrival[0, np.isclose(tissue.points[:, 0], x)].mean() for x in (5.0, 12.0))
        return float(end - start)

    by_steps, finest = (solved(0, 0.2), solved(0, 0.1), solved(0, 0.05)), solved(1, 0.2)
    shifts, _ = converged_shifts(finest, by_steps, finest)
    true = passage_ms(solved(2, 0.0125).activation_ms)
    errors = [abs(passage_ms(each.activation_ms) - true) for each in (by_steps[0], finest)]
    assert abs(passage_ms(finest.activation_ms + shifts) - true) < min(errors) / 3
