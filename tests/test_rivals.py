from dataclasses import replace

import numpy as np
import pytest
import torch
from laws import assert_batching, assert_every_parameter_learns, assert_relabelling, assert_sharing, largest_gap
from problems import batch_of, random_field, random_rotation, seeded, sphere, turned, turning_square
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.domain import Domain, make_domain, unit_square
from gfunk.errors import InputError
from gfunk.laplacian import PaperGraph, laplacian
from gfunk.operators.fno import FNO, FNOConfig, SpectralConvolution
from gfunk.operators.gnn import GNN, GNNConfig
from gfunk.operators.make import n_parameters
from gfunk.rollout import Euler, rollout

NOW = torch.tensor(0.0)
SMALL_FNO = FNOConfig(n_side=8, width=6, n_layers=3, n_modes=3)
WEIGHTED = GNNConfig(message_widths=(9, 7), node_widths=(8, 1), is_weighted=True)
UNWEIGHTED = GNNConfig(message_widths=(9, 8, 7), node_widths=(8, 5, 1), is_weighted=False)
NO_FIBRES = GNNConfig(message_widths=(9, 7), node_widths=(8, 1), is_weighted=True, uses_fibres=False)
SMALL_GNNS = pytest.mark.parametrize(
    "config", [WEIGHTED, UNWEIGHTED, NO_FIBRES], ids=["weighted", "unweighted", "no fibres"]
)
BOTH = pytest.mark.parametrize("config", [SMALL_FNO, WEIGHTED], ids=["fno", "gnn"])


def paper_batch(*domains: Domain, n_neighbors: int = 4, dtype: torch.dtype = torch.float64) -> Batch:
    return batch_of(*domains, n_modes=3, how=PaperGraph(n_neighbors=n_neighbors), dtype=dtype)


def fibre_grid(n_side: int) -> Domain:
    """The grid an FNO works on, with fibres that differ from node to node."""
    angle = np.random.default_rng(0).uniform(0, np.pi, n_side**2)
    return replace(unit_square(n_side), fibres=np.stack([np.cos(angle), np.sin(angle)], 1))


def test_fno_has_as_many_parameters_as_the_paper_says():
    assert n_parameters(FNO(FNOConfig())) == 2_017_157


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (GNNConfig(message_widths=(75,) * 2, node_widths=(75, 1), is_weighted=True), 12_226),
        (GNNConfig(message_widths=(75,) * 4, node_widths=(75, 75, 75, 1), is_weighted=False), 35_026),
        (GNNConfig(message_widths=(50,) * 5, node_widths=(50,) * 4 + (1,), is_weighted=True, uses_fibres=False), 20_751),
        (GNNConfig(dim=3, message_widths=(175,) * 5, node_widths=(175,) * 4 + (1,), is_weighted=True), 248_851),
    ],
    ids=["heat weighted", "heat unweighted", "rectangles", "atria"],
)
def test_gnn_has_as_many_parameters_as_the_paper_says(config: GNNConfig, count: int):
    assert n_parameters(GNN(config)) == count


def library_convolution(convolution: SpectralConvolution) -> nn.Module:
    """The same convolution from the neuraloperator package: it keeps 2 k frequencies of x, negative first, and k of y."""
    neuralop = pytest.importorskip("neuralop")
    k, width = convolution.n_modes, convolution.positive.shape[-1]
    theirs = neuralop.layers.spectral_convolution.SpectralConv(width, width, (2 * k, 2 * (k - 1)), bias=False)
    weight = torch.cat([convolution.negative, convolution.positive]).permute(2, 3, 0, 1)
    with torch.no_grad():
        theirs.weight.tensor.copy_(weight)
    return theirs


@torch.no_grad()
def test_spectral_convolution_agrees_with_the_neuraloperator_package():
    torch.manual_seed(0)
    convolution = SpectralConvolution(width=50, n_modes=10)
    field = torch.randn(2, 32, 32, 50)
    expected = library_convolution(convolution)(field.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert largest_gap(convolution(field), expected) < 1e-5


@torch.no_grad()
def test_fno_is_the_classic_network_built_from_the_neuraloperator_package():
    operator = seeded(SMALL_FNO).float()
    domain = fibre_grid(8)
    batch, u = paper_batch(domain, dtype=torch.float32), random_field(2, 64, torch.float32)
    column, row = np.rint(domain.points.T * 7).astype(int)
    image = torch.zeros(2, 5, 8, 8)
    inputs = torch.cat([u, batch.fibres.expand(2, -1, -1), batch.points.expand(2, -1, -1)], dim=-1)
    image[:, :, column, row] = inputs.mT

    def at_each_pixel(linear: nn.Linear, image: Tensor) -> Tensor:
        return nn.functional.conv2d(image, linear.weight[:, :, None, None], linear.bias)

    field = at_each_pixel(operator.lift, image)
    for number, layer in enumerate(operator.layers):
        field = library_convolution(layer.spectral)(field) + at_each_pixel(layer.pointwise, field)
        if number < len(operator.layers) - 1:
            field = nn.functional.gelu(field)
    field = at_each_pixel(operator.project[2], nn.functional.gelu(at_each_pixel(operator.project[0], field)))
    assert largest_gap(operator(u, batch, NOW)[..., 0], field[:, 0, column, row]) < 1e-5


@torch.no_grad()
def test_spectral_convolution_drops_every_mode_beyond_those_kept():
    place = torch.arange(16) / 16
    kept, beyond = (torch.cos(2 * torch.pi * n * place)[None, :, None, None].repeat(1, 1, 16, 4) for n in (2, 5))
    convolution = SpectralConvolution(width=4, n_modes=3)
    assert convolution(beyond).abs().max() < 1e-6
    assert convolution(kept).abs().max() > 1e-2


def test_fno_refuses_a_domain_that_is_not_its_grid():
    with pytest.raises(InputError, match=r"8 x 8 = 64 nodes, not on 81: interpolate the data onto unit_square\(8\)"):
        FNO(SMALL_FNO)(random_field(1, 81), paper_batch(unit_square(9)), NOW)


def test_fno_refuses_modes_its_grid_cannot_tell_apart():
    with pytest.raises(InputError, match=r"5 Fourier modes .* 8 nodes a side"):
        FNO(replace(SMALL_FNO, n_modes=5))


def reference_gnn(operator: GNN, u: Tensor, domain: Domain, n_neighbors: int) -> Tensor:
    """The GNN of the paper node by node and edge by edge, from the dense weight matrix."""
    config = operator.config
    weights = -laplacian(domain, PaperGraph(n_neighbors=n_neighbors)).stiffness.toarray()
    points, fibres = torch.from_numpy(domain.points), torch.from_numpy(domain.fibres)
    rates = []
    for i in range(domain.n_nodes):
        neighbors = [j for j in range(domain.n_nodes) if j != i and weights[i, j] != 0]
        mean_weight = np.mean([weights[i, j] for j in neighbors])
        messages = []
        for j in neighbors:
            parts = [u[i], u[j] - u[i], points[j] - points[i]] + [fibres[j] - fibres[i]] * config.uses_fibres
            message = operator.message_last(operator.message_hidden(torch.cat(parts)))
            messages.append(message * (weights[i, j] / mean_weight if config.is_weighted else 1.0))
        inputs = [torch.stack(messages).mean(0), u[i]] + [fibres[i]] * config.uses_fibres
        rates.append(operator.node_last(operator.node_hidden(torch.cat(inputs))))
    return torch.stack(rates) / config.time_scale


@torch.no_grad()
@SMALL_GNNS
def test_gnn_equals_a_loop_over_nodes_and_edges(config: GNNConfig):
    operator = seeded(replace(config, time_scale=0.5))
    domain = turning_square(0.02)
    u = random_field(1, domain.n_nodes)
    expected = reference_gnn(operator, u[0], domain, n_neighbors=4)
    torch.testing.assert_close(operator(u, paper_batch(domain, n_neighbors=4), NOW)[0], expected, rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_gnn_in_space_equals_a_loop_over_nodes_and_edges():
    operator = seeded(replace(WEIGHTED, dim=3))
    ball = sphere(1)
    points = ball.points + np.random.default_rng(0).uniform(-0.05, 0.05, ball.points.shape)
    domain = make_domain(points, ball.cells, fibres=points[:, [1, 2, 0]])
    u = random_field(1, domain.n_nodes)
    expected = reference_gnn(operator, u[0], domain, n_neighbors=6)
    torch.testing.assert_close(operator(u, paper_batch(domain, n_neighbors=6), NOW)[0], expected, rtol=1e-11, atol=1e-11)


@SMALL_GNNS
def test_relabelling_nodes_relabels_the_gnn(config: GNNConfig):
    assert_relabelling(seeded(config), turning_square(0.02), paper_batch)


@torch.no_grad()
@SMALL_GNNS
def test_moving_the_domain_leaves_the_gnn_unchanged_but_turning_it_does_not(config: GNNConfig):
    operator = seeded(config)
    domain = turning_square(0.02)
    u = random_field(1, domain.n_nodes)
    before = operator(u, paper_batch(domain), NOW)
    moved = operator(u, paper_batch(replace(domain, points=domain.points + 0.5)), NOW)
    torch.testing.assert_close(moved, before, rtol=1e-9, atol=1e-9)
    assert largest_gap(operator(u, paper_batch(turned(domain, random_rotation(2, seed=0))), NOW), before) > 1e-3


@torch.no_grad()
def test_only_the_ratio_of_edge_weights_matters_to_the_gnn_and_only_where_it_is_weighted():
    domain = turning_square(0.02)
    batch, u = paper_batch(domain), random_field(1, domain.n_nodes)
    scaled = replace(batch, couplings=1e4 * batch.couplings)
    squared = replace(batch, couplings=batch.couplings**2)
    for config in (WEIGHTED, UNWEIGHTED):
        operator = seeded(config)
        before = operator(u, batch, NOW)
        torch.testing.assert_close(operator(u, scaled, NOW), before, rtol=1e-11, atol=1e-11)
        assert (largest_gap(operator(u, squared, NOW), before) > 1e-3) == config.is_weighted


@SMALL_GNNS
def test_gnn_on_a_batch_is_gnn_one_by_one_and_padding_stays_zero(config: GNNConfig):
    domains = [turning_square(0.04, seed=4), turning_square(0.02, seed=1), turning_square(0.03, seed=3)]
    assert len({paper_batch(domain).neighbors.shape[2] for domain in domains}) == 3
    assert_batching(seeded(config), domains, paper_batch)


@torch.no_grad()
@SMALL_GNNS
def test_what_padding_nodes_hold_never_reaches_real_ones(config: GNNConfig):
    operator = seeded(config)
    batch = paper_batch(turning_square(0.04), turning_square(0.02))
    clean = random_field(2, batch.points.shape[1])
    dirty = torch.where(batch.is_node[..., None], clean, torch.nan)
    assert torch.equal(operator(dirty, batch, NOW), operator(clean, batch, NOW))


def test_gnn_gradient_by_the_field_agrees_with_finite_differences():
    operator = seeded(WEIGHTED)
    batch = paper_batch(turning_square(0.08))
    u = random_field(2, batch.points.shape[1]).requires_grad_()
    assert torch.autograd.gradcheck(lambda field: operator(field, batch, NOW), (u,))


def test_gnn_refuses_widths_that_make_no_network():
    with pytest.raises(InputError, match="1 as its last node width"):
        GNN(replace(WEIGHTED, node_widths=(8, 8)))


@BOTH
def test_one_domain_serves_many_trajectories(config: FNOConfig | GNNConfig):
    assert_sharing(seeded(config), paper_batch(fibre_grid(8)))


@torch.no_grad()
@BOTH
def test_the_answer_is_a_rate_in_the_networks_unit_of_time(config: FNOConfig | GNNConfig):
    batch, u = paper_batch(fibre_grid(8)), random_field(2, 64)
    plain = seeded(config)(u, batch, NOW)
    slow = seeded(replace(config, time_scale=4.0))(u, batch, NOW)
    assert torch.equal(slow, plain / 4)


@BOTH
def test_every_parameter_gets_a_gradient_through_a_rollout(config: FNOConfig | GNNConfig):
    operator = seeded(config)
    batch, u = paper_batch(fibre_grid(8)), random_field(2, 64)
    trajectory = rollout(operator, u, batch, [0.1, 0.1], Euler(step=0.05))
    assert_every_parameter_learns(operator, trajectory.square().sum())


@torch.no_grad()
@BOTH
def test_half_precision_inside_changes_the_answer_little(config: FNOConfig | GNNConfig):
    operator = seeded(config).float()
    batch, u = paper_batch(fibre_grid(8), dtype=torch.float32), random_field(2, 64, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        half = operator(u, batch, NOW)
    assert half.dtype == torch.float32
    assert 0 < largest_gap(half, operator(u, batch, NOW)) < 0.05
