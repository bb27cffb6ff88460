from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import relative_gap
from problems import box, cloud, random_rotation, relabelled, sphere, turned, turning_square, with_diffusion

from gfunk.domain import Domain, fibre_tensors, make_domain, perturbed_square, rectangle, unit_square
from gfunk.homogenising import homogenised
from gfunk.surface import triangle_normals

seeds = st.integers(0, 2**32 - 1)


def random_tensors(n_sites: int, n_dims: int, seed: int) -> np.ndarray:
    """Of any direction, up to a hundred times as large along it as across."""
    root = np.random.default_rng(seed).normal(size=(n_sites, n_dims, n_dims))
    return root @ root.swapaxes(1, 2) + 0.05 * np.eye(n_dims)


def rough(domain: Domain, seed: int, at: str = "cell") -> Domain:
    n_sites = len(domain.cells) if at == "cell" else domain.n_nodes
    tensors = random_tensors(n_sites, domain.points.shape[1], seed)
    return make_domain(domain.points, domain.cells, tensors, diffusion_at=at)


def tangents(domain: Domain) -> np.ndarray:
    """Two unit vectors within each triangle, at right angles, as columns."""
    return np.linalg.qr((domain.points[domain.cells[:, 1:]] - domain.points[domain.cells[:, :1]]).swapaxes(1, 2))[0]


def within(domain: Domain) -> np.ndarray:
    """K within each triangle, by its own tangents."""
    axes = tangents(domain)
    return axes.swapaxes(1, 2) @ domain.cell_diffusion() @ axes


def in_space(domain: Domain) -> Domain:
    """A planar domain as a sheet in space, K as it was and 0.3 along the normal."""
    tensors = np.pad(domain.diffusion, ((0, 0), (0, 1), (0, 1)))
    tensors[:, 2, 2] = 0.3
    points, fibres = (np.pad(each, ((0, 0), (0, 1))) for each in (domain.points, domain.fibres))
    return replace(domain, points=points, fibres=fibres, diffusion=tensors)


SURFACES = {"square": perturbed_square(0.02, np.random.default_rng(0)), "sphere": sphere(2)}
each_surface = pytest.mark.parametrize("surface", SURFACES.values(), ids=SURFACES.keys())
each_site = pytest.mark.parametrize("at", ["node", "cell"])


@given(seed=seeds)
def test_a_constant_tensor_is_homogeneous_already(seed: int):
    flat = with_diffusion(SURFACES["square"], random_tensors(1, 2, seed)[0])
    sheet = turned(in_space(flat), random_rotation(3, seed))
    for domain in (flat, replace(flat, diffusion=flat.cell_diffusion(), diffusion_at="cell"), sheet):
        found = homogenised(domain)
        np.testing.assert_allclose(found.cell_diffusion(), domain.cell_diffusion(), atol=1e-11)
        np.testing.assert_allclose(found.fibres, domain.fibres, atol=1e-9)


def test_where_no_direction_is_faster_than_another_fibres_stay_as_they_are():
    fibres = np.random.default_rng(0).normal(size=(SURFACES["sphere"].n_nodes, 3))
    domain = replace(SURFACES["sphere"], fibres=fibres)
    found = homogenised(domain)
    np.testing.assert_allclose(found.diffusion, np.tile(np.eye(3), (len(domain.cells), 1, 1)), atol=1e-14)
    np.testing.assert_array_equal(found.fibres, fibres)


@each_surface
@each_site
@given(seed=seeds)
def test_homogenising_does_not_see_rotations_node_numbers_the_order_of_triangles_nor_their_winding(
    surface: Domain, at: str, seed: int
):
    domain, rng = rough(surface, seed, at), np.random.default_rng(seed)
    found = homogenised(domain)

    def assert_same(got: Domain, diffusion: np.ndarray, fibres: np.ndarray):
        np.testing.assert_allclose(got.diffusion, diffusion, atol=1e-10 * np.abs(diffusion).max())
        # Along a direction that hardly differs from others rounding is seen; and fibres have no sign.
        assert np.quantile(np.abs(np.einsum("ni,ni->n", got.fibres, fibres)), 0.02) > 1 - 1e-9

    turn = random_rotation(surface.points.shape[1], seed)
    assert_same(homogenised(turned(domain, turn)), turn @ found.diffusion @ turn.T, found.fibres @ turn.T)
    nodes = rng.permutation(domain.n_nodes)
    assert_same(homogenised(relabelled(domain, nodes)), found.diffusion, found.fibres[nodes])
    order = rng.permutation(len(domain.cells))
    cells = np.where(rng.random(len(order))[:, None] < 0.5, domain.cells, domain.cells[:, [1, 0, 2]])[order]
    shuffled = replace(domain, cells=cells, diffusion=domain.diffusion if at == "node" else domain.diffusion[order])
    assert_same(homogenised(shuffled), found.diffusion[order], found.fibres)


@each_surface
@given(seed=seeds, along=st.floats(0.1, 10), across=st.floats(0.1, 10))
def test_fibres_of_all_directions_keep_the_determinant_they_share_and_lose_what_they_differ_in(
    surface: Domain, seed: int, along: float, across: float
):
    axes, angle = tangents(surface), np.random.default_rng(seed).uniform(0, 2 * np.pi, len(surface.cells))
    fibres = np.cos(angle)[:, None] * axes[:, :, 0] + np.sin(angle)[:, None] * axes[:, :, 1]
    domain = make_domain(surface.points, surface.cells, fibre_tensors(fibres, along, across), diffusion_at="cell")
    found = within(homogenised(domain))
    np.testing.assert_allclose(np.linalg.det(found), along * across, rtol=1e-9)
    before, after = (np.log(np.linalg.eigvalsh(each)) @ np.array([-1.0, 1.0]) for each in (within(domain), found))
    assert after.mean() <= 0.7 * before.mean() + 1e-9


@each_surface
@each_site
@given(seed=seeds)
def test_homogenised_tensors_are_symmetric_positive_and_along_the_normal_what_they_were(surface: Domain, at: str, seed: int):
    domain = rough(surface, seed, at)
    found = homogenised(domain)
    assert (found.diffusion_at, len(found.diffusion)) == ("cell", len(domain.cells))
    np.testing.assert_array_equal(found.diffusion, found.diffusion.swapaxes(1, 2))
    assert np.linalg.eigvalsh(found.diffusion).min() > 0
    np.testing.assert_allclose(np.linalg.norm(found.fibres, axis=1), 1, rtol=1e-12)
    if surface.points.shape[1] == 3:
        normals = triangle_normals(domain.points, domain.cells)
        kept = np.einsum("ni,nij,nj->n", normals, domain.cell_diffusion(), normals)
        np.testing.assert_allclose(
            np.einsum("nij,nj->ni", found.diffusion, normals), kept[:, None] * normals, atol=1e-12 * found.diffusion.max()
        )


@given(seed=seeds)
def test_fibres_follow_the_homogenised_tensors_and_keep_their_sign(seed: int):
    domain = rough(SURFACES["square"], seed)
    found = homogenised(domain)
    largest = np.linalg.eigvalsh(found.node_diffusion())[:, -1]
    pulled = np.einsum("nij,nj->ni", found.node_diffusion(), found.fibres)
    np.testing.assert_allclose(pulled, largest[:, None] * found.fibres, atol=1e-9 * largest.max())
    assert (np.einsum("ni,ni->n", found.fibres, domain.fibres) >= 0).all()


@given(strength=st.floats(0.01, 100))
def test_a_chequerboard_of_k_and_one_over_k_is_felt_as_one(strength: float):
    square = unit_square(9)
    # Every triangle of one colour has neighbours of the other only.
    level = np.repeat([strength, 1 / strength], len(square.cells) // 2)
    domain = make_domain(square.points, square.cells, level[:, None, None] * np.eye(2), diffusion_at="cell")
    corners = domain.points[domain.cells]
    is_inside = ((corners > 0) & (corners < 1)).all(axis=(1, 2))
    found = homogenised(domain).diffusion[is_inside]
    np.testing.assert_allclose(found, np.tile(np.eye(2), (len(found), 1, 1)), atol=1e-12)


@given(seed=seeds, degrees=st.floats(1, 25))
def test_bending_a_sheet_changes_nothing_of_what_a_wave_feels_within_it(seed: int, degrees: float):
    flat = rough(rectangle(7.0, 5.0, 1.0), seed)
    # Seven strips, each turned against the one before.
    angle = np.deg2rad(degrees) * (np.arange(7) - 3)
    ends = np.concatenate([np.zeros((1, 2)), np.cumsum(np.stack([np.cos(angle), np.sin(angle)], 1), axis=0)])
    column = flat.points[:, 0].round().astype(int)
    points = np.stack([ends[column, 0], flat.points[:, 1], ends[column, 1]], axis=1)
    strip = flat.points[flat.cells][:, :, 0].min(axis=1).round().astype(int)
    zero, one = np.zeros(len(strip)), np.ones(len(strip))
    axes = np.stack([np.stack([np.cos(angle)[strip], zero, np.sin(angle)[strip]], 1), np.stack([zero, one, zero], 1)], 2)
    normals = np.cross(axes[:, :, 0], axes[:, :, 1])
    tensors = axes @ flat.diffusion @ axes.swapaxes(1, 2) + normals[:, :, None] * normals[:, None, :]
    bent = make_domain(points, flat.cells, tensors, diffusion_at="cell")
    found = axes.swapaxes(1, 2) @ homogenised(bent).diffusion @ axes
    np.testing.assert_allclose(found, homogenised(flat).diffusion, atol=1e-11 * flat.diffusion.max())


def test_what_is_smooth_changes_less_and_less_on_finer_meshes():
    gaps = []
    for max_cell in (0.004, 0.001):
        domain = turning_square(max_cell)
        gaps.append(relative_gap(homogenised(domain).diffusion, domain.cell_diffusion()))
    assert gaps[1] < 0.6 * gaps[0] < 0.06


def test_regions_and_repairs_outlast_homogenising_and_domains_without_triangles_stay_as_they_are():
    domain = replace(SURFACES["sphere"], regions={"cap": np.array([0, 3])}, repairs=("mended",))
    found = homogenised(domain)
    assert (found.regions, found.repairs) == (domain.regions, domain.repairs)
    for other in (box(3), cloud(20, np.eye(2))):
        assert homogenised(other) is other
