"""Trajectory: how a field evolved on a domain."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """The field at every node, at each saved time."""

    times: Float[np.ndarray, " time"]
    values: Float[np.ndarray, "time node"]
