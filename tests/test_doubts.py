"""What is said of tissue unlike that a model has learned from."""

from dataclasses import replace

import numpy as np
import pytest
from toy_surfaces import ACROSS, PROBLEM, egg, strip

from gfunk.atria.synthetic import left_atrium
from gfunk.domain import Domain, fibre_tensors, make_domain, rectangle
from gfunk.doubts import doubts, fibre_turn
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.trust import Bounds, Trust, roughness_of

a_bound = Bounds(share=0.9, rel_l2=0.01, lat_error_ms=None, lat_error_ms_95=None, n_waves=20, n_domains=5)


@pytest.mark.parametrize("along, across, said", [
    (5 * ACROSS, ACROSS, None),
    (0.5 * ACROSS, 0.1 * ACROSS, "diffusion is"),
    (ACROSS, ACROSS, "diffusion is"),
    (3.2 * ACROSS, 1.1 * ACROSS, "only seen 5"),
])  # fmt: skip
def test_tissue_unlike_all_that_was_learned_is_said_to_be(along: float, across: float, said: str | None):
    fibres = np.linalg.eigh(egg().diffusion)[1][:, :, -1]
    tissue = replace(egg(), diffusion=fibre_tensors(fibres, along, across))
    found = doubts(tissue, PROBLEM, Trust(), fibre_turn(tissue))
    assert found == () if said is None else said in found[0]


def twisted_sheet(degrees_per_mm: float, bend_mm: float = np.inf) -> Domain:
    """A sheet, flat or bent round a cylinder of this radius, whose fibres turn as one goes along it."""
    flat = rectangle(20.0, 10.0, 1.0)
    x, y = flat.points.T
    points = np.stack([x, y, 0 * x], axis=1)
    if np.isfinite(bend_mm):
        points = np.stack([bend_mm * np.sin(x / bend_mm), y, bend_mm * np.cos(x / bend_mm)], axis=1)
    in_plane, in_space = (np.diff(each[flat.cells], axis=1) for each in (flat.points, points))
    carried = np.linalg.solve(in_plane, in_space)  # rows: what x and y of the plane became, in each triangle
    angle = np.radians(degrees_per_mm) * x[flat.cells].mean(axis=1)
    fibres = np.cos(angle)[:, None] * carried[:, 0] + np.sin(angle)[:, None] * carried[:, 1]
    return make_domain(points, flat.cells, fibre_tensors(fibres, 5 * ACROSS, ACROSS), diffusion_at="cell")


def test_fibres_turn_twice_as_much_twice_as_fast_and_not_at_all_by_bending():
    assert fibre_turn(twisted_sheet(0.0)) == fibre_turn(strip()) == 0
    assert fibre_turn(twisted_sheet(0.0, bend_mm=10.0)) < 1e-3
    slow = fibre_turn(twisted_sheet(4.0))
    assert 0.5 * 4.0 < slow < 4.0, "most neighbours are not ahead"
    assert fibre_turn(twisted_sheet(8.0)) == pytest.approx(2 * slow, rel=1e-6)
    assert fibre_turn(twisted_sheet(4.0, bend_mm=10.0)) == pytest.approx(slow, rel=0.02)


def test_fibres_rougher_than_all_that_was_learned_or_tried_are_said_to_be():
    smooth, rough = (left_atrium(1, edge_mm=1.5, rough_degrees=degrees) for degrees in (0.0, 40.0))
    turn = fibre_turn(rough)
    assert doubts(smooth, AtriumProblem(), Trust(), fibre_turn(smooth)) == ()
    (said,) = doubts(rough, AtriumProblem(), Trust(), turn)
    assert f"fibres turn by {turn:.0f} degrees per mm" in said
    tried = replace(a_bound, fibre_turn=roughness_of(turn))
    assert doubts(rough, AtriumProblem(), Trust(rough=(tried,)), turn) == ()
    assert doubts(rough, AtriumProblem(), Trust(bounds=a_bound), turn) == (said,), "smooth ones say nothing of rough ones"
