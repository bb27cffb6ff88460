import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import random_rotation, sphere

from gfunk.domain import rectangle
from gfunk.intersections import self_intersections

seeds = st.integers(0, 2**32 - 1)


def two_spheres(gap: float, n_refinements: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Unit spheres with their centres so far apart, along no special direction, and turned against each other."""
    ball = sphere(n_refinements)
    shift = gap * np.array([0.6, 0.48, 0.64])
    points = np.concatenate([ball.points, ball.points @ random_rotation(3, 1).T + shift])
    return points, np.concatenate([ball.cells, ball.cells + ball.n_nodes])


def sheet() -> tuple[np.ndarray, np.ndarray]:
    flat = rectangle(6.0, 6.0, 1.0)
    return np.column_stack([flat.points, np.zeros(flat.n_nodes)]), flat.cells


@pytest.mark.parametrize("n_refinements", [0, 2, 4])
def test_a_sphere_does_not_cut_itself(n_refinements: int):
    ball = sphere(n_refinements)
    assert self_intersections(ball.points, ball.cells).shape == (0, 2)


def test_spheres_apart_or_inside_each_other_do_not_cut():
    assert not len(self_intersections(*two_spheres(2.05)))
    points, cells = two_spheres(0.0)
    points[len(points) // 2 :] *= 0.8
    assert not len(self_intersections(points, cells))


@pytest.mark.parametrize("gap", [0.4, 1.0, 1.7])
def test_spheres_cut_each_other_along_a_circle(gap: float):
    points, cells = two_spheres(gap)
    pairs = self_intersections(points, cells)
    first, second = pairs.T
    assert (first < len(cells) // 2).all() and (second >= len(cells) // 2).all()
    # Halfway between the centres, all the way around, and nowhere else.
    axis = np.array([0.6, 0.48, 0.64])
    centre = points[cells[first]].mean(axis=1)
    along = centre @ axis
    edge = np.linalg.norm(points[cells[:, 0]] - points[cells[:, 1]], axis=1).max()
    assert np.abs(along - gap / 2).max() < edge
    across = centre - along[:, None] * axis
    assert np.abs(np.linalg.norm(across, axis=1) - np.sqrt(1 - gap**2 / 4)).max() < edge
    angle = np.sort(np.arctan2(across @ [0.8, -0.36, -0.48], across @ [0.0, 0.8, -0.6]))
    assert np.diff(np.append(angle, angle[0] + 2 * np.pi)).max() * np.sqrt(1 - gap**2 / 4) < 2 * edge


@given(seed=seeds)
def test_turning_scaling_and_relabelling_changes_nothing(seed: int):
    rng = np.random.default_rng(seed)
    points, cells = two_spheres(1.1, 2)
    expected = self_intersections(points, cells)
    assert len(expected)
    name, order = rng.permutation(len(points)), rng.permutation(len(cells))
    moved = np.exp(rng.normal(0, 3)) * (points @ random_rotation(3, seed).T + rng.normal(0, 3, 3))
    found = order[self_intersections(moved[np.argsort(name)], np.roll(name[cells[order]], int(rng.integers(3)), axis=1))]
    assert {tuple(sorted(pair)) for pair in found.tolist()} == {tuple(pair) for pair in expected.tolist()}


@given(seed=seeds)
def test_a_flat_sheet_is_fine_and_a_node_pushed_over_its_neighbours_folds_it(seed: int):
    points, cells = sheet()
    turn = random_rotation(3, seed)
    assert not len(self_intersections(points @ turn.T + 40, cells))
    middle = int(np.linalg.norm(points - [3, 3, 0], axis=1).argmin())
    points[middle] += [1.3, 0.2, 0]
    pairs = self_intersections(points @ turn.T + 40, cells)
    assert len(pairs)
    # Only triangles of that node overlap others.
    assert (cells[pairs] == middle).any(axis=(1, 2)).all()


def test_a_sheet_shut_like_a_book_lies_on_itself_triangle_by_triangle():
    points, cells = sheet()
    flat = points.copy()
    points[:, 0] = np.abs(points[:, 0] - 3)
    pairs = self_intersections(points, cells)
    assert set(pairs.ravel().tolist()) == set(range(len(cells)))
    # Neighbours across the fold are among them.
    touches_fold = (flat[cells][:, :, 0] == 3).any(axis=1)
    n_shared = np.array([len(set(cells[a].tolist()) & set(cells[b].tolist())) for a, b in pairs])
    assert n_shared.max() == 2 and touches_fold[pairs[n_shared == 2]].all()


@pytest.mark.parametrize(("tip", "n_cuts"), [(1.0, 1), (0.01, 1), (-0.01, 0)])
def test_a_needle_through_a_sheet_is_found_and_one_that_ends_before_is_not(tip: float, n_cuts: int):
    points, cells = sheet()
    needle = np.array([[3.3, 3.4, -1.0], [3.31, 3.4, -1.0], [3.3, 3.4, tip]])
    both, number = np.concatenate([points, needle]), len(points)
    assert len(self_intersections(both, np.concatenate([cells, [[number, number + 1, number + 2]]]))) == n_cuts
