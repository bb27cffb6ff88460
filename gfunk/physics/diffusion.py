"""Implicit diffusion of many fields at once, on CPU or GPU: half a step solved by a fixed number of matrix products."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp2, floor, log, log2, sqrt

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array, dia_array
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor
from torch.nn.functional import embedding

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, Mass, assembled, element_matrices, knn_laplacian, off_diagonal_rows
from gfunk.sparse_solver import symmetric_solver
from gfunk.surface import unique_edges


@dataclass(frozen=True, kw_only=True)
class Solving:
    """How a half step is solved: others that take it over are solved alike."""

    n_slots: int  # for neighbours of a node
    smallest: float
    largest: float
    stiffest: float


@dataclass(frozen=True, kw_only=True)
class HalfStep:
    """(M + dt/2 S) z = -dt/2 S v by rows, each divided by its diagonal; v + z is v after half a step of backward Euler.

    Row i says z_i + sum_j coupling_ij z_j = sum_j pull_ij (v_j - v_i) over its neighbours j. Differences of v alone enter:
    a constant field stays constant to the last bit.
    """

    neighbors: Int[Tensor, "slot node"]
    couplings: Float[Tensor, "slot node"]
    pulls: Float[Tensor, "slot node"]
    # All eigenvalues of the matrix lie between these.
    smallest: float
    largest: float
    # Those of M^-1 dt/2 S lie below this.
    stiffest: float

    @property
    def solving(self) -> Solving:
        return Solving(n_slots=len(self.neighbors), smallest=self.smallest, largest=self.largest, stiffest=self.stiffest)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "HalfStep":
        return HalfStep(
            neighbors=self.neighbors.to(device),
            couplings=self.couplings.to(device, dtype),
            pulls=self.pulls.to(device, dtype),
            smallest=self.smallest,
            largest=self.largest,
            stiffest=self.stiffest,
        )

    def n_iterations(self, reduction: float) -> int:
        """Chebyshev iterations that reduce the error of the first guess by this factor, or more where steps need it.

        Where each step's guess is the last one's answer, what a solve leaves returns. With a share p left, Crank-Nicolson's
        modes swing up if x / (1 + x) > (1 + p) / (1 - p) for x, the mode's eigenvalue of M^-1 dt/2 S: a negative p must be
        smaller than 1 / (1 + 2 x). Half of that is kept, as p and x belong to one mode only where matrices commute.
        """
        reduction = min(reduction, 0.5 / (1 + 2 * self.stiffest))
        root = sqrt(self.largest / self.smallest)
        # 2 q^n / (1 + q^2n) with q = (root - 1) / (root + 1) bounds it.
        return max(1, ceil(log(2 / reduction) / log((root + 1) / (root - 1)))) if root > 1 + 1e-9 else 1

    def company(self, reduction: float) -> tuple[float, float, int]:
        """Domains that have the same are solved by the same iterations, so they can be side by side."""
        return self.smallest, self.largest, self.n_iterations(reduction)

    def weights(self, n_iterations: int) -> Float[Tensor, "iteration 2"]:
        """Chebyshev's: what each iteration keeps of the last change, and takes of the residual."""
        middle, radius = (self.largest + self.smallest) / 2, (self.largest - self.smallest) / 2
        rho, found = radius / middle, [(0.0, 1 / middle)]
        for _ in range(n_iterations - 1):
            next_rho = 1 / (2 * middle / radius - rho)
            found.append((next_rho * rho, 2 * next_rho / radius))
            rho = next_rho
        return torch.tensor(found, dtype=self.couplings.dtype, device=self.couplings.device)


def half_step(domain: Domain, dt: float, mass: Mass = "consistent", known: Solving | None = None) -> HalfStep:
    """The matrix of half a step of length dt / 2, and bounds of its eigenvalues, unless they are known."""
    blocks = element_matrices(domain, mass) if domain.has_cells else None
    matrices = assembled(domain, *blocks) if blocks else knn_laplacian(domain)
    matrix = csr_array(matrices.mass + dt / 2 * matrices.stiffness)
    diagonal = matrix.diagonal()
    if known is None:
        smallest, largest = _bounds_of_cells(*blocks, matrix, dt) if blocks else _bounds_of_graph(matrix)
        stiffest = dt / 2 * (_stiffest_cell(*blocks) if blocks else _stiffest_node(matrices))
        bounds = _rounded(smallest, largest, stiffest)
    else:
        bounds = {name: getattr(known, name) for name in ("smallest", "largest", "stiffest")}
    neighbors, entries = off_diagonal_rows([matrix, matrices.stiffness])
    return HalfStep(
        neighbors=torch.from_numpy(neighbors.astype(np.int32)),
        couplings=torch.from_numpy(entries[0] / diagonal),
        pulls=torch.from_numpy(-dt / 2 * entries[1] / diagonal),
        **bounds,
    )


def solving_when_halved(domain: Domain, dt: float, mass: Mass, n_halvings: int) -> Solving | None:
    """How `half_step` is solved on the domain with its triangles cut in four so often, in their planes, without making it.

    Parts of a triangle have its S, and a quarter of its M: as if the step were four times as long. None where some are so
    thin that it takes the whole matrix.
    """
    stiffness, masses = element_matrices(domain, mass)
    longer = 4**n_halvings * dt
    smallest, largest, _ = extremes(stiffness, masses, longer)
    if smallest < largest / FAR_APART:
        return None
    n_neighbors = int(np.bincount(unique_edges(domain.cells).ravel()).max())
    return Solving(
        # A side's middle has six neighbours, or four.
        n_slots=max(n_neighbors, 6) if n_halvings else n_neighbors,
        **_rounded(smallest, largest, longer / 2 * _stiffest_cell(stiffness, masses)),
    )


def _rounded(smallest: float, largest: float, stiffest: float) -> dict[str, float]:
    """Outwards to an eighth of an octave, or half: alike domains get like bounds, and can be stepped together."""
    lower, upper = floor(8 * log2(smallest)), ceil(8 * log2(largest))
    return {
        "smallest": exp2(lower / 8),
        "largest": exp2(max(upper, lower + 1) / 8),
        "stiffest": exp2(ceil(2 * log2(stiffest)) / 2),
    }


def joined(parts: Sequence[HalfStep]) -> HalfStep:
    """Domains side by side, as one: nothing couples them. Bounds are the widest; where they are equal, as on like meshes,
    no domain changes another's result."""
    n_slots = max(len(part.neighbors) for part in parts)
    first = np.cumsum([0] + [part.neighbors.shape[1] for part in parts])

    def filled(field: Tensor, filler: Tensor) -> Tensor:
        return torch.cat([field, filler.to(field.dtype).expand(n_slots - len(field), -1)])

    def side_by_side(name: str) -> Tensor:
        return torch.cat([filled(getattr(part, name), torch.zeros(part.neighbors.shape[1])) for part in parts], dim=1)

    neighbors = [
        filled(part.neighbors, torch.arange(part.neighbors.shape[1])) + int(at)
        for part, at in zip(parts, first[:-1], strict=True)
    ]
    return HalfStep(
        neighbors=torch.cat(neighbors, dim=1),
        couplings=side_by_side("couplings"),
        pulls=side_by_side("pulls"),
        smallest=min(part.smallest for part in parts),
        largest=max(part.largest for part in parts),
        stiffest=max(part.stiffest for part in parts),
    )


def diffused(
    v: Float[Tensor, "node trajectory"],
    guess: Float[Tensor, "node trajectory"],
    step: HalfStep,
    weights: Float[Tensor, "iteration 2"],
    begin: Callable[..., tuple[Tensor, Tensor, Tensor]] | None = None,
    go_on: Callable[..., tuple[Tensor, Tensor, Tensor]] | None = None,
) -> Float[Tensor, "node trajectory"]:
    """z such that v + z is v half a step later, from a guess of z, by the step's weights of Chebyshev iteration: no sums
    over nodes.

    begin, go_on: `begun` and `gone_on` as they should be called, for instance compiled.
    """
    first, *others = weights.unbind()
    now = (begin or begun)(v, guess, step, first)
    for each in others:
        now = (go_on or gone_on)(*now, step, each)
    z = now[0]
    # Far ahead of a wave numbers would be denormal floats, slow ones.
    return torch.where(z.abs() > 1e-20, z, 0)


def coupling_matrix(step: HalfStep) -> csr_array:
    """The couplings, for `begun` and `gone_on` on a CPU where they are not compiled: quicker than slot by slot."""
    n_nodes = step.neighbors.shape[1]
    rows = np.broadcast_to(np.arange(n_nodes), step.neighbors.shape)
    places = rows.ravel(), step.neighbors.numpy().ravel()
    matrix = csr_array((step.couplings.numpy().ravel(), places), shape=(n_nodes, n_nodes))
    matrix.eliminate_zeros()  # slots that nobody fills
    return matrix


def begun(
    v: Tensor, guess: Tensor, step: HalfStep, weight: Tensor, matrix: csr_array | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """After the first iteration: z, its last change, and the residual before it."""
    residual = _pulled(step, v, at_once=matrix is not None) - _product(step, guess, matrix)
    change = weight[1] * residual
    return guess + change, change, residual


def gone_on(
    z: Tensor, change: Tensor, residual: Tensor, step: HalfStep, weight: Tensor, matrix: csr_array | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same an iteration later."""
    kept, taken = weight.unbind()
    residual = residual - _product(step, change, matrix)
    change = kept * change + taken * residual
    return z + change, change, residual


def _pulled(step: HalfStep, v: Tensor, at_once: bool) -> Tensor:
    if at_once:
        # A matrix would not keep a constant field to the last bit, nor torch's sum what does not depend on other domains.
        around = v.T.index_select(1, step.neighbors.flatten()).view(-1, *step.neighbors.shape)
        first, *others = (step.pulls * (around - v.T[:, None])).unbind(dim=1)
        return sum(others, first).T
    # Slot by slot, not as one sum over them: compiled, this is a single pass with unit stride. `embedding` picks rows as
    # v[neighbors] does, but counts none from the end: it needn't look for negative numbers.
    pulled = torch.zeros_like(v)
    for neighbors, pull in zip(step.neighbors.unbind(), step.pulls.unbind(), strict=True):
        pulled = pulled + pull[:, None] * (embedding(neighbors, v) - v)
    return pulled


def _product(step: HalfStep, x: Tensor, matrix: csr_array | None) -> Tensor:
    if matrix is not None:
        return x + torch.from_numpy(matrix @ x.numpy())
    total = x
    for neighbors, coupling in zip(step.neighbors.unbind(), step.couplings.unbind(), strict=True):
        total = total + coupling[:, None] * embedding(neighbors, x)
    return total


def _stiffest_cell(
    stiffness: Float[np.ndarray, "cell corner corner"], mass: Float[np.ndarray, "cell corner corner"]
) -> float:
    """No eigenvalue of M^-1 S is above the largest of a cell's own, and that is below their sum."""
    # Masses of cells differ by a factor.
    return float((np.einsum("ab,cba->c", np.linalg.inv(mass[0]), stiffness) * mass[0, 0, 0] / mass[:, 0, 0]).max())


def _stiffest_node(matrices: Laplacian) -> float:
    """The same for a graph, whose mass is diagonal, by Gershgorin's circles."""
    return float((2 * matrices.stiffness.diagonal() / matrices.mass.diagonal()).max())


def _bounds_of_graph(matrix: csr_array) -> tuple[float, float]:
    """Bounds of the eigenvalues of diag(A)^-1 A by Gershgorin's circles: row sums of A are the lumped mass, all positive."""
    return float((np.asarray(matrix.sum(axis=1)).ravel() / matrix.diagonal()).min()), 2.0


FAR_APART = 8.0  # bounds that are so need another look


def _bounds_of_cells(
    stiffness: Float[np.ndarray, "cell corner corner"],
    mass: Float[np.ndarray, "cell corner corner"],
    matrix: csr_array,
    dt: float,
) -> tuple[float, float]:
    """Bounds of the eigenvalues of diag(A)^-1 A.

    x . A x is a sum over cells, so x . A x / x . diag(A) x lies between the extremes of the cells' own quotients (Wathen
    1987). The lower one is far too low where a few cells are thin; there the eigenvalue itself is found.
    """
    smallest, largest, thinnest = extremes(stiffness, mass, dt)
    if smallest < largest / FAR_APART:
        smallest = max(smallest, _below_smallest_eigenvalue(matrix))
    if smallest < 1e-9 * largest:
        raise InputError(
            f"cell {thinnest} is too thin to diffuse through (eigenvalues from {smallest:.1e} to "
            f"{largest:.1e}): remesh, or take shorter steps"
        )
    return smallest, largest


def extremes(
    stiffness: Float[np.ndarray, "cell corner corner"], mass: Float[np.ndarray, "cell corner corner"], dt: float
) -> tuple[float, float, int]:
    """The least and the largest of all cells' quotients, and the cell with the least."""
    block = mass + dt / 2 * stiffness
    scale = 1 / np.sqrt(np.einsum("caa->ca", block))
    scaled = scale[:, :, None] * block * scale[:, None, :]
    cells = np.arange(len(scaled))
    if scaled.shape[1] == 3:
        lowest, highest = _roots(scaled)
        if lowest.min() > WELL_APART:
            cells = np.array([lowest.argmin(), highest.argmax()])
    quotients = np.linalg.eigvalsh(scaled[cells])
    return float(quotients.min()), float(quotients.max()), int(cells[quotients.min(axis=1).argmin()])


WELL_APART = 1e-3  # roots as far from zero are good to 1e-5 of themselves


def _roots(scaled: Float[np.ndarray, "cell 3 3"]) -> tuple[Float[np.ndarray, " cell"], Float[np.ndarray, " cell"]]:
    """The least and the largest eigenvalue of matrices with ones on the diagonal, by Viete's formula."""
    a, b, c = scaled[:, 0, 1], scaled[:, 0, 2], scaled[:, 1, 2]
    size = np.sqrt((a * a + b * b + c * c) / 3)
    cosine = a * b * c / np.maximum(size, np.finfo(float).tiny ** (1 / 3)) ** 3
    angle = np.arccos(np.clip(cosine, -1, 1)) / 3
    return 1 + 2 * size * np.cos(angle + 2 * np.pi / 3), 1 + 2 * size * np.cos(angle)


FACTORED = 200_000  # nodes: the factors of more take minutes and gigabytes


def _below_smallest_eigenvalue(matrix: csr_array) -> float:
    """A little less than that of diag(A)^-1 A, by inverse iteration: without the inverse, Lanczos may settle on another one.

    Where factors would be large it goes without, and farther below. Were it still too high, what is left of few modes would
    be a little more than asked for, and nothing would grow: Chebyshev's polynomials are below 1 there.
    """
    n_nodes = len(matrix.indptr) - 1
    scale = dia_array((1 / np.sqrt(matrix.diagonal())[None], [0]), shape=(n_nodes, n_nodes))
    scaled = csr_array(scale @ matrix @ scale)
    if n_nodes < 20:
        return 0.99 * float(np.linalg.eigvalsh(scaled.toarray())[0])
    how = {"v0": np.random.default_rng(0).standard_normal(n_nodes), "return_eigenvectors": False}
    if n_nodes > FACTORED:
        try:
            return 0.9 * float(eigsh(scaled, 1, which="SA", tol=0.1, **how)[0])  # pyright: ignore[reportArgumentType]
        except ArpackNoConvergence:
            return 0.0  # the cells' own quotients then say
    inverse = LinearOperator((n_nodes, n_nodes), matvec=symmetric_solver(scaled), dtype=np.float64)  # pyright: ignore[reportCallIssue]
    # What it is taken for is rounded further than this.
    return 0.99 * float(eigsh(scaled, 1, sigma=0.0, OPinv=inverse, tol=1e-3, **how)[0])  # pyright: ignore[reportArgumentType]
