"""Each node's triangles, in the metric of the inverse diffusion: what a front needs to be carried across a mesh."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gfunk.domain import Domain
from gfunk.small_matrices import inverses
from gfunk.surface import dot


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
    node, first, second = np.concatenate([np.roll(domain.cells, -turn, axis=1) for turn in range(3)]).T.copy()
    resistance = np.tile(inverses(domain.cell_diffusion()), (3, 1, 1))
    here, start, end = (domain.points.take(nodes, axis=0) for nodes in (node, first, second))
    along, beside = end - start, start - here
    along_times, beside_times = (np.einsum("nij,nj->ni", resistance, each) for each in (along, beside))
    side = dot(along, along_times)
    offset = dot(along, beside_times) / side
    height = np.maximum(dot(beside, beside_times) - offset**2 * side, 0)
    order = np.argsort(node, kind="stable")
    count = np.bincount(node, minlength=n_nodes)
    n_slots = int(count.max())
    slot = np.arange(len(node)) - np.repeat(np.cumsum(count) - count, count)
    # Which of these a slot holds; one that holds none, a row of zeros after them.
    held = np.full(n_nodes * n_slots, len(node))
    held[node[order] * n_slots + slot] = order

    def by_slot(*columns: np.ndarray) -> np.ndarray:
        rows = np.stack([np.append(column, column.dtype.type(0)) for column in columns], axis=1)
        return rows.take(held, axis=0).reshape(n_nodes, n_slots, -1)

    return Corners(steps=by_slot(first - node, second - node), shape=by_slot(side, offset, height))
