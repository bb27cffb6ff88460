"""Surfaces where a function is zero, and surfaces cut open."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfunk.isosurface import kept_below_zero, zero_surface
from gfunk.surface import boundary_loops, enclosed_volume, genus, perimeters, triangle_areas


def ball(radius: float, step: float, centre=(0.1, -0.2, 0.3)):
    low = np.full(3, -1.3 * radius)
    axis = low[0] + step * np.arange(int(np.ceil(2.6 * radius / step)) + 1)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1)
    return zero_surface(np.linalg.norm(grid - np.array(centre), axis=-1) - radius, low, step, margin=1e-3)


def test_a_ball_has_its_area_and_volume_and_errors_fall_fourfold_with_half_the_step():
    errors = []
    for step in (1.0, 0.5):
        points, cells = ball(5.0, step)
        assert not boundary_loops(cells) and genus(cells) == 0
        errors.append(
            [triangle_areas(points, cells).sum() / (100 * np.pi) - 1, enclosed_volume(points, cells) / (500 / 3 * np.pi) - 1]
        )
    np.testing.assert_array_less(np.abs(errors[1]), 0.01)
    np.testing.assert_array_less(np.abs(errors[1]), np.abs(errors[0]) / 3)


@given(margin=st.floats(0.01, 0.4))
def test_no_node_comes_nearer_to_the_grid_than_the_margin(margin):
    axis = np.arange(-3.0, 3.5)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1)
    points, cells = zero_surface(np.linalg.norm(grid, axis=-1) - 2.0, np.full(3, -3.0), 1.0, margin)
    away = np.linalg.norm(points[:, None] - grid.reshape(-1, 3), axis=2).min(axis=1)
    assert away.min() >= margin - 1e-9
    assert triangle_areas(points, cells).min() > 0


def test_a_torus_has_one_handle_and_two_balls_are_two_parts():
    axis = np.arange(-6, 6.01, 0.5)
    x, y, z = np.meshgrid(axis, axis, axis, indexing="ij")
    _, cells = zero_surface(np.hypot(np.hypot(x, y) - 3.6, z) - 1.5, np.full(3, -6.0), 0.5)
    assert genus(cells) == 1
    points, cells = zero_surface(
        np.minimum(np.hypot(np.hypot(x - 3, y), z), np.hypot(np.hypot(x + 3, y), z)) - 1.9, np.full(3, -6.0), 0.5
    )
    assert enclosed_volume(points, cells) > 0 and genus(cells) == 0


@given(height=st.floats(-4.0, 4.0))
def test_a_ball_cut_by_a_plane_is_a_cap_with_one_rim(height):
    points, cells = ball(5.0, 0.5, centre=(0.0, 0.0, 0.0))
    points, cells, rim = kept_below_zero(points, cells, points[:, 2] - height, margin=1e-3)
    (loop,) = boundary_loops(cells)
    assert set(loop) == set(rim)
    np.testing.assert_allclose(points[rim, 2], height, atol=2e-3)
    np.testing.assert_allclose(triangle_areas(points, cells).sum(), 2 * np.pi * 5 * (5 + height), rtol=0.01)
    np.testing.assert_allclose(perimeters(points, [loop]), 2 * np.pi * np.sqrt(25 - height**2), rtol=0.02)
    assert enclosed_volume(points, cells) > 0


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_what_lies_wholly_on_one_side_is_kept_or_goes_as_it_is(side):
    points, cells = ball(5.0, 1.0)
    kept, left, rim = kept_below_zero(points, cells, np.full(len(points), side))
    assert rim.size == 0 and len(left) == (len(cells) if side < 0 else 0)
    if side < 0:
        np.testing.assert_array_equal(kept, points)
