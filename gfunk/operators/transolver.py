"""After Wu et al., Transolver (2024): nodes gather in slices, slices attend to each other, and what they learn goes back."""

from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.errors import InputError
from gfunk.operators.gfunk import step_features


@dataclass(frozen=True, kw_only=True)
class TransolverConfig:
    """Sizes as theirs, but half as many layers: 373,153 parameters."""

    dim: int = 2
    width: int = 128
    n_layers: int = 4
    n_heads: int = 8
    n_slices: int = 32
    uses_fibres: bool = True
    # The network's units of length and time, in the data's: it is given x / length, and its output is du per that much time.
    length_scale: float = 1.0
    time_scale: float = 1.0


class Transolver(nn.Module):
    """Lift u, place, fibres and step, then layers of attention among slices and of a network at each node, then project.

    It gives the mean rate over the step. Where the domain lies and which way fibres point along their line change nothing;
    turning the domain does.
    """

    def __init__(self, config: TransolverConfig):
        super().__init__()
        if config.width % config.n_heads:
            raise InputError(f"network.width, {config.width}, must be a multiple of network.n_heads, {config.n_heads}")
        self.config = config
        n_fibre = config.dim * (config.dim + 1) // 2 if config.uses_fibres else 0
        self.lift = nn.Sequential(
            nn.Linear(1 + config.dim + n_fibre + 2, 2 * config.width), nn.GELU(), nn.Linear(2 * config.width, config.width)
        )
        self.layers = nn.ModuleList(SliceLayer(config) for _ in range(config.n_layers))
        self.project = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, 1))

    def forward(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]:
        if batch.points.shape[2] != self.config.dim:
            raise InputError(f"network.dim is {self.config.dim}, but points have {batch.points.shape[2]} coordinates")
        # By mass: then a slice is a part of the domain, however dense its nodes are, and padding, with none, never counts.
        shares = (batch.mass / batch.mass.sum(1, keepdim=True))[..., None]
        field = self.lift(self.inputs(torch.where(batch.is_node[..., None], u, 0), batch, shares, tau))
        for layer in self.layers:
            field = layer(field, shares)
        # Not in half precision: a step's error is carried by every later one.
        with torch.autocast(u.device.type, enabled=False):
            rate = self.project(field.to(u.dtype)) / self.config.time_scale
        return torch.where(batch.is_node[..., None], rate, 0)

    def inputs(
        self,
        u: Float[Tensor, "batch node channel"],
        batch: Batch,
        shares: Float[Tensor, "domain node 1"],
        tau: Float[Tensor, ""],
    ) -> Float[Tensor, "batch node input"]:
        centre = (shares * batch.points).sum(1, keepdim=True)
        constant = [(batch.points - centre) / self.config.length_scale]
        if self.config.uses_fibres:
            constant.append(products(batch.fibres))
        step = step_features(tau / self.config.time_scale).expand(*u.shape[:2], -1)
        return torch.cat([u, torch.cat(constant, dim=-1).expand(u.shape[0], -1, -1), step], dim=-1)


class SliceLayer(nn.Module):
    """x + attention of normalised x, then the same with a network at each node."""

    def __init__(self, config: TransolverConfig):
        super().__init__()
        self.attention = SliceAttention(config.width, config.n_heads, config.n_slices)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))
        self.at_nodes = nn.Sequential(
            nn.Linear(config.width, config.width), nn.GELU(), nn.Linear(config.width, config.width)
        )

    def forward(
        self, field: Float[Tensor, "batch node width"], shares: Float[Tensor, "domain node 1"]
    ) -> Float[Tensor, "batch node width"]:
        field = field + self.attention(self.norms[0](field), shares)
        return field + self.at_nodes(self.norms[1](field))


class SliceAttention(nn.Module):
    """Every node belongs to each slice to some degree; a slice is the mean of its nodes, and only slices attend.

    Cost grows with the number of nodes, not with its square. Heads have channels and slices of their own.
    """

    def __init__(self, width: int, n_heads: int, n_slices: int):
        super().__init__()
        self.n_heads = n_heads
        size = width // n_heads
        self.what, self.where = nn.Linear(width, width), nn.Linear(width, width)
        self.slices = nn.Linear(size, n_slices)
        nn.init.orthogonal_(self.slices.weight)  # as theirs: slices that differ from the start
        self.log_temperature = nn.Parameter(torch.full((n_heads, 1, 1), log(0.5)))
        self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.together = nn.Linear(width, width)

    def forward(
        self, field: Float[Tensor, "batch node width"], shares: Float[Tensor, "domain node 1"]
    ) -> Float[Tensor, "batch node width"]:
        logits = self.slices(self.by_heads(self.where(field))) / self.log_temperature.exp()
        belonging = torch.softmax(logits.to(shares.dtype), dim=-1)
        counted = shares[:, None] * belonging
        tokens = counted.mT @ self.by_heads(self.what(field)) / (counted.sum(2)[..., None] + SMALLEST_SLICE)
        affinity = self.query(tokens) @ self.key(tokens).mT / tokens.shape[-1] ** 0.5
        tokens = torch.softmax(affinity.to(shares.dtype), dim=-1) @ self.value(tokens)
        return self.together((belonging @ tokens).transpose(1, 2).flatten(2))

    def by_heads(self, field: Float[Tensor, "batch node width"]) -> Float[Tensor, "batch _ node _"]:
        return field.unflatten(2, (self.n_heads, -1)).transpose(1, 2)


# Part of the domain; a slice that nobody belongs to would be 0 / 0.
SMALLEST_SLICE = 1e-6


def products(vectors: Float[Tensor, "domain node dim"]) -> Float[Tensor, "domain node feature"]:
    """Products of all pairs of components: the same for a fibre and its opposite, which are one."""
    dim = vectors.shape[2]
    return torch.stack([vectors[..., i] * vectors[..., j] for i in range(dim) for j in range(i + 1)], dim=-1)
