"""Fronts across a mesh in numpy: what an exported network of waves is given, for those who have no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.sparse import csc_array, csr_array, diags_array, eye_array
from scipy.sparse.linalg import splu
from scipy.special import ive

from gfunk.corners import Corners, corners
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, inertia, row_rates


def front_inputs(
    u: Float[np.ndarray, "trajectory node"], domain: Domain, matrices: Laplacian, front: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """All that a file of waves has to be given of their fronts, by name: `ahead`, `behind` and, where it reads it, `met`.

    u is in model space; the file tells the settings as `front`, and of which discretisation the matrices have to be.
    """
    of_rays = ("ray_times", "curvature_lacked", "n_bends")
    ahead, behind = front_times(u, domain, **{name: front[name] for name in front if name not in of_rays})
    if "ray_times" not in front:
        return {"ahead": ahead, "behind": behind}
    speed, ray_times, lacked, n_bends = (front[name] for name in ("speed", *of_rays))
    risen = (u - front["resting"]) / (front["threshold"] - front["resting"])
    is_told = (risen > front["least_rise"]) | (ahead <= 0) | (ahead >= front["never"])
    ahead = slowed_front(ahead, is_told, domain, matrices, speed=speed, curvature_lacked=lacked, n_bends=n_bends)
    met = met_on_the_way(ahead, domain, matrices, speed=speed, ray_times=ray_times)
    return {"ahead": ahead, "behind": behind, "met": met}


def front_times(
    u: Float[np.ndarray, "trajectory node"],
    domain: Domain,
    *,
    speed: float,
    resting: float,
    threshold: float,
    least_rise: float,
    never: float,
) -> tuple[Float[np.ndarray, "trajectory node"], Float[np.ndarray, "trajectory node"]]:
    """When the front will arrive at each node, 0 where it has been; how long ago it came, 0 where it has not.

    u is in model space; an exported file tells the settings as `front`. The same as `gfunk.operators.arrival.front_times`.
    """
    around = corners(domain)
    if not around.steps.shape[1]:
        raise InputError("waves by arrival need a mesh of triangles, and this domain has none")
    is_active = u >= threshold
    risen = (u - resting) / (threshold - resting)
    rising = np.where(risen > least_rise, -np.log(np.maximum(risen, least_rise)) / speed**2, never)
    starts = np.stack([np.where(is_active, 0, rising), np.where(is_active, never, 0)]).astype(u.dtype)
    ahead, behind = _marched(speed * starts, around) / speed
    return ahead, behind


def slowed_front(
    ahead: Float[np.ndarray, "trajectory node"],
    is_told: Bool[np.ndarray, "trajectory node"],
    domain: Domain,
    matrices: Laplacian,
    *,
    speed: float,
    curvature_lacked: float,
    n_bends: int,
) -> Float[np.ndarray, "trajectory node"]:
    """When the front will arrive, slowed by its own curvature; is_told: where it stays as it is.

    The same steps as those of `gfunk.operators.arrival.slowed_front`.
    """
    around = corners(domain)
    slow = inertia((-matrices.stiffness).maximum(0).sum(axis=1), matrices.lumped_mass())
    restored = diags_array(curvature_lacked / slow) @ matrices.stiffness

    def slowed(ahead: Float[np.ndarray, " node"], is_told: Bool[np.ndarray, " node"]) -> Float[np.ndarray, " node"]:
        told, now = diags_array(is_told.astype(np.float64)), ahead
        for _ in range(n_bends):
            before, lasting = _rays(speed * now, around)
            lasting = lasting.astype(np.float64) / speed
            along = eye_array(len(now)) - before + diags_array(lasting) @ restored
            rows = told + (eye_array(len(now)) - told) @ along
            now = splu(csc_array(rows)).solve(np.where(is_told, ahead, lasting)).astype(ahead.dtype)
        return now

    return np.stack([slowed(*each) for each in zip(ahead, is_told, strict=True)])


def met_on_the_way(
    ahead: Float[np.ndarray, "trajectory node"],
    domain: Domain,
    matrices: Laplacian,
    *,
    speed: float,
    ray_times: Sequence[float],
) -> Float[np.ndarray, "trajectory node feature"]:
    """What the front met on its ray to each node, summed over time; and its curvature there.

    The same as `gfunk.operators.arrival.met_on_the_way`, to the rounding there.
    """
    around, durations = corners(domain), np.array(ray_times)

    def met(ahead: Float[np.ndarray, " node"]) -> Float[np.ndarray, "node feature"]:
        before, lasting = _rays(speed * ahead, around, only_forwards=True)
        times, lasting = ahead.astype(np.float64), lasting.astype(np.float64)[:, None] / speed
        way = domain.points - before @ domain.points
        lengths = (way**2).sum(axis=1) * (domain.fibres**2).sum(axis=1)
        along = (way * domain.fibres).sum(axis=1) ** 2 / np.maximum(lengths, np.finfo(np.float64).tiny)
        more_around = _diffused(along, matrices, durations) - along[:, None]
        curved = (_diffused(times, matrices, durations) - times[:, None]) / durations
        # A sum up to a node is that up to where its ray comes from, and what is added from there.
        sums = splu(csc_array(eye_array(len(times)) - diags_array((lasting[:, 0] > 0) * 1.0) @ before))
        summed = sums.solve(lasting * np.column_stack([along, more_around, curved]))
        return np.concatenate([summed, (lasting > 0) * np.tanh(curved)], axis=1)

    return np.stack([met(each) for each in ahead]).astype(ahead.dtype)


SMALLEST_WEIGHT = 1e-12  # of a polynomial; those left out fall faster and faster


def _diffused(
    field: Float[np.ndarray, " node"], matrices: Laplacian, durations: Float[np.ndarray, " feature"]
) -> Float[np.ndarray, "node feature"]:
    """exp(-duration L) field for each of the durations, L = inertia^-1 S, by Chebyshev's polynomials of L."""
    pulls = (-matrices.stiffness).maximum(0).sum(axis=1)
    slow = inertia(pulls, matrices.lumped_mass())
    fastest = row_rates(pulls, slow).max()
    # Its eigenvalues x are from -1 to 1, where exp(-s (1 + x)) is the sum of these weights times T_k(x).
    stretched = diags_array(2 / (fastest * slow)) @ matrices.stiffness - eye_array(len(slow))
    s, k = durations * fastest / 2, 0
    weights, term, later, total = ive(0, s), field, stretched @ field, np.zeros((len(field), len(durations)))
    while np.abs(weights).max() > SMALLEST_WEIGHT:
        total += np.multiply.outer(term, weights)
        term, later, k = later, 2 * (stretched @ later) - term, k + 1
        weights = 2 * (-1) ** k * ive(k, s)
    return total


def _rays(
    metric: Float[np.ndarray, " node"], around: Corners, *, only_forwards: bool = False
) -> tuple[csr_array, Float[np.ndarray, " node"]]:
    """The matrix that gives a field where each node's ray comes from, and how long a plane front takes from there.

    That is 0 where the front was at first, or never comes.
    """
    first, second, *shape = _triangles(around, metric.dtype)
    ends = metric[first][None, None], metric[second][None, None]
    place = _place_left(*ends, *shape)
    leaving = _leaving(*ends, place)[0, 0]
    is_triangle = first != second
    if only_forwards:
        is_triangle = is_triangle & (leaving < metric[:, None])
    arrivals = np.where(is_triangle, _across(*ends, *shape)[0, 0], np.inf)
    nodes, soonest = np.arange(len(metric)), arrivals.argmin(axis=1)
    chosen = nodes, soonest
    share = place[0, 0][chosen].astype(np.float64)
    entries = np.concatenate([1 - share, share]), (np.tile(nodes, 2), np.concatenate([first[chosen], second[chosen]]))
    comes = (metric > 0) & np.isfinite(arrivals[chosen])
    lasting = np.where(comes, np.where(comes, arrivals[chosen], 0) - leaving[chosen], 0)
    return csr_array(entries, shape=(len(metric), len(metric))), lasting


def _marched(start: Float[np.ndarray, "_ trajectory node"], around: Corners) -> Float[np.ndarray, "_ trajectory node"]:
    """The earliest times from those given, |grad T|_K = 1: sweeps over all triangles until nothing changes."""
    first, second, *shape = _triangles(around, start.dtype)
    now, before = start, None
    while before is None or not np.array_equal(now, before):
        before = now
        now = np.minimum(now, _across(now[..., first], now[..., second], *shape).min(axis=-1))
    return now


def _triangles(around: Corners, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Both ends of each node's sides opposite, their squared length, offset and squared height."""
    first, second = np.moveaxis(np.arange(len(around.steps))[:, None, None] + around.steps, -1, 0)
    side, offset, height = np.moveaxis(around.shape.astype(dtype), -1, 0)
    return first, second, np.maximum(side, np.finfo(dtype).tiny ** 0.5), offset, height


def _across(
    first: Float[np.ndarray, "_ trajectory node triangle"],
    second: Float[np.ndarray, "_ trajectory node triangle"],
    side: Float[np.ndarray, "node triangle"],
    offset: Float[np.ndarray, "node triangle"],
    height: Float[np.ndarray, "node triangle"],
) -> Float[np.ndarray, "_ trajectory node triangle"]:
    """The soonest a front comes across each triangle from the side opposite; reasons are given where torch does it."""
    place = _place_left(first, second, side, offset, height)
    return _leaving(first, second, place) + np.sqrt(side * (place + offset) ** 2 + height)


def _leaving(
    first: Float[np.ndarray, "_ trajectory node triangle"],
    second: Float[np.ndarray, "_ trajectory node triangle"],
    place: Float[np.ndarray, "_ trajectory node triangle"],
) -> Float[np.ndarray, "_ trajectory node triangle"]:
    """When the front leaves the side opposite at the place."""
    return np.where(place < 1, first + place * (second - first), second)


def _place_left(
    first: Float[np.ndarray, "_ trajectory node triangle"],
    second: Float[np.ndarray, "_ trajectory node triangle"],
    side: Float[np.ndarray, "node triangle"],
    offset: Float[np.ndarray, "node triangle"],
    height: Float[np.ndarray, "node triangle"],
) -> Float[np.ndarray, "_ trajectory node triangle"]:
    """Where on the side opposite the soonest way leaves it: 0 at the first end, 1 at the second."""
    rise = second - first
    slack = side - rise**2
    bend = -rise * np.sqrt(height / (side * np.maximum(slack, 1e-6 * side)))
    return np.where(slack > 0, np.clip(bend - offset, 0, 1), rise < 0)
