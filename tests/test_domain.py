import inspect
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import relative_gap
from problems import (
    anisotropic_square,
    box,
    moved_square,
    sphere,
    turning_square,
)

from gfunk.domain import (
    Domain,
    cell_sizes,
    fibre_tensors,
    interpolation,
    make_domain,
    perturbed_square,
    rectangle,
    refined,
    slab,
    unit_square,
)
from gfunk.errors import InputError

# The door as users meet it: without the type checks that run in tests only.
make_domain_untyped = inspect.unwrap(make_domain)
seeds = st.integers(0, 2**32 - 1)


def domain_with(**changes: np.ndarray) -> Domain:
    square = unit_square(4)
    arrays = {"points": square.points, "cells": square.cells, "diffusion": square.diffusion} | changes
    return make_domain_untyped(**arrays)


def changed(array: np.ndarray, place: int, value: object) -> np.ndarray:
    array = array.copy()
    array[place] = value
    return array


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_coordinate_that_is_no_number_is_refused_by_node(value: float):
    with pytest.raises(InputError, match=r"node 5 has the coordinates"):
        domain_with(points=changed(unit_square(4).points, 5, [0.1, value]))


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        ([[1.0, 1.0], [1.0, 1.0]], "singular or negative"),
        ([[0.0, 0.0], [0.0, 0.0]], "singular or negative"),
        ([[1.0, 0.0], [0.0, -1.0]], "singular or negative"),
        ([[1.0, 0.5], [0.0, 1.0]], "not symmetric"),
        ([[1.0, 0.0], [0.0, np.nan]], "not finite"),
    ],
)
def test_a_tensor_that_cannot_diffuse_is_refused_by_node_and_by_cell(tensor: list, complaint: str):
    square = unit_square(4)
    with pytest.raises(InputError, match=f"tensor of node 7 is {complaint}"):
        domain_with(diffusion=changed(square.diffusion, 7, tensor))
    per_cell = changed(np.tile(np.eye(2), (len(square.cells), 1, 1)), 3, tensor)
    with pytest.raises(InputError, match=f"tensor of cell 3 is {complaint}"):
        make_domain_untyped(square.points, square.cells, per_cell, diffusion_at="cell")


@pytest.mark.parametrize("wrong_node", [16, -1])
def test_a_cell_with_a_node_that_does_not_exist_is_refused_with_both_numbers(wrong_node: int):
    cells = changed(unit_square(4).cells, 2, [0, 1, wrong_node])
    with pytest.raises(InputError, match=f"cell 2 names node {wrong_node}, but nodes run from 0 to 15"):
        domain_with(cells=cells)


@pytest.mark.parametrize("nodes", [[0, 1, 2], [0, 1, 1]])
def test_a_flat_cell_is_refused_with_its_nodes(nodes: list):
    square = unit_square(4)
    with pytest.raises(InputError, match=rf"cell 18 \(nodes \[{nodes[0]}, {nodes[1]}, {nodes[2]}\]\) has no area"):
        domain_with(cells=np.concatenate([square.cells, [nodes]]))


def test_a_flat_tetrahedron_is_refused():
    brick = box(3)
    with pytest.raises(InputError, match=r"cell 48 .* has no area or volume"):
        make_domain(brick.points, np.concatenate([brick.cells, [[0, 1, 3, 4]]]))


def test_a_node_in_no_cell_is_refused_by_number():
    square = unit_square(4)
    with pytest.raises(InputError, match=r"node 16 belongs to no cell \(1 such nodes\)"):
        make_domain(np.concatenate([square.points, [[0.3, 0.3]]]), square.cells)


def test_tensors_must_be_as_many_as_their_sites():
    square = unit_square(4)
    with pytest.raises(InputError, match="15 diffusion tensors for 16 nodes"):
        domain_with(diffusion=square.diffusion[:-1])
    with pytest.raises(InputError, match="16 diffusion tensors for 18 cells"):
        make_domain(square.points, square.cells, square.diffusion, diffusion_at="cell")


def test_cells_that_are_not_whole_numbers_are_refused():
    with pytest.raises(InputError, match="integers, not float64"):
        domain_with(cells=unit_square(4).cells.astype(float))


@pytest.mark.parametrize("corners", [2, 4])
def test_cells_in_the_plane_are_triangles(corners: int):
    with pytest.raises(InputError, match="cells must be triangles"):
        domain_with(cells=np.zeros((1, corners), dtype=int))


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 4), (1, 2)])
def test_points_are_at_least_two_in_the_plane_or_in_space(shape: tuple):
    with pytest.raises(InputError, match="points"):
        make_domain_untyped(np.zeros(shape))


def test_fibres_that_are_no_numbers_are_refused():
    square = unit_square(4)
    with pytest.raises(InputError, match="fibres must be finite"):
        make_domain(square.points, fibres=changed(square.points, 3, np.nan))


@given(seed=seeds, max_cell=st.floats(0.003, 0.5))
def test_a_moved_square_keeps_its_rim_its_area_and_its_largest_cell(seed: int, max_cell: float):
    domain = perturbed_square(max_cell, np.random.default_rng(seed))
    size = cell_sizes(domain.points, domain.cells)
    assert size.max() <= max_cell
    assert abs(size.sum() - 1) < 1e-12
    grid = unit_square(round(np.sqrt(domain.n_nodes)))
    for side in (0, 1):
        np.testing.assert_array_equal(domain.points == side, grid.points == side)
    assert domain.points.min() == 0 and domain.points.max() == 1


@given(seed=seeds)
def test_the_same_seed_gives_the_same_moved_square(seed: int):
    first, second = (perturbed_square(0.05, np.random.default_rng(seed)) for _ in range(2))
    np.testing.assert_array_equal(first.points, second.points)
    np.testing.assert_array_equal(first.cells, second.cells)


@pytest.mark.parametrize("domain", [moved_square(0.02, np.eye(2)), sphere(1)], ids=["square", "sphere"])
def test_refining_keeps_the_old_nodes_quarters_the_cells_and_keeps_the_area(domain: Domain):
    points, cells = refined(domain)
    np.testing.assert_array_equal(points[: domain.n_nodes], domain.points)
    assert len(np.unique(points, axis=0)) == len(points)
    old = cell_sizes(domain.points, domain.cells)
    np.testing.assert_allclose(cell_sizes(points, cells), np.tile(old / 4, 4), rtol=1e-10)
    make_domain(points, cells)


def test_only_triangles_can_be_refined():
    with pytest.raises(InputError, match="only triangle meshes"):
        refined(box(3))


@given(seed=seeds)
def test_interpolation_reproduces_linear_fields_inside_and_on_the_rim(seed: int):
    rng = np.random.default_rng(seed)
    domain = perturbed_square(0.02, rng)
    inside, along = rng.uniform(size=(50, 2)), rng.uniform(size=10)
    rim = np.concatenate([np.stack([np.full(10, side), along], 1)[:, ::turn] for side in (0.0, 1.0) for turn in (1, -1)])
    places = np.concatenate([inside, rim, domain.points])
    slope, offset = rng.normal(size=2), rng.normal()
    matrix = interpolation(domain, places)
    np.testing.assert_allclose(matrix @ (domain.points @ slope + offset), places @ slope + offset, atol=1e-8)
    assert matrix.data.min() > -1e-8


def test_interpolation_outside_the_domain_is_refused_by_place():
    with pytest.raises(InputError, match="place 1 lies outside"):
        interpolation(unit_square(4), np.array([[0.5, 0.5], [1.1, 0.5]]))


@given(seed=seeds, dim=st.sampled_from([2, 3]), along=st.floats(0.1, 10), across=st.floats(0.1, 10))
def test_fibre_tensors_are_blind_to_the_sign_and_have_the_two_speeds(seed: int, dim: int, along: float, across: float):
    fibres = np.random.default_rng(seed).normal(size=(5, dim))
    tensors = fibre_tensors(fibres, along, across)
    np.testing.assert_array_equal(tensors, fibre_tensors(-fibres, along, across))
    np.testing.assert_allclose(np.einsum("nij,nj->ni", tensors, fibres), along * fibres, rtol=1e-10, atol=1e-12)
    expected = np.sort([along] + [across] * (dim - 1))
    np.testing.assert_allclose(np.linalg.eigvalsh(tensors), np.tile(expected, (5, 1)), rtol=1e-10)


def test_fibres_left_out_follow_the_main_axis_of_diffusion():
    domain = turning_square(0.05)
    stretched = np.einsum("nij,nj->ni", domain.diffusion, domain.fibres)
    np.testing.assert_allclose(stretched, 9 * domain.fibres, atol=1e-12)


@pytest.mark.parametrize("domain", [moved_square(0.02, np.eye(2)), sphere(1), box(3)], ids=["square", "sphere", "box"])
def test_a_constant_tensor_per_cell_is_that_constant_per_node_and_back(domain: Domain):
    dim = domain.points.shape[1]
    tensor = np.diag(np.arange(1.0, dim + 1)) + 0.2
    per_cell = np.tile(tensor, (len(domain.cells), 1, 1))
    by_cell = make_domain(domain.points, domain.cells, per_cell, diffusion_at="cell")
    np.testing.assert_allclose(by_cell.node_diffusion(), np.tile(tensor, (domain.n_nodes, 1, 1)), rtol=1e-14)
    by_node = make_domain(domain.points, domain.cells, by_cell.node_diffusion())
    np.testing.assert_allclose(by_node.cell_diffusion(), per_cell, rtol=1e-14)


def test_tensors_between_cells_and_nodes_differ_by_the_square_of_the_cell_size():
    gaps = []
    for n_side in (9, 17):
        domain = anisotropic_square(n_side, 1.0)
        x = domain.points[:, 0]
        smooth = replace(domain, diffusion=domain.diffusion * (2 + np.cos(np.pi * x))[:, None, None])
        there = make_domain(domain.points, domain.cells, smooth.cell_diffusion(), diffusion_at="cell")
        gaps.append(relative_gap(there.node_diffusion(), smooth.diffusion))
    assert gaps[1] < 0.35 * gaps[0]


@pytest.mark.parametrize(("width", "height", "edge"), [(1.0, 1.0, 0.1), (3.0, 1.0, 0.25), (20.0, 7.0, 0.9), (1.0, 1.0, 5.0)])
def test_a_rectangle_has_its_area_and_no_leg_longer_than_the_edge(width: float, height: float, edge: float):
    domain = rectangle(width, height, edge)
    assert np.isclose(cell_sizes(domain.points, domain.cells).sum(), width * height)
    legs = np.abs(domain.points[domain.cells] - domain.points[np.roll(domain.cells, 1, axis=1)])
    assert legs.max() <= max(edge, 0) * (1 + 1e-9)


@pytest.mark.parametrize("sides", [(0.0, 1.0, 0.1), (1.0, -1.0, 0.1), (1.0, 1.0, 0.0)])
def test_a_rectangle_without_size_is_refused(sides: tuple):
    with pytest.raises(InputError, match="positive width, height and edge"):
        rectangle(*sides)


def test_a_square_of_one_node_is_refused():
    with pytest.raises(InputError, match="at least 2 nodes a side, not 1"):
        unit_square(1)


def test_a_slab_is_filled_by_tetrahedra_that_meet_face_to_face():
    brick = slab(2.0, 0.7, 0.3, 0.3)
    assert brick.n_nodes == 8 * 4 * 2
    assert np.isclose(cell_sizes(brick.points, brick.cells).sum(), 2.0 * 0.7 * 0.3)
    assert brick.points.max(axis=0).tolist() == [2.0, 0.7, 0.3]
    faces = np.sort(np.concatenate([np.delete(brick.cells, corner, axis=1) for corner in range(4)]), axis=1)
    faces, count = np.unique(faces, axis=0, return_counts=True)
    # A face belongs to two cells, or to one and then lies in a side of the slab.
    ends = brick.points[faces[count == 1]]
    in_a_side = (np.ptp(ends, axis=1) == 0) & np.isin(ends[:, 0], [0.0, 2.0, 0.7, 0.3])
    assert count.max() == 2 and in_a_side.any(axis=1).all()


@pytest.mark.parametrize("sizes", [(0.0, 1.0, 1.0, 0.5), (1.0, 1.0, -1.0, 0.5), (1.0, 1.0, 1.0, 0.0)])
def test_a_slab_without_sides_is_refused(sizes: tuple[float, ...]):
    with pytest.raises(InputError, match="a slab needs positive sides and edge"):
        slab(*sizes)


def test_the_size_of_a_box_of_tetrahedra_is_its_volume():
    brick = box(4)
    assert np.isclose(cell_sizes(brick.points, brick.cells).sum(), 1.0 * 0.8 * 0.6)
