"""Excitation and recovery without jumps: the smoothest of the models."""

from dataclasses import dataclass

from torch import Tensor

from gfunk.physics.cells import Gate


@dataclass(frozen=True, kw_only=True)
class AlievPanfilov:
    """The model of Aliev and Panfilov (1996): a cubic excitation u and a recovery w, whose speed eps depends on both."""

    k: float = 8.0
    a: float = 0.15
    eps0: float = 0.002
    mu1: float = 0.2
    mu2: float = 0.3
    time_unit_ms: float = 12.9
    rest_mV: float = -80.0
    top_mV: float = 20.0

    @property
    def resting(self) -> dict[str, float]:
        return {"v": self.rest_mV, "w": 0.0}

    def rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        height_mV = self.top_mV - self.rest_mV
        u, w = (state["v"] - self.rest_mV) / height_mV, state["w"]
        # Below rest, where the model itself never goes, eps would reach a pole at u = -mu2.
        eps = self.eps0 + self.mu1 * w / (u.clamp(min=0) + self.mu2)
        u_rate = self.k * u * (1 - u) * (u - self.a) - u * w
        w_rate = -eps * (w + self.k * u * (u - self.a - 1))
        return {"v": height_mV / self.time_unit_ms * u_rate, "w": w_rate / self.time_unit_ms}
