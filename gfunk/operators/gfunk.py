"""G-FuNK: the paper's network (PaperGFuNK) and ours (GFuNK), whole in this file."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log, pi, sqrt
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gfunk.batch import Batch, stiffness_products
from gfunk.errors import InputError

Input = Literal["u", "x", "y", "z"]


@dataclass(frozen=True, kw_only=True)
class PaperGFuNKConfig:
    """The paper's network: P, then layers GELU(F^-1 R L F + W), then Q (Eqs. 9-12)."""

    inputs: tuple[Input, ...] = ("u",)
    width: int
    n_layers: int
    n_modes: int
    kernel: Literal["diagonal", "tridiagonal", "full"]
    eigenvalue_powers: tuple[int, ...] = (0,)
    # Eigenvalues are divided by this before powers are taken. Paper: silent on it, and lambda^2 overflows the network else.
    eigenvalue_scale: float = 1.0
    # The network's unit of time, in the data's: its output is du per that much time.
    time_scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class GFuNKConfig:
    """Ours: learned functions of the eigenvalue instead of matrices over mode numbers, a local branch, any step tau."""

    inputs: tuple[Input, ...] = ("u",)
    width: int = 64
    n_layers: int = 4
    n_modes: int = 100
    # Channels that are also diffused at the nodes, for what the modes can't resolve; 0: none.
    local_width: int = 0
    # For how long, rising. A node then sees as far as sqrt(4 K time): where that is less than the distance of neighbours,
    # weights mean another thing on a finer mesh.
    local_times: tuple[float, ...] = (1.0,)
    filter_width: int = 64
    # The step is exact diffusion of the modes plus what is learned; False leaves diffusion to be learned too.
    knows_diffusion: bool = True
    # Size of what is learned, per unit of the network's time: it keeps first steps small where diffusion says almost all.
    learned_scale: float = 1.0
    time_scale: float = 1.0


class PaperGFuNK(nn.Module):
    """N_theta(u) of Eq. 12. It gives the rate of change, whatever tau is."""

    def __init__(self, config: PaperGFuNKConfig):
        super().__init__()
        self.config = config
        self.lift = nn.Linear(len(config.inputs), config.width)
        self.layers = nn.ModuleList(PaperLayer(config) for _ in range(config.n_layers))
        self.project = nn.Sequential(nn.Linear(config.width, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]:
        batch = batch.with_modes(self.config.n_modes)
        field = self.lift(input_features(u, batch, self.config.inputs))
        for layer in self.layers:
            field = layer(field, batch)
        rate = self.project(field).to(u.dtype) / self.config.time_scale
        return torch.where(batch.is_node[..., None], rate, 0)


class PaperLayer(nn.Module):
    """One G-FuNK layer (Eq. 10): GELU(F^-1 R L F k + W k), R shared by all channels as the parameter counts say."""

    def __init__(self, config: PaperGFuNKConfig):
        super().__init__()
        self.config = config
        self.pointwise = nn.Linear(config.width, config.width)
        k = config.n_modes

        # Paper: silent on first values. As a low-pass filter each layer smooths along fibres from the start; random values
        # were 20 % worse after 2,000 iterations on small heat meshes.
        low_pass = torch.exp(-5 / k * torch.arange(k))
        match config.kernel:
            case "diagonal":
                self.diagonal = nn.Parameter(low_pass)
            case "tridiagonal":
                self.diagonal = nn.Parameter(low_pass)
                self.lower, self.upper = (nn.Parameter(torch.empty(k - 1).uniform_(-1, 1) / k) for _ in range(2))
            case "full":
                self.matrix = nn.Parameter(torch.diag(low_pass) + torch.empty(k, k).uniform_(-1, 1) / k)

    def forward(self, field: Float[Tensor, "batch node width"], batch: Batch) -> Float[Tensor, "batch node width"]:
        modes = to_modes(field, batch)
        # Paper: L expands onto powers of lambda, yet no parameter reduces them again: they are summed.
        scaled = batch.eigenvalues / self.config.eigenvalue_scale
        powers = torch.stack([scaled**power for power in self.config.eigenvalue_powers]).sum(0)
        return nn.functional.gelu(to_nodes(self.mixed(modes * powers[..., None]), batch) + self.pointwise(field))

    def mixed(self, modes: Float[Tensor, "batch mode width"]) -> Float[Tensor, "batch mode width"]:
        """R applied to the mode axis."""
        match self.config.kernel:
            case "diagonal":
                return self.diagonal[:, None] * modes
            case "tridiagonal":
                below = nn.functional.pad(self.lower[:, None] * modes[:, :-1], (0, 0, 1, 0))
                above = nn.functional.pad(self.upper[:, None] * modes[:, 1:], (0, 0, 0, 1))
                return self.diagonal[:, None] * modes + below + above
            case "full":
                return torch.einsum("kl,blw->bkw", self.matrix, modes)


class GFuNK(nn.Module):
    """u changes by diffusion, exactly in the modes kept, and by what a stack of spectral and local layers has learned.

    Everything depends on a mode only through its eigenvalue, so signs, order and choice of basis never matter, and a
    filter learned on one domain means the same on another.
    """

    def __init__(self, config: GFuNKConfig):
        super().__init__()
        if not config.local_times or not all(earlier < later for earlier, later in pairwise((0.0, *config.local_times))):
            raise InputError(f"network.local_times must be positive and rise, not {config.local_times}")
        self.config = config
        self.lift = nn.Linear(len(config.inputs), config.width)
        self.layers = nn.ModuleList(FilterLayer(config) for _ in range(config.n_layers))
        self.project = nn.Sequential(nn.Linear(config.width, 32), nn.GELU(), nn.Linear(32, 1))
        self.response = FilterBank(config.filter_width, 1)

    def forward(
        self, u: Float[Tensor, "batch node channel"], batch: Batch, tau: Float[Tensor, ""]
    ) -> Float[Tensor, "batch node channel"]:
        batch = batch.with_modes(self.config.n_modes)
        step = tau / self.config.time_scale
        rates = batch.eigenvalues * self.config.time_scale
        features = spectral_features(rates, step)
        field = self.lift(input_features(u, batch, self.config.inputs))
        for layer in self.layers:
            field = layer(field, batch, features, step)
        # Not in half precision: a step's error is carried by every later one.
        with torch.autocast(u.device.type, enabled=False):
            learned = self.config.learned_scale * self.project(field.to(u.dtype))
            rate = (learned + self.linear(u, batch, rates, features, step)) / self.config.time_scale
        # Else the padding, which nothing diffuses, could grow without bound over a rollout.
        return torch.where(batch.is_node[..., None], rate, 0)

    def linear(
        self,
        u: Float[Tensor, "batch node channel"],
        batch: Batch,
        rates: Float[Tensor, "domain mode"],
        features: Float[Tensor, "domain mode feature"],
        step: Float[Tensor, ""],
    ) -> Float[Tensor, "batch node channel"]:
        """The part linear in u: a learned response of each mode, on top of diffusion if that is known.

        What lies beyond the last mode kept changes as that one does.
        """
        response = self.config.learned_scale * self.response(features)
        if self.config.knows_diffusion:
            response = response + mean_decay(rates, step)[..., None]
        beyond = response[:, -1:]
        return to_nodes((response - beyond) * to_modes(u, batch), batch) + beyond * u


class FilterLayer(nn.Module):
    """x + GELU(filtered x + W x + local x), each filter a smooth function of the eigenvalue and the step."""

    def __init__(self, config: GFuNKConfig):
        super().__init__()
        self.config = config
        self.filters = FilterBank(config.filter_width, config.width)
        self.pointwise = nn.Linear(config.width, config.width)
        self.of_step = nn.Linear(2, config.width)
        if config.local_width:
            self.down = nn.Linear(config.width, config.local_width, bias=False)
            self.up = nn.Linear(len(config.local_times) * config.local_width, config.width, bias=False)

    def forward(
        self,
        field: Float[Tensor, "batch node width"],
        batch: Batch,
        features: Float[Tensor, "domain mode feature"],
        step: Float[Tensor, ""],
    ) -> Float[Tensor, "batch node width"]:
        change = to_nodes(self.filters(features) * to_modes(field, batch), batch) + self.pointwise(field)
        change = change + self.of_step(step_features(step))
        if self.config.local_width:
            change = change + self.up(bands(self.down(field), batch, self.config.local_times))
        return field + nn.functional.gelu(change)


class FilterBank(nn.Module):
    """h(lambda, tau), one for each channel: a mix of heat kernels plus a small network of them."""

    def __init__(self, hidden: int, n_filters: int):
        super().__init__()
        self.mix = nn.Linear(N_SPECTRAL_FEATURES, n_filters)
        self.first = nn.Linear(N_SPECTRAL_FEATURES, hidden)
        self.last = nn.Linear(hidden, n_filters, bias=False)

    def forward(self, features: Float[Tensor, "domain mode feature"]) -> Float[Tensor, "domain mode filter"]:
        return self.mix(features) + self.last(nn.functional.gelu(self.first(features)))


KERNEL_TIMES = range(-8, 5)  # as powers of 2
STEP_FRACTIONS = range(-2, 3, 2)  # the same
N_SPECTRAL_FEATURES = len(KERNEL_TIMES) + len(STEP_FRACTIONS) + 3


def spectral_features(rates: Float[Tensor, "domain mode"], step: Float[Tensor, ""]) -> Float[Tensor, "domain mode feature"]:
    """Heat kernels exp(-lambda t) at fixed times and at fractions of the step, and the step itself.

    They are smooth in log lambda, bounded, and mean the same on every domain.
    """
    times, fractions = (
        torch.arange(powers.start, powers.stop, powers.step, dtype=rates.dtype, device=rates.device).exp2()
        for powers in (KERNEL_TIMES, STEP_FRACTIONS)
    )
    fixed = torch.exp(-rates[..., None] * times)
    relative = torch.exp(-(rates * step)[..., None] * fractions)
    constant = step_features(step).expand(*rates.shape, 2)
    return torch.cat([fixed, relative, mean_decay(rates, step)[..., None] * (step + 0.1), constant], dim=-1)


def step_features(step: Float[Tensor, ""]) -> Float[Tensor, " feature"]:
    return torch.stack([step / (1 + step), torch.log1p(step)])


def mean_decay(rates: Float[Tensor, "domain mode"], step: Float[Tensor, ""]) -> Float[Tensor, "domain mode"]:
    """Mean rate of change of exp(-rate t) over the step, (exp(-rate step) - 1) / step; -rate where the step is 0."""
    safe = torch.where(step > 0, step, torch.ones_like(step))
    return torch.where(step > 0, torch.expm1(-rates * safe) / safe, -rates)


def input_features(
    u: Float[Tensor, "batch node channel"], batch: Batch, inputs: tuple[Input, ...]
) -> Float[Tensor, "batch node input"]:
    """u and, where asked for, coordinates (which cost the invariance under rotation)."""
    columns = {"x": 0, "y": 1, "z": 2}
    places = [batch.points[..., columns[name], None].expand(*u.shape[:2], 1) for name in inputs if name != "u"]
    return torch.cat([u, *places], dim=-1)


def to_modes(field: Float[Tensor, "batch node width"], batch: Batch) -> Float[Tensor, "batch mode width"]:
    """Graph Fourier transform (Eq. 5), kept to the lowest modes: Psi^T M field."""
    return batch.analysis.mT @ field


def to_nodes(modes: Float[Tensor, "batch mode width"], batch: Batch) -> Float[Tensor, "batch node width"]:
    """Inverse graph Fourier transform (Eq. 6): Psi modes."""
    return batch.synthesis @ modes


def bands(
    field: Float[Tensor, "batch node width"], batch: Batch, times: tuple[float, ...]
) -> Float[Tensor, "batch node feature"]:
    """What diffusion takes from the field until the first of the times, between it and the next, and so on."""
    diffused = [field.to(batch.mass.dtype), *diffusion(field, batch, times)]
    return torch.cat([before - after for before, after in pairwise(diffused)], dim=-1).to(field.dtype)


# Largest error of exp(-rate time), whatever the rate.
DIFFUSION_ACCURACY = 1e-3


def n_products(time: float, fastest_rate: float, accuracy: float = DIFFUSION_ACCURACY) -> int:
    """Sparse products that diffusion takes: twice as many where points are twice as close."""
    # Chebyshev's k-th coefficient of exp(-s (1 + x) / 2) falls as exp(-k^2 / s), or faster than 1000^-k where s is small.
    thousandths = log(1 / accuracy) / log(1 / DIFFUSION_ACCURACY)
    return ceil(thousandths) + ceil(2.4 * sqrt(thousandths * time * fastest_rate))


# (term, the one before, sums, 4 / (fastest rate * inertia), the next weights) -> the next term and sums
Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def diffusion(
    field: Float[Tensor, "batch node width"],
    batch: Batch,
    times: tuple[float, ...],
    accuracy: float = DIFFUSION_ACCURACY,
    recurrence: Recurrence | None = None,
) -> list[Float[Tensor, "batch node width"]]:
    """exp(-time L) field for each of the times, L = inertia^-1 S, by sparse products that all times share.

    Each is the Chebyshev polynomial of L that equals the exponential at the extrema of its last term. Rate 0 is one of them,
    so constants stay; and nothing grows. recurrence: another way to do what is done for each term; it may write over the
    one before.
    """
    n, fastest = n_products(max(times), batch.fastest_rate, accuracy), batch.fastest_rate
    weights = torch.stack([chebyshev_weights(time * fastest, n, batch.mass) for time in times], dim=1)[..., None, None, None]
    # 2 L / fastest - 1 has eigenvalues between -1 and 1.
    doubled = 4 / (fastest * batch.inertia[..., None]).clamp_min(4 * torch.finfo(batch.inertia.dtype).tiny)
    # Not in half precision: the error of a term goes into all later ones.
    last = field.to(batch.mass.dtype, copy=recurrence is not None)
    product = stiffness_products(batch, len(field), last.dtype)

    def next_term(term: Tensor, last: Tensor, sums: Tensor, doubled: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        term = torch.sub(doubled * product(term) - last, term, alpha=2)
        return term, torch.addcmul(sums, weight, term)

    term = doubled / 2 * product(last) - last
    sums = weights[0] * last + weights[1] * term
    for weight in weights[2:]:
        last, (term, sums) = term, (recurrence or next_term)(term, last, sums, doubled, weight)
    return list(sums.unbind())


def chebyshev_weights(stiffness: float, n: int, like: Tensor) -> Float[Tensor, " _"]:
    """w with sum_k w_k T_k(x) = exp(-stiffness (1 + x) / 2) at the n + 1 extrema of T_n."""
    order = torch.arange(n + 1, device=like.device)
    ends = torch.where(order % n == 0, 0.5, 1.0).to(like.dtype)
    terms = torch.cos(pi / n * (order[:, None] * order % (2 * n)).to(like.dtype))
    # Not a matrix product: that would be in half precision where the network is.
    return 2 / n * ends * (terms * ends * torch.exp(-stiffness / 2 * (1 + terms[1]))).sum(-1)
