import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_order
from scipy.integrate import solve_ivp
from torch import Tensor

from gfunk.errors import InputError
from gfunk.physics import cells
from gfunk.physics.cells import (
    MOVED_MV,
    Cell,
    Gate,
    MovingCells,
    TabulableCell,
    gate_table,
    ramp,
    step_tables,
    stepped,
    stepped_by_tables,
)  # fmt: skip
from gfunk.physics.models import CELLS
from gfunk.physics.models.aliev_panfilov import AlievPanfilov
from gfunk.physics.models.courtemanche import Courtemanche
from gfunk.physics.models.mitchell_schaeffer import MitchellSchaeffer
from gfunk.physics.models.ten_tusscher import TenTusscher

HEALTHY, REMODELLED = Courtemanche(), CELLS["courtemanche-af"]
OUTER = TenTusscher()
INNER, MIDDLE = replace(OUTER, g_to=0.073, is_endocardial=True), replace(OUTER, g_ks=0.098)
# What openCARP's ionic library makes of the same cell.
ROUNDED = Courtemanche(
    g_kr=0.0294, g_ks=0.129, g_ca_l=0.1238, nak_max=0.60, g_background_na=6.74e-4, g_background_ca=1.13e-3,
    at_rest=(
        *(-81.2, 2.91e-3, 0.965, 0.978, 3.04e-2, 0.999, 4.96e-3, 0.999, 3.29e-5, 1.87e-2, 1.37e-4, 0.999, 0.775),
        *(0.0, 1.0, 0.999, 11.2, 1.02e-4, 139.0, 1.49, 1.49),
    ),
)  # fmt: skip
# Where a formula reads 0 / 0 or changes. Courtemanche: m, h and j, xr, d, xr, release_w, xs; ten Tusscher: h and j, ca_l.
SINGULAR_MV = {HEALTHY: [-47.13, -40.0, -14.1, -10.0, 3.3328, 7.9, 19.9], OUTER: [-40.0, 15.0]}
PULSE_MS = 2.0
UPSTROKE_MS = 5.0


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def at_rest(cell: Cell, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(list(cell.resting.values()), dtype=dtype)[:, None, None]


def advance(cell: Cell, state: Tensor, dt_ms: float, stimulus: Tensor | float = 0.0, order: int = 1) -> Tensor:
    """A step of states that are the rows of one tensor."""
    by_name = stepped(cell, dict(zip(cell.resting, state.unbind(), strict=True)), dt_ms, stimulus, order)
    assert list(by_name) == list(cell.resting)
    return torch.stack(list(by_name.values()))


advance_midpoint = partial(advance, order=2)


def derivative(cell: Cell, y: np.ndarray, stimulus: float) -> np.ndarray:
    """dy/dt; a gate's is (target - y) / tau."""
    state = dict(zip(cell.resting, torch.from_numpy(np.ascontiguousarray(y)).unbind(), strict=True))
    rates = cell.rates(state)
    plain = {
        name: (rate.target - state[name]) * rate.rate_per_ms if isinstance(rate, Gate) else rate
        for name, rate in rates.items()
    }
    plain["v"] = plain["v"] + stimulus
    return torch.stack([plain[name] for name in state]).numpy()


def solved(cell: Cell, start: np.ndarray, duration_ms: float, stimulus: float, rtol: float) -> Callable:
    """The solution as a function of time, by an adaptive stiff solver."""
    nudge = 1e-6 * np.maximum(np.abs(start), 1e-4)

    def jacobian(_: float, y: np.ndarray) -> np.ndarray:
        nudged = y[:, None] + np.hstack([np.diag(nudge), -np.diag(nudge)])
        up, down = np.hsplit(derivative(cell, nudged, stimulus), 2)
        return (up - down) / (2 * nudge)

    answer = solve_ivp(
        lambda _, y: derivative(cell, y, stimulus), (0, duration_ms), start, method="BDF", jac=jacobian,
        rtol=rtol, atol=0.1 * rtol * np.maximum(np.abs(start), 1e-4), dense_output=True, first_step=1e-4,
    )  # fmt: skip
    assert answer.success
    return answer.sol


@dataclass
class Beat:
    """What is read off an action potential; durations count from the steepest rise, levels from the voltage before."""

    rest: float
    peak: float
    amplitude: float
    steepest: float
    apd20: float
    apd50: float
    apd90: float


def beat_after(
    cell: Cell, start: np.ndarray, strength: float, until_ms: float, rtol: float = 1e-5
) -> tuple[Beat, np.ndarray]:
    """The action potential after a pulse, and the state at its end."""
    # The upstroke is solved more closely: its steepness is read off.
    during = solved(cell, start, PULSE_MS, strength, rtol / 30)
    after = solved(cell, during(PULSE_MS), UPSTROKE_MS - PULSE_MS, 0.0, rtol / 30)
    falling = solved(cell, after(UPSTROKE_MS - PULSE_MS), until_ms - UPSTROKE_MS, 0.0, rtol)
    early, late = np.arange(0, UPSTROKE_MS, 1e-3), np.arange(PULSE_MS, until_ms, 0.05)
    is_during, is_falling = early < PULSE_MS, late >= UPSTROKE_MS
    states = np.hstack([during(early[is_during]), after(early[~is_during] - PULSE_MS)])
    slope = derivative(cell, states, 0.0)[0] + strength * is_during
    rise, peak, rest = early[slope.argmax()], states[0].max(), start[0]
    v = np.hstack([after(late[~is_falling] - PULSE_MS)[0], falling(late[is_falling] - UPSTROKE_MS)[0]])

    def duration(part: float) -> float:
        level = peak - part * (peak - rest)
        last = np.flatnonzero(v > level)[-1]
        assert last + 1 < len(v), f"{part:.0%} repolarised only after {until_ms} ms"
        return late[last] + 0.05 * (v[last] - level) / (v[last] - v[last + 1]) - rise

    apd = {f"apd{round(100 * part)}": duration(part) for part in (0.2, 0.5, 0.9)}
    return Beat(rest=rest, peak=peak, amplitude=peak - rest, steepest=slope.max(), **apd), falling(until_ms - UPSTROKE_MS)


@cache
def two_beats(cell: Courtemanche | TenTusscher, rtol: float) -> tuple[Beat, Beat]:
    """Paced at 1 Hz with 20 pA/pF for 2 ms."""
    first, state = beat_after(cell, np.array(list(cell.resting.values())), 20.0, 1000.0, rtol)
    second, _ = beat_after(cell, state, 20.0, 500.0, rtol)
    return first, second


def run(step: Callable, cell: Cell, state: Tensor, dt_ms: float, n_steps: int, stimulus: float = 0.0) -> Tensor:
    for _ in range(n_steps):
        state = step(cell, state, dt_ms, stimulus)
    return state


def random_state(cell: Cell, n: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Voltages from -120 to 80 mV, gates anywhere in [0, 1], ends included, concentrations near rest."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand((len(cell.resting), n), generator=generator, dtype=torch.float64)
    state = (2.4 * share - 0.7).clamp(0, 1)
    for row, (name, value) in enumerate(cell.resting.items()):
        if name == "v":
            state[row] = -120 + 200 * share[row]
        elif name.startswith(("na_", "k_", "ca_")):
            state[row] = value * (0.5 + share[row])
    return state.to(dtype)


def gate_rows(cell: Cell) -> list[int]:
    rates = cell.rates(dict(zip(cell.resting, at_rest(cell).unbind(), strict=True)))
    return [row for row, name in enumerate(cell.resting) if isinstance(rates[name], Gate)]


def numbers_of(rates: dict[str, Gate | Tensor]) -> Tensor:
    """Everything a model says, one below the other."""
    said = [part for r in rates.values() for part in ((r.target, time_constant(r)) if isinstance(r, Gate) else (r,))]
    return torch.stack(said)


def time_constant(gate: Gate) -> Tensor:
    return 1 / torch.as_tensor(gate.rate_per_ms).to(gate.target).expand_as(gate.target)


# 1. Against published numbers.


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, Beat(-81.180, 24.492, 105.672, 218.93, 3.982, 185.128, 306.881)),
        (1, Beat(-80.841, 24.453, 105.294, 218.01, 3.760, 179.687, 297.480)),
    ],
)
def test_courtemanches_beats_are_those_of_its_cellml_model(number: int, expected: Beat):
    found = two_beats(HEALTHY, 3e-5)[number]
    for name, value in vars(expected).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-3), name


def test_the_remodelled_cell_rests_deeper_and_repolarises_sooner():
    second = two_beats(REMODELLED, 1e-3)[1]
    assert second.rest == pytest.approx(-84.1, abs=0.3)
    assert second.apd90 == pytest.approx(167, abs=3)
    assert two_beats(HEALTHY, 3e-5)[1].apd90 == pytest.approx(297.5, rel=1e-3)


# Rates of ten Tusscher's outer cell as an export of its CellML model to another program gives them, below -40 mV and in the
# plateau, by the order of its states; and what the inner and the middle layer change.
LOW = [-61.3, 0.31, 0.42, 0.57, 0.11, 0.38, 0.07, 0.93, 0.012, 0.004, 0.83, 0.91, 0.97, 0.94, 9.1, 137.2, 1.9e-4, 3.1, 7e-4]
HIGH = [23.7, 0.99, 0.002, 0.013, 0.22, 0.05, 0.31, 0.4, 0.8, 0.88, 0.6, 0.45, 0.62, 0.35, 8.8, 135.9, 0.0011, 2.2, 0.6]
RATES_LOW = [
    *(12.58792957, -2.33829853, -0.009526671559, -0.001633887288, -0.0002495760854, -0.08176529443, -0.0006122206446),
    *(0.00154795956, -0.001466213804, -0.005458798604, 0.0008427108208, 0.0009243011252, 0.0003644894771),
    *(0.0002619638828, 0.001674481196, -0.0001703244179, -7.788705088e-07, 0.0009669088434, 3.531111823e-05),
]
RATES_HIGH = [
    *(-13.604233, 0.1826650284, -0.011333293, -0.03000069338, 0.03109867363, -0.01425358931, 0.0005694242187),
    *(-0.08663819747, -0.08377180495, 0.4822649682, -0.003522860742, -0.008055838505, -0.08459459459),
    *(-0.01069841326, -5.642019819e-05, -0.001644062623, 4.097367395e-05, -0.01105802438, -0.2257062194),
]
V, S, K_IN = (list(OUTER.resting).index(name) for name in ("v", "s", "k_in"))


@pytest.mark.parametrize(
    ("cell", "state", "expected", "changes"),
    [
        (OUTER, LOW, RATES_LOW, {}),
        (OUTER, HIGH, RATES_HIGH, {}),
        (INNER, LOW, RATES_LOW, {V: 12.64987344, S: 7.040802321e-05, K_IN: -0.0001630840515}),
        (INNER, HIGH, RATES_HIGH, {V: -5.834849465, S: -0.04837846604, K_IN: -0.0007359311494}),
        (MIDDLE, LOW, RATES_LOW, {V: 12.60204641, K_IN: -0.0001686743575}),
        (MIDDLE, HIGH, RATES_HIGH, {V: -10.9330517, K_IN: -0.001331839162}),
    ],
    ids=[f"{layer} {v}" for layer in ("outer", "inner", "middle") for v in ("low", "high")],
)
def test_ten_tusschers_rates_are_those_of_its_cellml_model(
    cell: TenTusscher, state: list[float], expected: list[float], changes: dict[int, float]
):
    expected = [changes.get(row, rate) for row, rate in enumerate(expected)]
    np.testing.assert_allclose(derivative(cell, np.array(state), 0.0), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, Beat(-85.2300, 35.7799, 121.0099, 344.8786, 180.5580, 262.3391, 290.3451)),
        (1, Beat(-85.4757, 37.3752, 122.8508, 362.9488, 195.1111, 279.8891, 307.8942)),
    ],
)
def test_ten_tusschers_beats_are_those_of_its_cellml_model(number: int, expected: Beat):
    """Of the same export, by LSODA with relative tolerance 1e-9."""
    found = two_beats(OUTER, 1e-4)[number]
    for name, value in vars(expected).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-3), name


def test_the_middle_of_the_wall_beats_longest():
    start = np.array(list(OUTER.resting.values()))
    outer, inner, middle = (beat_after(cell, start, 20.0, 500.0, rtol=1e-3)[0].apd90 for cell in (OUTER, INNER, MIDDLE))
    assert abs(inner - outer) < 10 and middle > outer + 50


@pytest.mark.parametrize("name", [name for name in CELLS if name != "ten-tusscher"])
def test_at_rest_nothing_moves(name: str):
    cell = CELLS[name]
    resting = np.array(list(cell.resting.values()))
    rate = derivative(cell, resting, 0.0)
    # The published rest of Courtemanche's cell has four digits.
    assert abs(rate[0]) < (1e-3 if name == "courtemanche" else 1e-6)
    second_later = solved(cell, resting, 1000.0, 0.0, 1e-6)(1000.0)
    np.testing.assert_allclose(second_later, resting, rtol=5e-3 if name == "courtemanche" else 1e-3, atol=1e-6)


def test_left_alone_a_cell_used_to_beating_stays_near_its_rest():
    # The published start of ten Tusscher's cell is that of one that beats once a second.
    resting = np.array(list(OUTER.resting.values()))
    assert abs(derivative(OUTER, resting, 0.0)[0]) < 1e-3
    path = solved(OUTER, resting, 1000.0, 0.0, 1e-6)(np.linspace(0, 1000, 101))
    assert path[0, -1] == pytest.approx(-85.5266, abs=1e-3)
    assert np.ptp(path[0]) < 0.3


@pytest.mark.parametrize(("dt_ms", "peak"), [(0.01, 25.36), (0.02, 26.27)])
def test_the_first_order_step_overshoots_the_peak_as_known(dt_ms: float, peak: float):
    state, highest = run(advance, ROUNDED, at_rest(ROUNDED), dt_ms, round(PULSE_MS / dt_ms), 20.0), -80.0
    for _ in range(round(1.5 / dt_ms)):
        state = advance(ROUNDED, state, dt_ms)
        highest = max(highest, float(state[0]))
    assert highest == pytest.approx(peak, abs=0.1)


# 2. Steps.

# A cell, a stimulus in mV/ms, steps and a duration in ms, through an upstroke.
UPSTROKES = {
    "courtemanche": (HEALTHY, 20.0, (0.02, 0.01, 0.005), 1.2),
    "ten-tusscher": (OUTER, 20.0, (0.02, 0.01, 0.005), 1.2),
    "mitchell-schaeffer": (MitchellSchaeffer(), 10.0, (0.05, 0.025, 0.0125), 4.0),
    "aliev-panfilov": (AlievPanfilov(), 10.0, (0.2, 0.1, 0.05), 12.0),
}


@cache
def upstroke(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Where it starts and ends: above the voltages where rates of h and j jump, as order 2 can't be had across them."""
    cell, stimulus, _, duration_ms = UPSTROKES[name]
    start = np.array(list(cell.resting.values()))
    if name == "mitchell-schaeffer":
        start[0] = -60
    if name in ("courtemanche", "ten-tusscher"):
        path = solved(cell, start, PULSE_MS, stimulus, 1e-4)
        times = np.linspace(0, PULSE_MS, 1001)
        start = path(times[np.flatnonzero(path(times)[0] > -39)[0]])
    return start, solved(cell, start, duration_ms, stimulus, 1e-8)(duration_ms)


@pytest.mark.parametrize(("step", "order"), [(advance, 1), (advance_midpoint, 2)])
@pytest.mark.parametrize("name", UPSTROKES)
def test_the_error_of_a_step_has_its_order_over_an_upstroke(name: str, step: Callable, order: int):
    cell, stimulus, steps_ms, duration_ms = UPSTROKES[name]
    start, end = upstroke(name)
    first = torch.from_numpy(start)[:, None, None]
    found = [run(step, cell, first, dt, round(duration_ms / dt), stimulus) for dt in steps_ms]
    assert_order([np.abs(last.flatten().numpy() - end)[0] for last in found], steps_ms, order)


def test_across_a_jump_of_the_rates_the_midpoint_step_still_converges():
    cell, start = MitchellSchaeffer(), np.array([-80.0, 1.0])
    exact = solved(cell, start, 2.0, 20.0, 1e-10)(2.0)[0]
    errors = [
        abs(float(run(advance_midpoint, cell, at_rest(cell), dt, round(2 / dt), 20.0)[0]) - exact) for dt in (0.1, 0.0125)
    ]
    assert errors[1] < errors[0] / 8


@pytest.mark.parametrize("step", [advance, advance_midpoint])
@pytest.mark.parametrize("name", CELLS)
def test_cells_side_by_side_step_as_each_alone(name: str, step: Callable):
    cell = CELLS[name]
    state = random_state(cell, 12, 1, torch.float64).unflatten(1, (4, 3))
    stimulus = torch.linspace(0, 50, 12, dtype=torch.float64).unflatten(0, (4, 3))
    together = step(cell, state, 0.02, stimulus)
    for node in range(4):
        for trajectory in range(3):
            alone = step(cell, state[:, node, trajectory], 0.02, float(stimulus[node, trajectory]))
            torch.testing.assert_close(together[:, node, trajectory], alone, rtol=1e-12, atol=1e-14)


@given(seed=st.integers(0, 2**31), dt_ms=st.floats(1e-4, 1.0), is_double=st.booleans(), name=st.sampled_from(sorted(CELLS)))
def test_no_step_takes_a_gate_out_of_0_to_1(seed: int, dt_ms: float, is_double: bool, name: str):
    cell = CELLS[name]
    state = random_state(cell, 200, seed, torch.float64 if is_double else torch.float32)
    gates = advance(cell, state, dt_ms)[gate_rows(cell)]
    assert ((gates >= 0) & (gates <= 1)).all()


# 3. Numbers stay numbers.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CELLS)
def test_rates_and_steps_are_finite_at_any_voltage(name: str, dtype: torch.dtype):
    cell = CELLS[name]
    voltages = torch.tensor([*SINGULAR_MV[HEALTHY], *SINGULAR_MV[OUTER], *np.linspace(-120, 80, 4001)], dtype=dtype)
    state = random_state(cell, len(voltages), 2, dtype)
    state[0] = voltages
    rates = cell.rates(dict(zip(cell.resting, state.unbind(), strict=True)))
    assert numbers_of(rates).isfinite().all()
    assert all((time_constant(rate) > 0).all() for rate in rates.values() if isinstance(rate, Gate))
    for step in (advance, advance_midpoint):
        later = step(cell, state, 0.02, 50.0)
        assert later.isfinite().all() and later.dtype == dtype


def rates_at(cell: Cell, voltages: Tensor) -> Tensor:
    """Everything a cell says that is at rest but for its voltage."""
    resting = torch.tensor(list(cell.resting.values()), dtype=voltages.dtype)
    state = resting[:, None].repeat(1, len(voltages))
    state[0] = voltages
    return numbers_of(cell.rates(dict(zip(cell.resting, state.unbind(), strict=True))))


@pytest.mark.parametrize(
    ("cell", "singular_mV"), [(cell, v) for cell, voltages in SINGULAR_MV.items() for v in voltages if v != -40]
)
def test_rates_pass_smoothly_through_each_singular_voltage(cell: Cell, singular_mV: float):
    near = singular_mV + torch.linspace(-0.05, 0.05, 201, dtype=torch.float64)
    found = rates_at(cell, near)
    # Between neighbours 0.0005 mV apart no rate changes by more than a smooth one could, and float32 says the same.
    assert (found.diff(dim=1).abs() <= 1e-3 * found.abs().amax(1, keepdim=True)).all()
    curved = found.diff(n=2, dim=1).abs().amax(1)
    assert (curved <= 1e-5 * found.abs().amax(1)).all()
    single = near.float()
    torch.testing.assert_close(rates_at(cell, single).double(), rates_at(cell, single.double()), rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("cell", [HEALTHY, OUTER])
def test_only_h_and_j_jump_and_only_at_minus_40_mV(cell: Cell):
    below, above = rates_at(cell, torch.tensor([-40 - 1e-9, -40 + 1e-9], dtype=torch.float64)).T
    labels = [n for n, r in cell.rates(_named_rest(cell)).items() for _ in range(2 if isinstance(r, Gate) else 1)]
    jumps = (above - below).abs() > 1e-6 * (above.abs() + below.abs())
    assert {name for name, is_jump in zip(labels, jumps, strict=True) if is_jump} == {"h", "j"}


def _named_rest(cell: Cell) -> dict[str, Tensor]:
    return dict(zip(cell.resting, at_rest(cell).unbind(), strict=True))


def repolarisation(cell: Cell, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Times and voltages of a beat: 0.05 ms a step in the upstroke, 0.5 ms later."""
    state, times, voltages = at_rest(cell, dtype), [0.0], [cell.resting["v"]]
    for n_steps, dt_ms, stimulus in ((40, 0.05, 20.0), (60, 0.05, 0.0), (605, 0.5, 0.0)):
        for _ in range(n_steps):
            state = advance(cell, state, dt_ms, stimulus)
            times.append(times[-1] + dt_ms)
            voltages.append(float(state[0]))
    return np.array(times), np.array(voltages)


@pytest.mark.parametrize("cell", [HEALTHY, OUTER])
def test_single_precision_does_not_drift_over_an_action_potential(cell: Cell):
    (times, double), (_, single) = repolarisation(cell, torch.float64), repolarisation(cell, torch.float32)
    assert np.abs(single - double)[times > 5].max() < 0.01
    level = double.max() - 0.9 * (double.max() - double[0])
    ends = [times[np.flatnonzero(v > level)[-1]] + 0.5 * _overshoot(v, level) for v in (single, double)]
    assert ends[1] > 280
    assert ends[0] == pytest.approx(ends[1], abs=0.1)


def _overshoot(v: np.ndarray, level: float) -> float:
    last = np.flatnonzero(v > level)[-1]
    return (v[last] - level) / (v[last] - v[last + 1])


# 4. What every cell does.


@pytest.mark.parametrize("name", CELLS)
def test_every_state_has_a_rate_and_voltage_comes_first(name: str):
    cell = CELLS[name]
    assert isinstance(cell, Cell)
    assert next(iter(cell.resting)) == "v"
    assert set(cell.rates(_named_rest(cell))) == set(cell.resting)


@pytest.mark.parametrize("name", CELLS)
def test_a_pulse_excites_the_cell_and_it_returns_to_rest(name: str):
    cell = CELLS[name]
    rest = np.array(list(cell.resting.values()))
    beat, end = beat_after(cell, rest, 50.0, 600.0, rtol=3e-3)
    assert beat.peak > 0
    assert end[0] == pytest.approx(rest[0], abs=2)


def test_parameters_are_fields_that_a_user_may_vary():
    blocked = replace(HEALTHY, g_na=0.0)
    state = run(advance, blocked, at_rest(blocked), 0.05, 40, 20.0)
    assert float(run(advance, blocked, state, 0.05, 40)[0]) < 0
    assert hash(blocked) != hash(HEALTHY)


@dataclass(frozen=True)
class FitzHughNagumo:
    """What a user writes: FitzHugh's cubic and Nagumo's linear recovery, in mV and ms."""

    recovery_per_ms: float = 0.01

    @property
    def resting(self) -> dict[str, float]:
        return {"v": -80.0, "w": 0.0}

    def rates(self, state: dict[str, Tensor]) -> dict[str, Gate | Tensor]:
        u, w = (state["v"] + 80) / 100, state["w"]
        return {"v": 100 * (u * (1 - u) * (u - 0.1) - w), "w": self.recovery_per_ms * (0.5 * u - w)}


@pytest.mark.parametrize(("step", "order"), [(advance, 1), (advance_midpoint, 2)])
def test_a_users_own_cell_steps_like_any_other(step: Callable, order: int):
    cell = FitzHughNagumo()
    assert isinstance(cell, Cell)
    exact = solved(cell, np.array([-80.0, 0.0]), 20.0, 5.0, 1e-10)(20.0)
    assert exact[0] > -20
    steps_ms = (0.5, 0.25, 0.125)
    ends = [run(step, cell, at_rest(cell), dt, round(20 / dt), 5.0).flatten().numpy() for dt in steps_ms]
    assert_order([np.linalg.norm(end - exact) for end in ends], steps_ms, order)


def test_an_unknown_order_is_refused():
    with pytest.raises(InputError, match="order 1 or 2, not 3"):
        stepped(HEALTHY, _named_rest(HEALTHY), 0.02, 0.0, 3)


# Checked signatures can't be compiled: its own process, without the checks.
COMPILED = """
import sys, torch
from gfunk.physics.cells import stepped
from gfunk.physics.models import CELLS
for name, order in (("courtemanche", 1), ("ten-tusscher", 2), ("mitchell-schaeffer", 2), ("aliev-panfilov", 2)):
    cell = CELLS[name]
    torch.compiler.reset()
    state = {name: torch.full((5, 2), value) for name, value in cell.resting.items()}
    state["v"] += torch.linspace(-10, 100, 5)[:, None]
    stimulus = torch.ones(5, 2)
    expected = stepped(cell, state, 0.02, stimulus, order)
    got = torch.compile(stepped, fullgraph=True, backend=sys.argv[1])(cell, state, 0.02, stimulus, order)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
"""


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_every_cell_compiles_whole_and_steps_the_same(backend: str):
    done = subprocess.run([sys.executable, "-c", COMPILED, backend], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_gates_relax_as_exponentials_do_to_the_last_digit_where_they_are_slow():
    x = torch.logspace(-8, 4, 2000, dtype=torch.float64)
    exact = -torch.expm1(-x)
    single = cells._relaxed(x.float()).double()
    slow = x < 0.5
    assert ((single - exact).abs() / exact)[slow].max() < 4e-7
    assert (single - exact).abs().max() < 1.3e-3
    assert single.min() > 0 and single.max() <= 1
    assert (cells._relaxed(x).diff() > -1e-15).all()


def test_a_ramp_is_smooth_where_its_two_forms_meet():
    x = torch.linspace(-0.4, 0.4, 8001, dtype=torch.float64)
    exact = torch.where(x == 0, 1.0, x / -torch.expm1(-torch.where(x == 0, 1.0, x)))
    torch.testing.assert_close(ramp(x), exact, rtol=1e-10, atol=0)
    torch.testing.assert_close(ramp(x.float()), exact.float(), rtol=2e-6, atol=0)


# 5. Fewer operations.

TABULABLE = [cell for cell in CELLS.values() if isinstance(cell, TabulableCell)]


def random_named(cell: Cell, n: int, seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return dict(zip(cell.resting, random_state(cell, n, seed, dtype).unbind(), strict=True))


def gates_later(cell: TabulableCell, state: dict[str, Tensor], dt_ms: float, per_mV: int | None) -> Tensor:
    """The gates that follow the voltage alone a step later, off a table or, where it is None, by their formulas."""
    if per_mV is None:
        later = stepped(cell, state, dt_ms)
        return torch.stack([later[name] for name in cell.voltage_gates(state["v"])])
    later = gate_table(cell, dt_ms, state["v"], per_mV).later(state, state["v"])
    return torch.stack(list(later.values()))


def test_courtemanches_cells_are_tabulable():
    assert HEALTHY in TABULABLE and REMODELLED in TABULABLE


@pytest.mark.parametrize("cell", TABULABLE)
def test_rates_fall_into_those_of_the_voltage_alone_and_the_others(cell: TabulableCell):
    state = random_named(cell, 50, 3)
    alone, others, rates = cell.voltage_gates(state["v"]), cell.other_rates(state), cell.rates(state)
    assert set(alone).isdisjoint(others) and set(alone) | set(others) == set(rates)
    assert torch.equal(numbers_of({name: (alone | others)[name] for name in rates}), numbers_of(rates))


@pytest.mark.parametrize("cell", TABULABLE)
@pytest.mark.parametrize("dt_ms", [0.025, 0.2])
def test_a_step_off_a_table_converges_at_order_two_in_its_spacing(cell: TabulableCell, dt_ms: float):
    state, spacings = random_named(cell, 20_000, 4), (1 / 4, 1 / 8, 1 / 16)
    exact = gates_later(cell, state, dt_ms, None)
    gaps = [gates_later(cell, state, dt_ms, round(1 / spacing)) - exact for spacing in spacings]
    assert_order([float(gap.abs().max()) for gap in gaps], spacings, 2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_jump_where_the_formulas_do(dtype: torch.dtype):
    at = torch.tensor([-40.0], dtype=dtype)
    v = torch.cat([at.nextafter(torch.full_like(at, -100)), at, at.nextafter(torch.zeros_like(at))])
    state = {name: torch.full((3,), 0.5, dtype=dtype) for name in HEALTHY.resting} | {"v": v}
    off_table, exact = (gates_later(HEALTHY, state, 0.05, per_mV) for per_mV in (8, None))
    torch.testing.assert_close(off_table, exact, rtol=1e-5, atol=1e-7)
    names = list(HEALTHY.voltage_gates(v))
    jumps = (off_table[:, 1] - off_table[:, 0]).abs() > 1e-6
    assert {name for name, is_jump in zip(names, jumps, strict=True) if is_jump} == {"h", "j"}


@given(seed=st.integers(0, 2**31), dt_ms=st.floats(1e-3, 1.0), is_double=st.booleans())
def test_no_table_takes_a_gate_out_of_0_to_1_at_any_voltage(seed: int, dt_ms: float, is_double: bool):
    state = random_named(HEALTHY, 200, seed, torch.float64 if is_double else torch.float32)
    state["v"] = state["v"] * 3
    state["v"][:4] = torch.tensor([-torch.inf, torch.inf, -128, 128])
    gates = gates_later(HEALTHY, state, dt_ms, 8)
    assert ((gates >= 0) & (gates <= 1)).all()


def test_what_is_not_a_number_stays_so_and_harms_no_other():
    state = random_named(HEALTHY, 3, 5)
    whole = gates_later(HEALTHY, state, 0.05, 8)
    state["v"][1] = torch.nan
    broken = gates_later(HEALTHY, state, 0.05, 8)
    assert broken[:, 1].isnan().all() and torch.equal(broken[:, ::2], whole[:, ::2])


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("cell", TABULABLE)
def test_moving_cells_beat_as_those_stepped_by_formulas(cell: TabulableCell, order: int):
    pushes = torch.tensor([20.0, 50.0, 0.0], dtype=torch.float64)
    v = torch.full_like(pushes, cell.resting["v"])
    state = {name: torch.full_like(pushes, value) for name, value in cell.resting.items()}
    moving, tables, by_tables = MovingCells(cell, v, 0.05, order), step_tables(cell, 0.05, order, v), state
    for number in range(200):
        push = pushes * (number < 40)
        state, v = stepped(cell, state, 0.05, push, order), moving.stepped(v, push)
        by_tables = stepped_by_tables(cell, tables, by_tables, push)
        assert (v - state["v"])[:2].abs().max() < 0.02 and (by_tables["v"] - state["v"]).abs().max() < 0.02
    assert v[0] > -40 and v[1] > -40 and v[2] == cell.resting["v"]


def test_a_cell_leaves_rest_when_it_is_pushed_or_has_moved_and_no_sooner():
    v = torch.full((4,), REMODELLED.resting["v"], dtype=torch.float64)
    v[1], v[2] = v[1] + 0.9 * MOVED_MV, v[2] - 1.1 * MOVED_MV
    moving = MovingCells(REMODELLED, v, 0.05, 2)
    later = moving.stepped(v, torch.tensor([0.0, 0.0, 0.0, 1e-3], dtype=torch.float64))
    assert moving.nodes.tolist() == [2, 3]
    assert torch.equal(later[:2], v[:2]) and (later[2:] != v[2:]).all()
    # Once gone it stays among them, wherever v is.
    moving.stepped(torch.full_like(v, REMODELLED.resting["v"]), torch.zeros_like(v))
    assert moving.nodes.tolist() == [2, 3]
