import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import (
    NOW,
    assert_batching,
    assert_every_parameter_learns,
    assert_order,
    assert_relabelling,
    assert_sharing,
    largest_gap,
)
from problems import (
    batch_of,
    crossed_square,
    random_field,
    random_rotation,
    seeded,
    shaken_box,
    sliver_mesh,
    sphere,
    turned,
    turning_square,
)
from scipy.sparse import diags_array
from scipy.sparse.linalg import expm_multiply
from torch import Tensor, nn

from gfunk.batch import Batch, stiffness_product
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.laplacian import Fem, PaperGraph, laplacian
from gfunk.operators.gfunk import (
    DIFFUSION_ACCURACY,
    GFuNK,
    GFuNKConfig,
    PaperGFuNK,
    PaperGFuNKConfig,
    PaperLayer,
    bands,
    chebyshev_weights,
    diffusion,
    mean_decay,
    n_products,
)
from gfunk.operators.make import make_operator, n_parameters
from gfunk.operators.modes import ExactModes, ExactModesConfig
from gfunk.recipes.book import RECIPES
from gfunk.rollout import FlowMap, rollout

TAU = torch.tensor(0.03, dtype=torch.float64)
SPECTRAL = GFuNKConfig(width=8, n_layers=2, n_modes=9, filter_width=8, time_scale=0.05)
LOCAL = replace(SPECTRAL, local_width=4, local_times=(0.001, 0.004))
LEARNED = replace(SPECTRAL, knows_diffusion=False)
LOCAL_LEARNED = replace(LOCAL, knows_diffusion=False)
NAMES = ["spectral", "local", "learned", "local learned"]
OURS = pytest.mark.parametrize("config", [SPECTRAL, LOCAL, LEARNED, LOCAL_LEARNED], ids=NAMES)
PAPERS = {
    kernel: PaperGFuNKConfig(
        width=6, n_layers=2, n_modes=9, kernel=kernel, eigenvalue_powers=(0, 1, 2), eigenvalue_scale=50.0, time_scale=0.1
    )
    for kernel in ("diagonal", "tridiagonal", "full")
}
KERNELS = pytest.mark.parametrize("config", PAPERS.values(), ids=PAPERS)
SQUARE = turning_square(0.02)


def ours(config: GFuNKConfig) -> GFuNK:
    operator = seeded(config)
    assert isinstance(operator, GFuNK)
    return operator


def field_on(batch: Batch, n_batch: int = 1) -> Tensor:
    return random_field(n_batch, batch.points.shape[1], batch.points.dtype)


def with_modes_mixed(batch: Batch, mix: Tensor) -> Batch:
    """The same domain, its modes replaced by mixtures of them."""
    return replace(batch, analysis=batch.analysis @ mix, synthesis=batch.synthesis @ mix)


def flipped(batch: Batch) -> Batch:
    """Every second mode with the other sign."""
    return with_modes_mixed(batch, torch.diag((-1.0) ** torch.arange(batch.n_modes)).to(batch.points.dtype))


@torch.no_grad()
@OURS
def test_signs_of_modes_do_not_matter(config: GFuNKConfig):
    operator, batch = ours(config), batch_of(SQUARE)
    u = field_on(batch)
    assert largest_gap(operator(u, flipped(batch), TAU), operator(u, batch, TAU)) < 1e-12


@torch.no_grad()
@OURS
def test_the_choice_of_modes_within_an_eigenspace_does_not_matter(config: GFuNKConfig):
    batch = batch_of(sphere(2))
    # On the sphere the first 1, 3 and 5 modes share an eigenvalue.
    assert largest_gap(batch.eigenvalues[0, [1, 1, 4, 4, 4, 4]], batch.eigenvalues[0, [2, 3, 5, 6, 7, 8]]) < 1e-9
    generator = torch.Generator().manual_seed(0)
    turns = [torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0] for n in (1, 3, 5)]
    operator, u = ours(config), field_on(batch)
    mixed = with_modes_mixed(batch, torch.block_diag(*turns))
    assert largest_gap(operator(u, mixed, TAU), operator(u, batch, TAU)) < 1e-9


@OURS
def test_relabelling_nodes_relabels_the_answer(config: GFuNKConfig):
    assert_relabelling(ours(config), SQUARE, batch_of, TAU, tolerance=1e-9)
    assert_relabelling(ours(config), sphere(2), batch_of, TAU, tolerance=1e-9)


@torch.no_grad()
@OURS
def test_turning_the_domain_with_its_diffusion_changes_nothing_unless_coordinates_are_an_input(config: GFuNKConfig):
    before, after = batch_of(SQUARE), batch_of(turned(SQUARE, random_rotation(2, seed=0)))
    u = field_on(before)
    blind, seeing = ours(config), ours(replace(config, inputs=("u", "x", "y")))
    assert largest_gap(blind(u, after, TAU), blind(u, before, TAU)) < 1e-9
    assert largest_gap(seeing(u, after, TAU), seeing(u, before, TAU)) > 1e-3


@torch.no_grad()
@OURS
def test_the_answer_in_single_precision_is_that_in_double(config: GFuNKConfig):
    operator, batch = ours(config), batch_of(SQUARE)
    u = field_on(batch)
    exact = operator(u, batch, TAU)
    single = operator.float()(u.float(), batch_of(SQUARE, dtype=torch.float32), TAU.float())
    assert single.dtype == torch.float32
    assert largest_gap(single.double(), exact) < 1e-5


@OURS
def test_a_batch_of_domains_is_each_one_alone(config: GFuNKConfig):
    def with_one_bound_of_rates(*domains: Domain) -> Batch:
        # Else the number of products is the company's, and answers differ as DIFFUSION_ACCURACY allows.
        return replace(batch_of(*domains), fastest_rate=5e3)

    assert_batching(ours(config), [turning_square(0.04), SQUARE, turning_square(0.03)], with_one_bound_of_rates, TAU)


@OURS
def test_one_domain_serves_many_trajectories(config: GFuNKConfig):
    assert_sharing(ours(config), batch_of(SQUARE), TAU)


@torch.no_grad()
@OURS
def test_the_answer_depends_on_tau_and_is_the_limit_of_short_steps_at_zero(config: GFuNKConfig):
    operator, batch = ours(config), batch_of(SQUARE)
    u = field_on(batch)
    now = operator(u, batch, NOW)
    assert now.isfinite().all()
    assert largest_gap(operator(u, batch, TAU), now) > 1e-2
    assert largest_gap(operator(u, batch, TAU * 1e-8), now) < 1e-5


def test_a_step_of_zero_has_finite_gradients():
    operator, batch = ours(LOCAL), batch_of(SQUARE)
    operator(field_on(batch), batch, NOW).square().sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in operator.parameters())


@torch.no_grad()
@pytest.mark.parametrize("config", [SPECTRAL, LOCAL], ids=["spectral", "local"])
def test_where_little_is_to_be_learned_a_fresh_network_that_knows_diffusion_almost_only_diffuses(config: GFuNKConfig):
    config = replace(config, learned_scale=0.01)
    batch = batch_of(SQUARE)
    u = batch.synthesis @ torch.linspace(1, 0.2, 9, dtype=torch.float64)[:, None]
    exact = ExactModes(ExactModesConfig(n_modes=9))(u, batch, TAU)
    assert 1e-6 < largest_gap(seeded(config)(u, batch, TAU), exact) < 0.02


@torch.no_grad()
def test_where_little_is_to_be_learned_a_fresh_network_that_knows_nothing_almost_stands_still():
    batch = batch_of(SQUARE)
    u = field_on(batch)
    assert 0 < (TAU * seeded(replace(LEARNED, learned_scale=0.01))(u, batch, TAU)).abs().max() < 0.05 * u.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("config", [SPECTRAL, LOCAL], ids=["spectral", "local"])
def test_a_fresh_network_diffuses_a_cosine_no_worse_on_a_finer_mesh(config: GFuNKConfig):
    operator = seeded(replace(config, learned_scale=0.01))
    errors = []
    for n_side in (9, 17, 33):
        domain = crossed_square(n_side, np.diag([1.7, 1.0]))
        start = torch.from_numpy(np.cos(np.pi * domain.points[:, 0]))[None, :, None]
        predicted = rollout(operator, start, batch_of(domain), [0.03], FlowMap(longest_step=0.03))[:, -1]
        errors.append(largest_gap(predicted, start * np.exp(-1.7 * np.pi**2 * 0.03)))
    assert errors[0] < 0.02
    assert errors == sorted(errors, reverse=True)


@torch.no_grad()
@OURS
def test_refining_the_mesh_changes_the_answer_less_and_less(config: GFuNKConfig):
    operator = ours(config)
    answers = []
    for n_side in (9, 17, 33):
        domain = crossed_square(n_side, np.diag([1.7, 1.0]))
        u = torch.from_numpy(np.cos(np.pi * domain.points) @ np.array([0.7, 0.4]))[None, :, None]
        every = (n_side - 1) // 8
        answers.append(operator(u, batch_of(domain), TAU).reshape(n_side, n_side)[::every, ::every])
    coarse, fine = largest_gap(answers[0], answers[1]), largest_gap(answers[1], answers[2])
    assert fine < 0.4 * coarse
    assert fine < 0.02


@given(rate=st.floats(0, 1e4), step=st.floats(1e-12, 1e3))
def test_mean_decay_times_the_step_is_the_change_of_the_exponential(rate: float, step: float):
    got = mean_decay(torch.tensor([[rate]], dtype=torch.float64), torch.tensor(step, dtype=torch.float64))
    assert float(got) * step == pytest.approx(np.expm1(-rate * step), rel=1e-12, abs=1e-300)


@given(rate=st.floats(0, 1e4))
def test_mean_decay_tends_to_minus_the_rate_as_the_step_goes_to_zero(rate: float):
    rates = torch.tensor([[rate]], dtype=torch.float64)
    assert float(mean_decay(rates, NOW)) == -rate
    assert float(mean_decay(rates, NOW + 1e-12)) == pytest.approx(-rate, rel=1e-8)


def exact_diffusion(batch: Batch, field: Tensor, time: float) -> Tensor:
    """exp(-time S / inertia) field on the first domain, by the eigenvectors of the whole matrix."""
    root = batch.inertia[0].sqrt()[:, None]
    identity = torch.eye(len(root), dtype=root.dtype)
    rates, modes = torch.linalg.eigh(stiffness_product((identity / root)[None], batch)[0] / root)
    return modes @ (torch.exp(-time * rates)[:, None] * (modes.mT @ (root * field[0]))) / root


def size(batch: Batch, field: Tensor) -> float:
    """The norm in which S / inertia is symmetric."""
    return float((batch.inertia[0, :, None] * field.square()).sum().sqrt())


meshes = st.one_of(
    st.builds(turning_square, st.floats(0.02, 0.1), ratio=st.floats(1, 50), seed=st.integers(0, 99)),
    st.builds(sliver_mesh, st.integers(0, 99)),
    st.builds(shaken_box, st.just(4), st.just(np.diag([100.0, 1.0, 1.0])), seed=st.integers(0, 99)),
)


@given(stiffness=st.floats(1e-3, 1e4), accuracy=st.sampled_from([DIFFUSION_ACCURACY, 1e-6]))
def test_as_many_products_as_declared_give_the_exponential_as_accurately_as_declared(stiffness: float, accuracy: float):
    n = n_products(1.0, stiffness, accuracy)
    weights = chebyshev_weights(stiffness, n, torch.empty(0, dtype=torch.float64)).numpy()
    x = np.concatenate([np.cos(np.linspace(0, np.pi, 40 * n)), np.geomspace(1e-6, 1, 400) - 1])
    got, expected = np.polynomial.chebyshev.chebval(x, weights), np.exp(-stiffness * (1 + x) / 2)
    # Finer ones are met to a digit.
    assert np.abs(got - expected).max() <= (accuracy if accuracy == DIFFUSION_ACCURACY else 2 * accuracy)
    assert np.abs(got).max() <= 1 + 1e-12


@given(domain=meshes, stiffness=st.floats(1e-3, 300))
def test_diffusion_is_the_exponential_of_the_laplacian_on_any_mesh_and_never_grows(domain: Domain, stiffness: float):
    batch = batch_of(domain, n_modes=1)
    field, time = field_on(batch), stiffness / batch.fastest_rate
    [got] = diffusion(field, batch, (time,))
    assert size(batch, got[0] - exact_diffusion(batch, field, time)) <= DIFFUSION_ACCURACY * size(batch, field[0])
    assert size(batch, got[0]) <= size(batch, field[0])


def test_diffusion_agrees_with_the_exponential_of_scipy():
    batch, matrices = batch_of(SQUARE), laplacian(SQUARE)
    assert torch.equal(batch.inertia, batch.mass)
    field = field_on(batch)
    times = (1e-4, 1e-3, 4e-3)
    generator = -diags_array(1 / matrices.lumped_mass()) @ matrices.stiffness
    for time, got in zip(times, diffusion(field, batch, times), strict=True):
        expected = torch.from_numpy(expm_multiply(time * generator, field[0].numpy()))
        assert size(batch, got[0] - expected) <= DIFFUSION_ACCURACY * size(batch, field[0])


def test_diffusion_of_a_smooth_field_converges_with_the_square_of_the_mesh_size():
    time, n_sides = 0.03, (9, 17, 33)
    errors = []
    for n_side in n_sides:
        domain = crossed_square(n_side, np.diag([1.7, 1.0]))
        field = torch.from_numpy(np.cos(np.pi * domain.points[:, :1]) * np.cos(np.pi * domain.points[:, 1:]))[None]
        # Enough products for the later time leave no error of theirs in the earlier one.
        got, _ = diffusion(field, batch_of(domain), (time, 8 * time))
        errors.append(largest_gap(got, field * np.exp(-2.7 * np.pi**2 * time)))
    assert_order(errors, [1 / (n - 1) for n in n_sides], 2)


def test_what_bands_make_of_a_front_depends_little_on_a_mesh_that_resolves_their_first_time():
    answers = []
    for n_side in (17, 33, 65):
        domain = crossed_square(n_side, np.diag([1.7, 1.0]))
        front = torch.from_numpy(np.tanh((domain.points[:, :1] - 0.5) / 0.02))[None]
        every = (n_side - 1) // 16
        # sqrt(4 K time) is 0.13: two edges of the coarsest mesh, six widths of the front.
        answers.append(
            bands(front, batch_of(domain, n_modes=1), (0.0025, 0.01))[0].unflatten(0, (n_side, -1))[::every, ::every]
        )
    assert largest_gap(answers[0], answers[2]) < 0.1
    assert largest_gap(answers[1], answers[2]) < 0.02


@given(domain=meshes, stiffness=st.floats(1e-3, 300))
def test_constants_and_total_heat_stay(domain: Domain, stiffness: float):
    batch = batch_of(domain, n_modes=1)
    field, time = field_on(batch), stiffness / batch.fastest_rate
    [got], [constant] = diffusion(field, batch, (time,)), diffusion(torch.ones_like(field), batch, (time,))
    assert (constant - 1).abs().max() < 1e-9
    heat, before = ((batch.inertia[..., None] * each).sum() for each in (got, field))
    assert abs(heat - before) < 1e-9 * (batch.inertia[..., None] * field.abs()).sum()
    assert bands(torch.ones_like(field), batch, (time, 2 * time)).abs().max() < 1e-9


def test_bands_and_what_diffusion_leaves_add_up_to_the_field():
    batch = batch_of(SQUARE)
    field, times = field_on(batch), (1e-4, 1e-3, 4e-3)
    torch.testing.assert_close(bands(field, batch, times).sum(-1, keepdim=True) + diffusion(field, batch, times)[-1], field)


def test_domains_side_by_side_diffuse_as_each_alone_and_padding_stays_zero():
    domains = [turning_square(0.04), SQUARE]
    together = batch_of(*domains)
    field = torch.where(together.is_node[..., None], field_on(together, 2), 0)
    [got] = diffusion(field, together, (1e-3,))
    assert (got[~together.is_node] == 0).all()
    for domain, before, after in zip(domains, field, got, strict=True):
        n = domain.n_nodes
        alone = batch_of(domain)
        [own] = diffusion(before[None, :n], alone, (1e-3,))
        assert size(alone, own[0] - after[:n]) <= 2 * DIFFUSION_ACCURACY * size(alone, before[:n])
        # The number of products is the company's; all else is the domain's own.
        [same] = diffusion(before[None, :n], replace(alone, fastest_rate=together.fastest_rate), (1e-3,))
        assert largest_gap(same[0], after[:n]) < 1e-13


@pytest.mark.parametrize("times", [(), (0.0, 1.0), (-1.0,), (2.0, 1.0), (1.0, 1.0), (float("nan"),)])
def test_times_that_do_not_rise_from_above_zero_are_refused(times: tuple[float, ...]):
    with pytest.raises(InputError, match="local_times must be positive and rise"):
        GFuNK(replace(LOCAL, local_times=times))


def test_half_precision_around_it_does_not_change_diffusion():
    batch = batch_of(SQUARE, dtype=torch.float32)
    field = field_on(batch)
    with torch.autocast("cpu", torch.bfloat16):
        [half] = diffusion(field, batch, (1e-3,))
    assert torch.equal(half, diffusion(field, batch, (1e-3,))[0])


def test_gradients_of_bands_agree_with_finite_differences():
    batch = batch_of(turning_square(0.08), turning_square(0.05), n_modes=1)
    field = random_field(2, batch.points.shape[1]).requires_grad_()
    assert torch.autograd.gradcheck(lambda field: bands(field, batch, (1e-3, 4e-3)), (field,))


def test_gradients_of_the_neighbour_sum_agree_with_finite_differences():
    batch = batch_of(turning_square(0.08), turning_square(0.05), n_modes=1)
    field = random_field(2, batch.points.shape[1]).requires_grad_()

    def neighbour_sum(field: Tensor) -> Tensor:
        return stiffness_product(field, batch)

    assert torch.autograd.gradcheck(neighbour_sum, (field,))
    assert torch.autograd.gradgradcheck(neighbour_sum, (field,))


@OURS
def test_every_parameter_learns(config: GFuNKConfig):
    operator, batch = seeded(config), batch_of(SQUARE)
    trajectory = rollout(operator, field_on(batch, 2), batch, [0.1, 0.1], FlowMap(longest_step=0.05))
    assert_every_parameter_learns(operator, trajectory.square().sum())


@torch.no_grad()
@OURS
def test_half_precision_inside_changes_the_answer_little(config: GFuNKConfig):
    operator, batch = ours(config).float(), batch_of(SQUARE, dtype=torch.float32)
    u, tau = field_on(batch), TAU.float()
    with torch.autocast("cpu", torch.bfloat16):
        half = operator(u, batch, tau)
    assert half.dtype == torch.float32
    assert 0 < largest_gap(half, operator(u, batch, tau)) < 0.02


@OURS
def test_saving_memory_leaves_gradients_the_same_to_the_last_bit(config: GFuNKConfig):
    batch = batch_of(SQUARE, dtype=torch.float32)
    gradients = []
    for saves_memory in (False, True):
        operator = seeded(config).float()
        trajectory = rollout(
            operator, field_on(batch, 2), batch, [0.1, 0.1], FlowMap(longest_step=0.05), saves_memory=saves_memory
        )
        trajectory.square().sum().backward()
        gradients.append([parameter.grad for parameter in operator.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize(("durations", "n_calls"), [([0.1], 2), ([0.1, 0.1], 2 * 4)])
def test_only_of_several_intervals_is_anything_computed_again(durations: list[float], n_calls: int):
    batch = batch_of(SQUARE, dtype=torch.float32)
    operator, calls = seeded(SPECTRAL).float(), []
    operator.register_forward_hook(lambda *_: calls.append(1))
    rollout(operator, field_on(batch, 2), batch, durations, FlowMap(longest_step=0.05), saves_memory=True).sum().backward()
    assert len(calls) == n_calls


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_networks_compile_whole_and_answer_the_same(backend: str):
    script = Path(__file__).with_name("compile_gfunk.py")
    done = subprocess.run([sys.executable, script, backend], capture_output=True, text=True, cwd=script.parents[1])
    assert done.returncode == 0, done.stderr[-2000:]


PAPER_COUNTS = {
    ("heat", "paper"): 197_465,
    ("heat", "fno"): 2_017_157,
    ("heat", "gnn"): 12_226,
    ("heat", "gnn-unweighted"): 35_026,
    ("rectangles", "paper"): 134_965,
    ("rectangles", "gnn"): 20_751,
    ("rectangles", "geo-fno"): 2_515_307,
    ("random-fibres", "paper"): 12_865,
    ("single-atrium", "paper"): 327_665,
    ("atria", "paper"): 283_040,
    ("atria", "gnn"): 248_851,
    ("atria-190", "paper"): 35_640,
}


@pytest.mark.parametrize(("recipe", "variant"), PAPER_COUNTS)
def test_each_network_has_as_many_parameters_as_the_paper_says(recipe: str, variant: str):
    found = RECIPES[recipe].variant(variant)
    assert n_parameters(make_operator(found.network)) == found.paper_parameters == PAPER_COUNTS[recipe, variant]


def test_every_count_the_paper_gives_is_checked():
    counted = {(r.name, v.name) for r in RECIPES.values() for v in r.variants if v.paper_parameters is not None}
    assert counted == set(PAPER_COUNTS)


def paper_batch(*domains) -> Batch:
    return batch_of(*domains, how=PaperGraph(n_neighbors=6))


@torch.no_grad()
@KERNELS
def test_only_the_diagonal_kernel_is_blind_to_the_signs_of_modes(config: PaperGFuNKConfig):
    operator, batch = seeded(config), paper_batch(SQUARE)
    u = field_on(batch)
    gap = largest_gap(operator(u, flipped(batch), NOW), operator(u, batch, NOW))
    assert gap < 1e-12 if config.kernel == "diagonal" else gap > 1e-3


@torch.no_grad()
def test_the_tridiagonal_kernel_is_the_full_one_with_only_that_band():
    band, full = (PaperLayer(replace(PAPERS[kernel], width=6)).double() for kernel in ("tridiagonal", "full"))
    full.matrix.copy_(torch.diag(band.diagonal) + torch.diag(band.lower, -1) + torch.diag(band.upper, 1))
    full.pointwise.load_state_dict(band.pointwise.state_dict())
    batch = paper_batch(SQUARE)
    field = torch.randn(2, SQUARE.n_nodes, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(band(field, batch), full(field, batch), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_papers_layer_equals_a_loop_over_modes_and_powers():
    layer = seeded(PAPERS["full"]).layers[0]
    assert isinstance(layer, PaperLayer)
    batch = paper_batch(SQUARE)
    field = torch.randn(1, SQUARE.n_nodes, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spectral = torch.zeros(SQUARE.n_nodes, 6, dtype=torch.float64)
    for k in range(9):
        for j in range(9):
            for power in (0, 1, 2):
                powered = (batch.eigenvalues[0, j] / 50.0) ** power * (batch.analysis[0, :, j] @ field[0])
                spectral += layer.matrix[k, j] * torch.outer(batch.synthesis[0, :, k], powered)
    expected = nn.functional.gelu(spectral + field[0] @ layer.pointwise.weight.T + layer.pointwise.bias)
    torch.testing.assert_close(layer(field, batch)[0], expected, rtol=1e-11, atol=1e-11)


@KERNELS
def test_the_papers_network_on_a_batch_is_each_domain_alone(config: PaperGFuNKConfig):
    assert_batching(seeded(config), [turning_square(0.04), SQUARE], paper_batch)
    assert_sharing(seeded(config), paper_batch(SQUARE))


@KERNELS
def test_relabelling_nodes_relabels_the_papers_network(config: PaperGFuNKConfig):
    assert_relabelling(seeded(config), SQUARE, paper_batch)


@torch.no_grad()
def test_the_papers_network_ignores_tau():
    operator, batch = seeded(PAPERS["full"]), paper_batch(SQUARE)
    assert isinstance(operator, PaperGFuNK)
    assert torch.equal(operator(field_on(batch), batch, TAU), operator(field_on(batch), batch, NOW))


@KERNELS
def test_every_parameter_of_the_papers_network_learns(config: PaperGFuNKConfig):
    operator, batch = seeded(config), paper_batch(SQUARE)
    assert_every_parameter_learns(operator, operator(field_on(batch), batch, NOW).square().sum())


@torch.no_grad()
@pytest.mark.parametrize("mass", ["lumped", "consistent"])
def test_exact_modes_give_the_exponential_of_the_laplacian_in_the_modes_kept(mass):
    batch = batch_of(turning_square(0.04), SQUARE, n_modes=12, how=Fem(mass=mass))
    u = torch.where(batch.is_node[..., None], field_on(batch, 2), 0)
    kept = batch.with_modes(9)
    decay = torch.exp(-kept.eigenvalues * TAU)[..., None]
    expected = kept.synthesis @ (decay * (kept.analysis.mT @ u))
    got = u + TAU * ExactModes(ExactModesConfig(n_modes=9))(u, batch, TAU)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_two_half_steps_of_exact_modes_are_one_whole_step():
    operator, batch = ExactModes(ExactModesConfig(n_modes=9)), batch_of(SQUARE)
    whole, half = (rollout(operator, field_on(batch), batch, [0.03], FlowMap(longest_step=step)) for step in (0.03, 0.015))
    assert largest_gap(half, whole) < 1e-12
