"""The Fourier neural operator of Li et al. (2020) on a regular square grid: the paper's rival on the heat equation."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.errors import InputError


@dataclass(frozen=True, kw_only=True)
class FNOConfig:
    """Sizes as in A.1.2; with them the network has the 2,017,157 parameters of Table 1, a complex number counted once."""

    n_side: int = 32
    width: int = 50
    n_layers: int = 4
    n_modes: int = 10  # a direction
    # The network's unit of time, in the data's: its output is du per that much time.
    time_scale: float = 1.0


class FNO(nn.Module):
    """Lift u, fibre and place, then Fourier layers with GELU between, then project. It gives the rate, whatever tau is.

    The nodes are those of `unit_square(n_side)`, in its order.
    """

    def __init__(self, config: FNOConfig):
        super().__init__()
        if not 1 <= config.n_modes <= config.n_side // 2:
            raise InputError(
                f"{config.n_modes} Fourier modes a direction can't be told apart on {config.n_side} nodes a side: "
                f"ask for 1 to {config.n_side // 2}"
            )
        self.config = config
        self.lift = nn.Linear(5, config.width)
        self.layers = nn.ModuleList(FourierLayer(config.width, config.n_modes) for _ in range(config.n_layers))
        self.project = nn.Sequential(nn.Linear(config.width, 128), nn.GELU(), nn.Linear(128, 1))

    def forward(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]:
        n_batch, n_nodes, _ = u.shape
        n_side = self.config.n_side
        if n_nodes != n_side**2:
            raise InputError(
                f"this FNO works on {n_side} x {n_side} = {n_side**2} nodes, not on {n_nodes}: "
                f"interpolate the data onto unit_square({n_side})"
            )
        fibres, points = batch.fibres.expand(n_batch, -1, -1), batch.points.expand(n_batch, -1, -1)
        # Paper: silent on padding against the periodic wrap-around of the Fourier transform; none, as neuraloperator does.
        field = self.lift(torch.cat([u, fibres, points], dim=-1)).unflatten(1, (n_side, n_side))
        for number, layer in enumerate(self.layers):
            field = layer(nn.functional.gelu(field) if number else field)
        return self.project(field).flatten(1, 2).to(u.dtype) / self.config.time_scale


class FourierLayer(nn.Module):
    """Spectral convolution plus a linear map at each node."""

    def __init__(self, width: int, n_modes: int):
        super().__init__()
        self.spectral = SpectralConvolution(width, n_modes)
        self.pointwise = nn.Linear(width, width)

    def forward(self, field: Float[Tensor, "batch row column width"]) -> Float[Tensor, "batch row column width"]:
        return self.spectral(field) + self.pointwise(field)


class SpectralConvolution(nn.Module):
    """A complex width x width matrix for each low Fourier mode; the higher modes are dropped.

    The field is real, so half the modes say all: frequencies along columns from 0 up, along rows of both signs.
    """

    def __init__(self, width: int, n_modes: int):
        super().__init__()
        self.n_modes = n_modes
        shape = (n_modes, n_modes, width, width)
        self.positive = nn.Parameter(torch.rand(shape, dtype=torch.cfloat) / width**2)
        self.negative = nn.Parameter(torch.rand(shape, dtype=torch.cfloat) / width**2)

    def forward(self, field: Float[Tensor, "batch row column width"]) -> Float[Tensor, "batch row column width"]:
        k = self.n_modes
        # There is no Fourier transform in bfloat16.
        with torch.autocast(field.device.type, enabled=False):
            modes = torch.fft.rfft2(field.to(torch.promote_types(field.dtype, torch.float32)), dim=(1, 2))
            kept = torch.zeros_like(modes)
            kept[:, :k, :k] = torch.einsum("bklw,klwv->bklv", modes[:, :k, :k], self.positive.to(modes.dtype))
            kept[:, -k:, :k] = torch.einsum("bklw,klwv->bklv", modes[:, -k:, :k], self.negative.to(modes.dtype))
            return torch.fft.irfft2(kept, s=field.shape[1:3], dim=(1, 2))
