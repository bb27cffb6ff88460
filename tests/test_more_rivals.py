from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import assert_batching, assert_every_parameter_learns, assert_relabelling, assert_sharing, largest_gap
from problems import batch_of, random_field, random_rotation, seeded, sphere, turned, turning_square, with_diffusion
from torch import Tensor, nn
from toy_heat import toy_problem

from gfunk.checkpoints import save_weights
from gfunk.domain import make_domain, unit_square
from gfunk.errors import InputError
from gfunk.laplacian import Fem
from gfunk.operators.diffusion_net import DiffusionLayer, DiffusionNetConfig, gradient_products
from gfunk.operators.geo_fno import (
    GeoFNO,
    GeoFNOConfig,
    grid_of_modes,
    modes_of_grid,
    modes_of_nodes,
    nodes_of_modes,
    plane_waves,
    regular_grid,
)
from gfunk.operators.make import NetworkConfig, n_parameters
from gfunk.operators.modes import ExactModes, ExactModesConfig
from gfunk.operators.transolver import SliceAttention, Transolver, TransolverConfig
from gfunk.recipes.recipe import Variant
from gfunk.rollout import FlowMap, rollout
from gfunk.runs import RunCard, load_run, write_card
from gfunk.simulation import View

STEP = torch.tensor(0.02, dtype=torch.float64)
GEO_FNO = GeoFNOConfig(n_side=8, width=6, n_layers=4, n_frequencies=3)
TRANSOLVER = TransolverConfig(width=12, n_layers=2, n_heads=3, n_slices=5, time_scale=0.02)
NO_FIBRES = replace(TRANSOLVER, uses_fibres=False)
DIFFUSION_NET = DiffusionNetConfig(width=8, n_layers=2, n_modes=9, gradient_width=3, time_scale=0.02)
NO_GRADIENTS = replace(DIFFUSION_NET, gradient_width=0)
ALL = pytest.mark.parametrize(
    "config",
    [GEO_FNO, TRANSOLVER, NO_FIBRES, DIFFUSION_NET, NO_GRADIENTS],
    ids=["geo-fno", "transolver", "transolver without fibres", "diffusion-net", "diffusion-net without gradients"],
)
THREE = pytest.mark.parametrize(
    "config", [GEO_FNO, TRANSOLVER, DIFFUSION_NET], ids=["geo-fno", "transolver", "diffusion-net"]
)
THAT_SEE_PLACES = pytest.mark.parametrize("config", [GEO_FNO, TRANSOLVER], ids=["geo-fno", "transolver"])


@pytest.mark.parametrize(
    ("config", "count"),
    [(GeoFNOConfig(), 2_515_307), (TransolverConfig(), 373_153), (DiffusionNetConfig(), 223_361)],
    ids=["geo-fno", "transolver", "diffusion-net"],
)
def test_a_rival_has_as_many_parameters_as_its_settings_say(config: NetworkConfig, count: int):
    assert n_parameters(seeded(config)) == count
    assert f"{count:,} parameters" in (type(config).__doc__ or "")


def grid_places(n_side: int) -> Tensor:
    """Pixels where the Fourier transform has them: the last is one short of the first's image."""
    return (n_side - 1) / n_side * regular_grid(n_side, STEP).flatten(0, 1)[None]


@torch.no_grad()
@settings(max_examples=20, deadline=None)
@given(n_side=st.integers(4, 13), data=st.data())
def test_fourier_sums_over_the_nodes_of_a_grid_are_the_fast_transform_and_its_inverse(n_side: int, data: st.DataObject):
    n = data.draw(st.integers(1, n_side // 2))
    waves = plane_waves(grid_places(n_side), n)
    field = random_field(2, n_side**2).repeat(1, 1, 3) ** torch.arange(1, 4)
    modes = modes_of_nodes(field, waves, torch.ones(1, n_side**2, dtype=torch.float64))
    grid = field.unflatten(1, (n_side, n_side))
    torch.testing.assert_close(modes, modes_of_grid(grid, n), rtol=1e-9, atol=1e-9)
    back = nodes_of_modes(modes, waves) / n_side**2
    torch.testing.assert_close(back, grid_of_modes(modes, n_side).flatten(1, 2), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_on_its_own_grid_with_equal_masses_geo_fno_is_a_stack_of_fourier_layers():
    operator = seeded(GEO_FNO)
    assert isinstance(operator, GeoFNO)
    batch = batch_of(unit_square(8))
    batch, u = replace(batch, mass=torch.ones_like(batch.mass)), random_field(2, 64)
    inputs = torch.cat([u, batch.points.expand(2, -1, -1), batch.fibres[..., :1].expand(2, -1, -1)], dim=-1)
    places = batch.points.unflatten(1, (8, 8))
    field = operator.to_grid(operator.lift(inputs).unflatten(1, (8, 8))) + operator.of_place[0](places)
    for number, layer in enumerate(operator.layers, start=1):
        field = nn.functional.gelu(field)
        field = layer.spectral(field) + layer.pointwise(field) + operator.of_place[number](places)
    field = operator.to_nodes(nn.functional.gelu(field)) + operator.of_place[-1](places)
    assert largest_gap(operator(u, batch, STEP), operator.project(field).flatten(1, 2)) < 1e-10


@torch.no_grad()
def test_slice_attention_equals_a_loop_over_heads_slices_and_nodes():
    torch.manual_seed(0)
    attention = SliceAttention(width=6, n_heads=2, n_slices=4).double()
    field, shares = torch.randn(1, 15, 6).double(), torch.rand(1, 15, 1).double()
    shares = shares / shares.sum()
    heads = []
    for head, channels in enumerate((slice(0, 3), slice(3, 6))):
        logits = attention.slices(attention.where(field)[0, :, channels]) / attention.log_temperature[head].exp()
        belonging = logits.exp() / logits.exp().sum(1, keepdim=True)
        what = attention.what(field)[0, :, channels]
        tokens = []
        for part in belonging.T:
            counted = part * shares[0, :, 0]
            tokens.append(sum(weight * value for weight, value in zip(counted, what, strict=True)) / counted.sum())
        heard = []
        for token in tokens:
            pull = torch.stack([attention.query(token) @ attention.key(other) / 3**0.5 for other in tokens]).exp()
            heard.append(sum(p * attention.value(other) for p, other in zip(pull / pull.sum(), tokens, strict=True)))
        heads.append(torch.stack([sum(p * each for p, each in zip(row, heard, strict=True)) for row in belonging]))
    # Slices are never quite empty: a tiny share is added to each.
    assert largest_gap(attention(field, shares)[0], attention.together(torch.cat(heads, dim=1))) < 1e-4


@torch.no_grad()
def test_which_way_a_fibre_points_along_its_line_is_nothing_to_a_transolver():
    batch = batch_of(turning_square(0.04))
    operator, u = seeded(TRANSOLVER), random_field(1, batch.points.shape[1])
    before = operator(u, batch, STEP)
    there_and_back = torch.where(torch.rand(batch.mass.shape) < 0.5, 1, -1)[..., None]
    assert torch.equal(operator(u, replace(batch, fibres=there_and_back * batch.fibres), STEP), before)
    across = torch.stack([-batch.fibres[..., 1], batch.fibres[..., 0]], dim=-1)
    assert largest_gap(operator(u, replace(batch, fibres=across), STEP), before) > 1e-3
    assert torch.equal(*(seeded(NO_FIBRES)(u, replace(batch, fibres=each), STEP) for each in (batch.fibres, across)))


@torch.no_grad()
def test_a_mode_decays_at_its_own_rate_for_each_channels_time():
    layer = DiffusionLayer(DIFFUSION_NET).double()
    batch = batch_of(turning_square(0.02))
    for number, rate in enumerate(batch.eigenvalues[0]):
        mode = batch.synthesis[..., number, None]
        expected = mode * torch.exp(-rate * DIFFUSION_NET.time_scale * 2**layer.log2_times)
        torch.testing.assert_close(layer.diffused(mode.expand(-1, -1, 8), batch), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_gradient_products_of_linear_fields_are_exact_inside_a_regular_mesh():
    tensor = np.array([[3.0, 1.0], [1.0, 2.0]])
    domain = with_diffusion(unit_square(7), tensor)
    batch = batch_of(domain)
    one, other = (batch.points @ torch.tensor(slopes, dtype=torch.float64).T for slopes in ([[1.0, 2.0]], [[-3.0, 0.5]]))
    is_inside = ((domain.points > 0.01) & (domain.points < 0.99)).all(1)
    expected = np.array([1.0, 2.0]) @ tensor @ np.array([-3.0, 0.5])
    torch.testing.assert_close(
        gradient_products(one, other, batch)[0, is_inside, 0].numpy(), np.full(is_inside.sum(), expected)
    )


@ALL
def test_relabelling_nodes_relabels_the_answer(config: NetworkConfig):
    assert_relabelling(seeded(config), turning_square(0.02), batch_of, STEP, tolerance=1e-8)


@ALL
def test_a_batch_is_one_by_one_and_padding_stays_zero(config: NetworkConfig):
    domains = [turning_square(0.04, seed=4), turning_square(0.02, seed=1), turning_square(0.03, seed=3)]
    assert_batching(seeded(config), domains, batch_of, STEP)


@torch.no_grad()
@ALL
def test_what_padding_nodes_hold_never_reaches_real_ones(config: NetworkConfig):
    operator = seeded(config)
    batch = batch_of(turning_square(0.04), turning_square(0.02))
    clean = random_field(2, batch.points.shape[1])
    dirty = torch.where(batch.is_node[..., None], clean, torch.nan)
    assert torch.equal(operator(dirty, batch, STEP), operator(clean, batch, STEP))


@ALL
def test_one_domain_serves_many_trajectories(config: NetworkConfig):
    assert_sharing(seeded(config), batch_of(turning_square(0.02)), STEP)


@torch.no_grad()
@ALL
def test_a_node_cut_into_two_of_half_its_mass_changes_nothing(config: NetworkConfig):
    """Else the answer would depend on where a mesh is fine."""
    operator, batch = seeded(config), batch_of(turning_square(0.04))
    n_nodes, n_cut = batch.points.shape[1], 10
    copied = torch.cat([torch.arange(n_nodes), torch.arange(n_cut)])
    part = torch.where(torch.bincount(copied)[copied] == 2, 0.5, 1.0).double()[None]
    of_nodes = {
        "points",
        "fibres",
        "is_node",
        "mass",
        "analysis",
        "synthesis",
        "neighbors",
        "couplings",
        "inertia",
        "ends",
        "sides",
    }
    cut = replace(batch, **{name: getattr(batch, name)[:, copied] for name in of_nodes})
    cut = replace(
        cut, mass=part * cut.mass, inertia=part * cut.inertia,
        analysis=part[..., None] * cut.analysis, couplings=part[..., None] * cut.couplings,
    )  # fmt: skip
    u = random_field(2, n_nodes)
    assert largest_gap(operator(u[:, copied], cut, STEP), operator(u, batch, STEP)[:, copied]) < 1e-10


@torch.no_grad()
@THAT_SEE_PLACES
def test_moving_the_domain_leaves_the_answer_but_turning_it_does_not(config: NetworkConfig):
    operator, domain = seeded(config), turning_square(0.02)
    u = random_field(1, domain.n_nodes)
    before = operator(u, batch_of(domain), STEP)
    moved = operator(u, batch_of(replace(domain, points=domain.points + 0.5)), STEP)
    torch.testing.assert_close(moved, before, rtol=1e-9, atol=1e-9)
    assert largest_gap(operator(u, batch_of(turned(domain, random_rotation(2, seed=0))), STEP), before) > 1e-3


@torch.no_grad()
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_turning_the_domain_leaves_a_diffusion_net_unchanged(seed: int):
    operator, domain = seeded(DIFFUSION_NET), turning_square(0.04)
    u = random_field(1, domain.n_nodes)
    after = operator(u, batch_of(turned(domain, random_rotation(2, seed))), STEP)
    assert largest_gap(after, operator(u, batch_of(domain), STEP)) < 1e-8


@torch.no_grad()
@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(9)), signs=st.lists(st.sampled_from([-1.0, 1.0]), min_size=9, max_size=9))
def test_signs_and_order_of_modes_leave_a_diffusion_net_unchanged(order: list[int], signs: list[float]):
    operator, batch = seeded(DIFFUSION_NET), batch_of(turning_square(0.04))
    sign = torch.tensor(signs, dtype=torch.float64)
    other = replace(
        batch,
        eigenvalues=batch.eigenvalues[:, order],
        analysis=(sign * batch.analysis)[..., order],
        synthesis=(sign * batch.synthesis)[..., order],
    )
    u = random_field(2, batch.points.shape[1])
    assert largest_gap(operator(u, other, STEP), operator(u, batch, STEP)) < 1e-10


@torch.no_grad()
@ALL
def test_only_ratios_of_times_matter(config: NetworkConfig):
    batch = batch_of(turning_square(0.04))
    slow = replace(batch, eigenvalues=batch.eigenvalues / 4, couplings=batch.couplings / 4)
    u = random_field(2, batch.points.shape[1])
    plain = seeded(config)(u, batch, STEP)
    stretched = seeded(replace(config, time_scale=4 * config.time_scale))(u, slow, 4 * STEP)
    assert largest_gap(stretched, plain / 4) < 1e-12


@torch.no_grad()
@THAT_SEE_PLACES
def test_only_ratios_of_lengths_matter(config: GeoFNOConfig | TransolverConfig):
    batch = batch_of(turning_square(0.04))
    large = replace(batch, points=4 * batch.points, mass=16 * batch.mass)
    u = random_field(2, batch.points.shape[1])
    plain = seeded(config)(u, batch, STEP)
    assert largest_gap(seeded(replace(config, length_scale=4.0))(u, large, STEP), plain) < 1e-12
    assert largest_gap(seeded(config)(u, large, STEP), plain) > 1e-5


@torch.no_grad()
@THREE
def test_all_but_geo_fno_know_how_long_the_step_is(config: NetworkConfig):
    operator, batch = seeded(config), batch_of(turning_square(0.04))
    u = random_field(1, batch.points.shape[1])
    depends = not torch.equal(operator(u, batch, STEP), operator(u, batch, 2 * STEP))
    assert depends == (config is not GEO_FNO)


@ALL
def test_every_parameter_gets_a_finite_gradient_through_a_rollout(config: NetworkConfig):
    operator, batch = seeded(config), batch_of(turning_square(0.04), turning_square(0.02))
    u = random_field(2, batch.points.shape[1]).requires_grad_()
    trajectory = rollout(operator, u, batch, [0.02, 0.02], FlowMap(longest_step=0.02))
    assert_every_parameter_learns(operator, torch.where(batch.is_node[:, None, :, None], trajectory, 0).square().sum())
    assert all(each.grad.isfinite().all() for each in (u, *operator.parameters()))


@THREE
def test_gradients_by_the_field_agree_with_finite_differences(config: NetworkConfig):
    operator, batch = seeded(config), batch_of(turning_square(0.08))
    u = random_field(1, batch.points.shape[1]).requires_grad_()
    assert torch.autograd.gradcheck(lambda field: operator(field, batch, STEP), (u,))


@THREE
def test_a_few_iterations_learn_much_of_a_heat_step(config: NetworkConfig):
    operator, batch = seeded(config), batch_of(turning_square(0.02))
    u = (batch.synthesis @ random_field(8, 9)).detach()
    wanted = STEP * ExactModes(ExactModesConfig(n_modes=9))(u, batch, STEP)
    adam = torch.optim.Adam(operator.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        adam.zero_grad()
        loss = (STEP * operator(u, batch, STEP) - wanted).norm() / wanted.norm()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * min(1.0, losses[0]), losses


@torch.no_grad()
@ALL
def test_half_precision_inside_changes_the_answer_little(config: NetworkConfig):
    operator, batch = seeded(config).float(), batch_of(turning_square(0.02), dtype=torch.float32)
    u, step = random_field(2, batch.points.shape[1], torch.float32), STEP.float()
    with torch.autocast("cpu", torch.bfloat16):
        half = operator(u, batch, step)
    assert half.dtype == torch.float32
    assert 0 < largest_gap(half, operator(u, batch, step)) < 0.05


@THREE
def test_a_rival_comes_back_from_disk_as_it_was(tmp_path: Path, config: NetworkConfig):
    variant = Variant(
        name="rival",
        network=config,
        view=View(discretisation=Fem(), n_modes=9),
        integrator=FlowMap(longest_step=0.02),
        training=None,
    )
    card = RunCard(recipe="heat", problem=toy_problem, variant=variant, data_fingerprint="f00", commit="c0ffee")
    operator = seeded(config)
    write_card(tmp_path, card)
    save_weights(tmp_path / "best.safetensors", operator, {})
    loaded, same = load_run(tmp_path)
    assert same == card
    for name, tensor in operator.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name].to(tensor.dtype), tensor)


def test_geo_fno_refuses_space_and_grids_too_coarse_and_too_few_layers():
    ball = sphere(0)
    with pytest.raises(InputError, match="works in the plane, not on points of 3 coordinates"):
        seeded(GEO_FNO)(random_field(1, ball.n_nodes), batch_of(ball), STEP)
    with pytest.raises(InputError, match=r"5 frequencies .* 8 nodes a side: ask for 1 to 4"):
        GeoFNO(replace(GEO_FNO, n_frequencies=5))
    with pytest.raises(InputError, match="two layers, to the grid and back, not 1"):
        GeoFNO(replace(GEO_FNO, n_layers=1))


def test_transolver_refuses_other_dimensions_and_heads_that_do_not_share_the_width():
    ball = sphere(0)
    with pytest.raises(InputError, match=r"network\.dim is 2, but points have 3 coordinates"):
        seeded(TRANSOLVER)(random_field(1, ball.n_nodes), batch_of(ball), STEP)
    with pytest.raises(InputError, match=r"network\.width, 12, must be a multiple of network\.n_heads, 5"):
        Transolver(replace(TRANSOLVER, n_heads=5))


@torch.no_grad()
@pytest.mark.parametrize("config", [replace(TRANSOLVER, dim=3), DIFFUSION_NET], ids=["transolver", "diffusion-net"])
def test_rivals_that_know_no_grid_work_on_surfaces_in_space(config: NetworkConfig):
    ball = sphere(1)
    bumpy = ball.points * (1 + 0.1 * np.random.default_rng(0).uniform(size=(ball.n_nodes, 1)))
    assert_relabelling(seeded(config), make_domain(bumpy, ball.cells), batch_of, STEP, tolerance=1e-8)
