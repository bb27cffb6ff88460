"""The shapes of left atria: a body, four veins and an appendage that melt into one another; each seed has its own.

x points to the left, y to the back, z up. Lengths are about the mm of an atrium of 95 ml; the whole is scaled to its volume
at the end. Numbers without a source make sizes, rims and shape spectra spread as those of real ones do (docs/atria.md).
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from gfunk.atria.anatomy import VEINS

PARTS = ("body", *VEINS, "LAA")


@dataclass(frozen=True, kw_only=True)
class Plane:
    """What lies ahead of it, seen along its normal, is cut off."""

    origin: Float[np.ndarray, " 3"]
    normal: Float[np.ndarray, " 3"]  # unit

    def height(self, places: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, " place"]:
        return (places - self.origin) @ self.normal


@dataclass(frozen=True, kw_only=True)
class Body:
    """An ellipsoid with bumps: cosines over its directions."""

    half_axes: Float[np.ndarray, " 3"]
    waves: Float[np.ndarray, "bump 3"]
    phases: Float[np.ndarray, " bump"]
    heights: Float[np.ndarray, " bump"]

    def distance(self, places: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, " place"]:
        relative = places / self.half_axes
        size = np.sqrt((relative**2).sum(axis=1)) + 1e-9
        slope = np.sqrt(((relative / self.half_axes) ** 2).sum(axis=1)) + 1e-9
        bumps = np.cos((relative / size[:, None]) @ self.waves.T + self.phases) @ self.heights
        return size * (size - 1) / slope - bumps


@dataclass(frozen=True, kw_only=True)
class Vein:
    """A straight tube, oval across and wide where it leaves the body; it goes on past its end, where it is cut."""

    start: Float[np.ndarray, " 3"]  # inside the body
    frame: Float[np.ndarray, "3 3"]  # rows: along the longer diameter, the shorter one, and outwards
    length: float
    ostium: float  # mean radius at the start
    rim: float  # at the end
    ovalness: float  # longer diameter over shorter

    @property
    def end(self) -> Plane:
        return Plane(origin=self.start + self.length * self.frame[2], normal=self.frame[2])

    def outline(self, n_places: int = 12) -> Float[np.ndarray, "place 3"]:
        """Places round its end."""
        angle = 2 * np.pi * np.arange(n_places) / n_places
        wide, narrow = np.cos(angle) * np.sqrt(self.ovalness), np.sin(angle) / np.sqrt(self.ovalness)
        return self.end.origin + self.rim * (wide[:, None] * self.frame[0] + narrow[:, None] * self.frame[1])

    def distance(self, places: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, " place"]:
        wide, narrow, along = self.frame @ (places - self.start).T
        across = np.sqrt(wide**2 / self.ovalness + narrow**2 * self.ovalness)
        share = np.clip(along / self.length, 0, 1)
        radius = self.ostium + (self.rim - self.ostium) * share**2 * (3 - 2 * share)
        # Round at its start, which may look out of the body; flat at its end, which is cut away.
        outside, beyond = np.hypot(across, np.minimum(along, 0)) - radius, along - self.length - 2 * self.rim
        return np.hypot(np.maximum(outside, 0), np.maximum(beyond, 0)) + np.minimum(np.maximum(outside, beyond), 0)


@dataclass(frozen=True, kw_only=True)
class Appendage:
    """Balls along a bent line, and a few beside it as lobes."""

    centres: Float[np.ndarray, "_ 3"]
    radii: Float[np.ndarray, " _"]
    n_along: int  # of the balls; the others are lobes
    blend: float

    @property
    def tip(self) -> Float[np.ndarray, " 3"]:
        last, before = self.centres[self.n_along - 1], self.centres[self.n_along - 2]
        return last + self.radii[self.n_along - 1] * _unit(last - before)

    def distance(self, places: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, " place"]:
        balls = zip(self.centres, self.radii, strict=True)
        return _melted(np.stack([np.sqrt(((places - c) ** 2).sum(axis=1)) - r for c, r in balls]), self.blend)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An atrium before it is meshed."""

    body: Body
    veins: tuple[Vein, ...]  # in the order of VEINS
    appendage: Appendage
    valve: Plane
    blend: float  # how far parts melt into one another
    scale: float = 1.0  # mm for a unit of the lengths above

    def part_distances(self, places_mm: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, "6 place"]:
        """About the distance to each of PARTS, negative inside."""
        places = places_mm / self.scale
        parts = (self.body, *self.veins, self.appendage)
        return self.scale * np.stack([part.distance(places) for part in parts])

    def distance(self, places_mm: Float[np.ndarray, "place 3"]) -> Float[np.ndarray, " place"]:
        """About the distance to the closed surface, negative inside."""
        return _melted(self.part_distances(places_mm), self.blend * self.scale)

    def cuts(self) -> dict[str, tuple[Plane, float]]:
        """The plane of each hole, and how far from its origin it cuts, in mm."""
        veins = {
            name: (vein.end, 1.5 * vein.rim * vein.ovalness + self.blend)
            for name, vein in zip(VEINS, self.veins, strict=True)
        }
        planes = {"MV": (self.valve, np.inf), **veins}
        return {
            name: (replace(plane, origin=plane.origin * self.scale), reach * self.scale)
            for name, (plane, reach) in planes.items()
        }

    @property
    def tip_mm(self) -> Float[np.ndarray, " 3"]:
        return self.appendage.tip * self.scale

    def box_mm(self) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, " 3"]]:
        """Lowest and highest corner of a box around all of it."""
        balls = self.appendage.centres, self.appendage.radii[:, None]
        ends = (
            np.array([vein.end.origin for vein in self.veins]),
            np.array([[3 * vein.rim * vein.ovalness] for vein in self.veins]),
        )
        parts = [balls, ends, (np.zeros((1, 3)), 1.15 * self.body.half_axes[None])]
        low = np.min([(centre - radius).min(axis=0) for centre, radius in parts], axis=0) - self.blend
        high = np.max([(centre + radius).max(axis=0) for centre, radius in parts], axis=0) + self.blend
        return low * self.scale, high * self.scale


def random_shape(rng: np.random.Generator) -> Shape:
    """One of many, spread over what was measured in patients and in hearts outside the body."""
    while True:
        shape = _any_shape(rng)
        if _is_clear(shape):
            return replace(shape, scale=float((1000 * _random_volume_ml(rng) / _volume(shape)) ** (1 / 3)))


def _random_volume_ml(rng: np.random.Generator) -> float:
    """Half are of patients with fibrillation (Havranek 2012: 134 +- 42 ml), half as small as hearts outside the body."""
    median, spread = ((128, 0.31), (53, 0.38))[rng.integers(2)]
    return float(median * np.exp(spread * np.clip(rng.normal(), -2.5, 2.5)))


def _any_shape(rng: np.random.Generator) -> Shape:
    half_axes = np.array([26.5, 20.5, 31.5]) * np.exp(rng.normal(0, 0.18, 3))
    n_waves = 14
    body = Body(
        half_axes=half_axes,
        waves=rng.normal(0, 2.0, (n_waves, 3)),
        phases=rng.uniform(0, 2 * np.pi, n_waves),
        heights=rng.normal(0, 1.3, n_waves),
    )
    # The plane cuts the body where its outline is as long as a mitral ring.
    normal = _unit(np.array([rng.normal(0.30, 0.12), rng.normal(-0.65, 0.2), -0.75]))
    support = float(np.linalg.norm(normal * half_axes))
    largest = np.pi * half_axes.prod() / support
    diameter = 39.0 * np.exp(rng.normal(0, 0.13))
    share = np.clip(np.pi * diameter**2 / 4 / largest, 0.15, 0.9)
    valve = Plane(origin=normal * support * np.sqrt(1 - share), normal=normal)
    # Veins of one heart are alike.
    length, width = rng.uniform(0.3, 1.9), np.exp(rng.normal(0, 0.2))
    return Shape(
        body=body,
        veins=tuple(_random_vein(name, half_axes, length, width, rng) for name in VEINS),
        appendage=_random_appendage(half_axes, rng),
        valve=valve,
        blend=rng.uniform(3.0, 5.5),
    )


def _random_vein(name: str, half_axes: np.ndarray, length: float, width: float, rng: np.random.Generator) -> Vein:
    side = 1.0 if name[0] == "L" else -1.0
    is_superior = name[1] == "S"
    height = rng.normal(0.42, 0.07) if is_superior else rng.normal(-0.20, 0.07)
    seat = half_axes * np.array([side * rng.normal(0.72, 0.05), rng.normal(0.52, 0.06), height])
    # Out, back, and up or down.
    elevation = np.deg2rad(rng.normal(28, 8) if is_superior else rng.normal(-18, 8))
    azimuth = np.deg2rad(rng.normal(38, 9))
    out = np.array([side * np.cos(azimuth) * np.cos(elevation), np.sin(azimuth) * np.cos(elevation), np.sin(elevation)])
    # Liu 2010, paroxysmal: means of the two diameters, and their ratio.
    diameter, ratio = {"LSPV": (19.2, 1.40), "LIPV": (14.3, 1.66), "RSPV": (18.3, 1.28), "RIPV": (18.0, 1.26)}[name]
    # Theirs hold 134 ml.
    ostium = 0.5 * (95 / 134) ** (1 / 3) * diameter * width * np.exp(rng.normal(0, 0.2))
    # Ovals stand upright, more or less.
    upright = _unit(np.array([0.0, 0.0, 1.0]) + rng.normal(0, 0.3, 3))
    wide = _unit(upright - (upright @ out) * out)
    return Vein(
        start=seat - 4.0 * out,
        frame=np.stack([wide, np.cross(out, wide), out]),
        length=4.0 + length * rng.uniform(4, 18),
        ostium=ostium,
        rim=ostium * rng.uniform(0.5, 1.05),
        ovalness=1 + (ratio - 1) * rng.uniform(0.3, 1.2),
    )


def _random_appendage(half_axes: np.ndarray, rng: np.random.Generator) -> Appendage:
    base = half_axes * np.array([rng.normal(0.72, 0.05), rng.normal(-0.42, 0.06), rng.normal(0.22, 0.08)])
    direction = _unit(np.array([0.62, -0.70, 0.25]) + rng.normal(0, 0.18, 3))
    bend = _unit(np.cross(direction, rng.normal(size=3)))
    depth, n_along = max(10.0, rng.normal(24, 6)), 6
    share = np.linspace(0, 1, n_along)
    centres = base + depth * (share[:, None] * direction + (rng.uniform(-0.5, 0.5) * share**2)[:, None] * bend)
    radii = np.exp(rng.normal(0, 0.2)) * (9.5 * (1 - share) + rng.uniform(5.0, 7.5) * share)
    for _ in range(rng.integers(0, 3)):
        at = rng.integers(2, n_along)
        centres = np.concatenate([centres, [centres[at] + 0.9 * radii[at] * _unit(rng.normal(size=3))]])
        radii = np.append(radii, radii[at] * rng.uniform(0.5, 0.8))
    return Appendage(centres=centres, radii=radii, n_along=n_along, blend=2.0)


def _is_clear(shape: Shape) -> bool:
    """Whether the ends of the veins are free of one another and of the rest, and the valve cuts nothing but the body."""
    outlines = np.stack([vein.outline() for vein in shape.veins])
    parts = shape.part_distances(outlines.reshape(-1, 3)).reshape(6, 4, -1)
    for number in range(4):
        others = np.delete(parts[:, number], 1 + number, axis=0)
        if others.min() < 0.5 * shape.blend:
            return False
    low = max(
        float(shape.valve.height(outlines.reshape(-1, 3)).max()),
        float((shape.valve.height(shape.appendage.centres) + shape.appendage.radii).max()),
    )
    return low < -2.5


def _volume(shape: Shape, step: float = 2.5) -> float:
    """Volume inside, up to the cuts."""
    low, high = shape.box_mm()
    axes = [np.arange(a, b + step, step) for a, b in zip(low, high, strict=True)]
    places = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    is_inside = shape.distance(places) < 0
    for plane, reach in shape.cuts().values():
        is_inside &= ~((plane.height(places) > 0) & (((places - plane.origin) ** 2).sum(axis=1) < reach**2))
    return float(is_inside.sum() * step**3)


def _melted(parts: Float[np.ndarray, "_ place"], width: float) -> Float[np.ndarray, " place"]:
    """The smallest, and lower by a third of the width where two are equal."""
    sharpness = 2.0 / width
    lowest = parts.min(axis=0)
    return lowest - np.log(np.exp(sharpness * (lowest - parts)).sum(axis=0)) / sharpness


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)
