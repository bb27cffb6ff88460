"""How far a model says it may be trusted."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import batch_of, turning_square
from toy_surfaces import egg

from gfunk.atria.synthetic import left_atrium
from gfunk.batch import TrajectorySet
from gfunk.domain import Domain, make_domain
from gfunk.errors import InputError
from gfunk.pretrained import read_model_card, read_seen
from gfunk.readiness import made_ready
from gfunk.settings import to_json
from gfunk.store import write_json
from gfunk.trust import (
    FAR,
    MODES,
    ROUGH_TURNS,
    SMOOTH_TURN,
    Bounds,
    Trust,
    calibrated,
    fewest_waves,
    kept,
    roughness_of,
    said,
    seen_in,
    strange_shape,
    strange_start,
)

SQUARE = turning_square(0.02)


def trajectories(domain: Domain, n: int, active: float = 1.0) -> TrajectorySet:
    batch = batch_of(domain, n_modes=21)
    generator = torch.Generator().manual_seed(0)
    u = active * torch.rand((n, 1, domain.n_nodes, 1), generator=generator, dtype=batch.mass.dtype)
    return TrajectorySet(
        batch=batch, domain_of=torch.zeros(n, dtype=torch.int64), seeds=(0,) * n, times=torch.zeros(1), values=u
    )


def scaled(domain: Domain, factor: float) -> Domain:
    return make_domain(factor * domain.points, domain.cells, domain.diffusion)


def test_a_domain_that_was_learned_from_is_not_strange():
    data = trajectories(SQUARE, 5)
    seen = seen_in(data)
    assert seen.modes == tuple(mode for mode in MODES if mode < 21) and seen.n_domains == 1
    assert strange_shape(data.batch, seen) == ()
    assert strange_start(data.values[:, 0], data.batch, seen) == [()] * 5


@settings(max_examples=20)
@given(factor=st.floats(0.3, 3))
def test_a_scaled_domain_is_of_strange_size_beyond_a_quarter_of_its_eigenvalues_and_of_no_strange_shape(factor: float):
    by = factor**-2  # eigenvalues go with the square of the size
    assume(abs(abs(math.log(by)) - math.log(FAR)) > 1e-6)
    said = strange_shape(batch_of(scaled(SQUARE, factor), n_modes=21), seen_in(trajectories(SQUARE, 1)))
    assert len(said) == (not 1 / FAR <= by <= FAR)
    assert all(f"{by:.2g} times" in each and ("smaller" in each) == (factor < 1) for each in said)


def test_a_domain_stretched_to_the_same_area_is_of_strange_shape_alone():
    seen = seen_in(trajectories(make_domain(SQUARE.points, SQUARE.cells), 1))
    stretched = make_domain(SQUARE.points * [1.5, 1 / 1.5], SQUARE.cells)
    (said,) = strange_shape(batch_of(stretched, n_modes=21), seen)
    assert "another shape" in said and "eigenvalue 1 " in said


@settings(max_examples=20, deadline=None)
@given(n_modes=st.integers(1, 30), factors=st.lists(st.floats(0.3, 3), min_size=1, max_size=3))
def test_what_was_seen_is_not_strange_by_fewer_modes_and_what_is_far_larger_is(n_modes: int, factors: list[float]):
    squares = [make_domain(SQUARE.points * [factor, 1], SQUARE.cells) for factor in factors]
    batch = batch_of(*squares, n_modes=30)
    seen = seen_in(
        TrajectorySet(
            batch=batch, domain_of=torch.arange(len(squares)), seeds=tuple(range(len(squares))), times=torch.zeros(1),
            values=torch.ones(len(squares), 1, SQUARE.n_nodes, 1, dtype=batch.mass.dtype),
        )
    ).with_modes(n_modes)  # fmt: skip
    assert seen.modes == tuple(mode for mode in MODES if mode < min(n_modes, 21))
    for domain in range(len(squares)):
        assert strange_shape(batch.select(torch.tensor([domain])).with_modes(n_modes), seen) == ()
    huge = batch_of(scaled(squares[0], 1000.0), n_modes=n_modes)
    assert bool(strange_shape(huge, seen)) == (n_modes > 1)


def test_a_first_state_with_far_more_or_less_of_it_active_is_strange_each_for_itself():
    data = trajectories(SQUARE, 3)
    u = data.values[:, 0] * torch.tensor([1.0, 2.0, 0.1], dtype=data.values.dtype)[:, None, None]
    usual, more, less = strange_start(u, data.batch, seen_in(data))
    assert usual == () and "more tissue" in more[0] and "less tissue" in less[0]


@settings(max_examples=20)
@given(seed=st.integers(0, 99), share=st.floats(0.5, 0.95), n=st.integers(20, 200))
def test_bounds_are_kept_by_their_share_of_errors_alike(seed: int, share: float, n: int):
    """On average over draws: the k-th of n is kept by the next with k / (n + 1), a beta distribution around it."""
    rng = np.random.default_rng(seed)
    kept = []
    for _ in range(200):
        drawn = rng.lognormal(size=n + 1)
        bounds = calibrated([{"rel_l2": error, "seed": number} for number, error in enumerate(drawn[:n])], share)
        kept.append(drawn[n] <= bounds.rel_l2)
    expected = math.ceil(share * (n + 1)) / (n + 1)
    assert expected >= share
    assert abs(np.mean(kept) - expected) < 5 * math.sqrt(expected * (1 - expected) / 200) + 1e-9


def test_bounds_say_on_how_many_waves_and_domains_they_rest():
    rows = [{"rel_l2": 0.01 * k, "lat_error_ms": float(k), "seed": k // 4} for k in range(1, 20)]
    found = calibrated(rows, 0.9)
    assert found == Bounds(share=0.9, rel_l2=0.18, lat_error_ms=18.0, lat_error_ms_95=None, n_waves=19, n_domains=5)


def test_too_few_waves_and_rows_of_something_else_are_refused():
    with pytest.raises(InputError, match="8 waves held back are too few"):
        calibrated([{"rel_l2": 0.1, "seed": 0}] * 8)
    with pytest.raises(InputError, match="have a rel_l2"):
        calibrated([{"seed": 0}] * 20)


def test_what_was_seen_can_be_written_and_read(tmp_path: Path):
    seen = seen_in(trajectories(SQUARE, 2))
    assert read_seen(tmp_path) is None
    write_json(tmp_path / "seen.json", to_json(seen))
    assert read_seen(tmp_path) == seen and read_seen(tmp_path) != replace(seen, n_domains=2)


def test_the_shipped_model_knows_atria_and_neither_giants_nor_balls():
    seen = read_model_card("atria").trust.seen
    assert seen is not None
    atrium = left_atrium(300_008, 1.5)
    assert strange_shape(batch_of(atrium, n_modes=101), seen) == ()
    giant = make_domain(3 * atrium.points, atrium.cells, atrium.cell_diffusion(), diffusion_at="cell")
    (said,) = strange_shape(batch_of(giant, n_modes=101), seen)
    assert "larger or conducts more" in said
    # Modes of a ball with fibres could be an atrium's.
    assert made_ready(egg(radius=20.0), "atria", cache=None).warnings[0].startswith("the surface has 0 openings")


@given(seed=st.integers(0, 99))
def test_the_waves_held_back_keep_their_own_bounds_by_a_hair_more_than_the_share(seed: int):
    rng = np.random.default_rng(seed)
    rows = [{"rel_l2": float(error), "seed": 0} for error in rng.lognormal(size=99)]
    assert kept(calibrated(rows, 0.9), rows) == {"kept_rel_l2": 90 / 99}


def test_bounds_are_said_in_a_sentence():
    bounds = Bounds(share=0.9, rel_l2=0.0128, lat_error_ms=0.095, lat_error_ms_95=0.43, n_waves=96, n_domains=16)
    assert said(bounds) == (
        "90 % of waves like this are predicted with activation times off by up to 0.095 ms on average, 95 % of places "
        "within 0.43 ms, relative l2 up to 0.013 over all times learned (by 96 waves on 16 domains held back)"
    )
    assert "activation" not in said(replace(bounds, lat_error_ms=None, lat_error_ms_95=None))
    assert "90 % of waves on fibres that turn by up to 16 degrees per mm" in said(replace(bounds, fibre_turn=16.0))


@given(share=st.floats(0.5, 0.98))
def test_as_many_waves_as_are_needed_are_enough_and_one_fewer_are_not(share: float):
    rows = [{"rel_l2": 0.1, "seed": 0}] * fewest_waves(share)
    assert calibrated(rows, share).n_waves == len(rows)
    with pytest.raises(InputError, match="too few"):
        calibrated(rows[1:], share)


@given(turns=st.tuples(st.floats(0, 60), st.floats(0, 60)))
def test_rougher_fibres_never_count_as_smoother(turns: tuple[float, float]):
    smoother, rougher = sorted(turns)
    assert (roughness_of(smoother) or 0) <= (roughness_of(rougher) or 0)
    assert (roughness_of(smoother) is None) == (smoother <= SMOOTH_TURN)
    assert (roughness_of(rougher) == math.inf) == (rougher > ROUGH_TURNS[-1])


def test_bounds_are_those_of_fibres_as_rough_and_new_ones_replace_only_their_like():
    smooth, rough, rougher = (
        Bounds(share=0.9, rel_l2=0.01, lat_error_ms=None, lat_error_ms_95=None, n_waves=9, n_domains=9, fibre_turn=turn)
        for turn in (None, *ROUGH_TURNS)
    )
    trust = Trust(bounds=smooth).with_bounds([rougher]).with_bounds([rough])
    assert trust == Trust(bounds=smooth, rough=(rough, rougher))
    asked = (1.0, SMOOTH_TURN, SMOOTH_TURN + 0.1, ROUGH_TURNS[0], ROUGH_TURNS[1], ROUGH_TURNS[1] + 0.1)
    assert [trust.bounds_on(turn) for turn in asked] == [smooth, smooth, rough, rough, rougher, None]
    better = replace(rough, rel_l2=0.005)
    assert trust.with_bounds([better]) == Trust(bounds=smooth, rough=(better, rougher))
    assert Trust().bounds_on(1.0) is Trust().bounds_on(20.0) is None
    # Smooth fibres are no worse than rough ones, but not the other way round.
    assert Trust(rough=(rough, rougher)).bounds_on(1.0) == rough and Trust(bounds=smooth).bounds_on(10.0) is None
