"""The Geo-FNO of Li et al. (2022) in the plane: the paper's rival on rectangles. Fourier layers on a latent square grid."""

from dataclasses import dataclass
from math import pi

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.errors import InputError
from gfunk.operators.fno import FourierLayer, SpectralConvolution


@dataclass(frozen=True, kw_only=True)
class GeoFNOConfig:
    """Sizes as in A.2.2; with them the network has the 2,515,307 parameters of Table 1, a complex number counted once."""

    n_side: int = 32  # of the latent grid
    width: int = 50
    n_layers: int = 5  # the first leads from the nodes to the grid, the last back
    n_frequencies: int = 10  # a direction
    # The network's units of length and time, in the data's: it is given x / length, and its output is du per that much time.
    length_scale: float = 1.0
    time_scale: float = 1.0


class GeoFNO(nn.Module):
    """Fourier layers on a square grid; between it and the nodes, Fourier sums over the nodes. The rate, whatever tau is.

    Domains fill the box around them, as rectangles do: that box is the latent square, and no deformation is learned. Where
    the domain lies changes nothing, turning it does.
    """

    def __init__(self, config: GeoFNOConfig):
        super().__init__()
        if not 1 <= config.n_frequencies <= config.n_side // 2:
            raise InputError(
                f"{config.n_frequencies} frequencies a direction can't be told apart on {config.n_side} nodes a side: "
                f"ask for 1 to {config.n_side // 2}"
            )
        if config.n_layers < 2:
            raise InputError(f"a Geo-FNO needs two layers, to the grid and back, not {config.n_layers}")
        self.config = config
        self.lift = nn.Linear(4, config.width)
        self.to_grid, self.to_nodes = (SpectralConvolution(config.width, config.n_frequencies) for _ in range(2))
        self.layers = nn.ModuleList(FourierLayer(config.width, config.n_frequencies) for _ in range(config.n_layers - 2))
        self.of_place = nn.ModuleList(nn.Linear(2, config.width) for _ in range(config.n_layers))
        self.project = nn.Sequential(nn.Linear(config.width, 128), nn.GELU(), nn.Linear(128, 1))

    def forward(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]:
        if batch.points.shape[2] != 2:
            raise InputError(f"Geo-FNO works in the plane, not on points of {batch.points.shape[2]} coordinates")
        n_side = self.config.n_side
        corner, sides = bounding_box(batch)
        places = (batch.points - corner) / sides
        pixels = regular_grid(n_side, places)
        # Not quite the whole period: opposite sides are neighbours there, as the outermost pixels are, not the same place.
        waves = plane_waves((n_side - 1) / n_side * places, self.config.n_frequencies)
        # By mass: then sums are integrals, however dense the nodes are, and padding, which has none, never counts.
        shares = batch.mass / batch.mass.sum(1, keepdim=True)

        field = self.lift(self.inputs(torch.where(batch.is_node[..., None], u, 0), batch, corner))
        # There is no Fourier transform in bfloat16.
        with torch.autocast(u.device.type, enabled=False):
            modes = modes_of_nodes(field.to(u.dtype), waves, shares) * n_side**2
            field = grid_of_modes(mixed(modes, self.to_grid), n_side)
        field = nn.functional.gelu(field + self.of_place[0](pixels))
        for layer, of_place in zip(self.layers, self.of_place[1:-1], strict=True):
            field = nn.functional.gelu(layer(field) + of_place(pixels))
        with torch.autocast(u.device.type, enabled=False):
            modes = modes_of_grid(field.to(u.dtype), self.config.n_frequencies)
            field = nodes_of_modes(mixed(modes, self.to_nodes), waves) / n_side**2
        rate = self.project(field + self.of_place[-1](places)).to(u.dtype) / self.config.time_scale
        return torch.where(batch.is_node[..., None], rate, 0)

    def inputs(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, corner: Float[Tensor, "domain 1 2"]
    ) -> Float[Tensor, "batch node input"]:
        """u, the place, and the fibre's first component.

        The latent square is the same for all boxes; their sides are known from the place alone, which is not stretched.
        """
        # Paper: the text lists u, fibre and place, which are five; the count needs four. On its rectangles all fibres lie
        # along x, so their second component, 0 everywhere, is the one left out.
        place = (batch.points - corner) / self.config.length_scale
        constant = torch.cat([place, batch.fibres[..., :1]], dim=-1)
        return torch.cat([u, constant.expand(u.shape[0], -1, -1)], dim=-1)


def bounding_box(batch: Batch) -> tuple[Float[Tensor, "domain 1 dim"], Float[Tensor, "domain 1 dim"]]:
    """The lowest corner of the box around each domain, and its sides."""
    is_node = batch.is_node[..., None]
    lowest = torch.where(is_node, batch.points, torch.inf).amin(1, keepdim=True)
    highest = torch.where(is_node, batch.points, -torch.inf).amax(1, keepdim=True)
    return lowest, highest - lowest


def regular_grid(n_side: int, like: Tensor) -> Float[Tensor, "row column 2"]:
    """Places of the pixels in the box, the outermost on its sides."""
    along = torch.linspace(0, 1, n_side, dtype=like.dtype, device=like.device)
    return torch.stack(torch.meshgrid(along, along, indexing="ij"), dim=-1)


def plane_waves(
    places: Float[Tensor, "domain node 2"], n: int
) -> tuple[Float[Tensor, "domain node row column"], Float[Tensor, "domain node row column"]]:
    """Cosines and sines of 2 pi (k x + l y): k from 0 to n - 1, then from -n to -1; for each of them l from 0 to n - 1."""
    columns = torch.arange(n, dtype=places.dtype, device=places.device)
    rows = torch.cat([columns, columns - n])
    phases = 2 * pi * (places[..., :1, None] * rows[:, None] + places[..., 1:, None] * columns)
    return phases.cos(), phases.sin()


def modes_of_nodes(
    field: Float[Tensor, "batch node width"],
    waves: tuple[Float[Tensor, "domain node row column"], Float[Tensor, "domain node row column"]],
    shares: Float[Tensor, "domain node"],
) -> Complex[Tensor, "batch row column width"]:
    """The mean of the field times exp(-i phase), each node counted by its share."""
    weighted = shares[..., None] * field
    cosines, sines = (torch.einsum("bnkl,bnw->bklw", wave, weighted) for wave in waves)
    return torch.complex(cosines, -sines)


def nodes_of_modes(
    modes: Complex[Tensor, "batch row column width"],
    waves: tuple[Float[Tensor, "domain node row column"], Float[Tensor, "domain node row column"]],
) -> Float[Tensor, "batch node width"]:
    """The real field with these modes: all with l > 0 count twice, for those with opposite k and l, which are not kept."""
    both = torch.cat([modes[:, :, :1], 2 * modes[:, :, 1:]], dim=2)
    cosines, sines = waves
    return torch.einsum("bnkl,bklw->bnw", cosines, both.real) - torch.einsum("bnkl,bklw->bnw", sines, both.imag)


def modes_of_grid(field: Float[Tensor, "batch _ _ width"], n: int) -> Complex[Tensor, "batch row column width"]:
    """The low modes of a field on the grid, in the order of `plane_waves`."""
    modes = torch.fft.rfft2(field, dim=(1, 2))
    return torch.cat([modes[:, :n, :n], modes[:, -n:, :n]], dim=1)


def grid_of_modes(modes: Complex[Tensor, "batch row column width"], n_side: int) -> Float[Tensor, "batch _ _ width"]:
    """The real field on the grid with these low modes and no others."""
    n_batch, _, n, width = modes.shape
    between = modes.new_zeros(n_batch, n_side - 2 * n, n, width)
    rows = torch.cat([modes[:, :n], between, modes[:, n:]], dim=1)
    return torch.fft.irfft2(nn.functional.pad(rows, (0, 0, 0, n_side // 2 + 1 - n)), s=(n_side, n_side), dim=(1, 2))


def mixed(
    modes: Complex[Tensor, "batch row column width"], weights: SpectralConvolution
) -> Complex[Tensor, "batch row column width"]:
    """Each mode times its own matrix."""
    matrices = torch.cat([weights.positive, weights.negative]).to(modes.dtype)
    return torch.einsum("bklw,klwv->bklv", modes, matrices)
