from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import cloud, rotated_tensor, shaken_box, sphere, turning_square, with_diffusion
from scipy.linalg import subspace_angles

import gfunk.batched_modes
from gfunk.batched_modes import batched_modes
from gfunk.domain import Domain, make_domain, rectangle, unit_square
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, PaperGraph, fem_laplacian, knn_laplacian, laplacian
from gfunk.spectrum import Spectrum, lowest_modes

TOLERANCE = 1e-4
# Degrees 0 to 4 of the sphere: no space of equal eigenvalues is cut.
N_MODES = 25
# Without symmetry, so signs are known; the first two are near enough in size to be padded together.
lopsided = [turning_square(max_cell) for max_cell in (0.0013, 0.0011, 0.0006)]
matrices = {
    "rectangle": laplacian(with_diffusion(rectangle(1.5, 1.0, 0.04), np.diag([9.0, 1.0]))),
    "lopsided": laplacian(lopsided[0]),
    "sphere": laplacian(sphere(3)),
    "tetrahedra": laplacian(shaken_box(9, np.diag([4.0, 1.0, 1.0]))),
    "cloud": laplacian(cloud(600, rotated_tensor(0.4, 9.0, 1.0))),
    "paper": laplacian(lopsided[0], PaperGraph(n_neighbors=12)),
}
each_device = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")],
        ),
    ],
)


def modes_without_help(
    laplacians: Sequence[Laplacian], n_modes: int, *, device: str = "cpu", at_once: int | None = None
) -> list[Spectrum]:
    """The modes, none of them found by `lowest_modes`."""

    def refused(*_):
        raise AssertionError("a domain was left to lowest_modes")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gfunk.batched_modes, "lowest_modes", refused)
        return list(batched_modes(laplacians, n_modes, device=device, tolerance=TOLERANCE, at_once=at_once))


def assert_equal_modes(got: Spectrum, expected: Spectrum, matrices: Laplacian):
    """The same eigenvalues, and up to every wide gap between them the same space, as closely as TOLERANCE promises."""
    np.testing.assert_allclose(got.eigenvalues, expected.eigenvalues, rtol=1e-6, atol=1e-9 * expected.eigenvalues[-1])
    root_mass = np.sqrt(matrices.lumped_mass())[:, None]
    gaps = np.diff(expected.eigenvalues) / expected.eigenvalues[-1]
    ends = np.flatnonzero(gaps > 0.02) + 1
    assert len(ends)
    for end in ends:
        angle = subspace_angles(root_mass * got.eigenvectors[:, :end], root_mass * expected.eigenvectors[:, :end]).max()
        # Davis and Kahan; masses differ, so the residual of a mode may be larger in the norm they use.
        assert np.sin(angle) <= 2 * TOLERANCE * np.sqrt(end) / gaps[end - 1]


@each_device
def test_eigenvalues_and_spaces_are_those_lanczos_finds(device: str):
    found = modes_without_help(list(matrices.values()), N_MODES, device=device)
    for got, each in zip(found, matrices.values(), strict=True):
        assert_equal_modes(got, lowest_modes(each, N_MODES), each)


@each_device
def test_modes_are_orthonormal_in_the_mass_and_solve_the_eigenproblem(device: str):
    for got, each in zip(
        modes_without_help(list(matrices.values()), N_MODES, device=device), matrices.values(), strict=True
    ):
        vectors = got.eigenvectors.astype(np.float64)
        weighted = each.mass @ vectors
        np.testing.assert_allclose(vectors.T @ weighted, np.eye(N_MODES), atol=1e-6)
        residual = np.linalg.norm(each.stiffness @ vectors - weighted * got.eigenvalues, axis=0)
        assert (residual <= 1.1 * TOLERANCE * got.eigenvalues[-1] * np.linalg.norm(weighted, axis=0)).all()


def test_eigenvalues_rise_from_zero_where_the_mode_is_constant():
    for got, each in zip(modes_without_help(list(matrices.values()), N_MODES), matrices.values(), strict=True):
        assert 0 <= got.eigenvalues[0] < 1e-9 * got.eigenvalues[-1]
        assert (np.diff(got.eigenvalues) >= 0).all()
        np.testing.assert_allclose(got.eigenvectors[:, 0], each.mass.sum() ** -0.5, rtol=1e-3)


@settings(max_examples=8)
@given(
    sides=st.lists(st.tuples(st.floats(1.0, 2.0), st.floats(0.7, 1.5)), min_size=1, max_size=3),
    ratio=st.floats(0.1, 10.0),
    n_modes=st.integers(2, 60),
)
def test_rectangles_of_any_sides_and_anisotropy_have_the_eigenvalues_lanczos_finds(
    sides: list[tuple[float, float]], ratio: float, n_modes: int
):
    each = [laplacian(with_diffusion(rectangle(*pair, 0.05), np.diag([ratio, 1.0]))) for pair in sides]
    for got, one in zip(batched_modes(each, n_modes, device="cpu"), each, strict=True):
        exact = lowest_modes(one, n_modes).eigenvalues
        np.testing.assert_allclose(got.eigenvalues, exact, rtol=1e-6, atol=1e-9 * exact[-1])


def test_signs_are_those_of_lowest_modes():
    each = [laplacian(domain) for domain in lopsided]
    for got, one in zip(modes_without_help(each, 12), each, strict=True):
        np.testing.assert_allclose(got.eigenvectors, lowest_modes(one, 12).eigenvectors, atol=3e-3)


def test_a_mode_as_much_up_as_down_has_its_first_large_entry_positive():
    one = laplacian(sphere(3))
    vectors = modes_without_help([one], N_MODES)[0].eigenvectors
    lean, size = one.lumped_mass() @ vectors**3, one.lumped_mass() @ np.abs(vectors) ** 3
    is_even = np.abs(lean) < 1e-7 * size
    first = (np.abs(vectors) > 0.999 * np.abs(vectors).max(axis=0)).argmax(axis=0)
    assert is_even.any()
    assert (vectors[first, np.arange(N_MODES)][is_even] > 0).all()


@pytest.mark.parametrize("at_once", [None, 1, 2])
def test_company_and_order_change_nothing(at_once: int | None):
    each = [laplacian(domain) for domain in lopsided]
    together = modes_without_help(each, 20, at_once=at_once)
    for order in ([2, 0, 1], [1], [0, 0]):
        for got, i in zip(modes_without_help([each[i] for i in order], 20), order, strict=True):
            assert got.eigenvectors.shape == (lopsided[i].n_nodes, 20)
            np.testing.assert_allclose(got.eigenvalues, together[i].eigenvalues, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(got.eigenvectors, together[i].eigenvectors, atol=3e-3)


def test_two_calls_agree_to_the_last_bit():
    first, second = (modes_without_help([matrices["sphere"]], N_MODES)[0] for _ in range(2))
    np.testing.assert_array_equal(first.eigenvectors, second.eigenvectors)


def test_a_smaller_tolerance_is_kept_too():
    one = matrices["lopsided"]
    [got] = batched_modes([one], 20, device="cpu", tolerance=1e-9)
    exact = lowest_modes(one, 20)
    np.testing.assert_allclose(got.eigenvalues, exact.eigenvalues, rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(got.eigenvectors, exact.eigenvectors, atol=1e-6)


@pytest.mark.parametrize(
    ("one", "n_modes", "tolerance"),
    [
        (fem_laplacian(lopsided[0], "consistent"), 10, TOLERANCE),
        (laplacian(unit_square(6)), 10, TOLERANCE),
        (matrices["lopsided"], 300, TOLERANCE),
        (matrices["lopsided"], 1, TOLERANCE),
        (matrices["lopsided"], 10, 1e-30),
    ],
    ids=["mass not diagonal", "few nodes", "many modes", "one mode", "never accurate enough"],
)
def test_what_the_filter_is_not_for_is_left_to_lowest_modes(one: Laplacian, n_modes: int, tolerance: float):
    [got] = batched_modes([one], n_modes, device="cpu", tolerance=tolerance)
    np.testing.assert_array_equal(got.eigenvectors, lowest_modes(one, n_modes).eigenvectors)


def test_none_of_no_domains():
    assert list(batched_modes([], 10, device="cpu")) == []


@pytest.mark.parametrize("n_modes", [0, 25])
def test_no_modes_or_as_many_as_nodes_are_refused(n_modes: int):
    with pytest.raises(InputError, match=f"{n_modes} modes can't be had from 25 nodes: ask for 1 to 24"):
        list(batched_modes([laplacian(unit_square(5)), matrices["sphere"]], n_modes, device="cpu"))


def two_clouds(n_nodes: int) -> Domain:
    points = np.random.default_rng(0).uniform(size=(n_nodes, 2))
    points[n_nodes // 2 :, 0] += 50
    return make_domain(points)


def test_a_domain_in_pieces_is_refused_before_any_is_solved():
    apart = knn_laplacian(two_clouds(400), n_neighbors=12)
    with pytest.raises(InputError, match="2 pieces; node 0 lies in one of 200 of 400 nodes"):
        next(batched_modes([matrices["sphere"], apart], 5, device="cpu"))
