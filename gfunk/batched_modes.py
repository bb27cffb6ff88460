"""The lowest modes of many domains at once: a polynomial of their Laplacians filters blocks of vectors, on a GPU or a CPU.

A domain takes a hundred or two sparse products with a block a quarter wider than what is wanted, and one small eigenproblem.
All in float64: beside the modes amplified most, float32 would lose those next to the cut.
"""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil, log

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits
from torch import Tensor

from gfunk.laplacian import Laplacian
from gfunk.parallel import default_workers
from gfunk.spectrum import Spectrum, check_connected, lowest_modes

BYTES_AT_ONCE = 8 * 2**30
BLOCKS_HELD = 7  # of a domain's vectors in memory at the worst moment
LEAST_FILL = 0.8  # no domain of a group has fewer nodes than this share of the largest
N_PROBES = 16
MAX_ROUNDS = 3
MAX_DEGREE = 1000
# In one filter the lowest mode may grow by this more than those at the cut: Cholesky of a Gram matrix, which squares it,
# must still see the difference.
MAX_GROWTH = 1e5


def batched_modes(
    laplacians: Sequence[Laplacian],
    n_modes: int,
    *,
    device: torch.device | str,
    tolerance: float = 1e-4,
    at_once: int | None = None,
) -> Iterator[Spectrum]:
    """The lowest modes of each, in order, with relative residuals up to `tolerance`; vectors are then rounded to float32.

    Small domains, those whose mass is not diagonal and any that do not converge are left to `lowest_modes`.
    """
    width = _block_width(n_modes)
    together = [
        i for i, each in enumerate(laplacians) if n_modes > 1 and 3 * width <= each.n_nodes and _has_diagonal_mass(each)
    ]
    for i in together:
        check_connected(laplacians[i])
    found = {i: lowest_modes(laplacians[i], n_modes) for i in sorted({*range(len(laplacians))} - {*together})}
    groups = _groups({i: laplacians[i].n_nodes for i in together}, width, at_once)
    # The same first vectors for all: company changes the degree of the filter, so no more than the tolerance allows.
    largest = max((laplacians[i].n_nodes for i in together), default=0)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((largest, width))).to(device)
    n_given = 0
    for group in groups or [[]]:
        solved = _modes_of_group([laplacians[i] for i in group], n_modes, start, tolerance)
        for i, spectrum in zip(group, solved, strict=True):
            found[i] = spectrum or lowest_modes(laplacians[i], n_modes)
        while n_given in found:
            yield found.pop(n_given)
            n_given += 1


def _block_width(n_modes: int) -> int:
    """Convergence takes guards beyond the modes wanted: their eigenvalues part what is amplified from what is not."""
    return n_modes + max(8, n_modes // 4)


def _has_diagonal_mass(laplacian: Laplacian) -> bool:
    mass = laplacian.mass.tocoo()
    return bool((mass.coords[0] == mass.coords[1]).all())


def _groups(n_nodes: dict[int, int], width: int, at_once: int | None) -> list[list[int]]:
    """Domains of nearly one size side by side, the largest first, as many as memory holds."""
    groups: list[list[int]] = []
    for i in sorted(n_nodes, key=lambda i: -n_nodes[i]):
        largest = n_nodes[groups[-1][0]] if groups else 0
        limit = at_once or max(1, BYTES_AT_ONCE // (8 * BLOCKS_HELD * width * max(1, largest)))
        if groups and len(groups[-1]) < limit and n_nodes[i] >= LEAST_FILL * largest:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


@dataclass(frozen=True, kw_only=True)
class _Group:
    """M^-1/2 S M^-1/2 of several domains, each padded to the largest, as one matrix in compressed rows.

    It is symmetric and has the eigenvalues of M^-1 S; its modes are those times the root of the mass.
    """

    root_mass: Float[Tensor, "domain node"]  # 0 at nodes that fill up
    row_starts: Int[Tensor, " _"]
    columns: Int[Tensor, " _"]
    entries: Float[Tensor, " _"]
    is_diagonal: Bool[Tensor, " _"]
    domain_of: Int[Tensor, " _"]
    n_nodes: Int[np.ndarray, " domain"]
    mean: Float[np.ndarray, " domain"]  # of the eigenvalues
    highest: Float[np.ndarray, " domain"]  # no eigenvalue is above

    def matrix(self, centre: Float[np.ndarray, " domain"], half: Float[np.ndarray, " domain"]) -> Tensor:
        """Eigenvalues centre - half to centre + half mapped to -1 to 1."""
        on_device = [torch.from_numpy(x).to(self.entries.device)[self.domain_of] for x in (centre, half)]
        entries = torch.where(self.is_diagonal, self.entries - on_device[0], self.entries) / on_device[1]
        n_rows = self.root_mass.numel()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta state|invariant checks)")
            return torch.sparse_csr_tensor(self.row_starts, self.columns, entries, (n_rows, n_rows), check_invariants=False)


def _packed(laplacians: Sequence[Laplacian], device: torch.device) -> _Group:
    n_largest = max(each.n_nodes for each in laplacians)
    root_mass = np.zeros((len(laplacians), n_largest))
    parts, mean, highest = [], [], []
    for number, each in enumerate(laplacians):
        mass = each.mass.diagonal()
        root_mass[number, : each.n_nodes] = np.sqrt(mass)
        stiffness = csr_array(each.stiffness, copy=True)
        stiffness.eliminate_zeros()
        n_entries = np.diff(stiffness.indptr)
        row, column = np.repeat(np.arange(each.n_nodes), n_entries), stiffness.indices
        entries = stiffness.data / np.sqrt(mass[row] * mass[column])
        # Gershgorin's bound, the sizes of a row summed, for M^-1 S or the symmetric matrix: beside light nodes they differ.
        highest.append(min((np.bincount(row, np.abs(stiffness.data)) / mass).max(), np.bincount(row, np.abs(entries)).max()))
        mean.append(entries[row == column].mean())
        padded = np.pad(n_entries, (0, n_largest - each.n_nodes))
        parts.append((padded, column + number * n_largest, entries, row == column, np.full(len(row), number)))
    n_entries, columns, entries, is_diagonal, domain_of = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _Group(
        root_mass=torch.from_numpy(root_mass).to(device),
        row_starts=torch.from_numpy(np.concatenate([[0], np.cumsum(n_entries)]).astype(np.int32)).to(device),
        columns=torch.from_numpy(columns.astype(np.int32)).to(device),
        entries=torch.from_numpy(entries).to(device),
        is_diagonal=torch.from_numpy(is_diagonal).to(device),
        domain_of=torch.from_numpy(domain_of).to(device),
        n_nodes=np.array([each.n_nodes for each in laplacians]),
        mean=np.array(mean),
        highest=np.array(highest),
    )


def _modes_of_group(
    laplacians: Sequence[Laplacian], n_modes: int, start: Float[Tensor, "_ _"], tolerance: float
) -> list[Spectrum | None]:
    """The modes of each domain, or None if they did not converge."""
    if not laplacians:
        return []
    group = _packed(laplacians, start.device)
    n_domains, n_nodes = group.root_mass.shape
    block = start[:n_nodes] * (group.root_mass > 0)[..., None]
    wanted, cut = _estimated_eigenvalues(group, block[..., :N_PROBES].contiguous(), (n_modes, start.shape[1]))
    # Of a random start most is unwanted, and a residual weighs it by its eigenvalue.
    gain = 10 * np.sqrt(group.n_nodes) * group.highest / (wanted * tolerance)
    n_rounds = 0
    while True:
        n_rounds += 1
        block = _filtered(group, block, wanted, cut, gain)
        values, block, residuals = _rayleigh_ritz(group, block, n_modes)
        if (residuals <= tolerance).all() or not np.isfinite(residuals).all() or n_rounds == MAX_ROUNDS:
            break
        # The last guards have hardly converged, so their eigenvalues are too high to part anything.
        wanted, cut = values[:, n_modes - 1], values[:, (n_modes + start.shape[1]) // 2]
        gain = 10 * np.maximum(residuals / tolerance, 1)
    vectors = _with_fixed_signs(block[..., :n_modes], group.root_mass).float().cpu().numpy()
    return [
        Spectrum(eigenvalues=np.maximum(values[i, :n_modes], 0), eigenvectors=vectors[i, : group.n_nodes[i]])
        if residuals[i] <= tolerance
        else None
        for i in range(n_domains)
    ]


def _estimated_eigenvalues(
    group: _Group, probes: Float[Tensor, "domain node _"], numbers: Sequence[int]
) -> list[Float[np.ndarray, " domain"]]:
    """Where the count of eigenvalues reaches each of the numbers.

    v^T T_k v of random vectors tell the density of eigenvalues, up to waves of their angle faster than k; Jackson's
    factors damp what that cut would make ring.
    """
    half = group.highest / 2
    # The angle of a low eigenvalue is the root of its share of the highest: it must be told from 0.
    n_moments = ceil(7 * np.sqrt(group.n_nodes / numbers[-1] * group.highest / group.mean).max())
    terms = _chebyshev(group.matrix(half, half), probes.clone(), n_moments - 1)
    norms = probes.square().sum((1, 2))
    moments = [torch.ones_like(norms), *((probes * term).sum((1, 2)) / norms for term in terms)]
    k, step = np.arange(1, n_moments), np.pi / (n_moments + 1)
    damping = ((n_moments - k + 1) * np.cos(k * step) + np.sin(k * step) / np.tan(step)) / (n_moments + 1)
    angle = np.linspace(np.pi, 0, 20 * n_moments)
    below = np.concatenate([[1 - angle / np.pi], -2 / np.pi * (damping / k)[:, None] * np.sin(k[:, None] * angle)])
    count = group.n_nodes[:, None] * (torch.stack(moments, 1).cpu().numpy() @ below)
    share = (1 + np.cos(angle)) / 2
    return [
        group.highest * np.array([np.interp(number, row, share) for row in np.maximum.accumulate(count, axis=1)])
        for number in numbers
    ]


def _filtered(
    group: _Group,
    block: Float[Tensor, "domain node _"],
    wanted: Float[np.ndarray, " domain"],
    cut: Float[np.ndarray, " domain"],
    gain: Float[np.ndarray, " domain"],
) -> Float[Tensor, "domain node _"]:
    """Orthonormal vectors in which the modes up to `wanted` stand out `gain` times more beside those beyond `cut`.

    The Chebyshev polynomial of cut to highest stays within 1 there and outgrows every other of its degree below.
    """
    cut = np.minimum(cut, group.highest / 2)
    wanted = np.minimum(wanted, 0.95 * cut)
    centre, half = (group.highest + cut) / 2, (group.highest - cut) / 2
    matrix = group.matrix(centre, half)
    degree = min(MAX_DEGREE, (np.log(2 * gain) / np.arccosh((centre - wanted) / half)).max())
    n_filters = ceil(degree * np.arccosh(centre / half).max() / log(2 * MAX_GROWTH))
    for _ in range(n_filters):
        for term in _chebyshev(matrix, block, ceil(degree / n_filters)):
            block = term
        block = _orthonormal(block)
    return _orthonormal(block)


def _chebyshev(
    matrix: Tensor, field: Float[Tensor, "domain node _"], degree: int
) -> Iterator[Float[Tensor, "domain node _"]]:
    """T_1 field, T_2 field, ... up to the degree, each overwritten two steps later, and the field itself too."""
    before = field.flatten(0, 1)
    term = matrix @ before
    yield term.view_as(field)
    for _ in range(degree - 1):
        before, term = term, torch.addmm(before, matrix, term, beta=-1, alpha=2, out=before)
        yield term.view_as(field)


def _orthonormal(block: Float[Tensor, "domain node _"]) -> Float[Tensor, "domain node _"]:
    """The same span. The hair added keeps Cholesky going where vectors nearly coincide; a second pass makes good for it."""
    gram = block.mT @ block
    diagonal = gram.diagonal(dim1=1, dim2=2)
    diagonal += 1e-14 * diagonal.sum(1, keepdim=True)
    factor, _ = torch.linalg.cholesky_ex(gram)
    identity = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device).expand_as(gram)
    return block @ torch.linalg.solve_triangular(factor, identity, upper=False).mT


def _rayleigh_ritz(
    group: _Group, block: Float[Tensor, "domain node _"], n_modes: int
) -> tuple[Float[np.ndarray, "domain _"], Float[Tensor, "domain node _"], Float[np.ndarray, " domain"]]:
    """The best eigenvalues and vectors within the span, and the worst residual of the wanted ones in each domain.

    A residual is |S psi - lambda M psi|, relative to |M psi| and the last wanted eigenvalue.
    """
    unchanged = np.zeros_like(group.highest), np.ones_like(group.highest)
    product = (group.matrix(*unchanged) @ block.flatten(0, 1)).view_as(block)
    values, turn = _small_eigenproblems(block.mT @ product)
    block = block @ turn
    residual = product @ turn[..., :n_modes] - block[..., :n_modes] * values[:, None, :n_modes]
    root_mass = group.root_mass[..., None]
    residuals = (root_mass * residual).norm(dim=1) / (root_mass * block[..., :n_modes]).norm(dim=1)
    values = values.cpu().numpy()
    return values, block, residuals.amax(1).cpu().numpy() / values[:, n_modes - 1]


def _small_eigenproblems(
    matrices: Float[Tensor, "domain _ _"],
) -> tuple[Float[Tensor, "domain _"], Float[Tensor, "domain _ _"]]:
    """On the CPU, side by side, one core each."""
    with threadpool_limits(1), ThreadPoolExecutor(default_workers()) as pool:
        solved = list(pool.map(_eigh, matrices.cpu().numpy()))
    values, vectors = (torch.from_numpy(np.stack(part)).to(matrices.device) for part in zip(*solved, strict=True))
    return values, vectors


def _eigh(matrix: Float[np.ndarray, "_ _"]) -> tuple[np.ndarray, np.ndarray]:
    if not np.isfinite(matrix).all():
        return np.full(len(matrix), np.nan), np.full_like(matrix, np.nan)
    return np.linalg.eigh(matrix)


def _with_fixed_signs(
    block: Float[Tensor, "domain node mode"], root_mass: Float[Tensor, "domain node"]
) -> Float[Tensor, "domain node mode"]:
    """Modes from vectors of the symmetric matrix, their signs by the rule of spectrum.py, where they are."""
    vectors = torch.where(root_mass[..., None] > 0, block / root_mass[..., None], 0)
    thirds = root_mass[..., None].square() * vectors**3
    lean, size = thirds.sum(1), thirds.abs().sum(1)
    nearly_largest = vectors.abs() > 0.999 * vectors.abs().amax(1, keepdim=True)
    first = vectors.gather(1, nearly_largest.byte().argmax(1, keepdim=True))[:, 0]
    side = torch.where(lean.abs() > 1e-6 * size, lean, first)
    return vectors * torch.where(side < 0, -1.0, 1.0)[:, None]
