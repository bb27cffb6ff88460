from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_every_parameter_learns, largest_gap
from problems import (
    batch_of,
    cloud,
    random_rotation,
    relabelled,
    seeded,
    shaken_box,
    sphere,
    stretched,
    turned,
    turning_square,
    with_diffusion,
)
from test_fronts import BATCH, CONFIG, RAYS, SQUARE, wave_on
from torch import Tensor

from gfunk.batch import Batch
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.operators import DirectOperator
from gfunk.operators.arrival import TIMES_AT_ONCE, Arrival, ArrivalConfig
from gfunk.operators.make import n_parameters

with_and_without_rays = pytest.mark.parametrize("config", [CONFIG, RAYS], ids=["front", "rays"])
TIMES = torch.linspace(0.02, 0.5, 5, dtype=torch.float64)


def arrival(config: ArrivalConfig = CONFIG) -> Arrival:
    operator = seeded(config)
    assert isinstance(operator, Arrival)
    return operator


def waves_on(*domains: Domain) -> Tensor:
    """One each, in a batch; padding holds what it likes."""
    u = torch.full((len(domains), max(domain.n_nodes for domain in domains), 1), 0.7, dtype=torch.float64)
    for number, domain in enumerate(domains):
        u[number, : domain.n_nodes] = wave_on(domain, number)[0]
    return u


@torch.no_grad()
def predicted(operator: Arrival, u: Tensor, batch: Batch, times: Tensor = TIMES) -> Tensor:
    return operator(operator.first(u, batch), batch, times)


def test_it_is_a_direct_operator_with_as_many_parameters_as_its_settings_say():
    assert isinstance(arrival(), DirectOperator)
    assert n_parameters(seeded(ArrivalConfig())) == 286_154


@pytest.mark.parametrize("n_times", [1, TIMES_AT_ONCE, 2 * TIMES_AT_ONCE + 1])
def test_each_time_is_predicted_as_if_alone_in_any_order_and_however_many(n_times: int):
    operator, u = arrival(), wave_on(SQUARE)
    times = 0.5 * torch.rand(n_times, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = predicted(operator, u, BATCH, times)
    assert together.shape == (1, n_times, SQUARE.n_nodes, 1)
    alone = torch.cat([predicted(operator, u, BATCH, time[None]) for time in times], dim=1)
    assert largest_gap(together, alone) < 1e-12
    order = torch.from_numpy(np.random.default_rng(0).permutation(n_times))
    assert largest_gap(predicted(operator, u, BATCH, times[order]), together[:, order]) < 1e-12


@with_and_without_rays
def test_turning_the_domain_with_its_diffusion_changes_nothing(config: ArrivalConfig):
    # On a sphere two ways are often equally soon, and rounding chooses a ray.
    for domain in (SQUARE,) if config.ray_times else (SQUARE, sphere(2)):
        after = turned(domain, random_rotation(domain.points.shape[1], seed=0))
        expected = predicted(arrival(config), wave_on(domain), batch_of(domain))
        # Where two ways are equally soon, rounding chooses.
        assert largest_gap(predicted(arrival(config), wave_on(domain), batch_of(after)), expected) < (
            1e-4 if config.ray_times else 1e-9
        )


@with_and_without_rays
@given(factor=st.floats(1e-3, 1e3))
def test_waves_in_tissue_stretched_with_its_diffusion_are_the_same(config: ArrivalConfig, factor: float):
    # So there is nothing to learn from tissues rescaled.
    expected = predicted(arrival(config), wave_on(SQUARE), BATCH)
    assert largest_gap(predicted(arrival(config), wave_on(SQUARE), batch_of(stretched(SQUARE, factor))), expected) < 1e-9


@with_and_without_rays
def test_relabelling_nodes_relabels_the_answer(config: ArrivalConfig):
    for domain in (SQUARE, sphere(2)):
        order, u = np.random.default_rng(3).permutation(domain.n_nodes), wave_on(domain)
        again = predicted(arrival(config), u[:, order], batch_of(relabelled(domain, order)))
        assert largest_gap(again, predicted(arrival(config), u, batch_of(domain))[:, :, order]) < (
            1e-4 if config.ray_times else 1e-9
        )


def with_modes_mixed(batch: Batch, mix: Tensor) -> Batch:
    return replace(batch, analysis=batch.analysis @ mix, synthesis=batch.synthesis @ mix)


def test_signs_and_order_of_modes_and_their_choice_among_equals_do_not_matter():
    domain = sphere(2)
    batch, u = batch_of(domain), wave_on(domain)
    expected = predicted(arrival(), u, batch)
    generator = torch.Generator().manual_seed(0)
    signs = torch.diag((-1.0) ** torch.arange(9)).double()
    # On the sphere the first 1, 3 and 5 modes share an eigenvalue.
    turns = [torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0] for n in (1, 3, 5)]
    for mix in (signs, torch.block_diag(*turns)):
        assert largest_gap(predicted(arrival(), u, with_modes_mixed(batch, mix)), expected) < 1e-9
    order = torch.randperm(9, generator=generator)
    shuffled = replace(
        batch,
        eigenvalues=batch.eigenvalues[:, order],
        analysis=batch.analysis[..., order],
        synthesis=batch.synthesis[..., order],
    )
    assert largest_gap(predicted(arrival(), u, shuffled), expected) < 1e-9


@with_and_without_rays
def test_a_batch_of_domains_is_each_one_alone_and_padding_stays_zero(config: ArrivalConfig):
    domains = [turning_square(0.04), SQUARE, turning_square(0.03)]
    u, batch = waves_on(*domains), batch_of(*domains)
    together = predicted(arrival(config), u, batch)
    for number, domain in enumerate(domains):
        alone = predicted(arrival(config), u[number : number + 1, : domain.n_nodes], batch_of(domain))
        # How far diffusion is exact depends on its company.
        assert largest_gap(together[number, :, : domain.n_nodes], alone[0]) < (1e-6 if config.ray_times else 1e-10)
        assert (together[number, :, domain.n_nodes :] == 0).all()


@with_and_without_rays
def test_cutting_padding_off_changes_nothing(config: ArrivalConfig):
    domains = [turning_square(0.04), SQUARE]
    u, batch = waves_on(*domains), batch_of(*domains)
    n, first = domains[0].n_nodes, torch.zeros(1, dtype=torch.int64)
    cut = predicted(arrival(config), u[:1, :n], batch.select(first).with_nodes(n))
    assert largest_gap(cut, predicted(arrival(config), u[:1], batch.select(first))[:, :, :n]) < 1e-12


@with_and_without_rays
def test_one_domain_serves_many_trajectories(config: ArrivalConfig):
    batch = batch_of(SQUARE)
    u = torch.cat([wave_on(SQUARE, node) for node in (0, 30, 60)])
    many = predicted(arrival(config), u, batch)
    assert largest_gap(torch.cat([predicted(arrival(config), each[None], batch) for each in u]), many) < 1e-12
    assert largest_gap(predicted(arrival(config), u, batch.select(torch.zeros(3, dtype=torch.int64))), many) < 1e-12


@torch.no_grad()
def test_at_first_the_front_runs_at_its_one_speed():
    operator, batch = arrival(ArrivalConfig(n_modes=9)).float(), batch_of(SQUARE, dtype=torch.float32)
    first = operator.first(wave_on(SQUARE).float(), batch)
    found, _ = operator.arrival(first, batch)
    late = found - (first[..., 1:2] - first[..., 2:3])
    assert 0 < late.abs().max() < 0.02 * operator.config.time_scale
    assert 0 < late.max() - late.min() < 1e-4 * operator.config.time_scale


@torch.no_grad()
def test_u_depends_on_time_and_arrival_only_through_their_difference():
    operator, batch, shift = arrival(), BATCH, 0.07
    first = operator.first(wave_on(SQUARE), batch)
    expected = operator(first, batch, TIMES)
    with pytest.MonkeyPatch.context() as patch:
        found, latents = operator.arrival(first, batch)
        patch.setattr(operator, "arrival", lambda *_: (found + shift, latents))
        assert largest_gap(operator(first, batch, TIMES), expected) > 1e-3
        assert largest_gap(operator(first, batch, TIMES + shift), expected) < 1e-12


@with_and_without_rays
def test_every_parameter_learns(config: ArrivalConfig):
    operator, batch = arrival(config), batch_of(SQUARE)
    u = torch.cat([wave_on(SQUARE, node) for node in (0, 30)])
    assert_every_parameter_learns(operator, operator(operator.first(u, batch), batch, TIMES).square().sum())


@with_and_without_rays
@torch.no_grad()
def test_the_answer_in_single_precision_is_that_in_double(config: ArrivalConfig):
    exact = predicted(arrival(config), wave_on(SQUARE), batch_of(SQUARE))
    single = predicted(
        arrival(config).float(), wave_on(SQUARE).float(), batch_of(SQUARE, dtype=torch.float32), TIMES.float()
    )
    assert single.dtype == torch.float32
    assert largest_gap(single.double(), exact) < (1e-4 if config.ray_times else 1e-5)


@with_and_without_rays
@torch.no_grad()
def test_half_precision_inside_changes_the_answer_little(config: ArrivalConfig):
    operator, batch = arrival(config).float(), batch_of(SQUARE, dtype=torch.float32)
    first = operator.first(wave_on(SQUARE).float(), batch)
    with torch.autocast("cpu", torch.bfloat16):
        half = operator(first, batch, TIMES.float())
    assert half.dtype == torch.float32
    assert 0 < largest_gap(half, operator(first, batch, TIMES.float())) < 0.02


@torch.no_grad()
def test_more_modes_than_it_takes_change_nothing():
    few, many = batch_of(SQUARE, n_modes=9), batch_of(SQUARE, n_modes=15)
    assert largest_gap(predicted(arrival(), wave_on(SQUARE), many), predicted(arrival(), wave_on(SQUARE), few)) < 1e-9


@pytest.mark.parametrize("domain", [shaken_box(3, np.eye(3)), cloud(60, np.eye(2))], ids=["tetrahedra", "cloud"])
def test_domains_without_triangles_are_refused_in_one_line(domain: Domain):
    u = torch.zeros(1, domain.n_nodes, 1, dtype=torch.float64)
    with pytest.raises(InputError, match="need a mesh of triangles, and this domain has none") as refusal:
        arrival().first(u, batch_of(domain, n_modes=3))
    assert "\n" not in str(refusal.value)


def test_the_first_state_holds_u_and_times_that_are_longer_where_waves_are_slower():
    operator = arrival()
    slow, fast = (with_diffusion(SQUARE, diffusivity * np.eye(2)) for diffusivity in (0.25, 1.0))
    firsts = [operator.first(wave_on(SQUARE), batch_of(domain, n_modes=1)) for domain in (slow, fast)]
    for first in firsts:
        assert torch.equal(first[..., :1], wave_on(SQUARE))
        assert not first.requires_grad
    # Behind the wave alone: what lies ahead is read off its foot.
    torch.testing.assert_close(firsts[0][..., 2], 2 * firsts[1][..., 2])
    assert firsts[0][..., 2].max() > 0
