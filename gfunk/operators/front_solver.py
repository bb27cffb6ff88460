"""Linear systems along fronts, solved in the order in which a front comes, as their rows are almost triangular in it."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, SuperLU, bicgstab, spilu, splu
from torch import Tensor

from gfunk.physics.compiling import HAS_TRITON

SWEEPS_AT_ONCE = 16  # before it is asked whether anything has changed, for which a GPU has to wait
# (places, rows, right, start, accuracy) -> the fields whose rows, each at its places, of which the first is the node itself,
# sum up to the right side.
Solve = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def with_itself(places: Int[Tensor, "batch node _"]) -> Int[Tensor, "batch node neighbor"]:
    """Each node before the places it is given."""
    nodes = torch.arange(places.shape[1], device=places.device)[:, None]
    return torch.cat([nodes.expand(len(places), -1, 1), places], dim=-1)


def solver(ahead: Float[Tensor, "batch node 1"], *, bends: bool = False) -> Solve:
    """For rows of a front that arrives at about these times. bends: they will change a bit; fields are of one feature."""
    if ahead.device.type != "cpu":
        if not HAS_TRITON:
            return swept
        from gfunk.operators import front_kernels

        return partial(front_kernels.solved, ahead[..., 0].argsort(-1))
    in_order = [InOrder(each, bends) for each in ahead]

    def solve(places: Tensor, rows: Tensor, right: Tensor, start: Tensor, accuracy: float) -> Tensor:
        systems = zip(places, rows, right, start, strict=True)
        return torch.stack([each.solved(*system, accuracy) for each, system in zip(in_order, systems, strict=True)])

    return solve


def swept(
    places: Int[Tensor, "batch node neighbor"],
    rows: Float[Tensor, "batch node neighbor"],
    right: Float[Tensor, "batch node feature"],
    start: Float[Tensor, "batch node feature"],
    accuracy: float,
) -> Float[Tensor, "batch node feature"]:
    """By sweeps over all nodes at once, until sixteen of them change no more than the accuracy."""
    # No row moves its node by more than the others pull, or couplings that push would swing up.
    share = 1 / torch.maximum(rows[..., :1], rows[..., 1:].abs().sum(-1, keepdim=True))
    index = places.flatten(1)[..., None].expand(-1, -1, right.shape[-1])
    now = start
    for _ in range(start.shape[1]):
        before = now
        for _ in range(SWEEPS_AT_ONCE):
            values = now.gather(1, index).unflatten(1, places.shape[1:])
            now = now + share * (right - (rows[..., None] * values).sum(2))
        if float((now - before).abs().max()) <= accuracy:
            break
    return now


class InOrder:
    """Solves for one front, node by node in the order in which it comes: so rows are almost triangular, factors small."""

    def __init__(self, ahead: Float[Tensor, "node 1"], bends: bool):
        self.order, self.bends = ahead[:, 0].argsort().numpy(), bends
        self.rank = np.argsort(self.order).astype(np.int32)
        self.factors: SuperLU | None = None

    def solved(
        self,
        places: Int[Tensor, "node neighbor"],
        rows: Float[Tensor, "node neighbor"],
        right: Float[Tensor, "node feature"],
        start: Float[Tensor, "node feature"],
        accuracy: float,
    ) -> Float[Tensor, "node feature"]:
        n_nodes, n_places = places.shape
        entries = rows.double().numpy()[self.order].ravel(), self.rank[places.numpy()[self.order]].ravel()
        begins = np.arange(0, n_nodes * n_places + 1, n_places, dtype=np.int32)
        matrix = csr_array((*entries, begins), shape=(n_nodes, n_nodes))
        wanted, found = (each.double().numpy()[self.order] for each in (right, start))
        if self.bends:
            found = self._bent(matrix, wanted[:, 0], found[:, 0], accuracy)[:, None]
        else:
            found = splu(matrix.tocsc(), permc_spec="NATURAL").solve(wanted)
        return torch.from_numpy(found[self.rank]).to(right.dtype)

    def _bent(self, matrix: csr_array, right: np.ndarray, start: np.ndarray, accuracy: float) -> np.ndarray:
        """By steps with the factors there are, of rows not much different; what is missing in rows adds up along a ray."""
        factors, missing = self.factors or _incomplete_factors(matrix), right - matrix @ start
        nearly = LinearOperator(matrix.shape, factors.solve)
        step, failed = bicgstab(matrix, missing, M=nearly, rtol=0, atol=0.01 * accuracy, maxiter=30)
        if failed:
            factors = splu(matrix.tocsc())
            step = factors.solve(missing)
        self.factors = factors
        return start + step


def _incomplete_factors(matrix: csr_array) -> SuperLU:
    try:
        return spilu(matrix.tocsc(), drop_tol=0.02, fill_factor=3, permc_spec="NATURAL")
    except RuntimeError:
        # Among thin triangles, whose couplings push, what is left of a row may be nothing.
        return splu(matrix.tocsc())
