from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import assert_order, relative_gap
from problems import random_rotation, relabelled, turned, with_diffusion
from torch import Tensor

from gfunk.domain import Domain, cell_sizes, fibre_tensors, make_domain, perturbed_square, rectangle
from gfunk.errors import InputError
from gfunk.laplacian import fem_laplacian
from gfunk.physics.cells import Cell, stepped
from gfunk.physics.models import CELLS
from gfunk.physics.models.mitchell_schaeffer import MitchellSchaeffer
from gfunk.physics.monodomain import moments, simulate, simulate_many
from gfunk.physics.schemes import SCHEMES, Scheme, diffusivity
from gfunk.physics.stimulus import Stimulus, stimulated_nodes
from gfunk.physics.waves import Paced
from gfunk.spectrum import lowest_modes

ALONG, ACROSS = 0.5, 0.1  # mm^2/ms
# An action potential of a dozen ms, and rest soon after.
BRIEF = MitchellSchaeffer(tau_out_ms=4.0, tau_close_ms=8.0, tau_open_ms=20.0)


def tissue(width: float, height: float, edge: float, along: float = ACROSS, across: float | None = None) -> Domain:
    """A rectangle with fibres along x."""
    return with_diffusion(rectangle(width, height, edge), np.diag([along, along if across is None else across]))


def pushed(domain: Domain, chosen: np.ndarray, **how: float) -> Stimulus:
    """A stimulus on these nodes and no other."""
    return Stimulus(sites=tuple(tuple(point) for point in domain.points[chosen].tolist()), radius_mm=1e-6, **how)


def steps_of(dt: float, **how: object) -> Scheme:
    """Diffusion solved closely enough that no law depends on how closely."""
    return Scheme(dt_ms=dt, reduction=1e-4, **how)


def from_the_left(domain: Domain, reach: float = 1.0, axis: int = 0) -> Stimulus:
    return pushed(domain, domain.points[:, axis] <= reach + 1e-9)


def paced(
    domain: Domain,
    stimuli: Sequence[Stimulus],
    times: Sequence[float],
    *,
    cell: str | Cell = "mitchell-schaeffer",
    scheme: str | Scheme | None = None,
    dtype: torch.dtype = torch.float64,
) -> Paced:
    return simulate_many(
        [domain], [[stimuli]], times, cell=cell, scheme=scheme or steps_of(0.05), dtype=dtype, compiles=False
    )[0]


def reached(domain: Domain, run: Paced, *places: tuple[float, ...]) -> np.ndarray:
    """When the wave came to the nodes nearest to these places, in the first trajectory."""
    return np.array([run.activation_ms[0, np.linalg.norm(domain.points - place, axis=1).argmin()] for place in places])


def assert_same(got: Paced, expected: Paced, within_mV: float, within_ms: float):
    np.testing.assert_allclose(got.values_mV, expected.values_mV, rtol=0, atol=within_mV)
    np.testing.assert_allclose(got.activation_ms, expected.activation_ms, rtol=0, atol=within_ms)
    np.testing.assert_allclose(got.repolarisation_ms, expected.repolarisation_ms, rtol=0, atol=within_ms)


def assert_equal(got: Paced, expected: Paced):
    np.testing.assert_array_equal(got.values_mV, expected.values_mV)
    np.testing.assert_array_equal(got.activation_ms, expected.activation_ms)
    np.testing.assert_array_equal(got.repolarisation_ms, expected.repolarisation_ms)


# Rest.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CELLS)
def test_tissue_at_rest_stays_at_rest(name: str, dtype: torch.dtype):
    values = paced(tissue(2.0, 1.0, 0.5), [], [0.0, 20.0], cell=name, scheme=steps_of(0.4), dtype=dtype).values_mV
    assert (values[:, 0] == np.float32(CELLS[name].resting["v"])).all()
    # Ten Tusscher's cell is used to beating, and sinks a little when left alone.
    assert np.abs(values[:, 1] - values[:, 0]).max() < (0.04 if name == "ten-tusscher" else 0.01)
    # All cells do the same: nothing diffuses, not even rounding.
    assert np.ptp(values, axis=2).max() == 0


def test_what_is_never_activated_has_no_times():
    run = paced(tissue(2.0, 1.0, 0.5), [], [0.0, 5.0])
    assert np.isnan(run.activation_ms).all() and np.isnan(run.repolarisation_ms).all()


# Orders.


@cache
def smooth_end(dt: float, order: int) -> np.ndarray:
    """A cell whose rates have no jump, and a stimulus whose edges fall on steps."""
    stimulus, scheme = Stimulus(sites=((0.0, 0.0),), duration_ms=1.6), steps_of(dt, order=order)
    return paced(tissue(4.0, 0.25, 0.25), [stimulus], [6.4], cell="aliev-panfilov", scheme=scheme).values_mV


@pytest.mark.parametrize("order", [1, 2])
def test_the_scheme_has_the_order_in_time_that_it_says(order: int):
    exact, steps = smooth_end(0.0125, 2), [0.2, 0.1, 0.05]
    assert_order([np.abs(smooth_end(dt, order) - exact).max() for dt in steps], steps, order)


@pytest.mark.parametrize("mass", ["consistent", "lumped"])
def test_the_time_a_wave_takes_from_place_to_place_is_of_order_two_in_space(mass: str):
    # Not when it comes to a place: the rim of the stimulated nodes is known to an edge only.
    edges, taken = [0.25, 0.125, 0.0625, 0.03125], []
    for edge in edges:
        domain = tissue(6.0, edge, edge)
        run = paced(domain, [from_the_left(domain)], [15.0], scheme=steps_of(0.1, mass=mass))
        first, last = reached(domain, run, (2.0, 0.0), (5.0, 0.0))
        taken.append(last - first)
    assert_order(np.abs(np.diff(taken)), edges[:-1], 2, within=0.25)


def test_both_masses_lead_to_the_same_speed_from_two_sides():
    domain = tissue(6.0, 0.125, 0.125)
    times = [
        reached(domain, paced(domain, [from_the_left(domain)], [15.0], scheme=steps_of(0.05, mass=mass)), (2, 0), (5, 0))
        for mass in ("consistent", "lumped")
    ]
    fast, slow = 3 / np.diff(times)[:, 0]
    assert slow < 0.3409 < fast < 1.01 * slow


@pytest.mark.parametrize("edge", [0.25, 0.125])
def test_mixed_mass_errs_far_less_than_either(edge: float):
    domain = tissue(6.0, edge, edge)
    speeds = {}
    for mass in ("consistent", "lumped", "mixed"):
        run = paced(domain, [from_the_left(domain)], [15.0], scheme=steps_of(0.05, mass=mass))
        speeds[mass] = 3 / np.diff(reached(domain, run, (2, 0), (5, 0)))[0]
    errors = {mass: abs(speed / 0.3409 - 1) for mass, speed in speeds.items()}
    assert errors["mixed"] < 0.5 * min(errors["consistent"], errors["lumped"]), errors


# Speeds.


@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_tissue_twice_as_large_with_four_times_the_diffusion_does_the_same(scale: float):
    def wave(s: float) -> Paced:
        domain = tissue(3 * s, 1 * s, 0.25 * s, s * s * ALONG, s * s * ACROSS)
        return paced(domain, [Stimulus(sites=((0.0, 0.0),), radius_mm=0.9 * s)], [2.0, 6.0], scheme=steps_of(0.1))

    assert_same(wave(scale), wave(1.0), 1e-4, 1e-5)


@pytest.mark.parametrize(("conductivity", "edge", "speed"), [(0.3125, 0.1, 0.763), (0.0625, 0.05, 0.341)])
def test_a_plane_wave_of_courtemanche_cells_runs_at_its_known_speed(conductivity: float, edge: float, speed: float):
    domain = tissue(60 * edge, edge, edge, diffusivity(conductivity))
    stimulus = from_the_left(domain, 8 * edge)
    run = paced(domain, [stimulus], [7.5], cell="courtemanche", scheme=steps_of(0.02), dtype=torch.float32)
    first, last = reached(domain, run, (25 * edge, 0.0), (45 * edge, 0.0))
    assert abs(20 * edge / (last - first) / speed - 1) < 0.02


def test_along_fibres_waves_run_faster_by_the_root_of_the_ratio():
    domain = tissue(11.25, 5.0, 0.125, ALONG, ACROSS)
    protocols = [[from_the_left(domain, 2.25)], [from_the_left(domain, 1.0, axis=1)]]
    run = simulate_many([domain], [protocols], [12.5], cell="mitchell-schaeffer", scheme=steps_of(0.1), compiles=False)[0]

    def speed(trajectory: int, axis: int, *places: float) -> float:
        on = [run.activation_ms[trajectory, np.abs(domain.points[:, axis] - place) < 1e-9] for place in places]
        assert max(np.ptp(each) for each in on) < 0.05  # a plane wave
        return (places[1] - places[0]) / float(on[1].mean() - on[0].mean())

    assert abs(speed(0, 0, 4.5, 9.0) / speed(1, 1, 2.0, 4.0) / np.sqrt(ALONG / ACROSS) - 1) < 0.02


# What must not matter.


def slanted_sheet() -> Domain:
    """No symmetry: moved nodes, fibres that turn."""
    mesh = perturbed_square(0.006, np.random.default_rng(5))
    angle = 0.4 + mesh.points[:, 0]
    tensors = fibre_tensors(np.stack([np.cos(angle), np.sin(angle)], axis=1), ALONG, ACROSS)
    return make_domain(4 * mesh.points, mesh.cells, tensors)


def test_tissue_and_fibres_turned_together_do_the_same():
    domain, turn = slanted_sheet(), random_rotation(2, 3)
    chosen = np.linalg.norm(domain.points - 1.0, axis=1) < 0.8
    after = turned(domain, turn)
    after = replace(after, diffusion=(after.diffusion + after.diffusion.swapaxes(1, 2)) / 2)
    before = paced(domain, [pushed(domain, chosen)], [2.0, 6.0], scheme=steps_of(0.1))
    assert np.isfinite(before.activation_ms).mean() > 0.7
    assert_same(paced(after, [pushed(after, chosen)], [2.0, 6.0], scheme=steps_of(0.1)), before, 1e-4, 1e-5)


def test_other_node_numbers_give_the_same_in_the_other_order():
    domain = slanted_sheet()
    order = np.random.default_rng(0).permutation(domain.n_nodes)
    stimulus = Stimulus(sites=((1.0, 1.0),), radius_mm=0.8)
    before = paced(domain, [stimulus], [2.0, 6.0], scheme=steps_of(0.1))
    after = paced(relabelled(domain, order), [stimulus], [2.0, 6.0], scheme=steps_of(0.1))
    expected = Paced(
        times_ms=before.times_ms,
        values_mV=before.values_mV[:, :, order],
        activation_ms=before.activation_ms[:, order],
        repolarisation_ms=before.repolarisation_ms[:, order],
    )
    assert_same(after, expected, 1e-4, 1e-5)


def test_trajectories_together_are_as_one_by_one_to_the_last_bit():
    domain = slanted_sheet()
    protocols = [
        [Stimulus(sites=((1.0, 1.0),))],
        [],
        [Stimulus(sites=((3.0, 3.0),), start_ms=0.0), Stimulus(sites=((1.0, 3.0),), start_ms=0.0, strength=30.0)],
    ]
    options = {"cell": BRIEF, "scheme": steps_of(0.2), "compiles": False}
    together = simulate_many([domain], [protocols], [0.0, 4.0, 28.0], **options)[0]
    assert np.isfinite(together.repolarisation_ms[0]).any()
    for number, protocol in enumerate(protocols):
        alone = simulate_many([domain], [[protocol]], [0.0, 4.0, 28.0], **options)[0]
        np.testing.assert_array_equal(together.values_mV[number], alone.values_mV[0])
        np.testing.assert_array_equal(together.activation_ms[number], alone.activation_ms[0])
        np.testing.assert_array_equal(together.repolarisation_ms[number], alone.repolarisation_ms[0])


def test_like_domains_side_by_side_are_as_each_alone_to_the_last_bit():
    domains = [tissue(3.0, 1.0, 0.25), tissue(1.0, 0.5, 0.25), tissue(2.0, 2.0, 0.25)]
    protocols = [[[Stimulus(sites=((0.0, 0.0),))], [Stimulus(sites=((1.0, 0.5),))]] for _ in domains]
    options = {"cell": "mitchell-schaeffer", "scheme": steps_of(0.1), "compiles": False}
    together = simulate_many(domains, protocols, [0.0, 3.0, 6.0], **options)
    for domain, each, found in zip(domains, protocols, together, strict=True):
        assert_equal(found, simulate_many([domain], [each], [0.0, 3.0, 6.0], **options)[0])


def test_unlike_domains_side_by_side_are_as_each_alone_within_the_error_of_the_solver():
    domains = [tissue(3.0, 1.0, 0.25), tissue(3.0, 0.6, 0.1, ALONG, ACROSS), slanted_sheet()]
    protocols = [[[Stimulus(sites=((0.5, 0.5),))]] for _ in domains]
    options = {"cell": "mitchell-schaeffer", "scheme": steps_of(0.1), "compiles": False, "dtype": torch.float64}
    together = simulate_many(domains, protocols, [0.0, 3.0, 6.0], **options)
    for domain, each, found in zip(domains, protocols, together, strict=True):
        assert_same(found, simulate_many([domain], [each], [0.0, 3.0, 6.0], **options)[0], 0.05, 2e-3)


def test_single_precision_activates_within_a_thousandth_of_a_millisecond():
    domain = tissue(3.0, 0.2, 0.2, diffusivity(0.3125))
    single, double = (
        paced(domain, [from_the_left(domain)], [6.0], cell="courtemanche", scheme=steps_of(0.1), dtype=dtype)
        for dtype in (torch.float32, torch.float64)
    )
    assert np.isfinite(double.activation_ms).all()
    np.testing.assert_allclose(single.activation_ms, double.activation_ms, rtol=0, atol=1e-3)
    np.testing.assert_allclose(single.values_mV, double.values_mV, rtol=0, atol=0.01)


@pytest.mark.parametrize("name", SCHEMES)
def test_the_usual_solver_is_close_enough_for_activation_within_a_hundredth_of_a_millisecond(name: str):
    domain, usual = slanted_sheet(), SCHEMES[name]
    stimulus = [Stimulus(sites=((1.0, 1.0),), radius_mm=0.8)]
    loose, tight = (paced(domain, stimulus, [6.0], scheme=replace(usual, reduction=r)) for r in (usual.reduction, 1e-8))
    np.testing.assert_allclose(loose.activation_ms, tight.activation_ms, rtol=0, atol=0.01)


# Meshes.


@cache
def flat_sheet() -> tuple[Domain, Paced]:
    domain = tissue(6.0, 1.0, 0.125, ALONG, ACROSS)
    return domain, paced(domain, [from_the_left(domain)], [7.5], scheme=steps_of(0.1))


def taken(run: Paced, flat: Domain) -> float:
    """The mean time from one end of the inner sheet to the other; places are those of the flat one."""
    first, last = (run.activation_ms[0, np.abs(flat.points[:, 0] - x) < 0.07].mean() for x in (2.0, 5.0))
    return float(last - first)


def test_thin_and_shaken_triangles_carry_the_same_wave():
    flat, expected = flat_sheet()
    rng = np.random.default_rng(0)
    is_inner = (flat.points[:, 0] > 1.1) & (flat.points[:, 0] < 5.9) & (flat.points[:, 1] > 0) & (flat.points[:, 1] < 1)
    shaken = flat.points + np.where(is_inner[:, None], rng.uniform(-0.03, 0.03, flat.points.shape), 0)
    squeezed = rectangle(6.0, 0.5, 0.125)
    thin = with_diffusion(replace(squeezed, points=squeezed.points * np.array([1.0, 0.2])), flat.diffusion[0])
    meshes = {"shaken": replace(flat, points=shaken), "thin": thin}
    size = cell_sizes(meshes["shaken"].points, flat.cells)
    assert size.max() > 5 * size.min()
    for domain in meshes.values():
        run = paced(domain, [from_the_left(domain)], [7.5], scheme=steps_of(0.1))
        assert abs(taken(run, domain) / taken(expected, flat) - 1) < 0.02


@pytest.mark.parametrize("shape", ["rolled up", "folded"])
def test_a_sheet_bent_in_space_carries_the_wave_of_the_flat_one(shape: str):
    flat, expected = flat_sheet()
    x, y = flat.points.T
    if shape == "rolled up":
        angle = x / 2.5
        points, fibres = [2.5 * np.sin(angle), y, 2.5 * np.cos(angle)], [np.cos(angle), 0 * y, -np.sin(angle)]
        diffusion, at = fibre_tensors(np.stack(fibres, axis=1), ALONG, ACROSS), "node"
    else:
        slope = np.where(x[flat.cells].mean(axis=1) < 3, 0.0, 1.2)
        points = [np.minimum(x, 3) + np.cos(1.2) * np.maximum(x - 3, 0), y, np.sin(1.2) * np.maximum(x - 3, 0)]
        diffusion = fibre_tensors(np.stack([np.cos(slope), 0 * slope, np.sin(slope)], axis=1), ALONG, ACROSS)
        at = "cell"
    bent = make_domain(np.stack(points, axis=1), flat.cells, diffusion, diffusion_at=at)
    run = paced(bent, [pushed(bent, x <= 1 + 1e-9)], [7.5], scheme=steps_of(0.1))
    if shape == "folded":
        assert_same(run, expected, 1e-3, 1e-5)
    np.testing.assert_allclose(run.activation_ms, expected.activation_ms, rtol=2e-3)


def test_a_cloud_without_cells_carries_a_wave_at_about_the_same_speed():
    points = rectangle(6.0, 1.0, 0.125).points + np.random.default_rng(0).uniform(-0.03, 0.03, (49 * 9, 2))
    domain = make_domain(points, diffusion=np.tile(np.diag([ALONG, ACROSS]), (len(points), 1, 1)))
    flat, expected = flat_sheet()
    run = paced(domain, [pushed(domain, flat.points[:, 0] <= 1 + 1e-9)], [9.0], scheme=steps_of(0.1))
    assert abs(taken(run, flat) / taken(expected, flat) - 1) < 0.15


# Saved times.


def test_asked_times_are_free():
    domain, scheme = tissue(3.0, 0.5, 0.25), steps_of(0.1)
    stimulus = Stimulus(sites=((0.0, 0.0),))
    few = paced(domain, [stimulus], [0.0, 3.0, 7.0], scheme=scheme)
    odd = [0.0, 1e-3, 0.1, 1.0001, 2.999, 3.0, 3.14159, 3.15, 3.1999, 6.95, 7.0]
    many = paced(domain, [stimulus], odd, scheme=scheme)
    np.testing.assert_array_equal(many.times_ms, odd)
    np.testing.assert_array_equal(many.values_mV[:, [0, 5, 10]], few.values_mV)
    np.testing.assert_array_equal(many.activation_ms, few.activation_ms)
    np.testing.assert_array_equal(paced(domain, [stimulus], odd[1:], scheme=scheme).values_mV, many.values_mV[:, 1:])
    assert (few.values_mV[:, 0] == -80.0).all()


@given(times=st.lists(st.floats(0, 2), min_size=1, max_size=6, unique=True).map(sorted))
def test_values_between_steps_lie_on_the_line_between(times: list[float]):
    domain, dt = tissue(1.0, 0.5, 0.5), 0.25
    steps = dt * np.arange(9)
    stimulus, scheme = Stimulus(sites=((0.0, 0.0),), radius_mm=0.4), steps_of(dt)
    at_steps = paced(domain, [stimulus], steps, scheme=scheme).values_mV[0].astype(float)
    found = paced(domain, [stimulus], times, scheme=scheme).values_mV[0]
    expected = np.stack([np.interp(times, steps, column) for column in at_steps.T], axis=1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def first_crossings(times: np.ndarray, values: np.ndarray, level: float, after: np.ndarray, sign: int) -> np.ndarray:
    """Per node, when its values first pass the level upwards (sign 1) or downwards (-1) after a time; else NaN."""
    found = np.full(values.shape[1], np.nan)
    for node, column in enumerate(sign * (values.T.astype(float) - level)):
        hits = np.flatnonzero((column[:-1] < 0) & (column[1:] >= 0) & (times[1:] > after[node]))
        if hits.size:
            i = hits[0]
            found[node] = times[i] - column[i] / (column[i + 1] - column[i]) * (times[i + 1] - times[i])
    return found


def test_activation_and_repolarisation_are_where_the_values_cross_their_levels():
    domain, scheme = tissue(6.0, 0.25, 0.25), steps_of(0.1)
    times = 0.1 * np.arange(251)
    stimuli = [Stimulus(sites=((0.0, 0.0),))]
    run = paced(domain, stimuli, times, cell=BRIEF, scheme=scheme)
    activation = first_crossings(times, run.values_mV[0], -20.0, np.zeros(domain.n_nodes), 1)
    np.testing.assert_allclose(run.activation_ms[0], activation, rtol=0, atol=1e-4)
    repolarisation = first_crossings(times, run.values_mV[0], -70.0, np.nan_to_num(activation, nan=np.inf), -1)
    np.testing.assert_allclose(run.repolarisation_ms[0], repolarisation, rtol=0, atol=1e-4)
    # Near the stimulus the wave is over, further on it is not, furthest it has not come.
    left, right = domain.points[:, 0] < 0.1, domain.points[:, 0] > 5.9
    assert np.isfinite(run.repolarisation_ms[0, left]).all() and np.isfinite(run.activation_ms[0, right]).all()
    assert np.isnan(run.repolarisation_ms[0, right]).all()
    early = paced(domain, stimuli, [5.0], cell=BRIEF, scheme=scheme)
    np.testing.assert_array_equal(early.activation_ms, np.where(run.activation_ms <= 5, run.activation_ms, np.nan))


def test_other_levels_are_other_crossings():
    domain, times = tissue(2.0, 0.25, 0.25), 0.1 * np.arange(251)
    run = simulate_many(
        [domain], [[[Stimulus(sites=((0.0, 0.0),))]]], times,
        cell=BRIEF, scheme=steps_of(0.1), dtype=torch.float64, compiles=False, activated_mV=-45.0, repolarised_mV=-30.0,
    )[0]  # fmt: skip
    activation = first_crossings(times, run.values_mV[0], -45.0, np.zeros(domain.n_nodes), 1)
    np.testing.assert_allclose(run.activation_ms[0], activation, rtol=0, atol=1e-4)
    repolarisation = first_crossings(times, run.values_mV[0], -30.0, activation, -1)
    np.testing.assert_allclose(run.repolarisation_ms[0], repolarisation, rtol=0, atol=1e-4)


def test_kept_nodes_are_told_of_in_their_order_and_others_are_not():
    domains = [tissue(2.0, 0.5, 0.25), tissue(1.0, 0.5, 0.25)]
    protocols = [[[Stimulus(sites=((0.0, 0.0),))], []]] * 2
    options = {"cell": "mitchell-schaeffer", "scheme": steps_of(0.1), "compiles": False}
    kept = [np.array([7, 0, 3]), np.arange(domains[1].n_nodes)[::-1].copy()]
    whole = simulate_many(domains, protocols, [0.5, 4.0], **options)
    for some, all_, nodes in zip(
        simulate_many(domains, protocols, [0.5, 4.0], kept=kept, **options), whole, kept, strict=True
    ):
        np.testing.assert_array_equal(some.values_mV, all_.values_mV[:, :, nodes])
        np.testing.assert_array_equal(some.activation_ms, all_.activation_ms[:, nodes])


def test_moments_come_one_by_one_and_are_what_simulate_returns():
    domains = [tissue(2.0, 0.5, 0.25), tissue(1.0, 0.5, 0.25)]
    protocols = [[[Stimulus(sites=((0.0, 0.0),))], []]] * 2
    times = [0.0, 0.5, 0.73, 4.0]
    n_done = [0]
    options = {"cell": "mitchell-schaeffer", "scheme": steps_of(0.1), "compiles": False}
    seen = []
    for moment, t in zip(moments(domains, protocols, times, on_step=n_done.append, **options), times, strict=True):
        # Handed over as soon as it is reached.
        assert n_done[-1] * 0.1 < t + 0.1
        seen.append(moment)
    assert n_done[-1] == 40 and n_done == sorted(set(n_done))
    whole = simulate_many(domains, protocols, times, **options)
    for number, moment in enumerate(seen):
        expected = np.concatenate([run.values_mV[:, number] for run in whole], axis=1)
        np.testing.assert_array_equal(moment.v_mV.T, expected)
    np.testing.assert_array_equal(seen[-1].activation_ms.T, np.concatenate([run.activation_ms for run in whole], axis=1))
    assert np.isnan(seen[0].activation_ms).all()
    for sooner, later in pairwise(seen):
        known = np.isfinite(sooner.activation_ms)
        np.testing.assert_array_equal(sooner.activation_ms[known], later.activation_ms[known])


# Stimuli.


@dataclass(frozen=True)
class Inert:
    """A cell without currents."""

    @property
    def resting(self) -> dict[str, float]:
        return {"v": -80.0}

    def rates(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"v": torch.zeros_like(state["v"])}


still = tissue(2.0, 1.0, 0.5, 1e-12)


@given(start=st.floats(0, 2), duration=st.floats(0.01, 3), strength=st.floats(-20, 50))
def test_a_stimulus_adds_strength_times_duration_wherever_its_edges_fall(start: float, duration: float, strength: float):
    stimulus = Stimulus(sites=((0.0, 0.0),), start_ms=start, duration_ms=duration, strength=strength, radius_mm=0.6)
    values = paced(still, [stimulus], [start, 5.5], cell=Inert(), scheme=steps_of(0.25)).values_mV[0]
    expected = np.full(still.n_nodes, -80.0)
    expected[stimulated_nodes(still, stimulus)] += strength * duration
    np.testing.assert_allclose(values[1], expected, rtol=0, atol=2e-4)
    assert np.ptp(values[1]) > 0 or strength * duration < 1e-4


def test_stimuli_on_the_same_nodes_add_up():
    one = Stimulus(sites=((0.0, 0.0),), duration_ms=1.0, strength=7.0, radius_mm=0.1)
    two = replace(one, start_ms=0.5, strength=3.0)
    values = paced(still, [one, two], [0.5, 1.0, 4.0], cell=Inert(), scheme=steps_of(0.25)).values_mV[0, :, 0]
    np.testing.assert_allclose(values, [-76.5, -71.5, -70.0], atol=1e-4)


def test_a_node_near_two_sites_is_stimulated_once():
    stimulus = Stimulus(sites=((0.0, 0.0), (0.5, 0.0)), duration_ms=1.0, strength=7.0, radius_mm=0.6)
    nodes = stimulated_nodes(still, stimulus)
    assert len(set(nodes.tolist())) == len(nodes) == 5
    values = paced(still, [stimulus], [4.0], cell=Inert(), scheme=steps_of(0.25)).values_mV[0, 0]
    np.testing.assert_allclose(values[nodes], -73.0, atol=1e-4)


def test_two_sites_start_two_waves_that_meet_in_the_middle():
    domain, scheme = tissue(8.0, 0.25, 0.25), steps_of(0.1)
    both, left, right = (
        paced(domain, [Stimulus(sites=sites)], [25.0], scheme=scheme).activation_ms[0]
        for sites in (((0.0, 0.0), (8.0, 0.0)), ((0.0, 0.0),), ((8.0, 0.0),))
    )
    x = domain.points[:, 0]
    assert abs(x[both.argmax()] - 4) <= 0.25
    is_far = np.abs(x - 4) > 1
    np.testing.assert_allclose(both[is_far], np.minimum(left, right)[is_far], rtol=1e-3)
    # Where they meet, each pulls the other up.
    assert (both[~is_far] < 1.001 * np.minimum(left, right)[~is_far]).all()


@pytest.mark.parametrize(("start", "is_second_wave"), [(12.0, False), (60.0, True)])
def test_a_second_stimulus_starts_a_wave_only_after_recovery(start: float, is_second_wave: bool):
    domain, scheme = tissue(3.0, 0.25, 0.25), steps_of(0.2)
    first = Stimulus(sites=((0.0, 0.0),))
    times = np.arange(0, start + 20, 1.0)
    values = paced(domain, [first, replace(first, start_ms=start)], times, cell=BRIEF, scheme=scheme).values_mV[0]
    end = values[:, domain.points[:, 0] > 2.9].max(axis=1)
    assert end[times < start].max() > -20
    assert (end[times > start + 7].max() > -20) == is_second_wave


def alternates(values: np.ndarray, by_mV: float) -> bool:
    """Whether any node goes up, down, up, down or so by more than this, step after step; a peak is but one turn."""
    change = np.diff(values, axis=0)
    turns = (change[1:] * change[:-1] < 0) & (np.minimum(np.abs(change[1:]), np.abs(change[:-1])) > by_mV)
    return bool((turns[2:] & turns[1:-1] & turns[:-2]).any())


@pytest.mark.parametrize("mass", ["consistent", "lumped", "mixed", "balanced"])
@pytest.mark.parametrize(("start", "duration"), [(1.0, 1.0), (1.13, 0.71)])
def test_the_edges_of_a_stimulus_do_not_ring_at_the_step_of_the_paper(mass: str, start: float, duration: float):
    # D dt / h^2 is 44; undamped, many nodes alternate by 0.1 mV and more.
    domain = tissue(2.0, 0.4, 0.1, diffusivity(3.125))
    stimulus = Stimulus(sites=((0.0, 0.0),), radius_mm=0.35, start_ms=start, duration_ms=duration)
    scheme = steps_of(0.2, order=1, mass=mass)
    values = paced(domain, [stimulus], 0.2 * np.arange(31), cell=Inert(), scheme=scheme).values_mV[0]
    assert not alternates(values, 0.01)
    assert values.min() > -80.01


def test_values_stay_sane_at_the_step_of_the_paper():
    domain = tissue(5.0, 0.4, 0.2, diffusivity(0.3125), diffusivity(0.0625))
    stimuli = [Stimulus(sites=((0.0, 0.0),)), Stimulus(sites=((5.0, 0.4),), start_ms=5.0, duration_ms=1.0)]
    run = paced(domain, stimuli, 0.2 * np.arange(76), cell="courtemanche", scheme="paper", dtype=torch.float32)
    assert run.values_mV.min() > -85 and run.values_mV.max() < 70
    assert np.isfinite(run.activation_ms).all()
    assert not alternates(run.values_mV[0], 1.0)


def test_without_diffusion_every_stimulated_node_is_a_single_cell():
    cell = CELLS["courtemanche"]
    run = paced(still, [Stimulus(sites=((0.0, 0.0),), radius_mm=5.0)], [1.0, 4.0], cell=cell, scheme=steps_of(0.1))
    state = {name: torch.tensor([value], dtype=torch.float64) for name, value in cell.resting.items()}
    expected = []
    for number in range(40):
        state = stepped(cell, state, 0.1, 50.0 if number < 20 else 0.0, 2)
        expected.append(float(state["v"]))
    np.testing.assert_allclose(run.values_mV[0, 0], expected[9], atol=1e-4)
    np.testing.assert_allclose(run.values_mV[0, 1], expected[39], atol=1e-4)


# Refusals.


def refused(match: str, **changes: object):
    given_things = {
        "domains": [tissue(1.0, 1.0, 0.5)], "protocols": [[[Stimulus(sites=((0.0, 0.0),))]]], "times_ms": [0.0, 1.0],
        "cell": "mitchell-schaeffer", "scheme": "paper", "compiles": False,
    } | changes  # fmt: skip
    with pytest.raises(InputError, match=match):
        simulate_many(**given_things)


@pytest.mark.parametrize("times", [[], [1.0, 0.5], [1.0, 1.0], [-1.0, 1.0], [np.nan], [0.0, np.nan], [0.0, np.inf]])
def test_times_that_make_no_sense_are_refused(times: list):
    refused("the asked times must be finite, not negative, and rise", times_ms=times)


def test_unknown_names_are_refused_with_the_known_ones():
    refused("cell model 'frog' is none of courtemanche, courtemanche-af", cell="frog")
    refused("scheme 'fast' is none of accurate, balanced, paper", scheme="fast")


@pytest.mark.parametrize("dt", [0.0, -0.1, np.nan])
def test_a_step_that_is_not_positive_is_refused(dt: float):
    refused(f"a step of {dt} ms", scheme=Scheme(dt_ms=dt))


@pytest.mark.parametrize("reduction", [0.0, 1.0, -1.0, np.nan])
def test_a_reduction_that_reduces_nothing_is_refused(reduction: float):
    refused(f"reduction by {reduction}", scheme=Scheme(dt_ms=0.1, reduction=reduction))


def test_sites_that_reach_no_node_are_refused_with_the_distance():
    def at(*sites: tuple[float, ...]) -> list:
        return [[[Stimulus(sites=sites, radius_mm=0.25)]]]

    refused(r"site \(0.0, 0.0, 0.0\) has 3 coordinates, the domain's points have 2", protocols=at((0.0, 0.0, 0.0)))
    refused(
        r"no node within 0.25 mm of site \(4.0, 0.0\): the nearest is 3 mm away, at \[1.0, 0.0\]", protocols=at((4.0, 0.0))
    )
    refused("nearest is 3 mm", protocols=at((0.0, 0.0), (4.0, 0.0)))
    refused(r"site \(nan, 0.0\)", protocols=at((np.nan, 0.0)))


def test_protocols_that_do_not_fit_the_domains_are_refused():
    two = [tissue(1.0, 1.0, 0.5), tissue(2.0, 1.0, 0.5)]
    refused(r"2 domains need as many lists of protocols, all as long, not \[1\]", domains=two)
    refused(r"not \[1, 2\]", domains=two, protocols=[[[]], [[], []]])
    refused(r"not \[0\]", protocols=[[]])
    refused(r"0 domains", domains=[], protocols=[])


@pytest.mark.parametrize(
    "changes",
    [
        {"duration_ms": 0.0}, {"duration_ms": -1.0}, {"duration_ms": np.nan}, {"start_ms": -0.1}, {"start_ms": np.nan},
        {"strength": np.inf}, {"strength": np.nan}, {"radius_mm": 0.0}, {"radius_mm": -1.0}, {"sites": ()},
    ],
    ids=str,
)  # fmt: skip
def test_a_stimulus_that_makes_no_sense_is_refused(changes: dict):
    refused(
        "needs sites, a start not before 0, and positive duration and radius",
        protocols=[[[replace(Stimulus(sites=((0.0, 0.0),)), **changes)]]],
    )


# Shortcuts.


def with_shortcuts(
    domain: Domain, stimuli: Sequence[Stimulus], times: Sequence[float], **how: object
) -> tuple[Paced, Paced]:
    """Without them, and with."""
    without, with_ = (
        simulate_many([domain], [[stimuli]], times, compiles=False, shortcuts=shortcuts, **how)[0]
        for shortcuts in (False, True)
    )
    return without, with_


@given(
    x=st.floats(0, 4), y=st.floats(0, 2), angle=st.floats(0, np.pi), start=st.sampled_from([0.0, 1.03]),
    scheme=st.sampled_from(sorted(SCHEMES)),
)  # fmt: skip
@settings(max_examples=4)
def test_shortcuts_hardly_change_a_wave(x: float, y: float, angle: float, start: float, scheme: str):
    mesh = rectangle(4.0, 2.0, 0.4)
    tensors = fibre_tensors(np.tile([np.cos(angle), np.sin(angle)], (mesh.n_nodes, 1)), ALONG, ACROSS)
    domain = make_domain(mesh.points, mesh.cells, tensors)
    stimuli = [Stimulus(sites=((x, y),), start_ms=start)]
    exact, found = with_shortcuts(domain, stimuli, [2.0, 4.0, 6.0], cell="courtemanche-af", scheme=scheme)
    assert np.isfinite(exact.activation_ms).any()
    assert_same(found, exact, within_mV=0.01, within_ms=1e-3)


def test_with_shortcuts_tissue_at_rest_stays_so_to_the_last_bit():
    run = with_shortcuts(tissue(2.0, 1.0, 0.5), [], [0.0, 5.0])[1]
    assert (run.values_mV == np.float32(CELLS["courtemanche"].resting["v"])).all()


@pytest.mark.parametrize("cell", ["mitchell-schaeffer", "ten-tusscher"])
def test_shortcuts_change_nothing_for_a_cell_that_allows_none(cell: str):
    domain = tissue(3.0, 1.0, 0.25)
    without, with_ = with_shortcuts(domain, [from_the_left(domain)], [5.0], cell=cell)
    assert_equal(with_, without)


@pytest.mark.parametrize("scheme", [steps_of(0.05), steps_of(0.2, order=1)], ids=["accurate", "long steps"])
def test_a_stimulus_of_one_trajectory_or_domain_changes_no_other(scheme: Scheme):
    sheet = tissue(6.0, 0.4, 0.2, ALONG, ACROSS)
    early, late = Stimulus(sites=((0.0, 0.0),)), Stimulus(sites=((6.0, 0.4),), start_ms=4.03)
    options = {"cell": BRIEF, "scheme": scheme, "compiles": False}
    alone = simulate_many([sheet], [[[early]]], [4.0, 6.0, 9.0], **options)[0]
    beside = simulate_many([sheet], [[[early], [late]]], [4.0, 6.0, 9.0], **options)[0]
    among = simulate_many([sheet, sheet], [[[late]], [[early]]], [4.0, 6.0, 9.0], **options)[1]
    for other in (beside, among):
        for name in ("values_mV", "activation_ms", "repolarisation_ms"):
            np.testing.assert_array_equal(getattr(other, name)[0], getattr(alone, name)[0], err_msg=name)


def test_unlike_domains_change_each_other_by_nothing():
    even, thin = tissue(4.0, 1.0, 0.25), with_diffusion(rectangle(4.0, 0.05, 0.25), ACROSS * np.eye(2))
    stimuli = [Stimulus(sites=((0.0, 0.0),))]
    options = {"cell": BRIEF, "scheme": Scheme(dt_ms=0.1), "compiles": False}
    together = simulate_many([thin, even], [[stimuli], [stimuli]], [5.0], **options)
    for run, domain in zip(together, (thin, even), strict=True):
        np.testing.assert_array_equal(run.values_mV, simulate_many([domain], [[stimuli]], [5.0], **options)[0].values_mV)


def test_a_moment_between_steps_does_not_know_what_comes_after_it():
    sheet = tissue(6.0, 0.4, 0.2, ALONG, ACROSS)
    asked = [[Stimulus(sites=((0.0, 0.0),))]]
    times = (1.01, 2.2, 3.6, 5.01, 14.3)
    seen = moments([sheet], [asked], times, cell=BRIEF, scheme=Scheme(dt_ms=0.5), compiles=False)
    for moment, t in zip(seen, times, strict=True):
        assert not (moment.activation_ms > t).any() and not (moment.repolarisation_ms > t).any()


def test_one_wave_on_one_domain_is_that_of_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    sheet = tissue(3.0, 1.0, 0.25)
    wave = simulate(sheet, [(0.0, 0.0), (3.0, 1.0)], until_ms=3.5, every_ms=0.5, cell="mitchell-schaeffer")
    stimulus = Stimulus(sites=((0.0, 0.0), (3.0, 1.0)))
    expected = simulate_many([sheet], [[[stimulus]]], np.arange(0, 3.6, 0.5), cell="mitchell-schaeffer")[0]
    assert wave.times_ms.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    np.testing.assert_array_equal(wave.values_mV, expected.values_mV)
    with pytest.raises(InputError, match="must be positive"):
        simulate(sheet, [(0.0, 0.0)], until_ms=-1.0)


# Heat is a wave of cells that do nothing: the same steps solve it.

HEATED_FOR, HEAT_END = 0.005, 0.02


def heated(domain: Domain, heat: np.ndarray, times: Sequence[float], scheme: Scheme) -> np.ndarray:
    """How this much heat, put in evenly over HEATED_FOR, has spread by each of the times."""
    stimuli = [
        Stimulus(sites=(tuple(point),), radius_mm=1e-9, duration_ms=HEATED_FOR, strength=float(each) / HEATED_FOR)
        for point, each in zip(domain.points.tolist(), heat, strict=True)
    ]
    values = paced(domain, stimuli, times, cell=Inert(), scheme=scheme).values_mV[0]
    return values.astype(np.float64) - Inert().resting["v"]


def left_of_mode(rate: float, t: float) -> float:
    """What is left of a mode that decays at this rate, put in evenly over HEATED_FOR and seen after it."""
    return (np.exp(-rate * (t - HEATED_FOR)) - np.exp(-rate * t)) / (rate * HEATED_FOR)


@pytest.mark.parametrize("mass", ["consistent", "lumped"])
@pytest.mark.parametrize("mode", [(1, 1), (1, 0), (0, 2)])
def test_with_passive_cells_cosines_decay_at_their_exact_rates_at_order_two(mass: str, mode: tuple[int, int]):
    errors, edges = [], [1 / 8, 1 / 16, 1 / 32]
    for edge in edges:
        square = with_diffusion(rectangle(1.0, 1.0, edge), np.diag([9.0, 1.0]))
        cosine = 1000 * np.cos(mode[0] * np.pi * square.points[:, 0]) * np.cos(mode[1] * np.pi * square.points[:, 1])
        scheme = Scheme(dt_ms=edge / 125, mass=mass, reduction=1e-8)
        exact = cosine * left_of_mode((9 * mode[0] ** 2 + mode[1] ** 2) * np.pi**2, HEAT_END)
        errors.append(relative_gap(heated(square, cosine, [HEAT_END], scheme)[0], exact))
    assert_order(errors, edges, 2)
    assert errors[-1] < 0.01


@pytest.mark.parametrize("mass", ["consistent", "lumped"])
def test_with_passive_cells_every_mode_of_the_mesh_decays_at_its_own_rate_at_order_two_in_time(mass: str):
    sheet = slanted_sheet()
    square = replace(sheet, points=sheet.points / 4, diffusion=20 * sheet.diffusion)
    modes = lowest_modes(fem_laplacian(square, mass), 6)
    for rate, field in zip(modes.eigenvalues[[1, 5]], 1000 * modes.eigenvectors.T[[1, 5]], strict=True):
        steps = [HEAT_END / n for n in (40, 80, 160)]
        exact = field * left_of_mode(rate, HEAT_END)
        found = [heated(square, field, [HEAT_END], Scheme(dt_ms=dt, mass=mass, reduction=1e-8))[0] for dt in steps]
        assert_order([relative_gap(each, exact) for each in found], steps, 2)


@pytest.mark.parametrize("mass", ["consistent", "lumped"])
def test_with_passive_cells_no_heat_is_lost_whatever_the_step(mass: str):
    sheet = slanted_sheet()
    heat = 1000 * np.exp(-((sheet.points - 1.0) ** 2).sum(axis=1))
    weights = np.asarray(fem_laplacian(sheet, mass).mass.sum(axis=0)).ravel()
    for dt, times in ((0.001, [HEATED_FOR, 0.02, 0.1]), (0.1, [0.1, 1.0, 5.0])):
        spread = heated(sheet, heat, times, Scheme(dt_ms=dt, mass=mass, reduction=1e-8))
        np.testing.assert_allclose(spread @ weights, heat @ weights, rtol=1e-6)
    # It did spread.
    assert np.ptp(spread[-1]) < 0.5 * np.ptp(heat)
