import numpy as np
import pytest
from laws import assert_order, relative_gap
from problems import (
    anisotropic_square,
    boundary_load,
    box,
    cloud,
    crossed_square,
    moved_square,
    rotated_tensor,
    slanted,
    sphere,
    turning_divergence,
    turning_square,
    with_diffusion,
)
from scipy.linalg import eigh

from gfunk.domain import Domain, unit_square
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, fem_laplacian, laplacian
from gfunk.physics.heat import simulate_heat


def cosine_wave(domain: Domain, along: int, across: int) -> np.ndarray:
    return np.cos(along * np.pi * domain.points[:, 0]) * np.cos(across * np.pi * domain.points[:, 1])


def cosine_error(n_side: int, along: int, across: int) -> float:
    """T1 of physics.md: K = diag(9, 1), time 0.02 in 200 steps; relative to the field at the end."""
    domain = crossed_square(n_side, np.diag([9.0, 1.0]))
    wave = cosine_wave(domain, along, across)
    found = simulate_heat(fem_laplacian(domain), wave, np.array([0, 0.02]), steps_per_save=200).values[-1]
    return relative_gap(found, np.exp(-(9 * along**2 + across**2) * np.pi**2 * 0.02) * wave)


def test_the_first_cosine_decays_as_it_should_at_order_two_in_space():
    n_sides = [18, 35, 70]
    errors = [cosine_error(n, 1, 1) for n in n_sides]
    assert_order(errors, [1 / (n - 1) for n in n_sides], 2)
    np.testing.assert_allclose(errors[1:], [1.86e-3, 4.5e-4], rtol=0.1)


def test_a_fast_cosine_keeps_gaining_from_a_finer_mesh():
    assert cosine_error(70, 2, 1) < 0.3 * cosine_error(35, 2, 1)


def exact_in_time(matrices: Laplacian, initial: np.ndarray, t: float) -> np.ndarray:
    """exp(-t M^-1 S) applied to a field, by all eigenvectors."""
    values, vectors = eigh(matrices.stiffness.toarray(), matrices.mass.toarray())
    return vectors @ (np.exp(-values * t) * (vectors.T @ (matrices.mass @ initial)))


@pytest.mark.parametrize("mass", ["lumped", "consistent"])
def test_halving_the_step_quarters_the_error_in_time(mass: str):
    domain = turning_square(0.01)
    matrices = fem_laplacian(domain, mass)
    initial = np.exp(-20 * ((domain.points - 0.4) ** 2).sum(axis=1))
    exact = exact_in_time(matrices, initial, 0.05)
    n_steps = [16, 32, 64]
    errors = [
        relative_gap(simulate_heat(matrices, initial, np.array([0, 0.05]), steps_per_save=n).values[-1], exact)
        for n in n_steps
    ]
    assert_order(errors, [1 / n for n in n_steps], 2)


def test_the_plain_scheme_rings_on_a_rough_field_and_the_damped_start_does_not():
    matrices = fem_laplacian(anisotropic_square(21, 9.0))
    initial = np.zeros(matrices.n_nodes)
    initial[matrices.n_nodes // 2] = 1.0
    times = np.linspace(0, 0.05, 11)
    exact = exact_in_time(matrices, initial, 0.05)
    plain = simulate_heat(matrices, initial, times, steps_per_save=1, damped_steps=0).values
    damped = simulate_heat(matrices, initial, times, steps_per_save=1).values
    spike = matrices.n_nodes // 2
    assert (np.diff(np.sign(plain[1:, spike])) != 0).sum() >= 4  # up, down, up, down
    assert relative_gap(plain[-1], exact) > 1
    assert relative_gap(damped[-1], exact) < 0.1
    assert damped[3:].min() > 0


def test_a_rotated_gaussian_widens_by_twice_the_diffusion():
    """T2 of physics.md: the covariance is C + 2 K t as long as the boundary is far."""
    tensor, start, end = rotated_tensor(np.pi / 6, 9.0, 1.0), 0.003 * np.eye(2), 5e-4

    def gaussian(domain: Domain, covariance: np.ndarray) -> np.ndarray:
        step = domain.points - 0.5
        exponent = np.einsum("ni,ij,nj->n", step, np.linalg.inv(covariance), step) / 2
        return np.exp(-exponent) / (2 * np.pi * np.sqrt(np.linalg.det(covariance)))

    n_sides = [35, 70]
    errors = []
    for n_side in n_sides:
        domain = with_diffusion(unit_square(n_side), tensor)
        times = np.array([0, end])
        found = simulate_heat(fem_laplacian(domain), gaussian(domain, start), times, steps_per_save=40).values[-1]
        errors.append(relative_gap(found, gaussian(domain, start + 2 * tensor * end)))
    assert errors[-1] < 0.01
    assert_order(errors, [1 / (n - 1) for n in n_sides], 2)


def test_turning_fibres_with_a_source_and_flux_through_the_rim_are_of_order_two():
    """T3 of physics.md: u = exp(-t) w with div(K grad w) known; what is missing comes in through `load`."""
    cell_areas = np.array([4e-3, 1e-3, 2.5e-4])
    errors = []
    for area in cell_areas:
        domain = turning_square(area)
        matrices = fem_laplacian(domain)
        w = slanted.value(domain.points)
        source = matrices.mass @ (-w - turning_divergence(slanted, domain.points, 9.0))
        load = source + boundary_load(domain, slanted)
        times = np.array([0.0, 0.1])
        found = simulate_heat(matrices, w, times, steps_per_save=50, load=lambda t, load=load: np.exp(-t) * load)
        errors.append(relative_gap(found.values[-1], np.exp(-0.1) * w))
    assert errors[-1] < 2e-3
    assert_order(errors, np.sqrt(cell_areas), 2)


domains = {
    "plane": turning_square(0.005),
    "sphere": sphere(2),
    "tetrahedra": box(5),
    "cloud": cloud(200, rotated_tensor(0.4, 9.0, 1.0)),
}
each_domain = pytest.mark.parametrize("domain", domains.values(), ids=domains.keys())


@each_domain
def test_no_heat_is_lost(domain: Domain):
    matrices = laplacian(domain)
    initial = np.random.default_rng(0).uniform(1, 2, domain.n_nodes)
    values = simulate_heat(matrices, initial, np.linspace(0, 0.1, 6), steps_per_save=5).values
    total = values @ matrices.lumped_mass()
    np.testing.assert_allclose(total, total[0], rtol=1e-12)


@each_domain
def test_a_constant_field_stays(domain: Domain):
    values = simulate_heat(laplacian(domain), np.full(domain.n_nodes, 3.0), np.linspace(0, 1, 4), steps_per_save=5).values
    np.testing.assert_allclose(values, 3.0, rtol=1e-11)


@each_domain
def test_any_field_comes_to_rest_at_its_mean(domain: Domain):
    matrices = laplacian(domain)
    initial = np.random.default_rng(0).normal(size=domain.n_nodes)
    mean = matrices.lumped_mass() @ initial / matrices.mass.sum()
    values = simulate_heat(matrices, initial, np.array([0.0, 20.0]), steps_per_save=400).values
    np.testing.assert_allclose(values[-1], mean, atol=1e-6)


def test_saving_more_often_does_not_change_the_trajectory():
    domain = domains["plane"]
    matrices, initial = laplacian(domain), cosine_wave(domain, 1, 2)
    often = simulate_heat(matrices, initial, np.linspace(0, 0.02, 9), steps_per_save=2)
    seldom = simulate_heat(matrices, initial, np.linspace(0, 0.02, 3), steps_per_save=8)
    np.testing.assert_allclose(often.values[::4], seldom.values, atol=1e-13)
    np.testing.assert_array_equal(seldom.values[0], initial)
    np.testing.assert_array_equal(seldom.times, np.linspace(0, 0.02, 3))


def test_the_load_is_asked_at_the_true_times():
    # With u the same everywhere, M du/dt = M cos t: the answer is sin t, wherever the clock starts.
    matrices = laplacian(moved_square(0.05, np.eye(2)))
    mass = matrices.lumped_mass()
    times = np.linspace(0.5, 1.5, 3)
    n_steps = [8, 16, 32]
    errors = []
    for n in n_steps:
        start = np.full(matrices.n_nodes, np.sin(0.5))
        found = simulate_heat(matrices, start, times, steps_per_save=n, load=lambda t: mass * np.cos(t)).values
        errors.append(np.abs(found[-1] - np.sin(1.5)).max())
    assert errors[-1] < 1e-3
    assert_order(errors, [1 / n for n in n_steps], 2)


def test_an_initial_field_that_is_no_number_is_refused_by_node():
    initial = np.zeros(16)
    initial[5] = np.nan
    with pytest.raises(InputError, match="not finite at node 5"):
        simulate_heat(laplacian(unit_square(4)), initial, np.array([0, 1.0]), steps_per_save=1)


@pytest.mark.parametrize("times", [[0.0], [0.0, 1.0, 3.0], [0.0, 0.0], [1.0, 0.0], [0.0, np.nan]])
def test_times_that_do_not_rise_in_equal_steps_are_refused(times: list):
    with pytest.raises(InputError, match="must rise in equal steps"):
        simulate_heat(laplacian(unit_square(4)), np.zeros(16), np.array(times), steps_per_save=1)
