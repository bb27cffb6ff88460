"""Two currents and a gate: the least that makes an action potential."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gfunk.physics.cells import Gate, relaxing


@dataclass(frozen=True, kw_only=True)
class MitchellSchaeffer:
    """The two currents of Mitchell and Schaeffer (2003): a gated one inward, a plain one outward."""

    tau_in_ms: float = 0.3
    tau_out_ms: float = 6.0
    tau_open_ms: float = 120.0
    tau_close_ms: float = 150.0
    v_gate: float = 0.13
    rest_mV: float = -80.0
    top_mV: float = 20.0

    @property
    def resting(self) -> dict[str, float]:
        return {"v": self.rest_mV, "h": 1.0}

    def rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        height_mV = self.top_mV - self.rest_mV
        v = (state["v"] - self.rest_mV) / height_mV
        is_low = v < self.v_gate
        tau_ms = torch.where(is_low, torch.full_like(v, self.tau_open_ms), self.tau_close_ms)
        rate = state["h"] * v**2 * (1 - v) / self.tau_in_ms - v / self.tau_out_ms
        return {"v": height_mV * rate, "h": relaxing(is_low.to(v.dtype), tau_ms)}
