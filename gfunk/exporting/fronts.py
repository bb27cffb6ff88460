"""Fronts across a mesh in numpy: what an exported network of waves is given, for those who have no torch."""

import numpy as np
from jaxtyping import Float

from gfunk.corners import Corners, corners
from gfunk.domain import Domain
from gfunk.errors import InputError


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


def _marched(start: Float[np.ndarray, "_ trajectory node"], around: Corners) -> Float[np.ndarray, "_ trajectory node"]:
    """The earliest times from those given, |grad T|_K = 1: sweeps over all triangles until nothing changes."""
    first, second = np.moveaxis(np.arange(start.shape[-1])[:, None, None] + around.steps, -1, 0)
    side, offset, height = np.moveaxis(around.shape.astype(start.dtype), -1, 0)
    side = np.maximum(side, np.finfo(start.dtype).tiny ** 0.5)
    now, before = start, None
    while before is None or not np.array_equal(now, before):
        before = now
        now = np.minimum(now, _across(now[..., first], now[..., second], side, offset, height).min(axis=-1))
    return now


def _across(
    first: Float[np.ndarray, "_ trajectory node triangle"],
    second: Float[np.ndarray, "_ trajectory node triangle"],
    side: Float[np.ndarray, "node triangle"],
    offset: Float[np.ndarray, "node triangle"],
    height: Float[np.ndarray, "node triangle"],
) -> Float[np.ndarray, "_ trajectory node triangle"]:
    """The soonest a front comes across each triangle from the side opposite; reasons are given where torch does it."""
    rise = second - first
    slack = side - rise**2
    bend = -rise * np.sqrt(height / (side * np.maximum(slack, 1e-6 * side)))
    place = np.where(slack > 0, np.clip(bend - offset, 0, 1), rise < 0)
    leaving = np.where(place < 1, first + place * rise, second)
    return leaving + np.sqrt(side * (place + offset) ** 2 + height)
