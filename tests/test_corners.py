import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    batch_of,
    cloud,
    moved_square,
    random_rotation,
    relabelled,
    rotated_tensor,
    shaken_box,
    sliver_mesh,
    sphere,
    turned,
    turning_square,
    with_diffusion,
)

from gfunk.corners import Corners, corners
from gfunk.domain import Domain, make_domain

seeds = st.integers(0, 99)
meshes = st.one_of(
    st.builds(turning_square, st.floats(0.02, 0.1), ratio=st.floats(1, 50), seed=seeds),
    st.builds(sliver_mesh, seeds),
    st.just(sphere(1)),
)


def is_there(found: Corners) -> np.ndarray:
    """The slots that hold a triangle."""
    return (found.steps != 0).any(axis=2)


def seen(found: Corners, names: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(node, first, second) and (side, offset, height) of every triangle at every node, in the order of the names."""
    node, slot = np.nonzero(is_there(found))
    nodes = np.column_stack([node, node[:, None] + found.steps[node, slot]])
    nodes = nodes if names is None else names[nodes]
    order = np.lexsort(nodes.T)
    return nodes[order], found.shape[node, slot][order]


@given(domain=meshes)
def test_each_triangle_is_seen_once_from_each_of_its_nodes_in_its_own_order(domain: Domain):
    turns = np.concatenate([domain.cells[:, turn] for turn in ([0, 1, 2], [1, 2, 0], [2, 0, 1])])
    np.testing.assert_array_equal(seen(corners(domain))[0], turns[np.lexsort(turns.T)])


@given(domain=meshes)
def test_slots_without_a_triangle_come_last_and_lead_to_the_node_itself_at_no_distance(domain: Domain):
    found = corners(domain)
    there = is_there(found)
    n_triangles = np.bincount(domain.cells.ravel(), minlength=domain.n_nodes)
    np.testing.assert_array_equal(there, np.arange(there.shape[1]) < n_triangles[:, None])
    assert (found.steps[~there] == 0).all() and (found.shape[~there] == 0).all()


@given(seed=seeds, is_flat=st.booleans())
def test_sides_offsets_and_heights_are_those_of_euclid_where_diffusion_is_one(seed: int, is_flat: bool):
    domain = sliver_mesh(seed) if is_flat else turned(sphere(1), random_rotation(3, seed))
    domain = with_diffusion(domain, np.eye(domain.points.shape[1]))
    nodes, shape = seen(corners(domain))
    (a, b, c), (side, offset, height) = domain.points[nodes].swapaxes(0, 1), shape.T
    np.testing.assert_allclose(side, ((c - b) ** 2).sum(1), rtol=1e-12)
    # The foot of the node is where the offset says: from it the node is at right angles, and its height away.
    foot = b - offset[:, None] * (c - b)
    longest = np.maximum(np.linalg.norm(a - b, axis=1), np.linalg.norm(a - c, axis=1))
    np.testing.assert_allclose(((a - foot) * (c - b)).sum(1) / longest / np.sqrt(side), 0, atol=1e-9)
    np.testing.assert_allclose(height / longest**2, ((a - foot) ** 2).sum(1) / longest**2, atol=1e-12)


@given(seed=seeds, factor=st.floats(1e-3, 1e3))
def test_squared_lengths_go_with_the_inverse_of_diffusion_and_offsets_do_not_change(seed: int, factor: float):
    slow = turning_square(0.05, seed=seed)
    fast = make_domain(slow.points, slow.cells, factor * slow.diffusion)
    np.testing.assert_array_equal(corners(fast).steps, corners(slow).steps)
    scaled = corners(fast).shape * np.array([factor, 1.0, factor])
    np.testing.assert_allclose(scaled, corners(slow).shape, rtol=1e-9, atol=1e-9 * corners(slow).shape[..., 0].max())


@given(seed=seeds, ratio=st.floats(1, 50), angle=st.floats(0, np.pi))
def test_one_anisotropic_diffusion_everywhere_is_the_stretched_domain_without(seed: int, ratio: float, angle: float):
    tensor = rotated_tensor(angle, ratio, 1.0)
    values, axes = np.linalg.eigh(tensor)
    domain = moved_square(0.05, tensor, seed)
    stretched = make_domain(domain.points @ (axes / np.sqrt(values)) @ axes.T, domain.cells)
    np.testing.assert_allclose(corners(domain).shape, corners(stretched).shape, rtol=1e-7, atol=1e-9)


@given(seed=seeds)
def test_turning_the_domain_with_its_diffusion_changes_nothing(seed: int):
    for domain in (turning_square(0.05, seed=seed), sphere(1)):
        after = corners(turned(domain, random_rotation(domain.points.shape[1], seed)))
        np.testing.assert_array_equal(after.steps, corners(domain).steps)
        np.testing.assert_allclose(after.shape, corners(domain).shape, rtol=1e-9, atol=1e-12)


@given(seed=seeds)
def test_relabelling_nodes_relabels_their_triangles(seed: int):
    domain = turning_square(0.05, seed=seed)
    order = np.random.default_rng(seed).permutation(domain.n_nodes)
    for again, before in zip(seen(corners(relabelled(domain, order)), order), seen(corners(domain)), strict=True):
        np.testing.assert_allclose(again, before, rtol=1e-9, atol=1e-12)


def test_diffusion_along_the_normal_of_a_plane_in_space_does_not_matter():
    flat = turning_square(0.05)
    points = np.pad(flat.points, ((0, 0), (0, 1)))
    for normal in (0.1, 30.0):
        tensors = np.zeros((flat.n_nodes, 3, 3))
        tensors[:, :2, :2], tensors[:, 2, 2] = flat.diffusion, normal
        np.testing.assert_allclose(
            corners(make_domain(points, flat.cells, tensors)).shape, corners(flat).shape, rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("domain", [shaken_box(3, np.eye(3)), cloud(30, np.eye(2))], ids=["tetrahedra", "cloud"])
def test_domains_without_triangles_have_no_corners(domain: Domain):
    assert corners(domain).steps.shape == (domain.n_nodes, 0, 2)
    assert corners(domain).shape.shape == (domain.n_nodes, 0, 3)


def test_packed_corners_name_the_nodes_of_their_own_domain_and_what_fills_up_names_the_node_itself():
    domains = [turning_square(0.04), turning_square(0.02, seed=1)]
    batch = batch_of(*domains, n_modes=1)
    assert batch.ends.shape[:3] == batch.sides.shape[:3]
    for domain, ends, sides in zip(domains, batch.ends.numpy(), batch.sides.numpy(), strict=True):
        found = corners(domain)
        n_nodes, n_triangles = is_there(found).shape
        steps, shape = np.zeros_like(ends), np.zeros_like(sides)
        steps[:n_nodes, :n_triangles], shape[:n_nodes, :n_triangles] = found.steps, found.shape
        np.testing.assert_array_equal(ends - np.arange(len(ends))[:, None, None], steps)
        np.testing.assert_array_equal(sides, shape)
