"""What a test may claim: orders of convergence, equal matrices, operators that only see what they should."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from problems import random_field, relabelled
from scipy.sparse import sparray
from torch import Tensor

from gfunk.batch import Batch
from gfunk.domain import Domain
from gfunk.laplacian import Laplacian
from gfunk.operators import Operator

NOW = torch.tensor(0.0, dtype=torch.float64)


def observed_orders(errors: Sequence[float], sizes: Sequence[float]) -> Float[np.ndarray, " step"]:
    """The power of the size each error follows, between one size and the next."""
    return np.diff(np.log(errors)) / np.diff(np.log(sizes))


def assert_order(errors: Sequence[float], sizes: Sequence[float], expected: float, within: float = 0.2):
    """Errors fall like size^expected: every pair of neighbouring sizes says so."""
    orders = observed_orders(errors, sizes)
    assert np.abs(orders - expected).max() <= within, f"orders {orders}, not {expected}: errors {errors} at sizes {sizes}"


def assert_same_matrix(got: sparray, expected: sparray, tolerance: float):
    """No entry differs by more than `tolerance` of the largest."""
    gap, scale = abs(got - expected).max(), abs(expected).max()
    assert gap <= tolerance * scale, f"entries differ by {gap / scale:.2e} of the largest"


def assert_same_laplacian(got: Laplacian, expected: Laplacian, tolerance: float):
    assert_same_matrix(got.stiffness, expected.stiffness, tolerance)
    assert_same_matrix(got.mass, expected.mass, tolerance)


def assert_is_laplacian(laplacian: Laplacian):
    """S is symmetric to the last bit, has rows that sum to 0 and no negative eigenvalue; M is symmetric and positive."""
    stiffness, mass = laplacian.stiffness, laplacian.mass
    assert (stiffness != stiffness.T).nnz == 0
    assert (mass != mass.T).nnz == 0
    assert np.abs(stiffness.sum(axis=1)).max() <= 1e-13 * abs(stiffness).max() * np.diff(stiffness.indptr).max()
    assert np.linalg.eigvalsh(stiffness.toarray())[0] >= -1e-12 * abs(stiffness).max()
    assert np.linalg.eigvalsh(mass.toarray())[0] > 0


def relative_gap(got: np.ndarray, expected: np.ndarray) -> float:
    """Euclidean size of the difference, relative to what was expected."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def largest_gap(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value expected."""
    return float((got - expected).abs().max() / expected.abs().max())


@torch.no_grad()
def assert_relabelling(
    operator: Operator, domain: Domain, packed: Callable[..., Batch], tau: Tensor = NOW, tolerance: float = 1e-10
):
    """Other node numbers give the same answer in the other order, with Laplacian and modes found anew."""
    order = np.random.default_rng(3).permutation(domain.n_nodes)
    u = random_field(2, domain.n_nodes)
    before = operator(u, packed(domain), tau)
    after = operator(u[:, order], packed(relabelled(domain, order)), tau)
    assert largest_gap(after, before[:, order]) <= tolerance


@torch.no_grad()
def assert_batching(
    operator: Operator, domains: Sequence[Domain], packed: Callable[..., Batch], tau: Tensor = NOW, tolerance: float = 1e-10
):
    """Domains of different sizes side by side answer as each alone, whatever padding holds; padding stays zero."""
    sizes = [domain.n_nodes for domain in domains]
    assert len(set(sizes)) == len(domains)
    u = random_field(len(domains), max(sizes))
    rates = operator(u, packed(*domains), tau)
    for number, (domain, size) in enumerate(zip(domains, sizes, strict=True)):
        alone = operator(u[number : number + 1, :size], packed(domain), tau)
        assert largest_gap(rates[number, :size], alone[0]) <= tolerance
        assert (rates[number, size:] == 0).all()


@torch.no_grad()
def assert_sharing(operator: Operator, batch: Batch, tau: Tensor = NOW, tolerance: float = 1e-12):
    """One domain serves many trajectories: as each alone, and as the domain repeated for each."""
    u = random_field(3, batch.points.shape[1])
    many = operator(u, batch, tau)
    assert largest_gap(torch.cat([operator(each[None], batch, tau) for each in u]), many) <= tolerance
    assert largest_gap(operator(u, batch.select(torch.zeros(3, dtype=torch.int64)), tau), many) <= tolerance


def assert_every_parameter_learns(operator: torch.nn.Module, loss: Tensor):
    loss.backward()
    for name, parameter in operator.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
