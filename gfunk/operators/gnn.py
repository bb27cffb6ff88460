"""The message-passing network of Iakovlev et al. (2020): the paper's rival that sees only neighbours."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.errors import InputError


@dataclass(frozen=True, kw_only=True)
class GNNConfig:
    """Widths of each layer's output; Table 1's counts fix them (heat with edge weights: (75, 75) and (75, 1))."""

    dim: int = 2
    message_widths: tuple[int, ...]
    node_widths: tuple[int, ...]
    is_weighted: bool
    uses_fibres: bool = True
    # The network's unit of time, in the data's: its output is du per that much time.
    time_scale: float = 1.0


class GNN(nn.Module):
    """Messages from the neighbours, their mean, and a network of that mean at each node.

    The graph is the batch's: pack it with `PaperGraph` for the paper's neighbours and weights (Eq. 8). It gives the rate of
    change, whatever tau is. Coordinates and fibres enter as they are, so turning the domain changes the answer.
    """

    def __init__(self, config: GNNConfig):
        super().__init__()
        if not config.message_widths or config.node_widths[-1:] != (1,):
            raise InputError(
                "a GNN needs at least one message layer and 1 as its last node width, "
                f"not {config.message_widths} and {config.node_widths}"
            )
        self.config = config
        n_fibre = config.dim if config.uses_fibres else 0
        message = (2 + config.dim + n_fibre, *config.message_widths)
        node = (config.message_widths[-1] + 1 + n_fibre, *config.node_widths)
        self.message_hidden, self.message_last = hidden_layers(message[:-1]), nn.Linear(message[-2], message[-1])
        self.node_hidden, self.node_last = hidden_layers(node[:-1]), nn.Linear(node[-2], node[-1])

    def forward(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]:
        hidden = self.message_hidden(self.edge_features(u, batch))
        mean = torch.einsum("bns,bnsw->bnw", neighbor_shares(batch, self.config.is_weighted).to(hidden.dtype), hidden)
        # The shares sum to 1, so the last, linear layer may follow the mean: one product a node instead of one an edge.
        fibres = [batch.fibres.expand(u.shape[0], -1, -1)] if self.config.uses_fibres else []
        rate = self.node_last(self.node_hidden(torch.cat([self.message_last(mean), u, *fibres], dim=-1)))
        return torch.where(batch.is_node[..., None], rate.to(u.dtype) / self.config.time_scale, 0)

    def edge_features(
        self, u: Float[Tensor, "batch node channel"], batch: Batch
    ) -> Float[Tensor, "batch node slot feature"]:
        """u_i, u_j - u_i, x_j - x_i and f_j - f_i for each neighbour j of node i."""
        n_slots = batch.neighbors.shape[2]
        constant = [batch.points, batch.fibres] if self.config.uses_fibres else [batch.points]
        steps = [differences(field, batch.neighbors).expand(u.shape[0], -1, -1, -1) for field in constant]
        own = u[:, :, None].expand(-1, -1, n_slots, -1)
        return torch.cat([own, differences(u, batch.neighbors), *steps], dim=-1)


def hidden_layers(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear maps from each width to the next, tanh after each."""
    return nn.Sequential(*(part for sizes in pairwise(widths) for part in (nn.Linear(*sizes), nn.Tanh())))


def neighbor_shares(batch: Batch, is_weighted: bool) -> Float[Tensor, "domain node slot"]:
    """How much each neighbour counts in its node's mean: equally, or by edge weight; empty slots not at all.

    Slots are empty where the coupling is 0.
    """
    # Paper: multiplies messages by w_ij of Eq. 8, which are of order 1 / h^2. Here each is first divided by the mean over
    # its node's neighbours: of order 1 on any mesh, and the mean of the weighted messages is a weighted mean.
    weights = batch.couplings if is_weighted else (batch.couplings != 0).to(batch.couplings.dtype)
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1, total)


def differences(
    field: Float[Tensor, "batch node width"], neighbors: Int[Tensor, "domain node slot"]
) -> Float[Tensor, "batch node slot width"]:
    """field_j - field_i for each neighbour j of node i."""
    n_batch, n_nodes, _ = field.shape
    first = n_nodes * torch.arange(n_batch, device=field.device)[:, None, None]
    # An embedding, as its backward pass adds in a fixed order; that of indexing does not on the CPU.
    return nn.functional.embedding(first + neighbors, field.flatten(0, 1)) - field[:, :, None]
