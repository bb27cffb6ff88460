"""The one bridge from numpy records to torch tensors: domains side by side, padded to one size, on a device."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gfunk.corners import corners
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, inertia, off_diagonal_rows, row_rates
from gfunk.simulation import Prepared
from gfunk.spectrum import Spectrum


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What an operator may know of its domains. Padding nodes are zero everywhere and couple to nothing.

    A batch of one domain serves any number of trajectories on it: operators broadcast over the first axis.
    """

    points: Float[Tensor, "domain node dim"]
    fibres: Float[Tensor, "domain node dim"]
    is_node: Bool[Tensor, "domain node"]
    mass: Float[Tensor, "domain node"]
    eigenvalues: Float[Tensor, "domain mode"]
    # Transforms between nodes and modes: analysis = M Psi (used transposed), synthesis = Psi.
    analysis: Float[Tensor, "domain node mode"]
    synthesis: Float[Tensor, "domain node mode"]
    # The stiffness matrix by rows: (S u)_i = sum_j coupling_ij (u_i - u_j) over the neighbours j of i.
    neighbors: Int[Tensor, "domain node slot"]
    couplings: Float[Tensor, "domain node slot"]
    # The mass, raised beside thin cells, and a bound of all eigenvalues of S / inertia. How many sparse products diffusion
    # takes follows from the bound: a plain number, as compiled work must know it.
    inertia: Float[Tensor, "domain node"]
    fastest_rate: float
    # Each node's triangles (`Corners`): ends of the side opposite, and its squared length, offset and squared height.
    ends: Int[Tensor, "domain node triangle 2"]
    sides: Float[Tensor, "domain node triangle 3"]

    @property
    def n_domains(self) -> int:
        return self.points.shape[0]

    @property
    def n_modes(self) -> int:
        return self.eigenvalues.shape[1]

    def to(self, device: torch.device | str) -> "Batch":
        return replace(self, **{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def select(self, domains: Int[Tensor, " trajectory"]) -> "Batch":
        """The domains of some trajectories, in their order."""
        return replace(self, **{name: tensor[domains] for name, tensor in self._tensors().items()})

    def with_nodes(self, n_nodes: int) -> "Batch":
        """Cut to the first nodes, where none of the domains has more: the rest was padding."""
        cut = {name: tensor[:, :n_nodes] for name, tensor in self._tensors().items() if name != "eigenvalues"}
        return replace(self, **cut)

    def with_modes(self, n_modes: int) -> "Batch":
        """The same domains with only their lowest modes."""
        cut = {name: getattr(self, name)[..., :n_modes] for name in ("eigenvalues", "analysis", "synthesis")}
        return replace(self, **cut)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


@dataclass(frozen=True, kw_only=True)
class TrajectorySet:
    """Many trajectories in model space, and the domain each one lives on."""

    batch: Batch
    domain_of: Int[Tensor, " trajectory"]
    seeds: tuple[int, ...]
    times: Float[Tensor, " time"]
    values: Float[Tensor, "trajectory time node channel"]
    # Where a direct operator starts from, if it has been found (`with_firsts`): all trajectories, perhaps at several saves.
    firsts: Float[Tensor, "start node input"] | None = None

    @property
    def n_trajectories(self) -> int:
        return self.values.shape[0]

    def n_nodes(self) -> Int[np.ndarray, " trajectory"]:
        """Nodes of each trajectory's domain."""
        return self.batch.is_node.sum(1)[self.domain_of].cpu().numpy()

    def to(self, device: torch.device | str) -> "TrajectorySet":
        return TrajectorySet(
            batch=self.batch.to(device),
            domain_of=self.domain_of.to(device),
            seeds=self.seeds,
            times=self.times.to(device),
            values=self.values.to(device),
            firsts=None if self.firsts is None else self.firsts.to(device),
        )

    def thinned(self, every: int) -> "TrajectorySet":
        """With every so many saves only."""
        return replace(self, times=self.times[::every], values=self.values[:, ::every])

    def take(
        self, trajectories: Int[Tensor, " chosen"], saves: Int[Tensor, " time"] | None = None, n_nodes: int | None = None
    ) -> tuple[Batch, Float[Tensor, "chosen time node channel"]]:
        """The domains and values of some trajectories, at some saves or all, cut to n_nodes; one shared domain stays one."""
        batch, values = self.batch, self.values[:, :, :n_nodes]
        if n_nodes is not None:
            batch = batch.with_nodes(n_nodes)
        if batch.n_domains > 1:
            batch = batch.select(self.domain_of[trajectories])
        return batch, values[trajectories] if saves is None else values[trajectories[:, None], saves]


def pack(
    parts: Sequence[tuple[Domain, Laplacian, Spectrum]],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Batch:
    """Domains of any sizes as one Batch, padded to the largest."""
    with ThreadPoolExecutor() as pool:
        rows = list(pool.map(_stiffness_rows, (laplacian for _, laplacian, _ in parts)))
        triangles = list(pool.map(corners, (domain for domain, _, _ in parts)))
    masses = [laplacian.lumped_mass() for _, laplacian, _ in parts]
    pulls = [np.maximum(couplings, 0).sum(1) for _, couplings in rows]
    inertias = [inertia(pull, mass) for pull, mass in zip(pulls, masses, strict=True)]
    n_nodes = max(domain.n_nodes for domain, _, _ in parts)
    n_modes = max(len(spectrum.eigenvalues) for _, _, spectrum in parts)
    n_slots = max(neighbors.shape[1] for neighbors, _ in rows)
    n_corners = max(each.steps.shape[1] for each in triangles)

    def stacked(arrays: Iterable[np.ndarray], *shape: int) -> Tensor:
        # One after the other into the tensor itself, on its device: many domains' modes take most of the memory there is,
        # and padding costs as much to write and to send.
        tensors = (torch.from_numpy(array) for array in arrays)
        first = next(tensors)
        kind = dtype if first.is_floating_point() else first.dtype
        padded = torch.zeros((len(parts), *shape), dtype=kind, device=device)
        for place, tensor in zip(padded, chain([first], tensors), strict=True):
            place[tuple(slice(n) for n in tensor.shape)] = tensor
        return padded

    dim = parts[0][0].points.shape[1]
    return Batch(
        points=stacked([domain.points for domain, _, _ in parts], n_nodes, dim),
        fibres=stacked([domain.fibres for domain, _, _ in parts], n_nodes, dim),
        is_node=stacked([np.ones(domain.n_nodes, dtype=bool) for domain, _, _ in parts], n_nodes),
        mass=stacked(masses, n_nodes),
        # Modes that fill up are zero, but keep the last eigenvalue: operators read off it how what no mode holds changes.
        eigenvalues=stacked([_filled_up(spectrum.eigenvalues, n_modes) for _, _, spectrum in parts], n_modes),
        analysis=stacked((_weighed(laplacian, spectrum) for _, laplacian, spectrum in parts), n_nodes, n_modes),
        synthesis=stacked([spectrum.eigenvectors for _, _, spectrum in parts], n_nodes, n_modes),
        neighbors=stacked([neighbors for neighbors, _ in rows], n_nodes, n_slots),
        couplings=stacked([couplings for _, couplings in rows], n_nodes, n_slots),
        inertia=stacked(inertias, n_nodes),
        fastest_rate=max(float(row_rates(pull, mass).max()) for pull, mass in zip(pulls, inertias, strict=True)),
        # What fills up, too, has the node itself for both ends.
        ends=torch.arange(n_nodes, device=device)[:, None, None]
        + stacked([each.steps for each in triangles], n_nodes, n_corners, 2),
        sides=stacked([each.shape for each in triangles], n_nodes, n_corners, 3),
    )


def pack_trajectories(
    prepared: Sequence[Prepared], offset: float, scale: float, device: torch.device | str = "cpu"
) -> TrajectorySet:
    """Prepared samples as one set in model space, (value - offset) / scale."""
    samples = [each.sample for each in prepared]
    for sample in samples:
        if sample.times.shape != samples[0].times.shape or not np.allclose(sample.times, samples[0].times):
            raise InputError(f"samples {samples[0].seed} and {sample.seed} were saved at different times")
    batch = pack([(each.sample.domain, each.laplacian, each.spectrum) for each in prepared], device=device)
    domain_of = np.repeat(np.arange(len(samples)), [len(sample.values) for sample in samples])
    values = torch.zeros(len(domain_of), len(samples[0].times), batch.points.shape[1], 1, device=device)
    row = 0
    for sample in samples:
        n_trajectories, _, n_nodes = sample.values.shape
        there = torch.from_numpy(sample.values).to(device)
        values[row : row + n_trajectories, :, :n_nodes, 0] = (there - offset) / scale
        row += n_trajectories
    return TrajectorySet(
        batch=batch,
        domain_of=torch.from_numpy(domain_of).to(device),
        seeds=tuple(sample.seed for sample in samples for _ in sample.values),
        times=torch.from_numpy(samples[0].times).to(device),
        values=values,
    )


def _filled_up(eigenvalues: Float[np.ndarray, " mode"], n_modes: int) -> np.ndarray:
    return np.pad(eigenvalues, (0, n_modes - len(eigenvalues)), mode="edge")


def _weighed(laplacian: Laplacian, spectrum: Spectrum) -> Float[np.ndarray, "node mode"]:
    """M Psi."""
    if laplacian.mass.nnz > laplacian.n_nodes:
        return laplacian.mass @ spectrum.eigenvectors
    # Of a diagonal, faster than as a matrix, and in the modes' own precision.
    return laplacian.mass.diagonal()[:, None].astype(spectrum.eigenvectors.dtype) * spectrum.eigenvectors


def stiffness_product(field: Float[Tensor, "batch node width"], batch: Batch) -> Float[Tensor, "batch node width"]:
    """S field, row by row."""
    return stiffness_products(batch, len(field), field.dtype)(field)


def stiffness_products(batch: Batch, n_batch: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The same for many fields of so many trajectories: what all have in common is found once."""
    n_nodes = batch.neighbors.shape[1]
    couplings = batch.couplings.to(dtype).expand(n_batch, -1, -1)
    rows = batch.neighbors + n_nodes * torch.arange(n_batch, device=couplings.device)[:, None, None]
    common = rows.flatten(0, 1), couplings.flatten(0, 1), couplings.sum(-1, keepdim=True)
    return lambda field: _StiffnessProduct.apply(field, *common)  # pyright: ignore[reportReturnType]


class _StiffnessProduct(torch.autograd.Function):
    """S is symmetric, so the backward pass is the forward one: it gathers, and no two threads ever add to one place."""

    @staticmethod
    def forward(ctx, field: Tensor, rows: Tensor, couplings: Tensor, total: Tensor) -> Tensor:
        ctx.save_for_backward(rows, couplings, total)
        # A bag of embeddings is a weighted sum of rows, in one kernel: no neighbour's values are ever written out.
        others = nn.functional.embedding_bag(rows, field.flatten(0, 1), per_sample_weights=couplings, mode="sum")
        return total * field - others.view_as(field)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (grad,) = grads
        return _StiffnessProduct.apply(grad, *ctx.saved_tensors), None, None, None


def _stiffness_rows(laplacian: Laplacian) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours and couplings -S_ij of each row."""
    neighbors, [entries] = off_diagonal_rows([laplacian.stiffness])
    return neighbors.T, -entries.T
