"""How far to trust a model: its errors on waves held back, and whether a domain is like those it learned from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gfunk.batch import Batch, TrajectorySet
from gfunk.errors import InputError

MODES = (1, 2, 5, 10, 20, 50, 100)  # 1 is the lowest that is not constant
FAR = 1.25  # times beyond all that was seen
# Degrees per mm: fibres that turn by up to the first count as smooth (those of 22 synthetic atria turn by 2.4 to 4.1);
# rougher ones are known by the errors of waves on fibres as rough, from one of these to the next.
SMOOTH_TURN, ROUGH_TURNS = 8.0, (16.0, 32.0)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Between what bounds lay what a network learned from."""

    # Eigenvalues of the last of the modes, which tells of size and diffusion, and of the others in parts of it: of shape.
    modes: tuple[int, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    smallest_start: float  # integral of the first state's square, in model space: how much is active
    largest_start: float
    n_domains: int

    def with_modes(self, n_modes: int) -> "Seen":
        """What it tells of the lowest modes alone: within wider bounds, if one above was what others were parts of."""
        n_known = sum(mode < n_modes for mode in self.modes)
        if n_known == len(self.modes):
            return self
        if n_known == 0:
            return replace(self, modes=(), lowest=(), highest=())
        # Each bound is of a mode in parts of the last one, whose own are the last: the new last one takes its place.
        *below, least = self.lowest[:n_known]
        *above, most = self.highest[:n_known]
        return replace(
            self,
            modes=self.modes[:n_known],
            lowest=(*(each / most for each in below), least * self.lowest[-1]),
            highest=(*(each / least for each in above), most * self.highest[-1]),
        )


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Errors that so large a share of waves on unseen domains should not exceed, by split conformal prediction."""

    share: float
    rel_l2: float
    lat_error_ms: float | None  # where there are waves
    lat_error_ms_95: float | None
    n_waves: int
    n_domains: int
    # Fibres of these waves turn by up to so much, degrees per mm; None: as little as those learned from.
    fibre_turn: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trust:
    seen: Seen | None = None
    bounds: Bounds | None = None
    rough: tuple[Bounds, ...] = ()  # the same on rougher fibres, the smoothest first

    @property
    def all_bounds(self) -> tuple[Bounds, ...]:
        """On smooth fibres, if they are known, then on rougher and rougher ones."""
        return self.rough if self.bounds is None else (self.bounds, *self.rough)

    def bounds_on(self, fibre_turn: float) -> Bounds | None:
        """Those of waves on fibres that turn so much; on smooth ones, where nothing is known of those, as on rougher."""
        roughness = roughness_of(fibre_turn)
        if roughness is None:
            # Models err more on rougher fibres: what is kept there is kept here.
            return next(iter(self.all_bounds), None)
        return next((each for each in self.all_bounds if each.fibre_turn == roughness), None)

    def with_bounds(self, found: Sequence[Bounds]) -> "Trust":
        """Those found in place of what was known of fibres as rough; the rest as it was."""
        known = {each.fibre_turn: each for each in (*self.all_bounds, *found)}
        smooth = known.pop(None, None)
        return Trust(
            seen=self.seen, bounds=smooth, rough=tuple(sorted(known.values(), key=lambda each: each.fibre_turn or 0))
        )


def roughness_of(fibre_turn: float) -> float | None:
    """What fibres count as that turn so much: None where they are smooth, infinity beyond all that is told apart."""
    if fibre_turn <= SMOOTH_TURN:
        return None
    return next((most for most in ROUGH_TURNS if fibre_turn <= most), math.inf)


def starts(u: Float[Tensor, "batch node channel"], mass: Float[Tensor, "batch node"]) -> Float[Tensor, " batch"]:
    return (mass[..., None] * u.square()).sum((1, 2))


def shape_and_size(eigenvalues: Float[Tensor, "domain mode"], modes: Sequence[int]) -> Float[Tensor, "domain _"]:
    told = eigenvalues[:, list(modes)]
    return torch.cat([told[:, :-1] / told[:, -1:], told[:, -1:]], dim=1)


def seen_in(data: TrajectorySet) -> Seen:
    """What a network that learns from these sees."""
    eigenvalues = data.batch.eigenvalues
    modes = tuple(mode for mode in MODES if mode < eigenvalues.shape[1])
    told = shape_and_size(eigenvalues, modes) if modes else eigenvalues[:, :0]
    active = starts(data.values[:, 0], data.batch.mass[data.domain_of])
    return Seen(
        modes=modes,
        lowest=tuple(told.amin(0).tolist()),
        highest=tuple(told.amax(0).tolist()),
        smallest_start=float(active.min()),
        largest_start=float(active.max()),
        n_domains=data.batch.n_domains,
    )


def strange_shape(batch: Batch, seen: Seen) -> tuple[str, ...]:
    """What of a domain is far from all that was seen, a sentence each."""
    if not seen.modes:
        return ()
    told = shape_and_size(batch.eigenvalues[:1], seen.modes)[0].tolist()
    *shape, size = (_beyond(*each) for each in zip(told, seen.lowest, seen.highest, strict=True))
    said = []
    if not 1 / FAR <= size <= FAR:
        how = "smaller or conducts less" if size > 1 else "larger or conducts more"
        said.append(
            f"the domain is {how} than all the model has seen: eigenvalue {seen.modes[-1]} of its Laplacian is "
            f"{size:.2g} times the nearest of those"
        )
    if far := {mode: by for mode, by in zip(seen.modes, shape, strict=False) if not 1 / FAR <= by <= FAR}:
        mode = max(far, key=lambda mode: abs(math.log(far[mode])))
        said.append(
            f"the domain has another shape than all the model has seen: eigenvalue {mode} of its Laplacian, in parts of "
            f"eigenvalue {seen.modes[-1]}, is {far[mode]:.2g} times the nearest of those"
        )
    return tuple(said)


def strange_start(u: Float[Tensor, "batch node channel"], batch: Batch, seen: Seen) -> list[tuple[str, ...]]:
    """For each first state: how far it is from all that were seen, in a sentence."""
    found = []
    for active in starts(u, batch.mass.expand(len(u), -1)).tolist():
        factor = _beyond(active, seen.smallest_start, seen.largest_start)
        more = "more" if factor > 1 else "less"
        said = f"{more} tissue is active at first than in all the model has seen, {factor:.2g} times the nearest of those"
        found.append(() if 1 / FAR <= factor <= FAR else (said,))
    return found


def _beyond(value: float, low: float, high: float) -> float:
    """1 within, above it beyond the highest, below it beneath the lowest."""
    return max(value, 1e-30) / min(max(value, low), high)


def calibrated(rows: Sequence[Mapping[str, Any]], share: float = 0.9, fibre_turn: float | None = None) -> Bounds:
    """From rows of evaluation on domains that were not trained on, and by which nothing but the time to stop was chosen.

    Of exchangeable errors the k-th smallest of n is not exceeded by the next with a probability of k / (n + 1).
    """
    rank = math.ceil(share * (len(rows) + 1))
    if rank > len(rows):
        raise InputError(f"{len(rows)} waves held back are too few for bounds that {100 * share:.0f} % of waves keep")

    def bound(metric: str) -> float | None:
        errors = [row.get(metric) for row in rows]
        return None if None in errors else sorted(errors)[rank - 1]  # pyright: ignore[reportArgumentType]

    relative = bound("rel_l2")
    if relative is None:
        raise InputError("rows of evaluation have a rel_l2 each; these have not")
    return Bounds(
        share=share,
        rel_l2=relative,
        lat_error_ms=bound("lat_error_ms"),
        lat_error_ms_95=bound("lat_error_ms_95"),
        n_waves=len(rows),
        n_domains=len({row["seed"] for row in rows}),
        fibre_turn=fibre_turn,
    )


def fewest_waves(share: float = 0.9) -> int:
    """Of fewer no bound can be had that this share of waves keeps."""
    return next(n for n in count(1) if math.ceil(share * (n + 1)) <= n)


def kept(bounds: Bounds, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By metric, the share of rows of evaluation that keep its bound."""
    found = {}
    for metric in ("rel_l2", "lat_error_ms", "lat_error_ms_95"):
        bound, errors = getattr(bounds, metric), [row.get(metric) for row in rows]
        if bound is not None and errors and None not in errors:
            found[f"kept_{metric}"] = sum(error <= bound for error in errors) / len(errors)
    return found


def said(bounds: Bounds) -> str:
    """In a sentence."""
    parts = [f"relative l2 up to {bounds.rel_l2:.2g} over all times learned"]
    if bounds.lat_error_ms is not None and bounds.lat_error_ms_95 is not None:
        parts.insert(0, f"95 % of places within {bounds.lat_error_ms_95:.2g} ms")
        parts.insert(0, f"activation times off by up to {bounds.lat_error_ms:.2g} ms on average")
    like = "like this" if bounds.fibre_turn is None else f"on fibres that turn by up to {bounds.fibre_turn:g} degrees per mm"
    return (
        f"{100 * bounds.share:.0f} % of waves {like} are predicted with {', '.join(parts)} "
        f"(by {bounds.n_waves} waves on {bounds.n_domains} domains held back)"
    )
