"""How far one trajectory is from another: the same functions are losses and metrics. One number a trajectory."""

from jaxtyping import Float
from torch import Tensor

from gfunk.batch import Batch, stiffness_product


def relative_l2(
    predicted: Float[Tensor, "batch time node channel"], true: Float[Tensor, "batch time node channel"], batch: Batch
) -> Float[Tensor, " batch"]:
    """||predicted - true|| / ||true|| over all times and nodes, each node counting once (as the paper's tables)."""
    real = batch.is_node[:, None, :, None]
    return _norm((predicted - true) * real) / _norm(true * real)


def relative_energy(
    predicted: Float[Tensor, "batch time node channel"], true: Float[Tensor, "batch time node channel"], batch: Batch
) -> Float[Tensor, " batch"]:
    """The same of gradients, in the norm sqrt(sum over times of u . S u): the error's slopes, along fibres most."""
    return (_energy(predicted - true, batch) / _energy(true, batch)).sqrt()


def relative_h1(
    predicted: Float[Tensor, "batch time node channel"], true: Float[Tensor, "batch time node channel"], batch: Batch
) -> Float[Tensor, " batch"]:
    """Relative l2 plus relative energy: the paper's relative H1 loss with its gradient weighted by K."""
    return relative_l2(predicted, true, batch) + relative_energy(predicted, true, batch)


def _norm(field: Tensor) -> Tensor:
    # A floor far below any error keeps the gradient finite where prediction and truth agree exactly.
    return (field.square().sum(dim=(1, 2, 3)) + 1e-30).sqrt()


def _energy(field: Float[Tensor, "batch time node channel"], batch: Batch) -> Float[Tensor, " batch"]:
    flat = field.permute(0, 2, 1, 3).flatten(2)
    # Never negative but for rounding, though obtuse triangles have negative couplings.
    return (flat * stiffness_product(flat, batch)).sum(dim=(1, 2)).clamp_min(0) + 1e-30
