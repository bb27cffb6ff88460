from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import batch_of, turning_square
from torch import Tensor

from gfunk.laplacian import laplacian
from gfunk.norms import relative_energy, relative_h1, relative_l2

Norm = Callable[..., Tensor]
NORMS = pytest.mark.parametrize("norm", [relative_l2, relative_energy])
DOMAINS = [turning_square(0.04), turning_square(0.02)]
BATCH = batch_of(*DOMAINS, n_modes=2)


def trajectories(seed: int) -> Tensor:
    """Three times of one field on either domain, with something in the padding too."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, BATCH.points.shape[1], 1, generator=generator, dtype=torch.float64)


@NORMS
def test_a_trajectory_is_at_distance_zero_from_itself(norm: Norm):
    assert norm(trajectories(0), trajectories(0), BATCH).max() < 1e-7


@NORMS
def test_predicting_nothing_is_at_distance_one(norm: Norm):
    torch.testing.assert_close(norm(torch.zeros_like(trajectories(0)), trajectories(0), BATCH), torch.ones(2).double())


@NORMS
@given(scale=st.floats(1e-3, 1e3))
def test_units_do_not_matter(norm: Norm, scale: float):
    before = norm(trajectories(0), trajectories(1), BATCH)
    torch.testing.assert_close(norm(scale * trajectories(0), scale * trajectories(1), BATCH), before, rtol=1e-12, atol=0)


@NORMS
@pytest.mark.parametrize("which", ["predicted", "true"])
def test_one_nan_makes_that_trajectory_nan_and_no_other(norm: Norm, which: str):
    pair = {"predicted": trajectories(0), "true": trajectories(1)}
    pair[which][1, 2, 5] = torch.nan
    assert norm(**pair, batch=BATCH).isnan().tolist() == [False, True]


@NORMS
def test_padding_does_not_count(norm: Norm):
    other = torch.where(BATCH.is_node[:, None, :, None], trajectories(0), 1e6)
    before = norm(trajectories(0), trajectories(1), BATCH)
    assert torch.equal(norm(other, trajectories(1), BATCH), before)
    alone = batch_of(DOMAINS[0], n_modes=2)
    n = DOMAINS[0].n_nodes
    torch.testing.assert_close(norm(trajectories(0)[:1, :, :n], trajectories(1)[:1, :, :n], alone), before[:1])


@NORMS
def test_one_domain_serves_many_trajectories(norm: Norm):
    shared = BATCH.select(torch.tensor([1]))
    torch.testing.assert_close(
        norm(trajectories(0), trajectories(1), shared),
        norm(trajectories(0), trajectories(1), BATCH.select(torch.tensor([1, 1]))),
    )


def by_hand(matrix: Callable[[np.ndarray], np.ndarray], number: int) -> float:
    """sqrt(sum over times of d . A d / sum over times of u . A u) for one trajectory."""
    n = DOMAINS[number].n_nodes
    predicted, true = (trajectories(seed)[number, :, :n, 0].numpy() for seed in (0, 1))
    error = predicted - true
    return np.sqrt(sum(d @ matrix(d) for d in error) / sum(u @ matrix(u) for u in true))


@pytest.mark.parametrize("number", [0, 1])
def test_norms_are_those_of_the_matrices(number: int):
    pair = trajectories(0), trajectories(1)
    stiffness = laplacian(DOMAINS[number]).stiffness
    energy, l2 = by_hand(lambda d: stiffness @ d, number), by_hand(lambda d: d, number)
    assert float(relative_energy(*pair, BATCH)[number]) == pytest.approx(energy, rel=1e-10)
    assert float(relative_l2(*pair, BATCH)[number]) == pytest.approx(l2, rel=1e-12)
    assert float(relative_h1(*pair, BATCH)[number]) == pytest.approx(energy + l2, rel=1e-10)


def test_a_shift_costs_no_energy():
    assert relative_energy(trajectories(0) + 3, trajectories(0), BATCH).max() < 1e-7


@NORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_finite_where_prediction_and_truth_agree(norm: Norm, dtype: torch.dtype):
    batch = replace(BATCH, couplings=BATCH.couplings.to(dtype))
    predicted = trajectories(0).to(dtype).requires_grad_()
    norm(predicted, predicted.detach().clone(), batch).sum().backward()
    assert predicted.grad is not None and predicted.grad.isfinite().all()


@NORMS
def test_gradients_agree_with_finite_differences(norm: Norm):
    predicted = trajectories(0)[:, :2].requires_grad_()
    assert torch.autograd.gradcheck(lambda field: norm(field, trajectories(1)[:, :2], BATCH), (predicted,))
