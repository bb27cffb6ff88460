"""What the viewer asks of a predictor. It knows no more of one, so anything that answers can stand in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from gfunk.domain import Domain

# Told the name of the stage that begins and, where it is known, the share of it that is done.
Say = Callable[..., None]
Site = tuple[float, ...]  # x, y, z in mm
# Given a wave that has begun, to be played until all of it is there.
Show = Callable[["Wave"], None]


@dataclass(frozen=True, kw_only=True)
class Wave:
    """A wave at the nodes of the visitor's own mesh, predicted or solved."""

    times_ms: Float[np.ndarray, " time"]
    values_mV: Float[np.ndarray, "time node"]
    activation_ms: Float[np.ndarray, " node"]  # NaN where the wave does not come
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage
    warnings: tuple[str, ...] = ()  # what speaks against believing it
    trust: str | None = None  # how far off it may be, if that is known
    origin: Any = None  # the predictor's own record of it
    until_ms: float | None = None  # where it has only begun: the last of all its times


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The solver's wave, at the times of a prediction, and how far that is from it."""

    truth: Wave
    rel_l2: float
    lat_error_ms: float | None  # mean size, over nodes that both activate


@runtime_checkable
class Predictor(Protocol):
    """Makes a mesh ready once, then tells the wave from any sites of it."""

    def made_ready(self, domain: Domain, say: Say) -> Any:
        """Everything that does not depend on the stimulus."""
        ...

    def predicted(self, ready: Any, sites: Sequence[Site], say: Say, show: Show) -> Wave:
        """Its first times may be shown before the others are known."""
        ...

    def compared(self, ready: Any, wave: Wave, say: Say) -> Beside: ...
