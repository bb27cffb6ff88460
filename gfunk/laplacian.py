"""-div(K grad) as two matrices, stiffness and mass: finite elements, neighbours in the K^-1 metric, or the paper's graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array, csr_array, dia_array
from scipy.spatial import KDTree
from scipy.special import gammainc, ndtr

from gfunk.domain import Domain, cell_sizes, edges_of
from gfunk.errors import InputError
from gfunk.small_matrices import inverses
from gfunk.surface import dot


@dataclass(frozen=True, kw_only=True)
class Laplacian:
    """-div(K grad) u is M^-1 S u. Both are symmetric; S is positive semi-definite, M positive. No flux leaves the domain."""

    stiffness: csr_array
    mass: csr_array

    @property
    def n_nodes(self) -> int:
        return len(self.stiffness.indptr) - 1

    def lumped_mass(self) -> Float[np.ndarray, " node"]:
        return np.asarray(self.mass.sum(axis=1)).ravel()


# Lumped mass slows what varies from node to node, consistent mass speeds it up, less so in waves: one part of the first to
# three of the second errs little more than half as much. With as much of both, no error of order 2 is left on even triangles
# where K is isotropic (docs/verification.md).
Mass = Literal["lumped", "consistent", "mixed", "balanced"]


@dataclass(frozen=True, kw_only=True)
class Fem:
    """P1 finite elements: the default wherever there are cells."""

    mass: Mass = "lumped"


@dataclass(frozen=True, kw_only=True)
class Knn:
    """A kernel graph over neighbours in the K^-1 metric, for clouds without cells."""

    n_neighbors: int = 30
    n_dims: int | None = None  # of the manifold the points lie on; None: that of the space


@dataclass(frozen=True, kw_only=True)
class PaperGraph:
    """Eq. 8 on Euclidean neighbours, exactly as printed."""

    n_neighbors: int = 30  # A.1.2; 6 for the atria


Discretisation = Fem | Knn | PaperGraph


def laplacian(domain: Domain, how: Discretisation | None = None) -> Laplacian:
    """The Laplacian of a domain: finite elements if it has cells, the kernel graph if not, or as asked."""
    if how is None:
        how = Fem() if domain.has_cells else Knn()
    match how:
        case Fem():
            return fem_laplacian(domain, how.mass)
        case Knn():
            return knn_laplacian(domain, how.n_neighbors, how.n_dims)
        case PaperGraph():
            return paper_laplacian(domain, how.n_neighbors)


def fem_laplacian(domain: Domain, mass: Mass = "lumped") -> Laplacian:
    """P1 elements on triangles (plane or surface) and tetrahedra: S_ij = sum over cells of |cell| grad_i . K grad_j."""
    if not domain.has_cells:
        raise InputError("finite elements need cells; for a bare cloud of points use the knn Laplacian")
    return assembled(domain, *element_matrices(domain, mass))


def assembled(
    domain: Domain, stiffness: Float[np.ndarray, "cell corner corner"], mass: Float[np.ndarray, "cell corner corner"]
) -> Laplacian:
    """Matrices of the nodes from those of the cells."""
    stiffness_of_nodes, mass_of_nodes = (_assembled(domain.cells, blocks, domain.n_nodes) for blocks in (stiffness, mass))
    return Laplacian(stiffness=stiffness_of_nodes, mass=mass_of_nodes)


def element_matrices(
    domain: Domain, mass: Mass = "consistent"
) -> tuple[Float[np.ndarray, "cell corner corner"], Float[np.ndarray, "cell corner corner"]]:
    """Stiffness and mass of each cell."""
    n_corners = domain.cells.shape[1]
    size = cell_sizes(domain.points, domain.cells)
    # Of the first corner it is minus the sum of the others.
    gradients = _hat_gradients(domain)
    fluxes = [np.einsum("cij,cj->ci", domain.cell_diffusion(), each) for each in gradients]
    stiffness = np.empty((n_corners, n_corners, len(domain.cells)))
    for one, other in combinations_with_replacement(range(1, n_corners), 2):
        stiffness[one, other] = stiffness[other, one] = size * dot(gradients[one - 1], fluxes[other - 1])
    stiffness[0, 1:] = stiffness[1:, 0] = -stiffness[1:, 1:].sum(axis=0)
    stiffness[0, 0] = -stiffness[0, 1:].sum(axis=0)
    stiffness = np.ascontiguousarray(stiffness.transpose(2, 0, 1))
    # Integral of hat_a hat_b over a simplex of d = n_corners - 1 dimensions: |cell| (1 + delta_ab) / ((d + 1)(d + 2)).
    consistent = (np.ones((n_corners, n_corners)) + np.eye(n_corners)) / (n_corners * (n_corners + 1))
    lumped = np.eye(n_corners) / n_corners
    parts_lumped = {"consistent": 0, "mixed": 1 / 4, "balanced": 1 / 2, "lumped": 1}
    if mass not in parts_lumped:
        raise InputError(f"mass {mass!r} is none of {', '.join(parts_lumped)}")
    share = (1 - parts_lumped[mass]) * consistent + parts_lumped[mass] * lumped
    return stiffness, size[:, None, None] * share


def paper_laplacian(domain: Domain, n_neighbors: int) -> Laplacian:
    """deg - W over the Euclidean nearest neighbours of each node (Eqs. 4 and 8), mass the identity.

    Paper: this does not approximate div(K grad); it sees about the square root of the anisotropy (docs/design.md).
    """
    edges = _undirected(nearest_neighbors(domain.points, n_neighbors))
    return _graph_laplacian(edges, edge_weights(domain, edges), np.ones(domain.n_nodes))


def edge_weights(domain: Domain, edges: Int[np.ndarray, "edge 2"]) -> Float[np.ndarray, " edge"]:
    """Inverse squared length of each edge, in the metric of the inverse diffusion.

    Eq. 8: 1 / w_ij = (x_j - x_i)^T (K_i^-1 + K_j^-1) (x_j - x_i) / 2.
    """
    squared = _squared_lengths(domain, edges)
    touching = np.flatnonzero(squared == 0)
    if touching.size:
        raise InputError(f"nodes {edges[touching[0]].tolist()} lie on the same point: merge them")
    return 1 / squared


def knn_laplacian(domain: Domain, n_neighbors: int = 30, n_dims: int | None = None) -> Laplacian:
    """A Gaussian graph in the K^-1 metric whose energy tends to the integral of grad u . K grad u at any sampling density.

    With g_ij the heat kernel of time t_ij between i and j, and v_i = 1 / sum_j g_ij the volume a node stands for,
    sum_ij v_i v_j g_ij (u_i - u_j)^2 / (2 t_ij) is that energy. Every weight is positive and the matrix is symmetric.
    Beside a boundary only a fraction c of the kernel finds points: v is too large by 1/c, the pairs are too few by c.
    """
    n_dims = int(n_dims or domain.points.shape[1])
    tensors = domain.node_diffusion()
    neighbors, distance = _neighbors_in_metric(domain.points, np.linalg.inv(tensors), n_neighbors)
    # A node's kernel falls to e^-reach at its farthest neighbour; what lies beyond is added to both moments in closed form.
    reach = 3.0
    time = distance[:, -1] ** 2 / (4 * reach)
    edges = _undirected(neighbors)
    tail, head = edges.T
    edge_time = np.sqrt(time[tail] * time[head])
    spread = np.sqrt(np.prod(np.linalg.eigvalsh(tensors)[:, -n_dims:], axis=1))
    kernel = np.exp(-_squared_lengths(domain, edges) / (4 * edge_time)) / (
        (4 * np.pi * edge_time) ** (n_dims / 2) * np.sqrt(spread[tail] * spread[head])
    )
    own = 1 / ((4 * np.pi * time) ** (n_dims / 2) * spread)
    density = own + np.bincount(edges.ravel(), np.repeat(kernel, 2), minlength=domain.n_nodes)
    volume = gammainc(n_dims / 2, reach) / density
    covered = _covered_fraction(domain, edges, kernel, density, time)
    energy = volume[tail] * volume[head] * kernel / (edge_time * gammainc(n_dims / 2 + 1, reach))
    return _graph_laplacian(edges, energy * np.sqrt(covered[tail] * covered[head]), volume * covered)


def _covered_fraction(
    domain: Domain,
    edges: Int[np.ndarray, "edge 2"],
    kernel: Float[np.ndarray, " edge"],
    density: Float[np.ndarray, " node"],
    time: Float[np.ndarray, " node"],
) -> Float[np.ndarray, " node"]:
    """How much of each node's kernel lies inside the domain: 1 deep inside, 1/2 on a straight boundary.

    A Gaussian cut z deviations from its centre has mean phi(z) / Phi(z) and mass Phi(z): read Phi off the mean.
    """
    tail, head = np.concatenate([edges, edges[:, ::-1]]).T
    weight = np.tile(kernel, 2) / density[tail]
    step = domain.points[head] - domain.points[tail]
    squared = _squared_lengths(domain, np.stack([tail, head], 1)) / (2 * time[tail])
    mean = np.stack([np.bincount(tail, weight * x, minlength=domain.n_nodes) for x in step.T], axis=1)
    pull = np.einsum("ni,nij,nj->n", mean, np.linalg.inv(domain.node_diffusion()), mean) / (2 * time)
    # Random points pull a little even deep inside: take away what chance alone would give.
    chance = np.bincount(tail, weight**2 * squared, minlength=domain.n_nodes)
    z = np.linspace(0, 5, 501)
    mills = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / ndtr(z)
    return ndtr(np.interp(-np.sqrt(np.maximum(pull - chance, 0)), -mills, z))


def nearest_neighbors(points: Float[np.ndarray, "node dim"], n_neighbors: int) -> Int[np.ndarray, "node neighbor"]:
    """The Euclidean nearest neighbours of each node, itself left out."""
    _check_n_neighbors(n_neighbors, len(points))
    found = np.asarray(KDTree(points).query(points, n_neighbors + 1)[1])
    is_self = found == np.arange(len(points))[:, None]
    # Where points coincide a node may not find itself among the first: drop the last instead.
    is_self[~is_self.any(axis=1), -1] = True
    return found[~is_self].reshape(len(points), n_neighbors)


def _neighbors_in_metric(
    points: Float[np.ndarray, "node dim"], resistance: Float[np.ndarray, "node dim dim"], n_neighbors: int
) -> tuple[Int[np.ndarray, "node neighbor"], Float[np.ndarray, "node neighbor"]]:
    """For each node the nearest others in its own metric x^T R x, exact: candidates grow until none can be missed."""
    n_nodes = len(points)
    _check_n_neighbors(n_neighbors, n_nodes)
    tree = KDTree(points)
    longest_axis = 1 / np.sqrt(np.linalg.eigvalsh(resistance)[:, 0])
    neighbors = np.empty((n_nodes, n_neighbors), dtype=np.int64)
    distance = np.empty((n_nodes, n_neighbors))
    open_nodes, n_candidates = np.arange(n_nodes), 2 * n_neighbors
    while open_nodes.size:
        n_candidates = min(2 * n_candidates, n_nodes - 1)
        radius, candidates = tree.query(points[open_nodes], n_candidates + 1)
        step = points[candidates] - points[open_nodes, None]
        length = np.sqrt(np.einsum("nki,nij,nkj->nk", step, resistance[open_nodes], step))
        length[candidates == open_nodes[:, None]] = np.inf
        nearest = np.argsort(length, axis=1, kind="stable")[:, :n_neighbors]
        neighbors[open_nodes] = np.take_along_axis(candidates, nearest, axis=1)
        distance[open_nodes] = np.take_along_axis(length, nearest, axis=1)
        if not (distance[open_nodes, -1] > 0).all():
            raise InputError(f"more than {n_neighbors} nodes lie on one point: merge them")
        # A point beyond the candidates is at least radius / longest_axis away in the metric.
        missed = distance[open_nodes, -1] > radius[:, -1] / longest_axis[open_nodes]
        open_nodes = open_nodes[missed] if n_candidates < n_nodes - 1 else open_nodes[:0]
    return neighbors, distance


def _check_n_neighbors(n_neighbors: int, n_nodes: int):
    if not 1 <= n_neighbors < n_nodes:
        raise InputError(f"{n_neighbors} neighbours can't be had among {n_nodes} nodes: ask for 1 to {n_nodes - 1}")


def _squared_lengths(domain: Domain, edges: Int[np.ndarray, "edge 2"]) -> Float[np.ndarray, " edge"]:
    tail, head = edges.T
    step = domain.points[head] - domain.points[tail]
    resistance = np.linalg.inv(domain.node_diffusion())
    return np.einsum("ei,eij,ej->e", step, (resistance[tail] + resistance[head]) / 2, step)


def _undirected(neighbors: Int[np.ndarray, "node neighbor"]) -> Int[np.ndarray, "edge 2"]:
    """Each pair once if either names the other."""
    tail = np.repeat(np.arange(len(neighbors)), neighbors.shape[1])
    return np.unique(np.sort(np.stack([tail, neighbors.ravel()], 1), axis=1), axis=0)


def _graph_laplacian(
    edges: Int[np.ndarray, "edge 2"], weights: Float[np.ndarray, " edge"], mass: Float[np.ndarray, " node"]
) -> Laplacian:
    tail, head = edges.T
    n_nodes = len(mass)
    adjacency = coo_array((weights, (tail, head)), shape=(n_nodes, n_nodes)).tocsr()
    adjacency = adjacency + adjacency.T
    degree = np.asarray(adjacency.sum(axis=1)).reshape(1, -1)
    return Laplacian(
        stiffness=csr_array(dia_array((degree, [0]), shape=adjacency.shape) - adjacency),
        mass=csr_array(dia_array((mass.reshape(1, -1), [0]), shape=adjacency.shape)),
    )


def off_diagonal_rows(
    matrices: Sequence[csr_array],
) -> tuple[Int[np.ndarray, "slot node"], list[Float[np.ndarray, "slot node"]]]:
    """Columns and entries of matrices of one pattern, filled up to the longest row with the node itself at 0."""
    pattern = csr_array(sum((abs(matrix) for matrix in matrices), start=csr_array(matrices[0].shape)))
    pattern.sort_indices()
    row, column = pattern.tocoo().coords
    is_beside = row != column
    row, column = row[is_beside], column[is_beside]
    n_nodes = len(matrices[0].indptr) - 1
    count = np.bincount(row, minlength=n_nodes)
    slot = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    neighbors = np.tile(np.arange(n_nodes), (max(1, int(count.max(initial=0))), 1))
    neighbors[slot, row] = column
    entries = []
    for matrix in matrices:
        has_all = matrix.has_sorted_indices and np.array_equal(matrix.indices, pattern.indices)
        values = np.zeros(neighbors.shape)
        values[slot, row] = matrix.data[is_beside] if has_all else np.asarray(matrix[row, column]).ravel()
        entries.append(values)
    return neighbors, entries


def _hat_gradients(domain: Domain) -> list[Float[np.ndarray, "cell dim"]]:
    """Gradient of each corner's hat function but the first's, within the simplex (tangent to it on surfaces)."""
    edges = edges_of(domain.points, domain.cells)
    gram = np.empty((len(domain.cells), len(edges), len(edges)))
    for one, other in combinations_with_replacement(range(len(edges)), 2):
        gram[:, one, other] = gram[:, other, one] = dot(edges[one], edges[other])
    columns = inverses(gram).transpose(1, 2, 0)
    return [np.sum([share[:, None] * edge for share, edge in zip(column, edges, strict=True)], axis=0) for column in columns]


def _assembled(cells: Int[np.ndarray, "cell corner"], blocks: np.ndarray, n_nodes: int) -> csr_array:
    n_corners = cells.shape[1]
    node = np.arange(n_nodes)
    own = np.bincount(cells.ravel(), np.einsum("caa->ca", blocks).ravel(), minlength=n_nodes)
    diagonal = csr_array((own, node, np.arange(n_nodes + 1)), shape=(n_nodes, n_nodes))
    # Each pair once, its lower node first: sums over cells come in any order, and are to be the same on both sides.
    one, other = np.concatenate([cells[:, pair] for pair in combinations(range(n_corners), 2)]).T
    between = np.concatenate([blocks[:, *pair] for pair in combinations(range(n_corners), 2)])
    if not between.any():
        return diagonal
    places = np.minimum(one, other), np.maximum(one, other)
    upper = coo_array((between, places), shape=(n_nodes, n_nodes)).tocsr()
    return csr_array(upper + upper.T + diagonal)


# In medians of a domain. Evenly spaced points have none above 3; above 4, cells are less than half as wide as others.
FASTEST_ROW = 4.0


def row_rates(pulls: Float[np.ndarray, " node"], mass: Float[np.ndarray, " node"]) -> Float[np.ndarray, " node"]:
    """By Gershgorin no eigenvalue of S / mass is above the largest: a row's diagonal plus the sizes of its other entries.

    pulls: the sum of each row's positive couplings, -S_ij.
    """
    return 2 * pulls / mass


def inertia(pulls: Float[np.ndarray, " node"], mass: Float[np.ndarray, " node"]) -> Float[np.ndarray, " node"]:
    """The mass, raised where a row is faster than FASTEST_ROW medians: beside thin cells S / mass has no bound."""
    rates = row_rates(pulls, mass)
    return mass * np.maximum(1, rates / (FASTEST_ROW * np.median(rates)))
