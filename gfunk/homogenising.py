"""K as a wave wider than triangles feels it: blended over those that share a node, within the surface."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Complex, Float, Int
from scipy.sparse import csr_array

from gfunk.domain import Domain, edges_of
from gfunk.surface import area_vectors, cross, dot

NO_MAIN_DIRECTION = 1e-9  # K differs by no more than this between directions


def homogenised(domain: Domain) -> Domain:
    """K as the mean over the triangles that share a node, with the determinant they had.

    Fine mixing in two dimensions keeps the determinant (Dykhne); a mean alone would let waves run too fast. Both are taken
    within the surface; along its normal K stays as it was, coupled to nothing. K is then that of cells, and fibres lie along
    it. Domains of other cells than triangles, or of none, stay as they are.
    """
    if not domain.has_cells or domain.cells.shape[1] != 3:
        return domain
    n_dims = domain.points.shape[1]
    # The plane is a surface too, with nothing along its normal.
    added = (0, 3 - n_dims)
    around = _around_nodes(np.pad(domain.points, ((0, 0), added)), domain.cells)
    axes, tensors = around.axes, np.pad(domain.cell_diffusion(), ((0, 0), added, added))
    from_first, from_second, from_normal = (
        np.einsum("nij,nj->ni", tensors, axis) for axis in (axes.first, axes.second, axes.normal)
    )
    within = _Within.of(dot(axes.first, from_first), dot(axes.second, from_first), dot(axes.second, from_second))
    logarithm = around.to_nodes @ np.repeat(np.log(within.determinant()), 3)
    determinant = np.exp(logarithm.take(domain.cells).mean(axis=1))
    mean = around.cell_means(around.node_means(within))
    mean = mean.times(np.sqrt(determinant / mean.determinant()))
    diffusion = _tensors(mean, dot(axes.normal, from_normal), axes)[:, :n_dims, :n_dims]
    fibres = _along(around.node_means(mean), around.node_axes, np.pad(domain.fibres, ((0, 0), added)))[:, :n_dims]
    return replace(domain, diffusion=diffusion, diffusion_at="cell", fibres=fibres)


@dataclass(frozen=True)
class _Within:
    """Tensors within a surface, by two axes of it: half the trace, and how far and where to they lean.

    The second's size is half the difference of the eigenvalues, its angle twice that of the main direction: turning the axes
    turns it twice as far, and does nothing to the first.
    """

    level: Float[np.ndarray, " site"]
    lean: Complex[np.ndarray, " site"]

    @staticmethod
    def of(first: np.ndarray, mixed: np.ndarray, second: np.ndarray) -> "_Within":
        return _Within((first + second) / 2, (first - second) / 2 + 1j * mixed)

    def determinant(self) -> Float[np.ndarray, " site"]:
        size = np.abs(self.lean)
        return (self.level - size) * (self.level + size)

    def times(self, factor: Float[np.ndarray, " site"]) -> "_Within":
        return _Within(factor * self.level, factor * self.lean)


@dataclass(frozen=True)
class _Axes:
    """Two within a surface, and its normal."""

    first: Float[np.ndarray, "site 3"]
    second: Float[np.ndarray, "site 3"]
    normal: Float[np.ndarray, "site 3"]

    @staticmethod
    def of(leaning: Float[np.ndarray, "site 3"], normals: Float[np.ndarray, "site 3"]) -> "_Axes":
        """The first as near to these as it can be."""
        first = leaning - dot(leaning, normals)[:, None] * normals
        first /= np.sqrt(dot(first, first))[:, None]
        return _Axes(first, cross(normals, first), normals)

    def take(self, sites: Int[np.ndarray, " place"]) -> "_Axes":
        return _Axes(*(axis.take(sites, axis=0) for axis in (self.first, self.second, self.normal)))


@dataclass(frozen=True, kw_only=True)
class _AroundNodes:
    """Tensors from triangles to nodes and back, turned with the normal: what lies within a surface stays within it."""

    cells: Int[np.ndarray, "cell 3"]
    axes: _Axes  # of triangles
    node_axes: _Axes
    # From a triangle's axes to those of its node, where their normals need not point to the same side.
    is_flipped: Bool[np.ndarray, " slot"]
    turns: Complex[np.ndarray, " slot"]
    to_nodes: csr_array  # (node, slot): the mean over a node's triangles, weighted by their area

    def node_means(self, tensors: _Within) -> _Within:
        lean = self._flipped(np.repeat(tensors.lean, 3)) * self.turns
        return _Within(self.to_nodes @ np.repeat(tensors.level, 3), self.to_nodes @ lean)

    def cell_means(self, tensors: _Within) -> _Within:
        lean = self._flipped(tensors.lean.take(self.cells.ravel()) * self.turns.conj())
        return _Within(tensors.level.take(self.cells).mean(axis=1), lean.reshape(-1, 3).mean(axis=1))

    def _flipped(self, lean: Complex[np.ndarray, " slot"]) -> Complex[np.ndarray, " slot"]:
        return np.where(self.is_flipped, lean.conj(), lean)


def _around_nodes(points: Float[np.ndarray, "node 3"], cells: Int[np.ndarray, "cell 3"]) -> _AroundNodes:
    vectors = area_vectors(points, cells)
    area = np.sqrt(dot(vectors, vectors))
    axes = _Axes.of(edges_of(points, cells)[0], vectors / area[:, None])
    node, slot, weight = cells.ravel(), np.arange(cells.size), np.repeat(area, 3)
    total = np.bincount(node, weight)
    to_nodes = csr_array((weight / total[node], (node, slot)), shape=(len(points), cells.size))
    # Triangles may be wound either way: at each node they count as facing the way that one of them does.
    seen = axes.take(slot // 3)
    some = np.empty_like(points)
    some[cells] = axes.normal[:, None]
    sums = to_nodes @ _facing(seen.normal, some.take(node, axis=0))
    node_normals = sums / np.sqrt(dot(sums, sums))[:, None]
    # Any first axis does; the one the normal leans to least is never along it.
    node_axes = _Axes.of(np.eye(3)[np.abs(node_normals).argmin(axis=1)], node_normals)
    there = node_axes.take(node)
    start = _facing(seen.normal, there.normal)
    # Where the smallest rotation that takes one normal to the other takes the first axis.
    share = dot(there.normal, seen.first) / (1 + dot(start, there.normal))
    turned = seen.first - share[:, None] * (start + there.normal)
    turn = dot(there.first, turned) + 1j * dot(there.second, turned)
    is_flipped = dot(seen.normal, there.normal) < 0
    return _AroundNodes(cells=cells, axes=axes, node_axes=node_axes, is_flipped=is_flipped, turns=turn**2, to_nodes=to_nodes)


def _tensors(within: _Within, along_normal: Float[np.ndarray, " site"], axes: _Axes) -> Float[np.ndarray, "site 3 3"]:
    first, second, normal = (np.ascontiguousarray(axis.T) for axis in (axes.first, axes.second, axes.normal))
    level, lean, twist = within.level, np.real(within.lean), np.imag(within.lean)
    onto_first, onto_second = (level + lean) * first + twist * second, twist * first + (level - lean) * second
    onto_normal = along_normal * normal
    found = np.empty((len(level), 3, 3))
    for row, column in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)):
        entry = first[row] * onto_first[column] + second[row] * onto_second[column] + normal[row] * onto_normal[column]
        found[:, row, column] = found[:, column, row] = entry
    return found


def _along(within: _Within, axes: _Axes, fibres: Float[np.ndarray, "node 3"]) -> Float[np.ndarray, "node 3"]:
    """Unit vectors along which the tensors are largest, signed as the fibres; where no direction is, the fibres."""
    angle = np.angle(within.lean) / 2
    main = np.cos(angle)[:, None] * axes.first + np.sin(angle)[:, None] * axes.second
    is_main = np.abs(within.lean) > NO_MAIN_DIRECTION * within.level
    return np.where(is_main[:, None], _facing(main, fibres), fibres)


def _facing(vectors: Float[np.ndarray, "place 3"], others: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, "place 3"]:
    """Each turned round where it points away from the other."""
    return np.where(dot(vectors, others) < 0, -1.0, 1.0)[:, None] * vectors
