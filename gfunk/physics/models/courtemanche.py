"""The human atrial cell, healthy and remodelled by fibrillation."""

from dataclasses import dataclass
from math import exp, log

import torch
from torch import Tensor

from gfunk.physics.cells import Gate, opening_and_closing, ramp, relaxing, scaled

# Voltage; gates of the sodium, potassium and calcium channels; those of the calcium release from the store (u, v and w in
# the publication); concentrations.
_STATES = (
    *("v", "m", "h", "j", "oa", "oi", "ua", "ui", "xr", "xs", "d", "f", "f_ca"),
    *("release_u", "release_v", "release_w", "na_in", "ca_in", "k_in", "ca_release", "ca_uptake"),
)


@dataclass(frozen=True, kw_only=True)
class Courtemanche:
    """The human atrial cell of Courtemanche, Ramirez and Nattel (1998).

    Numbers are those of the CellML model, which gives more digits than the publication and mends a sign in ui's rate.
    Conductances in nS/pF, currents in pA/pF (so mV/ms), concentrations in mM, volumes in um^3.
    """

    g_na: float = 7.8
    g_k1: float = 0.09
    g_to: float = 0.1652
    kur_factor: float = 1.0  # IKur's conductance depends on voltage: this multiplies all of it
    g_kr: float = 0.029411765
    g_ks: float = 0.12941176
    g_ca_l: float = 0.12375
    g_background_na: float = 0.0006744375
    g_background_ca: float = 0.001131
    nak_max: float = 0.59933874
    naca_max: float = 1600.0
    ca_pump_max: float = 0.275
    release_per_ms: float = 30.0
    uptake_max_per_ms: float = 0.005  # mM/ms
    ca_uptake_max: float = 15.0
    transfer_ms: float = 180.0
    na_out: float = 140.0
    k_out: float = 5.4
    ca_out: float = 1.8
    capacitance_pF: float = 100.0
    cell_volume: float = 20100.0
    temperature_kelvin: float = 310.0
    # In the order of _STATES. The CellML model has 2.35e-112 for release_u, which float32 can't hold.
    at_rest: tuple[float, ...] = (
        *(-81.18, 2.908e-3, 0.9649, 0.9775, 3.043e-2, 0.9992, 4.966e-3, 0.9986, 3.296e-5, 1.869e-2),
        *(1.367e-4, 0.9996, 0.7755, 0.0, 1.0, 0.9992, 11.17, 1.013e-4, 139.0, 1.488, 1.488),
    )

    @property
    def resting(self) -> dict[str, float]:
        return dict(zip(_STATES, self.at_rest, strict=True))

    def rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        return {**self.other_rates(state), **self.voltage_gates(state["v"])}

    def voltage_gates(self, v: Tensor) -> dict[str, Gate]:
        # Exponentials take half of a step's time: those of like slope are made from one.
        decay_5, decay_17 = torch.exp(v * (-1 / 5)), torch.exp(v * (-1 / 17))
        return {
            **_sodium_gates(v),
            **_potassium_gates(v, decay_5, decay_17),
            **_calcium_gates(v),
            "release_w": _release_w(v, decay_5, decay_17),
        }

    def other_rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        v, na_in, ca_in, k_in = state["v"], state["na_in"], state["ca_in"], state["k_in"]
        ca_release, ca_uptake = state["ca_release"], state["ca_uptake"]
        faraday = 96.4867  # C/mmol
        thermal_mV = 8.3143 * self.temperature_kelvin / faraday
        above_na = v - thermal_mV * (log(self.na_out) - torch.log(na_in))
        above_k = v - thermal_mV * (log(self.k_out) - torch.log(k_in))
        above_ca = v - thermal_mV / 2 * (log(self.ca_out) - torch.log(ca_in))

        # Currents through channels.
        na = self.g_na * state["m"] ** 3 * state["h"] * state["j"] * above_na
        k1 = self.g_k1 * above_k * torch.sigmoid(-0.07 * (v + 80))
        to = self.g_to * state["oa"] ** 3 * state["oi"] * above_k
        g_kur = self.kur_factor * (0.005 + 0.05 * torch.sigmoid(scaled(v, 15.0, 13.0)))
        kur = g_kur * state["ua"] ** 3 * state["ui"] * above_k
        kr = self.g_kr * state["xr"] * above_k * torch.sigmoid(scaled(v, -15.0, -22.4))
        ks = self.g_ks * state["xs"] ** 2 * above_k
        ca_l = self.g_ca_l * state["d"] * state["f"] * state["f_ca"] * (v - 65)
        background_na, background_ca = self.g_background_na * above_na, self.g_background_ca * above_ca

        # Pumps and the exchanger.
        sigma = (exp(self.na_out / 67.3) - 1) / 7
        tenth = torch.exp((-0.1 / thermal_mV) * v)
        whole = tenth**10
        half_na = 10 / na_in
        nak_slowing = (1 + 0.1245 * tenth + 0.0365 * sigma * whole) * (1 + half_na * torch.sqrt(half_na))
        nak = self.nak_max * self.k_out / (self.k_out + 1.5) / nak_slowing
        inward = torch.exp((0.35 / thermal_mV) * v)
        outward = inward * whole
        naca_scale = self.naca_max / ((87.5**3 + self.na_out**3) * (1.38 + self.ca_out))
        exchanged = inward * na_in**3 * self.ca_out - outward * self.na_out**3 * ca_in
        naca = naca_scale * exchanged / (1 + 0.1 * outward)
        ca_pump = self.ca_pump_max * ca_in / (0.0005 + ca_in)

        # Calcium's way through the store, in mM/ms.
        release = (
            self.release_per_ms * state["release_u"] ** 2 * state["release_v"] * state["release_w"] * (ca_release - ca_in)
        )
        transfer = (ca_uptake - ca_release) * (1 / self.transfer_ms)
        uptake = self.uptake_max_per_ms * ca_in / (ca_in + 0.00092)
        leak = (self.uptake_max_per_ms / self.ca_uptake_max) * ca_uptake

        inside, release_volume, uptake_volume = 0.68 * self.cell_volume, 0.0048 * self.cell_volume, 0.0552 * self.cell_volume
        per_charge = self.capacitance_pF / (inside * faraday)  # from pA/pF to mM/ms
        ca_free = _unbound(ca_in, (0.07, 0.0005), (0.05, 0.00238))
        ca_release_free = _unbound(ca_release, (10.0, 0.8))
        ca_from_outside = per_charge / 2 * (2 * naca - ca_pump - ca_l - background_ca)
        ca_from_store = (uptake_volume / inside) * (leak - uptake) + (release_volume / inside) * release
        # The publication's Fn times 1e12: numbers near 1 for float32, not 1e-13 and 1e-15.
        flux = release_volume * release - self.capacitance_pF / (2 * faraday) * (0.5 * ca_l - 0.2 * naca)
        return {
            "v": -(na + k1 + to + kur + kr + ks + ca_l + background_na + background_ca + nak + naca + ca_pump),
            "f_ca": Gate(0.00035 / (0.00035 + ca_in), 1 / 2),
            **_release_gates(flux),
            "na_in": -per_charge * (3 * nak + 3 * naca + background_na + na),
            "ca_in": (ca_from_outside + ca_from_store) * ca_free,
            "k_in": per_charge * (2 * nak - (k1 + to + kur + kr + ks)),
            "ca_release": (transfer - release) * ca_release_free,
            "ca_uptake": uptake - leak - transfer * (release_volume / uptake_volume),
        }


def _unbound(calcium: Tensor, *buffers: tuple[float, float]) -> Tensor:
    """1 / (1 + sum of c k / (calcium + k)^2) over buffers of concentration c and half point k, as one quotient."""
    top, bottom = torch.ones_like(calcium), torch.ones_like(calcium)
    for concentration, half in buffers:
        square = (calcium + half) ** 2
        top, bottom = top * square, bottom * square + concentration * half * top
    return top / bottom


def _sodium_gates(v: Tensor) -> dict[str, Gate]:
    # Two formulas meet, with a jump, at -40 mV. `below` goes no higher: the one not taken stays finite.
    is_below, below = v < -40, v.clamp(max=-40)
    shut = 1e-15  # instead of 0, which gates near would be denormal floats: slow ones
    h_decay = torch.exp(torch.where(is_below, scaled(v, -80.0, -6.8), scaled(v, -10.66, -11.1)))
    h_closing_below = 3.56 * torch.exp(0.079 * below) + 3.1e5 * torch.exp(0.35 * below)
    h_closing_above = (1 / 0.13) / (1 + h_decay)
    j_opening = (1.2714e5 * torch.exp(0.2444 * below) + 3.474e-5 * torch.exp(-0.04391 * below)) * -(below + 37.78)
    j_opening = j_opening * torch.sigmoid(-0.311 * (below + 79.23))
    # The publication's exp(-2.535e-7 v) above is 1 to four digits: two terms of its series do.
    j_closing = torch.where(is_below, 0.1212 * torch.exp(-0.01052 * below), 0.3 - 0.3 * 2.535e-7 * v)
    j_closing = j_closing * torch.sigmoid(torch.where(is_below, 0.1378 * (v + 40.14), 0.1 * (v + 32)))
    return {
        "m": opening_and_closing(3.2 * ramp(scaled(v, -47.13, 10.0)), 0.08 * torch.exp(scaled(v, 0.0, -11.0))),
        "h": opening_and_closing(
            torch.where(is_below, 0.135 * h_decay, shut), torch.where(is_below, h_closing_below, h_closing_above)
        ),
        "j": opening_and_closing(torch.where(is_below, j_opening, shut), j_closing),
    }


def _potassium_gates(v: Tensor, decay_5: Tensor, decay_17: Tensor) -> dict[str, Gate]:
    warming = 3.0  # Q10 of the transient and the ultrarapid current, measured at room temperature
    opening = 0.65 / (exp(-10 / 8.5) * decay_17**2 + torch.exp(scaled(v, 30.0, -59.0)))
    closing = 0.65 * decay_17 / (2.5 * decay_17 + exp(82 / 17))
    fast_rate = warming * (opening + closing)
    oi_rate = 1 / (18.53 + torch.exp(scaled(v, -113.7, 10.95))) + 1 / (35.56 + torch.exp(scaled(v, -1.26, -7.44)))
    ui_rate = 1 / (21 + torch.exp(scaled(v, 185.0, -28.0))) + torch.exp(scaled(v, 158.0, 16.0))
    xr_opening = 0.0003 * 5 * ramp(scaled(v, -14.1, 5.0), exp(-14.1 / 5) * decay_5)
    xr_rate = xr_opening + 7.3898e-5 * 5.1237 * ramp(scaled(v, 3.3328, -5.1237))
    xs_opening = 4e-5 * 17 * ramp(scaled(v, 19.9, 17.0), exp(19.9 / 17) * decay_17)
    xs_rate = xs_opening + 3.5e-5 * 9 * ramp(scaled(v, 19.9, -9.0))
    return {
        "oa": Gate(torch.sigmoid(scaled(v, -20.47, 17.54)), fast_rate),
        "oi": Gate(torch.sigmoid(scaled(v, -43.1, -5.3)), warming * oi_rate),
        "ua": Gate(torch.sigmoid(scaled(v, -30.3, 9.6)), fast_rate),
        "ui": Gate(torch.sigmoid(scaled(v, 99.45, -27.48)), warming * ui_rate),
        "xr": Gate(torch.sigmoid(scaled(v, -14.1, 6.5)), xr_rate),
        "xs": Gate(torch.sqrt(torch.sigmoid(scaled(v, 19.9, 12.7))), 2 * xs_rate),
    }


def _calcium_gates(v: Tensor) -> dict[str, Gate]:
    from_ten = scaled(v, -10.0, 6.24)
    d_decay = torch.exp(-from_ten)
    return {
        "d": Gate(torch.sigmoid(scaled(v, -10.0, 8.0)), 0.035 * 6.24 * ramp(from_ten, d_decay) * (1 + d_decay)),
        "f": Gate(torch.sigmoid(scaled(v, -28.0, -6.9)), (0.0197 * torch.exp(-((0.0337 * (v + 10)) ** 2)) + 0.02) * (1 / 9)),
    }


def _release_gates(flux: Tensor) -> dict[str, Gate]:
    is_open = torch.sigmoid(scaled(flux, 0.34175, 1.367e-3))
    return {
        "release_u": Gate(is_open, 1 / 8),
        "release_v": relaxing(torch.sigmoid(scaled(flux, 0.06835, -1.367e-3)), 1.91 + 2.09 * is_open),
    }


def _release_w(v: Tensor, decay_5: Tensor, decay_17: Tensor) -> Gate:
    w_decay = exp(7.9 / 5) * decay_5
    return Gate(decay_17 / (decay_17 + exp(-40 / 17)), 5 / 6 * ramp(scaled(v, 7.9, 5.0), w_decay) * (1 + 0.3 * w_decay))


# Remodelled by atrial fibrillation: less L-type calcium, transient outward and ultrarapid current, more IK1.
# Paper: does not say that its cells are; its voltages (-85 .. 20 mV) and whole action potentials (190 ms) fit these, with
# -84.2 mV and 167 ms, not the healthy ones, with -81.2 mV and 297 ms.
REMODELLED = Courtemanche(
    g_ca_l=0.45 * Courtemanche.g_ca_l,
    g_to=0.35 * Courtemanche.g_to,
    kur_factor=0.55,
    g_k1=2.1 * Courtemanche.g_k1,
    # Where LSODA leads from the healthy rest in 10^7 ms with sodium and potassium held: those drift for hours. Done with
    # the healthy cell, it comes back to its published rest within 0.01 mV.
    at_rest=(
        *(-84.204862, 1.7640192e-3, 0.98198364, 0.98871794, 2.5738633e-2, 0.99957186, 3.6292631e-3, 0.99874982),
        *(2.0699851e-5, 1.6593333e-2, 9.3672921e-5, 0.99971008, 0.78516023, 0.0, 1.0, 0.99932907),
        *(11.17, 9.5768883e-5, 139.0, 1.4142324, 1.4142324),
    ),
)
