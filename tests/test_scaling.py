import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gfunk import scaling
from gfunk.cli import main
from gfunk.errors import InputError
from gfunk.laplacian import fem_laplacian
from gfunk.recipes.book import recipe_named
from gfunk.recipes.recipe import Recipe
from gfunk.scaling import Row, Scaling, exponent, measured, random_modes, square
from gfunk.simulation import viewed_domain
from gfunk.store import read_json

CPU = torch.device("cpu")


def row(nodes: int, modes: int, seconds: float | None) -> Row:
    return Row(
        nodes=nodes, modes=modes, batch=1, iteration_ms=None, epoch_seconds=seconds, predict_ms=None, memory_mib=None,
        eigensolve_seconds=None,
    )  # fmt: skip


@given(power=st.floats(-1, 3), scale=st.floats(1e-6, 1e3))
def test_the_exponent_of_a_power_law_is_its_power(power: float, scale: float):
    assert exponent([(size, scale * size**power) for size in (10, 30, 1000)]) == pytest.approx(power, abs=1e-9)


def test_linear_costs_have_exponents_of_one():
    found = Scaling(rows=tuple(row(n, m, 1e-5 * n * m) for n in (100, 300, 1000) for m in (5, 20)))
    assert found.exponents("epoch_seconds") == pytest.approx({"nodes": 1, "modes": 1, "nodes_at_the_end": 1})


def test_a_cost_with_a_floor_is_less_than_linear_but_for_its_end():
    found = Scaling(rows=tuple(row(n, 5, 1.0 + 1e-3 * n) for n in (10, 100, 10**6, 10**7))).exponents("epoch_seconds")
    assert found["nodes"] and found["nodes_at_the_end"]
    assert found["nodes"] < 0.8 and found["nodes_at_the_end"] == pytest.approx(1, abs=0.01) and found["modes"] is None


def test_sizes_that_did_not_fit_into_memory_are_left_out():
    rows = (row(10, 5, 1.0), row(20, 5, 2.0), row(40, 5, None), row(40, 9, None))
    assert Scaling(rows=rows).exponents("epoch_seconds")["nodes"] == pytest.approx(1)
    assert Scaling(rows=rows).exponents("predict_ms") == dict.fromkeys(("nodes", "modes", "nodes_at_the_end"))


@pytest.mark.parametrize(("name", "dim", "side"), [("heat", 2, 1.0), ("rectangles", 2, 20.0), ("atria", 3, 100.0)])
def test_a_square_has_about_the_nodes_asked_for_and_always_one_size(name: str, dim: int, side: float):
    for n_nodes in (100, 1000, 3000):
        domain = square(n_nodes, recipe_named(name).problem)
        assert domain.n_nodes == pytest.approx(n_nodes, rel=0.1)
        assert domain.points.shape[1] == dim and np.ptp(domain.points[:, 0]) == pytest.approx(side)


def test_random_modes_are_nearly_orthonormal():
    matrices = fem_laplacian(square(10_000, recipe_named("rectangles").problem))
    modes = random_modes(matrices, 6)
    gram = modes.eigenvectors.T @ (matrices.mass @ modes.eigenvectors)
    np.testing.assert_allclose(gram, np.eye(6), atol=0.05)
    assert modes.eigenvalues[0] == 0 and (np.diff(modes.eigenvalues) > 0).all()


def small(recipe: Recipe) -> Recipe:
    """Of a wave, few saves; of ours, a narrow network."""
    variant = recipe.variant("ours")
    network = replace(variant.network, width=8, n_layers=1)  # pyright: ignore[reportCallIssue]
    problem = replace(recipe.problem, pacing=replace(recipe.problem.pacing, n_saves=9))  # pyright: ignore
    return replace(recipe, problem=problem, variants=(replace(variant, network=network), *recipe.variants[1:]))


def test_every_size_is_measured_and_an_epoch_is_as_many_iterations_as_there_are_batches():
    recipe = small(recipe_named("rectangles"))
    found = measured(recipe, recipe.variant("ours"), [400, 100], [4, 8], batch_size=2, device=CPU).rows
    assert [(each.nodes, each.modes) for each in found] == [(100, 4), (100, 8), (400, 4), (400, 8)]
    for each in found:
        assert each.iteration_ms and each.epoch_seconds and each.predict_ms and each.eigensolve_seconds and each.memory_mib
        assert each.epoch_seconds == pytest.approx(each.iteration_ms / 1e3 * recipe.n_train / 2)
    # A hundred trajectories on each of an atrium recipe's domains.
    recipe = small(recipe_named("atria"))
    [each] = measured(recipe, recipe.variant("ours"), [100], [4], batch_size=1, device=CPU).rows
    assert each.epoch_seconds == pytest.approx(each.iteration_ms / 1e3 * recipe.n_train * 100)  # pyright: ignore


@pytest.mark.parametrize("hidden", [False, True])
def test_a_size_that_fills_the_memory_is_a_row_without_times(monkeypatch: pytest.MonkeyPatch, hidden: bool):
    def full(*_: object):
        try:
            raise torch.OutOfMemoryError
        except torch.OutOfMemoryError:
            if hidden:
                raise RuntimeError("the recording failed")  # noqa: B904 # as in torch
            raise

    monkeypatch.setattr(scaling, "put_gradients", full)
    recipe = small(recipe_named("rectangles"))
    [each] = measured(recipe, recipe.variant("ours"), [100], [4], batch_size=1, device=CPU).rows
    assert each.iteration_ms is None and each.memory_mib is None and each.eigensolve_seconds


def test_any_other_failure_is_not_taken_for_a_full_memory(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(scaling, "put_gradients", broken)
    recipe = small(recipe_named("rectangles"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        measured(recipe, recipe.variant("ours"), [100], [4], batch_size=1, device=CPU)


def test_what_is_measured_is_the_square_as_the_variant_sees_it(monkeypatch: pytest.MonkeyPatch):
    seen = []

    def costs(*given: object) -> dict[str, None]:
        seen.append(given[2])
        return dict.fromkeys(("iteration_ms", "epoch_seconds", "predict_ms", "memory_mib"))

    monkeypatch.setattr(scaling, "_costs", costs)
    recipe = recipe_named("random-fibres")
    variant = recipe.variant("ours")
    # On a square all K is one: what a turned view sees is another K all the same.
    variant = replace(variant, view=replace(variant.view, rotation_degrees=30.0))
    measured(recipe, variant, [100], [4], batch_size=1, device=CPU)
    [batch] = seen
    expected, _ = viewed_domain(square(100, recipe.problem), variant.view)
    np.testing.assert_allclose(batch.points[0], expected.points, atol=1e-5)
    np.testing.assert_allclose(batch.fibres[0], expected.fibres, atol=1e-6)


def test_networks_without_modes_and_too_many_modes_are_refused():
    recipe = recipe_named("rectangles")
    with pytest.raises(InputError, match="transolver uses no modes"):
        measured(recipe, recipe.variant("transolver"), [100], [4], batch_size=1, device=CPU)
    with pytest.raises(InputError, match="100 modes can't be had from 64 nodes"):
        measured(recipe, recipe.variant("ours"), [64, 400], [100], batch_size=1, device=CPU)


def test_the_command_prints_exponents_and_records_them(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    words = ["bench", "scale", "--nodes", "100", "225", "--modes", "4", "--device", "cpu"]
    assert main([*words, "--record", str(tmp_path / "scale.json"), "--json"]) == 0
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert len(said["rows"]) == 2 and set(said["exponents"]) == {"epoch_seconds", "predict_ms", "eigensolve_seconds"}
    assert "epoch_seconds ~ nodes^" in out.err
    (recorded,) = read_json(tmp_path / "scale.json")
    assert recorded["label"] == "scale" and recorded["variant"] == "rectangles/ours" and recorded["rows"] == said["rows"]
    assert main(["bench", "scale", "--variant", "ours"]) == 2
    assert "one --variant RECIPE/VARIANT, not ours" in capsys.readouterr().err
