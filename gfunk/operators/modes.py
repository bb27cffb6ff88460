"""The rival that learns nothing: diffusion integrated exactly in the modes kept. Who does not beat it learned nothing."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.operators.gfunk import mean_decay, to_modes, to_nodes


@dataclass(frozen=True, kw_only=True)
class ExactModesConfig:
    """Nothing to set but how many modes."""

    n_modes: int


class ExactModes(nn.Module):
    """u(t + tau) = Psi exp(-Lambda tau) Psi^T M u (Eq. 7 with its missing minus sign); what no mode holds is dropped."""

    def __init__(self, config: ExactModesConfig):
        super().__init__()
        self.config = config

    def forward(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]:
        batch = batch.with_modes(self.config.n_modes)
        modes = to_modes(u, batch)
        rate = to_nodes(mean_decay(batch.eigenvalues, tau)[..., None] * modes, batch)
        dropped = u - to_nodes(modes, batch)
        return rate - torch.where(tau > 0, dropped / tau.clamp_min(1e-30), torch.zeros_like(dropped))
