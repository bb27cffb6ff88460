"""After Sharp et al., DiffusionNet (2022): channels diffuse for learned times, and a network at each node does the rest."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gfunk.batch import Batch, stiffness_product
from gfunk.operators.gfunk import step_features, to_modes, to_nodes


@dataclass(frozen=True, kw_only=True)
class DiffusionNetConfig:
    """Sizes as theirs, four layers of 128 channels and 128 modes, less most of the gradients: 223,361 parameters."""

    width: int = 128
    n_layers: int = 4
    n_modes: int = 128
    # Channels whose gradients are compared, at the nodes; 0: none.
    gradient_width: int = 16
    # The network's unit of time, in the data's: its output is du per that much time, and diffusion times are counted in it.
    time_scale: float = 1.0


class DiffusionNet(nn.Module):
    """Lift u and step, then layers of diffusion and a network at each node, then project: the mean rate over the step.

    Space is seen through eigenvalues and inner products alone, so turning the domain, signs and order of modes never
    matter. Diffusion here is the domain's own, div(K grad), not that of the bare surface as theirs: so fibres are known.
    """

    def __init__(self, config: DiffusionNetConfig):
        super().__init__()
        self.config = config
        self.lift = nn.Linear(3, config.width)
        self.layers = nn.ModuleList(DiffusionLayer(config) for _ in range(config.n_layers))
        self.project = nn.Linear(config.width, 1)

    def forward(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]:
        batch = batch.with_modes(self.config.n_modes)
        step = step_features(tau / self.config.time_scale).expand(*u.shape[:2], -1)
        field = self.lift(torch.cat([torch.where(batch.is_node[..., None], u, 0), step], dim=-1))
        for layer in self.layers:
            field = layer(field, batch)
        # Not in half precision: a step's error is carried by every later one.
        with torch.autocast(u.device.type, enabled=False):
            rate = self.project(field.to(u.dtype)) / self.config.time_scale
        return torch.where(batch.is_node[..., None], rate, 0)


FIRST_TIMES = (-6.0, 4.0)  # as powers of 2, spread over the channels


class DiffusionLayer(nn.Module):
    """x + network(x, diffused x, inner products of the gradients of diffused x)."""

    def __init__(self, config: DiffusionNetConfig):
        super().__init__()
        self.config = config
        # Logarithms: times stay positive.
        self.log2_times = nn.Parameter(torch.linspace(*FIRST_TIMES, config.width))
        if config.gradient_width:
            self.one, self.other = (nn.Linear(config.width, config.gradient_width, bias=False) for _ in range(2))
        self.at_nodes = nn.Sequential(
            nn.Linear(2 * config.width + config.gradient_width, config.width),
            nn.GELU(),
            nn.Linear(config.width, config.width),
        )

    def forward(self, field: Float[Tensor, "batch node width"], batch: Batch) -> Float[Tensor, "batch node width"]:
        diffused = self.diffused(field, batch)
        known = [field, diffused]
        if self.config.gradient_width:
            # Theirs turn gradients in the tangent plane too; that needs a side of the surface to be the upper one.
            slopes = self.config.time_scale * gradient_products(self.one(diffused), self.other(diffused), batch)
            known.append(torch.tanh(slopes).to(field.dtype))
        return field + self.at_nodes(torch.cat(known, dim=-1))

    def diffused(self, field: Float[Tensor, "batch node width"], batch: Batch) -> Float[Tensor, "batch node width"]:
        """Each channel after its own time; what no mode holds is dropped."""
        rates = self.config.time_scale * batch.eigenvalues
        return to_nodes(torch.exp(-rates[..., None] * self.log2_times.exp2()) * to_modes(field, batch), batch)


def gradient_products(
    one: Float[Tensor, "batch node width"], other: Float[Tensor, "batch node width"], batch: Batch
) -> Float[Tensor, "batch node width"]:
    """grad f . K grad g at the nodes, channel by channel, from L = inertia^-1 S alone: (f L g + g L f - L(f g)) / 2."""
    # Not in half precision: the three nearly cancel.
    f, g = one.to(batch.mass.dtype), other.to(batch.mass.dtype)
    of_f, of_g, of_both = stiffness_product(torch.cat([f, g, f * g], dim=-1), batch).chunk(3, dim=-1)
    inertia = batch.inertia[..., None].clamp_min(torch.finfo(batch.inertia.dtype).tiny)
    return (f * of_g + g * of_f - of_both) / (2 * inertia)
