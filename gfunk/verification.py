"""The solver's laws, tried out on this machine: what each should give, what it gives here, and pictures of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gfunk.domain import Domain, fibre_tensors, make_domain, perturbed_square, rectangle, rotated
from gfunk.laplacian import Mass, fem_laplacian
from gfunk.physics.cells import Cell, Gate, stepped
from gfunk.physics.models import CELLS
from gfunk.physics.models.mitchell_schaeffer import MitchellSchaeffer
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import Scheme, diffusivity
from gfunk.physics.stimulus import Stimulus, stimulated_nodes
from gfunk.physics.waves import Paced
from gfunk.verification_pictures import (
    activation_picture,
    convergence_picture,
    potentials_picture,
    rolled_waves_picture,
)

Advance = Callable[[], None]

MASSES: tuple[Mass, ...] = ("consistent", "lumped")  # from two sides

ALONG, ACROSS = 0.5, 0.1  # mm^2/ms
# An action potential short enough that a small sheet shows the wave's back too.
BRIEF = MitchellSchaeffer(tau_close_ms=8.0, tau_open_ms=40.0)
# Courtemanche's cell at 1 Hz, 20 pA/pF for 2 ms: its CellML model, solved to 1e-10 by two adaptive solvers.
KNOWN_BEATS = (
    {"peak": 24.492, "steepest rise": 218.93, "APD50": 185.128, "APD90": 306.881},
    {"peak": 24.453, "steepest rise": 218.01, "APD50": 179.687, "APD90": 297.480},
)
UNITS = {"peak": "mV", "steepest rise": "mV/ms", "APD50": "ms", "APD90": "ms"}
# Speeds in mm/ms by conductivity in mS/mm, Courtemanche's cell, extrapolated to infinitely small cells and steps.
KNOWN_SPEEDS = {0.0625: 0.341, 0.3125: 0.763, 0.625: 1.079, 3.125: 2.41}
# When a wave from the corner of a sheet of 20 x 7 mm comes to these places (mm: ms), extrapolated likewise, all +- 0.1 ms.
KNOWN_ARRIVALS = {(0.0, 7.0): 17.55, (20.0, 0.0): 25.38, (20.0, 7.0): 31.04, (10.0, 3.5): 15.00}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one law gives here, beside what it should."""

    law: str
    found: float
    known: float
    tolerance: float  # of found - known, in the same unit
    unit: str = ""

    @property
    def passed(self) -> bool:
        return bool(abs(self.found - self.known) <= self.tolerance)  # NaN never passes


@dataclass(frozen=True, kw_only=True)
class Evidence:
    findings: tuple[Finding, ...]
    pictures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)  # file name: what draws it


@dataclass(frozen=True, kw_only=True)
class Check:
    """Laws that share their simulations; `gather` calls its second argument once for each of `n_parts` parts done."""

    about: str
    n_parts: int
    gather: Callable[[torch.device, Advance], Evidence]


def checks(is_quick: bool) -> list[Check]:
    """All of them, or those that together take less than a minute."""
    quick = [
        Check(about="single cells", n_parts=3 * len(STRETCHES), gather=single_cells),
        Check(about="orders in time and space", n_parts=7 + 2 * len(EDGES_MM), gather=orders),
        Check(about="speeds of plane waves", n_parts=1, gather=plane_waves),
        Check(about="speeds along and across fibres", n_parts=1, gather=fibre_ratio),
        Check(about="charge and rotation", n_parts=3, gather=invariants),
        Check(about="a sheet rolled up", n_parts=2, gather=rolled_sheet),
    ]
    return quick if is_quick else [*quick, Check(about="the 2-D benchmark", n_parts=2 * 33, gather=benchmark_sheet)]


# Single cells.

# Steps and where they end, in ms: short while the voltage is fast, long between beats.
STRETCHES = ((0.01, 5.0), (0.2, 350.0), (1.0, 1000.0))


@dataclass(frozen=True, kw_only=True)
class Beat:
    """The voltage of a cell from a stimulus on; durations count from the steepest rise, levels from the voltage before."""

    times_ms: Float[np.ndarray, " time"]
    v_mV: Float[np.ndarray, " time"]

    def features(self) -> dict[str, float]:
        slope = np.diff(self.v_mV) / np.diff(self.times_ms)
        steepest = int(slope.argmax())
        rise_ms = float(self.times_ms[steepest : steepest + 2].mean())
        return {
            "peak": float(self.v_mV.max()),
            "steepest rise": float(slope.max()),
            "APD50": self._repolarised_ms(0.5) - rise_ms,
            "APD90": self._repolarised_ms(0.9) - rise_ms,
        }

    def _repolarised_ms(self, part: float) -> float:
        """When the voltage last came back by this part of its amplitude."""
        v = self.v_mV - (self.v_mV.max() - part * (self.v_mV.max() - self.v_mV[0]))
        last = np.flatnonzero(v > 0)[-1]
        if last + 1 == len(v):
            return float("nan")
        share = v[last] / (v[last] - v[last + 1])
        return float(self.times_ms[last] + share * (self.times_ms[last + 1] - self.times_ms[last]))


@torch.inference_mode()
def beats(cell: Cell, n_beats: int, advance: Advance) -> list[Beat]:
    """The cell paced at 1 Hz with 20 pA/pF for 2 ms, by the steps of order 2 that tissue takes."""
    state = {name: torch.tensor([value], dtype=torch.float64) for name, value in cell.resting.items()}
    found = []
    for _ in range(n_beats):
        times, v = [0.0], [float(state["v"])]
        for dt_ms, end_ms in STRETCHES:
            start_ms, n_steps = times[-1], round((end_ms - times[-1]) / dt_ms)
            for step in range(n_steps):
                state = stepped(cell, state, dt_ms, 20.0 if times[-1] < 2.0 - dt_ms / 2 else 0.0, order=2)
                times.append(start_ms + (step + 1) * dt_ms)
                v.append(float(state["v"]))
            advance()
        found.append(Beat(times_ms=np.array(times), v_mV=np.array(v)))
    return found


def single_cells(device: torch.device, advance: Advance) -> Evidence:
    """On the CPU whatever the device: one cell can't keep a GPU busy."""
    healthy, (remodelled,) = beats(CELLS["courtemanche"], 2, advance), beats(CELLS["courtemanche-af"], 1, advance)
    findings = [
        Finding(
            law=f"Courtemanche's cell, beat {number}: {name}", unit=UNITS[name],
            found=beat.features()[name], known=value, tolerance=0.005 * value,
        )
        for number, (beat, known) in enumerate(zip(healthy, KNOWN_BEATS, strict=True), start=1)
        for name, value in known.items()
    ]  # fmt: skip
    curves = {"healthy": healthy[0], "remodelled by fibrillation": remodelled}
    draw = partial(potentials_picture, curves={name: (beat.times_ms, beat.v_mV) for name, beat in curves.items()})
    return Evidence(findings=tuple(findings), pictures={"verification-cells.png": draw})


# Orders.

STEPS_MS = (0.2, 0.1, 0.05)
EDGES_MM = (0.25, 0.125, 0.0625, 0.03125)


def orders(device: torch.device, advance: Advance) -> Evidence:
    """Errors of v on a strip by time step, and of a wave's speed by edge; each order is that of the finest pair."""
    exact = _smooth_end(0.0125, 2, device, advance)
    in_time: dict[int, list[float]] = {
        order: [float(np.abs(_smooth_end(dt, order, device, advance) - exact).max()) for dt in STEPS_MS] for order in (1, 2)
    }
    speeds = {mass: [_strip_speed(edge, mass, device, advance) for edge in EDGES_MM] for mass in MASSES}
    limits = {mass: (4 * fine - coarse) / 3 for mass, (*_, coarse, fine) in speeds.items()}
    limit = sum(limits.values()) / 2
    in_space = {mass: [abs(speed / limit - 1) for speed in each] for mass, each in speeds.items()}
    findings = [
        Finding(
            law=f"order in time, order-{order} cells", found=_last_order(errors, STEPS_MS), known=float(order), tolerance=0.2
        )
        for order, errors in in_time.items()
    ]
    for mass, each in speeds.items():
        order = _last_order(np.abs(np.diff(each)).tolist(), EDGES_MM[:-1])
        findings.append(Finding(law=f"order in space, {mass} mass", found=order, known=2.0, tolerance=0.25))
    apart = limits["consistent"] / limits["lumped"] - 1
    findings.append(Finding(law="both masses lead to one speed: ratio - 1", found=apart, known=0.0, tolerance=1e-3))
    draw = partial(
        convergence_picture, steps_ms=STEPS_MS, errors_mV=in_time, edges_mm=EDGES_MM, speed_errors=in_space, limit=limit
    )
    return Evidence(findings=tuple(findings), pictures={"verification-convergence.png": draw})


def _smooth_end(dt_ms: float, order: Literal[1, 2], device: torch.device, advance: Advance) -> np.ndarray:
    """A cell whose rates have no jump, and a stimulus whose edges fall on steps."""
    stimulus = Stimulus(sites=((0.0, 0.0),), duration_ms=1.6)
    scheme = Scheme(dt_ms=dt_ms, order=order, reduction=1e-4)
    run = _paced(_tissue(4.0, 0.25, 0.25, ACROSS), stimulus, [6.4], "aliev-panfilov", scheme, device)
    advance()
    return run.values_mV[0, -1].astype(np.float64)


def _strip_speed(edge_mm: float, mass: Mass, device: torch.device, advance: Advance) -> float:
    domain = _tissue(6.0, edge_mm, edge_mm, ACROSS)
    scheme = Scheme(dt_ms=0.1, mass=mass, reduction=1e-4)
    run = _paced(domain, _from_the_side(domain, 1.0), [15.0], "mitchell-schaeffer", scheme, device)
    advance()
    # From place to place, not from the stimulus on: the rim of the stimulated nodes is known to an edge only.
    return _speed(domain, run, 2.0, 5.0)


def _last_order(errors: Sequence[float], sizes: Sequence[float]) -> float:
    return float(np.log(errors[-2] / errors[-1]) / np.log(sizes[-2] / sizes[-1]))


# Speeds.


def plane_waves(device: torch.device, advance: Advance) -> Evidence:
    """Speed / sqrt(D) is one number: strips scaled with sqrt(D) carry the same wave, so the known speeds are one law."""
    strips, stimuli = [], []
    for conductivity in KNOWN_SPEEDS:
        scale = np.sqrt(diffusivity(conductivity))
        strips.append(_tissue(12.8 * scale, 0.1 * scale, 0.1 * scale, diffusivity(conductivity)))
        stimuli.append([[_from_the_side(strips[-1], 1.6 * scale)]])
    scheme = Scheme(dt_ms=0.02, reduction=1e-4)
    waves = simulate_many(
        strips, stimuli, [10.0], cell="courtemanche", scheme=scheme, device=device, dtype=torch.float64, compiles=False
    )
    advance()
    findings = []
    for (conductivity, known), strip, wave in zip(KNOWN_SPEEDS.items(), strips, waves, strict=True):
        width = strip.points[:, 0].max()
        speed = _speed(strip, wave, 0.4 * width, 0.75 * width)
        law = f"plane wave at {conductivity} mS/mm"
        findings.append(Finding(law=law, unit="mm/ms", found=speed, known=known, tolerance=0.02 * known))
    # Not Python's own max: it may lose a NaN.
    apart = float(np.max([_apart_ms(wave, waves[0]) for wave in waves[1:]]))
    findings.append(
        Finding(
            law="lengths times s, diffusion times s^2: arrivals apart", unit="ms", found=apart, known=0.0, tolerance=1e-3
        )
    )
    return Evidence(findings=tuple(findings))


def fibre_ratio(device: torch.device, advance: Advance) -> Evidence:
    """The speed of plane waves along fibres over that across them is the root of the ratio of diffusion."""
    sheet = _tissue(11.25, 5.0, 0.125, ALONG, ACROSS)
    protocols = [[_from_the_side(sheet, 2.25)], [_from_the_side(sheet, 1.0, axis=1)]]
    wave = simulate_many(
        [sheet], [protocols], [12.5],
        cell="mitchell-schaeffer", scheme=Scheme(dt_ms=0.1, reduction=1e-4), device=device, compiles=False,
    )[0]  # fmt: skip
    advance()
    ratio = _speed(sheet, wave, 4.5, 9.0) / _speed(sheet, wave, 2.0, 4.0, trajectory=1, axis=1)
    known = float(np.sqrt(ALONG / ACROSS))
    law = "speed along / across fibres at 5:1 (root of 5)"
    return Evidence(findings=(Finding(law=law, found=ratio, known=known, tolerance=0.02 * known),))


# What must not matter.


@dataclass(frozen=True)
class Passive:
    """A cell without currents, so that there is diffusion alone."""

    @property
    def resting(self) -> dict[str, float]:
        return {"v": 0.0}

    def rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        return {"v": torch.zeros_like(state["v"])}


def invariants(device: torch.device, advance: Advance) -> Evidence:
    sheet = _slanted_sheet()
    stimulus = Stimulus(sites=((1.0, 1.0),), radius_mm=0.8)
    exact = Scheme(dt_ms=0.1, reduction=1e-8)
    spread = _paced(sheet, stimulus, [10.0], Passive(), exact, device)
    advance()
    weights = np.asarray(fem_laplacian(sheet, "consistent").mass.sum(axis=0)).ravel()
    given = stimulus.strength * stimulus.duration_ms * weights[stimulated_nodes(sheet, stimulus)].sum()
    lost = 1 - float(spread.values_mV[0, -1].astype(np.float64) @ weights / given)

    straight = _paced(sheet, stimulus, [8.0], "mitchell-schaeffer", exact, device)
    advance()
    turned_sheet = rotated(sheet, 33.0)
    # The same nodes, wherever they are now: within the radius, rounding might find others.
    chosen = stimulated_nodes(sheet, stimulus)
    turned = _paced(turned_sheet, _on_nodes(turned_sheet, chosen), [8.0], "mitchell-schaeffer", exact, device)
    advance()
    apart = _apart_ms(turned, straight)
    return Evidence(
        findings=(
            Finding(law="charge lost by diffusion, part of all", found=lost, known=0.0, tolerance=1e-5),
            Finding(law="mesh and fibres turned: arrivals apart", unit="ms", found=apart, known=0.0, tolerance=1e-3),
        )
    )


def _slanted_sheet() -> Domain:
    """No symmetry: moved nodes, fibres that turn."""
    mesh = perturbed_square(0.006, np.random.default_rng(5))
    angle = 0.4 + mesh.points[:, 0]
    tensors = fibre_tensors(np.stack([np.cos(angle), np.sin(angle)], axis=1), ALONG, ACROSS)
    return make_domain(4 * mesh.points, mesh.cells, tensors)


def rolled_sheet(device: torch.device, advance: Advance) -> Evidence:
    """A third of a tube, fibres winding around it; unrolled, they are straight, and the wave is that of the flat sheet."""
    flat, radius_mm = rectangle(16.0, 10.0, 0.2), 7.0
    x, y = flat.points.T
    angle, pitch = (x - 8.0) / radius_mm, np.pi / 6
    around, along = np.cos(pitch), np.sin(pitch)
    straight = np.tile([around, along], (flat.n_nodes, 1))
    wound = np.stack([around * np.cos(angle), np.full_like(x, along), -around * np.sin(angle)], axis=1)
    points = np.stack([radius_mm * np.sin(angle), y, radius_mm * np.cos(angle)], axis=1)
    flat = make_domain(flat.points, flat.cells, fibre_tensors(straight, ALONG, ACROSS), fibres=straight)
    tube = make_domain(points, flat.cells, fibre_tensors(wound, ALONG, ACROSS), fibres=wound)
    chosen = np.flatnonzero(np.linalg.norm(flat.points - (8.0, 5.0), axis=1) <= 1.5)
    times, scheme = (3.0, 6.0, 9.0, 12.0), Scheme(dt_ms=0.1)
    waves = []
    for domain in (flat, tube):
        waves.append(_paced(domain, _on_nodes(domain, chosen), times, BRIEF, scheme, device))
        advance()
    apart = _apart_ms(waves[1], waves[0])
    finding = Finding(law="sheet rolled up: arrivals apart", unit="ms", found=apart, known=0.0, tolerance=0.03)
    draw = partial(rolled_waves_picture, domain=tube, times_ms=times, v_mV=waves[1].values_mV[0])
    return Evidence(findings=(finding,), pictures={"verification-rolled.png": draw})


# The benchmark.


def benchmark_sheet(device: torch.device, advance: Advance) -> Evidence:
    """20 x 7 mm, fibres along x, 0.3125 and 0.0625 mS/mm, Courtemanche's cell, a stimulus in the corner; h to 0."""
    along, across = diffusivity(0.3125), diffusivity(0.0625)
    end_ms, scheme = 33.0, Scheme(dt_ms=0.02)
    found = []
    for edge_mm in (0.1, 0.05):
        sheet = _tissue(20.0, 7.0, edge_mm, along, across)
        corner = np.flatnonzero((sheet.points <= 1.5 + 1e-9).all(axis=1))
        wave = simulate_many(
            [sheet], [[[_on_nodes(sheet, corner)]]], [end_ms],
            cell="courtemanche", scheme=scheme, device=device, on_step=_once_a_ms(scheme.dt_ms, advance),
        )[0]  # fmt: skip
        found.append((sheet, wave))
    coarse, fine = (_arrivals(sheet, wave, *KNOWN_ARRIVALS) for sheet, wave in found)
    limits = dict(zip(KNOWN_ARRIVALS, (4 * fine - coarse) / 3, strict=True))
    findings = [
        Finding(
            law=f"2-D benchmark, arrival at ({x:g}, {y:g}) mm, h to 0", unit="ms",
            found=float(limits[x, y]), known=known, tolerance=0.2,
        )
        for (x, y), known in KNOWN_ARRIVALS.items()
    ]  # fmt: skip
    sheet, wave = found[-1]
    draw = partial(
        activation_picture, domain=sheet, activation_ms=wave.activation_ms[0], places=limits, known_ms=KNOWN_ARRIVALS
    )
    return Evidence(findings=tuple(findings), pictures={"verification-benchmark.png": draw})


# What the checks share.


def _tissue(width_mm: float, height_mm: float, edge_mm: float, along: float, across: float | None = None) -> Domain:
    """A rectangle with fibres along x."""
    mesh = rectangle(width_mm, height_mm, edge_mm)
    tensor = np.diag([along, along if across is None else across])
    return make_domain(mesh.points, mesh.cells, np.tile(tensor, (mesh.n_nodes, 1, 1)))


def _on_nodes(domain: Domain, chosen: np.ndarray) -> Stimulus:
    """A stimulus on these nodes and no other."""
    return Stimulus(sites=tuple(map(tuple, domain.points[chosen].tolist())), radius_mm=1e-6)


def _from_the_side(domain: Domain, reach_mm: float, axis: int = 0) -> Stimulus:
    return _on_nodes(domain, domain.points[:, axis] <= reach_mm + 1e-9)


def _paced(
    domain: Domain,
    stimulus: Stimulus,
    times_ms: Sequence[float],
    cell: str | Cell,
    scheme: Scheme,
    device: torch.device,
) -> Paced:
    """One small wave: compiling would take longer."""
    return simulate_many(
        [domain], [[[stimulus]]], times_ms, cell=cell, scheme=scheme, device=device, dtype=torch.float64, compiles=False
    )[0]


def _speed(domain: Domain, wave: Paced, first: float, last: float, trajectory: int = 0, axis: int = 0) -> float:
    """Of a plane wave, between the nodes nearest to two coordinates, in mm/ms."""
    places = domain.points[:, axis]
    starts, ends = (np.abs(places - place) < np.abs(places - place).min() + 1e-9 for place in (first, last))
    arrival = wave.activation_ms[trajectory].astype(np.float64)
    return float((places[ends].mean() - places[starts].mean()) / (arrival[ends].mean() - arrival[starts].mean()))


def _arrivals(domain: Domain, wave: Paced, *places: tuple[float, ...]) -> Float[np.ndarray, " place"]:
    nearest = [np.linalg.norm(domain.points - place, axis=1).argmin() for place in places]
    return wave.activation_ms[0, nearest].astype(np.float64)


def _apart_ms(one: Paced, other: Paced) -> float:
    """The largest difference of arrival times; NaN if the waves did not come to the same nodes."""
    if (np.isnan(one.activation_ms) != np.isnan(other.activation_ms)).any():
        return float("nan")
    return float(np.nanmax(np.abs(one.activation_ms - other.activation_ms)))


def _once_a_ms(dt_ms: float, advance: Advance) -> Callable[[int], None]:
    told = 0

    def on_step(n_steps: int):
        nonlocal told
        while told < int(n_steps * dt_ms + 1e-9):
            advance()
            told += 1

    return on_step
