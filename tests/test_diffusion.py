from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_order, largest_gap
from numpy.polynomial import Chebyshev
from problems import (
    box,
    cloud,
    relabelled,
    rotated_tensor,
    shaken_box,
    sliver_mesh,
    sphere,
    turning_square,
    with_diffusion,
)
from scipy.linalg import eigh
from scipy.sparse.linalg import spsolve
from scipy.spatial import Delaunay
from torch import Tensor

from gfunk.domain import Domain, halved, make_domain, rectangle
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, assembled, element_matrices, fem_laplacian, knn_laplacian
from gfunk.physics import diffusion
from gfunk.physics.diffusion import (
    HalfStep,
    begun,
    coupling_matrix,
    diffused,
    extremes,
    gone_on,
    half_step,
    joined,
    solving_when_halved,
)
from gfunk.physics.schemes import Scheme, solving

seeds = st.integers(0, 2**32 - 1)
skew_tensor = np.array([[3.0, 0.5, 0.2], [0.5, 2.0, -0.3], [0.2, -0.3, 1.0]])
DT = 0.01
domains = {
    "plane": turning_square(0.01),
    "surface": with_diffusion(sphere(2), skew_tensor),
    "tetrahedra": shaken_box(5, skew_tensor),
    "thin triangles": with_diffusion(sliver_mesh(), 1e-4 * np.eye(2)),
    "cloud": cloud(150, rotated_tensor(0.4, 9.0, 1.0)),
}
MASSES = ("consistent", "lumped", "mixed", "balanced")
cases = {
    **{f"{name}, {mass}": (domains[name], mass) for name in list(domains)[:-1] for mass in MASSES},
    "cloud": (domains["cloud"], "consistent"),
}
each_case = pytest.mark.parametrize(("domain", "mass"), cases.values(), ids=cases.keys())


def iterated(v: Tensor, guess: Tensor, step: HalfStep, n_iterations: int) -> Tensor:
    return diffused(v, guess, step, step.weights(n_iterations))


def iterated_by_matrix(v: Tensor, guess: Tensor, step: HalfStep, n_iterations: int) -> Tensor:
    begin, go_on = (partial(part, matrix=coupling_matrix(step)) for part in (begun, gone_on))
    return diffused(v, guess, step, step.weights(n_iterations), begin, go_on)


def matrices_of(domain: Domain, mass: str) -> Laplacian:
    return fem_laplacian(domain, mass) if domain.has_cells else knn_laplacian(domain)


def fields(n_nodes: int, n_trajectories: int = 3, seed: int = 0) -> Tensor:
    """Rough ones, about as large as voltages."""
    return torch.from_numpy(50 * np.random.default_rng(seed).normal(size=(n_nodes, n_trajectories)))


def later(v: Tensor, step: HalfStep, reduction: float = 1e-13) -> Tensor:
    return v + iterated(v, torch.zeros_like(v), step, step.n_iterations(reduction))


def directly(matrices: Laplacian, v: Tensor, dt: float) -> np.ndarray:
    system = (matrices.mass + dt / 2 * matrices.stiffness).tocsc()
    return np.stack([spsolve(system, matrices.mass @ column) for column in v.numpy().T], axis=1)


@each_case
def test_half_a_step_is_that_of_a_direct_solver(domain: Domain, mass: str):
    v = fields(domain.n_nodes)
    expected = directly(matrices_of(domain, mass), v, DT)
    found = later(v, half_step(domain, DT, mass)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@each_case
@pytest.mark.parametrize("dt", [1e-6, 1.0])
def test_steps_far_too_short_and_far_too_long_are_solved_as_well(domain: Domain, mass: str, dt: float):
    v = fields(domain.n_nodes, 1)
    expected = directly(matrices_of(domain, mass), v, dt)
    found = later(v, half_step(domain, dt, mass)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(v.numpy()).max())


@each_case
@pytest.mark.parametrize("reduction", [0.5, 1e-1, 1e-3, 1e-6])
def test_the_promised_iterations_reduce_the_error_of_the_guess_as_promised(domain: Domain, mass: str, reduction: float):
    matrices, step, v = matrices_of(domain, mass), half_step(domain, DT, mass), fields(domain.n_nodes)
    guess = fields(domain.n_nodes, seed=1)
    exact = directly(matrices, v, DT) - v.numpy()
    system = matrices.mass + DT / 2 * matrices.stiffness

    def size(error: np.ndarray) -> np.ndarray:
        return np.sqrt(np.einsum("nt,nt->t", error, system @ error))

    left = size(iterated(v, guess, step, step.n_iterations(reduction)).numpy() - exact)
    assert (left <= reduction * size(guess.numpy() - exact)).all()


def test_more_reduction_never_takes_fewer_iterations():
    step = half_step(domains["plane"], DT)
    counts = [step.n_iterations(reduction) for reduction in (0.99, 0.5, 0.1, 1e-2, 1e-4, 1e-8, 1e-14)]
    assert counts[0] >= 1 and counts == sorted(counts)


def assert_bounds_hold(domain: Domain, dt: float, mass: str):
    matrices, step = matrices_of(domain, mass), half_step(domain, dt, mass)
    system = (matrices.mass + dt / 2 * matrices.stiffness).toarray()
    values = eigh(system, np.diag(system.diagonal()), eigvals_only=True)
    assert step.smallest <= values[0] and values[-1] <= step.largest, (step.smallest, values[[0, -1]], step.largest)


steps_ms = st.floats(-4, 2).map(lambda power: 10**power)
masses = st.sampled_from(MASSES)


@given(seed=seeds, dt=steps_ms, mass=masses, thinness=st.floats(-2, 0), ratio=st.floats(1, 50), angle=st.floats(0, 3.2))
def test_every_eigenvalue_lies_within_the_bounds_on_triangles_of_any_shape(
    seed: int, dt: float, mass: str, thinness: float, ratio: float, angle: float
):
    rng = np.random.default_rng(seed)
    mesh = Delaunay(rng.uniform(size=(40, 2)))
    flat = make_domain(mesh.points * np.array([1.0, 10**thinness]), mesh.simplices.astype(np.int64))
    assert_bounds_hold(with_diffusion(flat, rotated_tensor(angle, ratio, 1.0)), dt, mass)


@given(seed=seeds, dt=steps_ms, mass=masses)
def test_every_eigenvalue_lies_within_the_bounds_on_tetrahedra_and_surfaces(seed: int, dt: float, mass: str):
    half = np.random.default_rng(seed).normal(size=(3, 3))
    tensor = half @ half.T + 0.05 * np.eye(3)
    assert_bounds_hold(shaken_box(4, tensor, seed), dt, mass)
    assert_bounds_hold(with_diffusion(sphere(1), tensor), dt, mass)


@given(seed=seeds, dt=steps_ms, ratio=st.floats(1, 50), grading=st.floats(1, 3))
def test_every_eigenvalue_lies_within_the_bounds_on_clouds(seed: int, dt: float, ratio: float, grading: float):
    assert_bounds_hold(cloud(60, np.diag([ratio, 1.0]), seed, grading), dt, "consistent")


@given(seed=seeds, dt=st.floats(-4, 1).map(lambda power: 10**power), mass=masses, n_halvings=st.integers(1, 2))
def test_what_is_left_of_modes_below_the_bounds_of_a_halved_mesh_is_little_and_does_not_swing(
    seed: int, dt: float, mass: str, n_halvings: int
):
    rng = np.random.default_rng(seed)
    mesh = Delaunay(rng.uniform(size=(24, 2)))
    flat = make_domain(mesh.points * np.array([1.0, rng.uniform(0.1, 1.0)]), mesh.simplices.astype(np.int64))
    domain = with_diffusion(flat, rotated_tensor(rng.uniform(0, 3.2), rng.uniform(1, 20), 1.0))
    parts, how = halved(domain, n_halvings), solving(domain, Scheme(dt_ms=dt, mass=mass), n_halvings)
    matrices, step = matrices_of(parts, mass), half_step(parts, dt, mass, how)
    system = (matrices.mass + dt / 2 * matrices.stiffness).toarray()
    values = eigh(system, np.diag(system.diagonal()), eigvals_only=True)
    # Chebyshev's polynomial, 1 at an eigenvalue of 0.
    middle, radius, n = (how.largest + how.smallest) / 2, (how.largest - how.smallest) / 2, step.n_iterations(0.1)
    left = Chebyshev.basis(n)((middle - values) / radius) / Chebyshev.basis(n)(middle / radius)
    assert left.max() < 0.3 and left.min() > -0.51 / (1 + 2 * how.stiffest)


@pytest.mark.parametrize("mass", ["consistent", "lumped"])
def test_on_a_fine_regular_mesh_the_bounds_are_no_wider_than_a_quarter_beyond_the_eigenvalues(mass: str):
    domain, dt = rectangle(2.0, 2.0, 0.2), 0.05
    matrices, step = matrices_of(domain, mass), half_step(domain, dt, mass)
    system = (matrices.mass + dt / 2 * matrices.stiffness).toarray()
    values = eigh(system, np.diag(system.diagonal()), eigvals_only=True)
    assert step.smallest > values[0] / 1.25 and step.largest < 1.25 * values[-1]


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [-81.18, 0.1, 1e4])
def test_a_constant_field_stays_to_the_last_bit(domain: Domain, mass: str, dtype: torch.dtype, constant: float):
    step = half_step(domain, DT, mass).to("cpu", dtype)
    v = torch.full((domain.n_nodes, 2), constant, dtype=dtype)
    assert (iterated(v, torch.zeros_like(v), step, 9) == 0).all()
    assert (iterated_by_matrix(v, torch.zeros_like(v), step, 9) == 0).all()


@each_case
@pytest.mark.parametrize("n_trajectories", [1, 3])
def test_by_a_matrix_it_is_as_slot_by_slot_but_for_rounding(domain: Domain, mass: str, n_trajectories: int):
    step, v = half_step(domain, DT, mass), fields(domain.n_nodes, n_trajectories)
    guess = fields(domain.n_nodes, n_trajectories, seed=1)
    assert largest_gap(iterated_by_matrix(v, guess, step, 5), iterated(v, guess, step, 5)) < 1e-13


@each_case
def test_a_constant_added_to_the_field_changes_nothing_else(domain: Domain, mass: str):
    step, v = half_step(domain, DT, mass), fields(domain.n_nodes)
    change = iterated(v, torch.zeros_like(v), step, 12)
    assert largest_gap(iterated(v + 1000.0, torch.zeros_like(v), step, 12), change) < 1e-12


@each_case
def test_no_charge_is_lost_but_for_the_error_of_the_solver(domain: Domain, mass: str):
    matrices, step, v = matrices_of(domain, mass), half_step(domain, DT, mass), fields(domain.n_nodes) + 20
    weights = matrices.lumped_mass()

    def lost(reduction: float) -> float:
        gap = weights @ (later(v, step, reduction) - v).numpy()
        return float(np.abs(gap).max() / (weights @ np.abs(v.numpy())).max())

    assert lost(1e-13) < 1e-12
    assert lost(1e-3) < 1e-3


@each_case
def test_the_energy_never_grows(domain: Domain, mass: str):
    # Crank-Nicolson: as far again from the middle of the step.
    matrices, step, v = matrices_of(domain, mass), half_step(domain, DT, mass), fields(domain.n_nodes)
    whole = 2 * later(v, step) - v
    for after in (later(v, step), whole):
        before_size, after_size = (np.einsum("nt,nt->t", x.numpy(), matrices.mass @ x.numpy()) for x in (v, after))
        assert (after_size < before_size).all()


def test_two_halves_are_a_step_of_crank_nicolson_and_of_order_two():
    domain = turning_square(0.02)
    matrices = fem_laplacian(domain, "consistent")
    values, vectors = eigh(matrices.stiffness.toarray(), matrices.mass.toarray())
    v = torch.from_numpy(np.exp(-20 * ((domain.points - 0.4) ** 2).sum(axis=1, keepdims=True)))
    exact = vectors @ (np.exp(-0.05 * values)[:, None] * (vectors.T @ (matrices.mass @ v.numpy())))
    n_steps, errors = [32, 64, 128], []
    for n in n_steps:
        step, found = half_step(domain, 0.05 / n), v
        for _ in range(n):
            found = 2 * later(found, step) - found
        errors.append(np.abs(found.numpy() - exact).max())
    assert_order(errors, [1 / n for n in n_steps], 2)


def test_domains_side_by_side_are_as_each_alone_to_the_last_bit_where_bounds_agree():
    # More neighbours a node in the second than in the first: its spare slots must be inert in the other.
    parts = [
        replace(half_step(domain, DT), smallest=0.2, largest=3.0)
        for domain in (domains["plane"], turning_square(0.03, seed=4), domains["tetrahedra"], domains["cloud"])
    ]
    assert len({len(part.neighbors) for part in parts}) > 1
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        chosen = [parts[number] for number in order]
        fields_of = [fields(part.neighbors.shape[1], seed=number) for number, part in enumerate(chosen)]
        together = torch.cat(fields_of)
        whole = iterated(together, 0.1 * together, joined(chosen), 11)
        for v, part, found in zip(fields_of, chosen, whole.split([len(v) for v in fields_of]), strict=True):
            assert torch.equal(found, iterated(v, 0.1 * v, part, 11))


def test_domains_side_by_side_are_as_each_alone_within_the_solvers_error_where_bounds_differ():
    chosen = [half_step(domains["plane"], DT), half_step(domains["surface"], DT), half_step(box(4), 5.0)]
    whole = joined(chosen)
    assert whole.smallest == min(part.smallest for part in chosen) and whole.largest == max(part.largest for part in chosen)
    fields_of = [fields(part.neighbors.shape[1], seed=number) for number, part in enumerate(chosen)]
    found = later(torch.cat(fields_of), whole).split([len(v) for v in fields_of])
    for v, part, each in zip(fields_of, chosen, found, strict=True):
        assert largest_gap(each, later(v, part)) < 1e-11


def test_one_domain_joined_is_itself():
    step = half_step(domains["plane"], DT)
    alone = joined([step])
    assert torch.equal(alone.neighbors, step.neighbors) and torch.equal(alone.couplings, step.couplings)
    assert torch.equal(alone.pulls, step.pulls) and (alone.smallest, alone.largest) == (step.smallest, step.largest)


@each_case
def test_many_trajectories_are_as_one_by_one_to_the_last_bit(domain: Domain, mass: str):
    step, v, guess = half_step(domain, DT, mass), fields(domain.n_nodes, 5), fields(domain.n_nodes, 5, seed=1)
    together = iterated(v, guess, step, 7)
    one_by_one = [iterated(v[:, [i]], guess[:, [i]], step, 7) for i in range(5)]
    assert torch.equal(together, torch.cat(one_by_one, dim=1))


@each_case
def test_relabelling_nodes_relabels_the_answer(domain: Domain, mass: str):
    order = np.random.default_rng(3).permutation(domain.n_nodes)
    v = fields(domain.n_nodes)
    before = iterated(v, torch.zeros_like(v), half_step(domain, DT, mass), 9)
    after = iterated(v[order], torch.zeros_like(v), half_step(relabelled(domain, order), DT, mass), 9)
    assert largest_gap(after, before[order]) < 1e-11


@each_case
def test_single_precision_is_as_good_as_its_digits(domain: Domain, mass: str):
    step, v = half_step(domain, DT, mass), fields(domain.n_nodes)
    single = iterated(v.float(), torch.zeros_like(v).float(), step.to("cpu", torch.float32), 12)
    assert single.dtype == torch.float32
    assert largest_gap(single.double(), iterated(v, torch.zeros_like(v), step, 12)) < 1e-5


def test_the_exact_answer_as_a_guess_is_kept():
    domain, v = domains["plane"], fields(domains["plane"].n_nodes)
    step = half_step(domain, DT)
    exact = later(v, step) - v
    for n_iterations in (1, 2, 8):
        assert largest_gap(iterated(v, exact, step, n_iterations), exact) < 1e-12


def test_a_few_bad_triangles_do_not_slow_the_rest():
    flat = rectangle(6.0, 1.0, 0.125)
    inner = ((flat.points > 0) & (flat.points < [6.0, 1.0])).all(axis=1)
    shake = np.random.default_rng(0).uniform(-0.04, 0.04, flat.points.shape)
    counts = [
        half_step(with_diffusion(make_domain(points, flat.cells), 0.1 * np.eye(2)), 0.1).n_iterations(1e-2)
        for points in (flat.points, flat.points + inner[:, None] * shake)
    ]
    assert counts[1] < 6 * counts[0], counts


@pytest.mark.parametrize("name", ["thin triangles", "shaken"])
def test_where_factors_would_be_large_the_bounds_hold_too_and_are_hardly_wider(name: str, monkeypatch: pytest.MonkeyPatch):
    shake = np.random.default_rng(0).uniform(-0.04, 0.04, (rectangle(6.0, 1.0, 0.125).n_nodes, 2))
    flat = rectangle(6.0, 1.0, 0.125)
    shaken = with_diffusion(make_domain(flat.points + shake, flat.cells), 0.1 * np.eye(2))
    domain = domains.get(name, shaken)
    factored = half_step(domain, DT)
    monkeypatch.setattr(diffusion, "FACTORED", 0)
    assert_bounds_hold(domain, DT, "consistent")
    assert factored.smallest / 1.25 < half_step(domain, DT).smallest <= factored.smallest


def test_a_cell_without_height_is_named():
    squeezed = rectangle(1.0, 1.0, 0.25)
    thin = with_diffusion(make_domain(squeezed.points * [1.0, 1e-7], squeezed.cells), np.eye(2))
    with pytest.raises(InputError, match=r"cell \d+ is too thin"):
        half_step(thin, 5.0)


def test_a_field_that_hardly_diffuses_hardly_changes():
    domain = with_diffusion(box(3), 1e-18 * np.eye(3))
    v = fields(domain.n_nodes)
    assert torch.allclose(later(v, half_step(domain, 0.05, "lumped")), v, rtol=0, atol=1e-12)


@each_case
@pytest.mark.parametrize("dt", [0.1 * DT, DT, 100 * DT])
def test_steps_that_start_from_the_last_one_never_grow(domain: Domain, mass: str, dt: float):
    """What one solve leaves undone returns in the next: too much of it, with the wrong sign, and stiff modes swing up."""
    step = half_step(domain, dt, mass)
    weights = step.weights(step.n_iterations(0.3))
    blocks = element_matrices(domain, mass) if domain.has_cells else None
    mass_matrix = (assembled(domain, *blocks) if blocks else knn_laplacian(domain)).mass
    v = fields(domain.n_nodes)
    z = torch.zeros_like(v)
    sizes = []
    begin, go_on = (partial(part, matrix=coupling_matrix(step)) for part in (begun, gone_on))  # quicker than slot by slot
    for _ in range(200):
        z = diffused(v, z, step, weights, begin, go_on)
        v = v + 2 * z
        sizes.append(float(np.sqrt(np.einsum("nt,nt->", v.numpy(), mass_matrix @ v.numpy()))))
    assert max(sizes[50:]) <= 1.001 * max(sizes[:50])


@pytest.mark.parametrize("mass", MASSES)
@given(st.integers(0, 2), st.floats(1e-3, 1.0), st.floats(1.0, 9.0))
def test_how_a_halved_domain_is_solved_is_known_without_making_it(mass: str, n_halvings: int, dt: float, ratio: float):
    domain = with_diffusion(sphere(1), np.diag([ratio, 1.0, 1.0]))
    found = solving_when_halved(domain, dt, mass, n_halvings)
    true = half_step(halved(domain, n_halvings), dt, mass).solving
    # None where the cells' own bounds are too far apart to be of use.
    assert found is None or found == true
    assert found is not None or true.largest > 2 * true.smallest


@pytest.mark.parametrize("mass", MASSES)
def test_with_even_triangles_and_short_steps_it_is_always_known(mass: str):
    assert solving_when_halved(sphere(2), 1e-3, mass, 1) == half_step(halved(sphere(2), 1), 1e-3, mass).solving


def test_among_thin_triangles_the_halved_domain_has_to_be_made():
    thin = domains["thin triangles"]
    assert solving_when_halved(with_diffusion(thin, np.eye(2)), DT, "consistent", 1) is None


@given(seed=seeds, dt=steps_ms, mass=masses)
def test_extremes_of_cells_are_those_of_their_eigenvalues(seed: int, dt: float, mass: str):
    rng = np.random.default_rng(seed)
    mesh = Delaunay(rng.uniform(size=(40, 2)) * 10 ** rng.uniform(-2, 0, 2))
    domain = make_domain(mesh.points, mesh.simplices.astype(np.int64))
    stiffness, masses = element_matrices(domain, mass)
    block = masses + dt / 2 * stiffness
    scale = 1 / np.sqrt(np.einsum("caa->ca", block))
    values = np.linalg.eigvalsh(scale[:, :, None] * block * scale[:, None, :])
    smallest, largest, thinnest = extremes(stiffness, masses, dt)
    np.testing.assert_allclose([smallest, largest], [values.min(), values.max()], rtol=1e-7)
    assert np.isclose(values[thinnest].min(), values.min(), rtol=1e-4)
