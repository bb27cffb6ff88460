"""Shapes of atria before they are meshed."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gfunk.atria.shape import PARTS, VEINS, random_shape

seeds = st.integers(0, 10**6)


def shape_of(seed: int):
    return random_shape(np.random.default_rng(seed))


@given(seed=seeds)
def test_a_seed_has_one_shape(seed):
    places = np.random.default_rng(1).uniform(-40, 40, (50, 3))
    np.testing.assert_array_equal(shape_of(seed).distance(places), shape_of(seed).distance(places))


@given(seed=seeds, factor=st.floats(0.3, 3.0))
def test_a_scaled_shape_has_scaled_distances(seed, factor):
    shape, places = shape_of(seed), np.random.default_rng(1).uniform(-40, 40, (50, 3))
    scaled = replace(shape, scale=shape.scale * factor)
    np.testing.assert_allclose(scaled.distance(places * factor), factor * shape.distance(places), rtol=1e-9, atol=1e-9)


@given(seed=seeds)
def test_parts_melt_so_the_whole_is_no_farther_than_its_nearest_part(seed):
    shape, places = shape_of(seed), np.random.default_rng(1).uniform(-40, 40, (200, 3))
    nearest = shape.part_distances(places).min(axis=0)
    whole = shape.distance(places)
    assert (whole <= nearest + 1e-9).all()
    # By log(n) at most, where all n parts are equally near.
    assert (whole >= nearest - np.log(len(PARTS)) * shape.blend * shape.scale / 2 - 1e-9).all()


@given(seed=seeds)
def test_the_box_holds_all_of_it(seed):
    shape = shape_of(seed)
    low, high = shape.box_mm()
    faces = np.random.default_rng(2).uniform(low, high, (6, 300, 3))
    for number, face in enumerate(faces):
        face[:, number // 2] = (low, high)[number % 2][number // 2]
    assert shape.distance(faces.reshape(-1, 3)).min() > 0


@given(seed=seeds)
def test_veins_end_free_of_the_rest_on_their_own_side(seed):
    shape = shape_of(seed)
    for number, (name, vein) in enumerate(zip(VEINS, shape.veins, strict=True), start=1):
        distances = shape.part_distances(vein.outline() * shape.scale)
        np.testing.assert_allclose(distances[number], 0, atol=1e-6)
        assert np.delete(distances, number, axis=0).min() > 0
        assert (vein.end.origin[0] > 0) == (name[0] == "L")
        assert shape.valve.height(vein.end.origin[None])[0] < 0


@given(seed=seeds)
def test_the_tip_of_the_appendage_is_at_the_surface_of_its_end(seed):
    shape = shape_of(seed)
    distances = shape.part_distances(shape.tip_mm[None])[:, 0]
    assert distances.argmin() == PARTS.index("LAA")
    assert shape.distance(shape.tip_mm[None])[0] < 1e-9
