"""What is told of waves: v at the asked times, and when nodes were activated and repolarised."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Paced:
    """What happened on one domain. Times are NaN where a node was never activated, or not repolarised yet."""

    times_ms: Float[np.ndarray, " time"]
    values_mV: Float[np.ndarray, "trajectory time node"]
    activation_ms: Float[np.ndarray, "trajectory node"]
    repolarisation_ms: Float[np.ndarray, "trajectory node"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """All domains at one asked time, one after the other, and what was activated or repolarised up to then (else NaN)."""

    v_mV: Float[np.ndarray, "node trajectory"]
    activation_ms: Float[np.ndarray, "node trajectory"]
    repolarisation_ms: Float[np.ndarray, "node trajectory"]


class Seen(NamedTuple):
    """A moment where it was found: on the device. What comes after it may write over its times: `times_seen` copies."""

    v: Float[Tensor, "node trajectory"]
    activation: Float[Tensor, "node trajectory"]
    repolarisation: Float[Tensor, "node trajectory"]
    time_ms: float

    def times_seen(self) -> tuple[Tensor, Tensor]:
        # The step went a little further than the asked time.
        activation, repolarisation = (
            torch.where(each.float() <= self.time_ms, each, torch.nan) for each in (self.activation, self.repolarisation)
        )
        return activation, repolarisation


def told(moments: Iterator[Seen], times: Float[np.ndarray, " time"], nodes: Tensor, parts: Sequence[int]) -> list[Paced]:
    """All moments at these nodes, so many of each domain."""
    frames, seen = [], None
    for seen in moments:
        nodes = nodes.to(seen.v.device)
        # Chosen and put in order where they were found: what leaves a GPU slowly is to be little, and ready.
        frames.append(seen.v[nodes].float())
    assert seen is not None  # there is at least one time
    fields = torch.stack(frames).permute(2, 0, 1), *(each[nodes].float().T for each in seen.times_seen())
    names = "values_mV", "activation_ms", "repolarisation_ms"
    return [
        Paced(times_ms=times, **dict(zip(names, (part.contiguous().cpu().numpy() for part in each), strict=True)))
        for each in zip(*(field.split(list(parts), dim=-1) for field in fields), strict=True)
    ]
