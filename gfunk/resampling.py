"""Fields carried between resolutions of one surface: values, fibres and tensors; points thinned out by voxels."""

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.spatial import KDTree

from gfunk.domain import Domain, make_domain, voxel_means
from gfunk.nearest import Cells, Points, nearest_triangles
from gfunk.surface import main_tangents, triangle_areas, triangle_normals

Vectors = Float[np.ndarray, "_ 3"]
Tensors = Float[np.ndarray, "_ 3 3"]


def surface_interpolation(points: Points, cells: Cells, places: Points) -> csr_array:
    """Matrix (place, node): linear interpolation at the nearest place on the triangles.

    Rows sum to one and nothing is negative, so no value leaves the range of those given. Errors are of order 2 in the edge
    length. Integrals are kept to that order only; the transpose, which takes loads at places to nodes, keeps their sum.
    """
    cell, weights = nearest_triangles(points, cells)(places)
    row = np.repeat(np.arange(len(places)), 3)
    return csr_array((weights.ravel(), (row, cells[cell].ravel())), shape=(len(places), len(points)))


def mixed_fibres(matrix: csr_array, fibres: Vectors, normals: Vectors) -> Vectors:
    """Fibres at places, from those at nodes: the main axis of the interpolated f f^T, blind to f's sign.

    normals: of the places, such as `vertex_normals`; the fibres lie at right angles to them.
    """
    outer = fibres[:, :, None] * fibres[:, None, :]
    return main_tangents((matrix @ outer.reshape(-1, 9)).reshape(-1, 3, 3), normals)


def carried_fibres(points: Points, cells: Cells, fibres: Vectors, new_points: Points, new_cells: Cells) -> Vectors:
    """Fibres of triangles on other triangles of the same surface: the main axis of the carried f f^T, blind to f's sign."""
    tensors = carried_tensors(points, cells, fibres[:, :, None] * fibres[:, None, :], new_points, new_cells)
    return main_tangents(tensors, triangle_normals(new_points, new_cells))


def carried_tensors(points: Points, cells: Cells, tensors: Tensors, new_points: Points, new_cells: Cells) -> Tensors:
    """Tensors of triangles on other triangles of the same surface: the mean over the nearest, each turned with its normal.

    What was along the normal, or within the surface, stays so; what was positive stays positive.
    """
    centre, new_centre = points[cells].mean(axis=1), new_points[new_cells].mean(axis=1)
    # As many as a new triangle covers, but some.
    n_near = int(np.clip(np.ceil(len(cells) / len(new_cells)), 3, 50))
    near = np.asarray(KDTree(centre).query(new_centre, min(n_near, len(cells)))[1]).reshape(len(new_cells), -1)
    normal, new_normal = triangle_normals(points, cells)[near], triangle_normals(new_points, new_cells)[:, None]
    facing = (normal * new_normal).sum(axis=2)
    area = triangle_areas(points, cells)[near]
    # In a thin place the other wall is near too, but faces the other way.
    weight = area * np.maximum(facing, 0)
    weight = np.where(weight.any(axis=1, keepdims=True), weight, area)
    turn = _turns(np.where(facing < 0, -1.0, 1.0)[:, :, None] * normal, np.broadcast_to(new_normal, normal.shape))
    mean = np.einsum(
        "cn,cnij,cnjk,cnlk->cil", weight / weight.sum(axis=1, keepdims=True), turn, tensors[near], turn, optimize=True
    )
    return (mean + mean.swapaxes(1, 2)) / 2


def voxel_sampled(domain: Domain, voxel_mm: float) -> tuple[Domain, Int[np.ndarray, " place"]]:
    """One point for each voxel that holds any, with K and the fibre of the node nearest to it, and that node's number.

    The points have no cells: triangles are lost, and where the surface is curved a mean lies a little inside of it.
    """
    points, nearest = voxel_means(domain.points, voxel_mm)
    return make_domain(points, diffusion=domain.node_diffusion()[nearest], fibres=domain.fibres[nearest]), nearest


def _turns(start: Float[np.ndarray, "_ neighbor 3"], end: Float[np.ndarray, "_ neighbor 3"]) -> np.ndarray:
    """The smallest rotations that take one unit vector to the other, less than 180 degrees apart."""
    axis = np.cross(start, end)
    cosine = (start * end).sum(axis=2)[:, :, None, None]
    outer = axis[:, :, :, None] * axis[:, :, None, :]
    # The cross product with the axis, as a matrix.
    x, y, z = np.moveaxis(axis, 2, 0)
    zero = np.zeros_like(x)
    skew = np.stack([np.stack([zero, -z, y], -1), np.stack([z, zero, -x], -1), np.stack([-y, x, zero], -1)], axis=2)
    return cosine * np.eye(3) + skew + outer / (1 + cosine)
