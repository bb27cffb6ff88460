"""Where a function of space is zero, as triangles: a grid's cubes in six tetrahedra each, crossed one by one."""

from itertools import permutations

import numpy as np
from jaxtyping import Bool, Float, Int

# From corner to opposite corner along three edges, in each of the six orders: neighbouring cubes agree on their face.
_WALKS = np.array(
    [np.cumsum([[0, 0, 0], *np.eye(3, dtype=np.int64)[list(order)]], axis=0) for order in permutations(range(3))]
)


def zero_surface(
    values: Float[np.ndarray, "_ _ _"], low: Float[np.ndarray, " 3"], step: float, margin: float = 0.1
) -> tuple[Float[np.ndarray, "node 3"], Int[np.ndarray, "cell 3"]]:
    """Points and triangles between the negative and the other nodes of a grid from `low`; normals leave the negative side.

    No point comes nearer than `margin` of its edge to a node of the grid: there triangles would be slivers.
    """
    is_inside = (values < 0).ravel()
    strides = np.array([values.shape[1] * values.shape[2], values.shape[2], 1])
    corners = ((np.argwhere(_are_crossed(values < 0))[:, None, None] + _WALKS) @ strides).reshape(-1, 4)
    n_inside = is_inside[corners].sum(axis=1)
    # Those inside come first.
    order = np.argsort(~is_inside[corners], axis=1, kind="stable")
    a, b, c, d = np.take_along_axis(corners, order, 1).T
    crossed = np.concatenate([
        np.array([(a, b), (a, c), (a, d)])[:, :, n_inside == 1],
        np.array([(a, c), (a, d), (b, d)])[:, :, n_inside == 2],
        np.array([(a, c), (b, d), (b, c)])[:, :, n_inside == 2],
        np.array([(a, d), (b, d), (c, d)])[:, :, n_inside == 3],
    ], axis=2)  # fmt: skip
    # (triangle corner, inside or outside, triangle): an edge of the grid goes from a node inside to one outside.
    from_to = crossed.transpose(2, 0, 1).reshape(-1, 2)
    edges, cells = np.unique(from_to, axis=0, return_inverse=True)
    cells = cells.reshape(-1, 3)
    start, end = (np.stack(np.unravel_index(side, values.shape), 1) for side in edges.T)
    before, after = values.ravel()[edges].T
    share = np.clip(before / (before - after), margin, 1 - margin)
    points = low + step * (start + share[:, None] * (end - start))
    normal = np.cross(points[cells[:, 1]] - points[cells[:, 0]], points[cells[:, 2]] - points[cells[:, 0]])
    is_turned = (normal * (end - start)[cells].sum(axis=1)).sum(axis=1) < 0
    cells[is_turned] = cells[is_turned][:, ::-1]
    return points, cells


def _are_crossed(inside: Bool[np.ndarray, "_ _ _"]) -> Bool[np.ndarray, "_ _ _"]:
    """Cubes with corners on both sides."""
    ends = (slice(None, -1), slice(1, None))
    corners = [inside[x, y, z] for x in ends for y in ends for z in ends]
    return np.any(corners, axis=0) & ~np.all(corners, axis=0)


def kept_below_zero(
    points: Float[np.ndarray, "node 3"],
    cells: Int[np.ndarray, "cell 3"],
    field: Float[np.ndarray, " node"],
    margin: float = 0.1,
) -> tuple[Float[np.ndarray, "_ 3"], Int[np.ndarray, "_ 3"], Int[np.ndarray, " _"]]:
    """The part of a surface where the field, linear on each triangle, is negative; and which nodes lie on the cut."""
    is_kept = field < 0
    n_kept = is_kept[cells].sum(axis=1)
    # Turned until the corner that is alone on its side is the first.
    alone = np.where(n_kept == 1, is_kept[cells].argmax(axis=1), (~is_kept[cells]).argmax(axis=1))
    a, b, c = np.take_along_axis(cells, (alone[:, None] + np.arange(3)) % 3, 1).T
    one, two = n_kept == 1, n_kept == 2
    # (kept, gone) ends of the cut edges.
    cut = np.concatenate(
        [np.stack(pair, 1)[who] for who, pair in ((one, (a, b)), (one, (a, c)), (two, (b, a)), (two, (c, a)))]
    )
    edges, number = np.unique(cut, axis=0, return_inverse=True)
    number = len(points) + number.ravel()
    ab, ac, ba, ca = np.split(number, np.cumsum([one.sum(), one.sum(), two.sum()]))
    start, end = edges.T
    share = np.clip(field[start] / (field[start] - field[end]), margin, 1 - margin)
    together = np.concatenate([points, points[start] + share[:, None] * (points[end] - points[start])])
    cells = np.concatenate([
        cells[n_kept == 3],
        np.stack([a[one], ab, ac], 1),
        np.stack([ba, b[two], c[two]], 1),
        np.stack([ba, c[two], ca], 1),
    ])  # fmt: skip
    used, renamed = np.unique(cells, return_inverse=True)
    return together[used], renamed.reshape(-1, 3), np.flatnonzero(used >= len(points))
