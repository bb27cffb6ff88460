"""The human ventricular cell."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gfunk.physics.cells import Gate, opening_and_closing, ramp, relaxing

# Voltage; gates of the sodium, potassium and calcium channels; the share of release channels not yet spent (R' in the
# publication); concentrations in the cell, its store and the cleft between store and membrane (its subspace).
_STATES = (
    *("v", "m", "h", "j", "xr1", "xr2", "xs", "s", "r", "d", "f", "f2", "f_ca", "release"),
    *("na_in", "k_in", "ca_in", "ca_store", "ca_cleft"),
)


@dataclass(frozen=True, kw_only=True)
class TenTusscher:
    """The human ventricular cell of ten Tusscher and Panfilov (2006).

    Of the outer layer, unless told; of the middle of the wall with g_ks=0.098, of the inner layer with g_to=0.073 and
    is_endocardial. Numbers are those of the CellML model, which mends one of the publication (0.005 per ms, for release
    channels to recover). Conductances in nS/pF, currents in pA/pF (so mV/ms), concentrations in mM, volumes in um^3.
    """

    g_na: float = 14.838
    g_k1: float = 5.405
    g_to: float = 0.294
    g_kr: float = 0.153
    g_ks: float = 0.392
    g_ca_l: float = 0.0398  # um^3/(pF ms)
    g_background_na: float = 0.00029
    g_background_ca: float = 0.000592
    g_pump_k: float = 0.0146
    nak_max: float = 2.724
    naca_max: float = 1000.0
    ca_pump_max: float = 0.1238
    release_per_ms: float = 0.102
    transfer_per_ms: float = 0.0038
    leak_per_ms: float = 0.00036
    uptake_max_per_ms: float = 0.006375  # mM/ms
    na_out: float = 140.0
    k_out: float = 5.4
    ca_out: float = 2.0
    capacitance_pF: float = 185.0
    cell_volume: float = 16404.0
    store_volume: float = 1094.0
    cleft_volume: float = 54.68
    temperature_kelvin: float = 310.0
    # The transient outward current of the inner layer recovers at rest some eighty times more slowly.
    is_endocardial: bool = False
    # In the order of _STATES: the CellML model's, where Niederer et al. (2011) begin too. It is that of a cell which beats
    # once a second: left alone, voltage sinks by 0.3 mV in the first second, and within a minute most of the store is lost.
    at_rest: tuple[float, ...] = (
        *(-85.23, 0.00172, 0.7444, 0.7045, 0.00621, 0.4712, 0.0095, 0.999998, 2.42e-8),
        *(3.373e-5, 0.7888, 0.9755, 0.9953, 0.9073, 8.604, 136.89, 0.000126, 3.64, 0.00036),
    )

    @property
    def resting(self) -> dict[str, float]:
        return dict(zip(_STATES, self.at_rest, strict=True))

    def rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        v, na_in, k_in, ca_in = state["v"], state["na_in"], state["k_in"], state["ca_in"]
        ca_store, ca_cleft = state["ca_store"], state["ca_cleft"]
        faraday = 96.485  # C/mmol
        thermal_mV = 8.314 * self.temperature_kelvin / faraday
        above_na = v - thermal_mV * torch.log(self.na_out / na_in)
        above_k = v - thermal_mV * torch.log(self.k_out / k_in)
        above_ks = v - thermal_mV * torch.log((self.k_out + 0.03 * self.na_out) / (k_in + 0.03 * na_in))
        above_ca = v - thermal_mV / 2 * torch.log(self.ca_out / ca_in)

        # Currents through channels.
        na = self.g_na * state["m"] ** 3 * state["h"] * state["j"] * above_na
        k1_opening = 0.1 * torch.sigmoid(-0.06 * (above_k - 200))
        k1_closing = 3 * torch.exp(0.0002 * (above_k + 100)) + torch.exp(0.1 * (above_k - 10))
        k1_open = k1_opening / (k1_opening + k1_closing * torch.sigmoid(0.5 * above_k))
        by_k_out = (self.k_out / 5.4) ** 0.5
        k1 = self.g_k1 * by_k_out * k1_open * above_k
        to = self.g_to * state["r"] * state["s"] * above_k
        kr = self.g_kr * by_k_out * state["xr1"] * state["xr2"] * above_k
        ks = self.g_ks * state["xs"] ** 2 * above_ks
        # Goldman, Hodgkin and Katz: what the cleft sends out, and what the outside sends in.
        x = 2 * (v - 15) / thermal_mV
        driven = 2 * faraday * (0.25 * ca_cleft * ramp(x) - self.ca_out * ramp(-x))
        ca_l = self.g_ca_l * state["d"] * state["f"] * state["f2"] * state["f_ca"] * driven
        background_na, background_ca = self.g_background_na * above_na, self.g_background_ca * above_ca

        # Pumps and the exchanger.
        nak_of_v = 1 / (1 + 0.1245 * torch.exp(-0.1 * v / thermal_mV) + 0.0353 * torch.exp(v / -thermal_mV))
        nak = self.nak_max * nak_of_v * (self.k_out / (self.k_out + 1)) * na_in / (na_in + 40)
        inward, outward = torch.exp(0.35 * v / thermal_mV), torch.exp(-0.65 * v / thermal_mV)
        naca_scale = self.naca_max / ((87.5**3 + self.na_out**3) * (1.38 + self.ca_out))
        exchanged = inward * na_in**3 * self.ca_out - 2.5 * outward * self.na_out**3 * ca_in
        naca = naca_scale * exchanged / (1 + 0.1 * outward)
        ca_pump = self.ca_pump_max * ca_in / (ca_in + 0.0005)
        pump_k = self.g_pump_k * above_k * torch.sigmoid((v - 25) / 5.98)

        # Calcium's way through the store, in mM/ms.
        by_store = 2.5 - 1.5 / (1 + (1.5 / ca_store) ** 2)
        binding = 0.15 / by_store * ca_cleft**2
        released = self.release_per_ms * state["release"] * binding / (0.06 + binding) * (ca_store - ca_cleft)
        uptake = self.uptake_max_per_ms / (1 + (0.00025 / ca_in) ** 2)
        leak = self.leak_per_ms * (ca_store - ca_in)
        transfer = self.transfer_per_ms * (ca_cleft - ca_in)

        per_charge = self.capacitance_pF / (self.cell_volume * faraday)  # from pA/pF to mM/ms
        cell, store, cleft = self.cell_volume, self.store_volume, self.cleft_volume
        ca_from_outside = per_charge / 2 * (2 * naca - background_ca - ca_pump)
        ca_into_cleft = (store * released - cell * (transfer + per_charge / 2 * ca_l)) / cleft
        return {
            "v": -(na + k1 + to + kr + ks + ca_l + background_na + background_ca + nak + naca + ca_pump + pump_k),
            **_sodium_gates(v),
            **_potassium_gates(v, self.is_endocardial),
            **_calcium_gates(v, ca_cleft),
            "release": opening_and_closing(torch.full_like(v, 0.005), 0.045 * by_store * ca_cleft),
            "na_in": -per_charge * (na + background_na + 3 * nak + 3 * naca),
            "k_in": per_charge * (2 * nak - (k1 + to + kr + ks + pump_k)),
            "ca_in": (ca_from_outside + store / cell * (leak - uptake) + transfer) * _free(ca_in, 0.2, 0.001),
            "ca_store": (uptake - released - leak) * _free(ca_store, 10.0, 0.3),
            "ca_cleft": ca_into_cleft * _free(ca_cleft, 0.4, 0.00025),
        }


def _free(calcium: Tensor, buffer: float, half: float) -> Tensor:
    """The share of added calcium that a buffer leaves free."""
    return 1 / (1 + buffer * half / (calcium + half) ** 2)


def _sodium_gates(v: Tensor) -> dict[str, Gate | Tensor]:
    # Two formulas meet, with a jump, at -40 mV. `below` goes no higher: the one not taken stays finite.
    is_below, below = v < -40, v.clamp(max=-40)
    h_rate_below = (
        0.057 * torch.exp((below + 80) / -6.8) + 2.7 * torch.exp(0.079 * below) + 3.1e5 * torch.exp(0.3485 * below)
    )
    h_rate_above = 0.77 / 0.13 * torch.sigmoid((v + 10.66) / 11.1)
    j_opening = (25428 * torch.exp(0.2444 * below) + 6.948e-6 * torch.exp(-0.04391 * below)) * -(below + 37.78)
    j_rate_below = j_opening * torch.sigmoid(-0.311 * (below + 79.23))
    j_rate_below = j_rate_below + 0.02424 * torch.exp(-0.01052 * below) * torch.sigmoid(0.1378 * (below + 40.14))
    j_rate_above = 0.6 * torch.exp(0.057 * v) * torch.sigmoid(0.1 * (v + 32))
    m_ms = torch.sigmoid((v + 60) / 5) * 0.1 * (torch.sigmoid((v + 35) / -5) + torch.sigmoid((v - 50) / -200))
    available = torch.sigmoid((v + 71.55) / -7.43) ** 2
    return {
        "m": relaxing(torch.sigmoid((v + 56.86) / 9.03) ** 2, m_ms),
        "h": Gate(available, torch.where(is_below, h_rate_below, h_rate_above)),
        "j": Gate(available, torch.where(is_below, j_rate_below, j_rate_above)),
    }


def _potassium_gates(v: Tensor, is_endocardial: bool) -> dict[str, Gate | Tensor]:
    xr1_ms = 450 * torch.sigmoid((v + 45) / 10) * 6 * torch.sigmoid((v + 30) / -11.5)
    xr2_ms = 3 * torch.sigmoid((v + 60) / 20) * 1.12 * torch.sigmoid((v - 60) / -20)
    xs_ms = 1400 * torch.sqrt(torch.sigmoid((v - 5) / 6)) * torch.sigmoid((v - 35) / -15) + 80
    if is_endocardial:
        s = relaxing(torch.sigmoid((v + 28) / -5), 1000 * torch.exp(-((v + 67) ** 2) / 1000) + 8)
    else:
        s_ms = 85 * torch.exp(-((v + 45) ** 2) / 320) + 5 * torch.sigmoid((v - 20) / -5) + 3
        s = relaxing(torch.sigmoid((v + 20) / -5), s_ms)
    return {
        "xr1": relaxing(torch.sigmoid((v + 26) / 7), xr1_ms),
        "xr2": relaxing(torch.sigmoid((v + 88) / -24), xr2_ms),
        "xs": relaxing(torch.sigmoid((v + 5) / 14), xs_ms),
        "s": s,
        "r": relaxing(torch.sigmoid((v - 20) / 6), 9.5 * torch.exp(-((v + 40) ** 2) / 1800) + 0.8),
    }


def _calcium_gates(v: Tensor, ca_cleft: Tensor) -> dict[str, Gate | Tensor]:
    d_ms = (1.4 * torch.sigmoid((v + 35) / 13) + 0.25) * 1.4 * torch.sigmoid((v + 5) / -5) + torch.sigmoid((v - 50) / 20)
    below = torch.sigmoid((v + 30) / -10)
    f_ms = 1102.5 * torch.exp(-((v + 27) ** 2) / 225) + 200 * torch.sigmoid((v - 13) / 10) + 180 * below + 20
    f2_ms = 562 * torch.exp(-((v + 27) ** 2) / 240) + 31 * torch.sigmoid((v - 25) / 10) + 80 * below
    unbound = 1 / (1 + (ca_cleft / 0.05) ** 2)
    return {
        "d": relaxing(torch.sigmoid((v + 8) / 7.5), d_ms),
        "f": relaxing(torch.sigmoid((v + 20) / -7), f_ms),
        "f2": relaxing(0.67 * torch.sigmoid((v + 35) / -7) + 0.33, f2_ms),
        "f_ca": relaxing(0.6 * unbound + 0.4, 80 * unbound + 2),
    }
