"""Each node's triangles, in the metric of the inverse diffusion: what a front needs to be carried across a mesh."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gfunk.domain import Domain


@dataclass(frozen=True, kw_only=True)
class Corners:
    """For each node and each of its triangles: the other two nodes, and where the node lies over the side between them.

    Lengths are those of K^-1, in which a wave runs equally fast in all directions: squared, they are times. Where a node has
    fewer triangles than others, both ends are the node itself: nothing comes sooner from there.
    """

    # From the node's number to theirs.
    steps: Int[np.ndarray, "node triangle 2"]
    # Squared length of the side; its first end's place beside the node's foot, in lengths of the side; squared height.
    shape: Float[np.ndarray, "node triangle 3"]


def corners(domain: Domain) -> Corners:
    """Of triangles alone; a domain of tetrahedra or of no cells has none."""
    n_nodes = domain.n_nodes
    if not domain.has_cells or domain.cells.shape[1] != 3:
        return Corners(steps=np.zeros((n_nodes, 0, 2), dtype=np.int64), shape=np.zeros((n_nodes, 0, 3)))
    # Each triangle seen from each of its nodes.
    node, first, second = np.concatenate([np.roll(domain.cells, -turn, axis=1) for turn in range(3)]).T
    resistance = np.tile(np.linalg.pinv(domain.cell_diffusion(), hermitian=True), (3, 1, 1))

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("ni,nij,nj->n", a, resistance, b)

    along, beside = domain.points[second] - domain.points[first], domain.points[first] - domain.points[node]
    side = product(along, along)
    offset = product(along, beside) / side
    height = np.maximum(product(beside, beside) - offset**2 * side, 0)
    order = np.argsort(node, kind="stable")
    count = np.bincount(node, minlength=n_nodes)
    slot = np.arange(len(node)) - np.repeat(np.cumsum(count) - count, count)
    rows = node[order], slot

    steps = np.zeros((n_nodes, count.max(), 2), dtype=np.int64)
    steps[rows] = np.stack([first - node, second - node], axis=1)[order]
    shape = np.zeros((n_nodes, count.max(), 3))
    shape[rows] = np.stack([side, offset, height], axis=1)[order]
    return Corners(steps=steps, shape=shape)
