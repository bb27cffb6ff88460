import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gfunk.cli import main
from gfunk.errors import InputError
from gfunk.operators.make import make_operator, n_parameters
from gfunk.pretrained import pretrained_names, read_model_card, weights_folder
from gfunk.recipes.book import RECIPES, recipe_named
from gfunk.recipes.recipe import SIZES, Recipe, Variant
from gfunk.settings import to_json

VARIANTS = [(recipe, variant) for recipe in RECIPES.values() for variant in recipe.variants]
IDS = [f"{recipe.name}-{variant.name}" for recipe, variant in VARIANTS]
# Table 1 and section 4: parameters and relative l2 error of the paper's G-FuNK.
PAPER = {
    "heat": (197_465, 0.0302),
    "rectangles": (134_965, 0.1189),
    "random-fibres": (12_865, 0.0796),
    "single-atrium": (327_665, 0.0717),
    "atria": (283_040, 0.1642),
    "atria-190": (35_640, 0.0823),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["recipes", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list_has_every_variant_with_its_counts_and_the_papers_numbers(capsys: pytest.CaptureFixture[str]):
    rows = listed(capsys)
    assert [(row["name"], row["variant"]) for row in rows] == [(recipe.name, variant.name) for recipe, variant in VARIANTS]
    for row in rows:
        assert {"name", "variant", "parameters", "paper_parameters", "paper_rel_l2", "rel_l2"} <= row.keys()
        assert isinstance(row["parameters"], int) and row["parameters"] >= 0


def test_where_the_paper_counts_parameters_ours_are_as_many(capsys: pytest.CaptureFixture[str]):
    counted = [row for row in listed(capsys) if row["paper_parameters"] is not None]
    assert len(counted) >= 6
    for row in counted:
        assert row["parameters"] == row["paper_parameters"], row


def test_the_six_presets_of_the_paper_are_there_to_the_parameter(capsys: pytest.CaptureFixture[str]):
    found = {row["name"]: (row["parameters"], row["paper_rel_l2"]) for row in listed(capsys) if row["variant"] == "paper"}
    assert found == PAPER


@pytest.mark.parametrize(("recipe", "variant"), VARIANTS, ids=IDS)
def test_a_network_asks_for_no_more_modes_than_its_view_has(recipe: Recipe, variant: Variant):
    if variant.name != "fno":
        assert getattr(variant.network, "n_modes", 0) <= variant.view.n_modes
    else:
        assert variant.view.grid_side == getattr(variant.network, "n_side", None)


@every_recipe
def test_domains_are_homogenised_just_for_networks_that_are_told_what_fronts_met(recipe: Recipe):
    for variant in (*recipe.variants, recipe.smoke.ours):
        assert variant.view.homogenises == bool(getattr(variant.network, "ray_times", ()))


@pytest.mark.parametrize("name", pretrained_names())
def test_shipped_models_see_domains_as_they_did_when_they_learned(name: str):
    card = json.loads((weights_folder() / f"{name}.json").read_text())
    assert to_json(read_model_card(name).variant.view) == {"homogenises": False} | card["variant"]["view"]


@pytest.mark.parametrize(("recipe", "variant"), VARIANTS, ids=IDS)
def test_a_variant_is_trained_just_if_it_has_parameters(recipe: Recipe, variant: Variant):
    assert (variant.training is not None) == (n_parameters(make_operator(variant.network)) > 0)


@every_recipe
def test_variants_have_different_names_and_the_default_is_ours_where_there_is_one(recipe: Recipe):
    names = [variant.name for variant in recipe.variants]
    assert len(set(names)) == len(names)
    assert recipe.variant(None).name == ("ours" if "ours" in names else names[0])


def test_an_unknown_recipe_or_variant_is_refused_and_the_known_are_listed():
    with pytest.raises(InputError, match="no recipe 'soup'; there are heat, rectangles"):
        recipe_named("soup")
    with pytest.raises(InputError, match="recipe heat has no variant 'theirs'; it has ours, paper"):
        recipe_named("heat").variant("theirs")


@every_recipe
def test_making_a_recipe_small_leaves_the_full_one_as_it_was(recipe: Recipe):
    before = to_json(recipe)
    small = recipe.sized("smoke")
    assert to_json(recipe) == before and recipe.sized("full") is recipe
    assert small.name == recipe.name
    assert (small.problem, small.variants) == (recipe.smoke.problem, (recipe.smoke.ours,))
    assert (small.n_train, small.n_val, small.n_test) == (recipe.smoke.n_train, recipe.smoke.n_val, recipe.smoke.n_test)


@every_recipe
def test_a_smoke_size_asks_the_same_question_of_a_smaller_network_of_the_same_kind(recipe: Recipe):
    small, full = recipe.sized("smoke").variant(None), recipe.variant("ours")
    assert type(recipe.smoke.problem) is type(recipe.problem)
    assert (type(small.network), small.integrator) == (type(full.network), full.integrator)
    assert n_parameters(make_operator(small.network)) < n_parameters(make_operator(full.network))
    changed = {
        each.name for each in fields(full.network) if getattr(small.network, each.name) != getattr(full.network, each.name)
    }
    assert changed <= {"width", "n_layers", "n_modes", "filter_width", "profile_width"}


@every_recipe
def test_the_settings_of_a_smoke_size_fit_each_other(recipe: Recipe):
    small = recipe.sized("smoke")
    ours, n_trajectories = small.variant("ours"), small.n_train * getattr(small.problem, "n_sites", 1)
    n_saves = getattr(small.problem, "n_saves", None) or small.problem.pacing.n_saves
    assert ours.training is not None and not ours.training.half_precision  # on a CPU it takes longer
    assert ours.network.n_modes <= ours.view.n_modes
    assert n_saves % ours.training.validation_stride == 0 and n_saves % small.problem.report_every == 0
    assert ours.training.n_sizes <= n_trajectories and ours.training.batch_size <= n_trajectories
    # Otherwise its learning rate would never have been what it should.
    assert ours.training.warmup_iterations < ours.training.epochs * n_trajectories / ours.training.batch_size / 2


@every_recipe
def test_only_ours_has_a_smoke_size(recipe: Recipe):
    with pytest.raises(InputError, match=f"recipe {recipe.name} has no variant 'paper' at smoke size; it has ours"):
        recipe.sized("smoke").variant("paper")


@pytest.mark.parametrize("command", ["recipes", "simulate heat --out nowhere", "train heat --data nowhere --out nowhere"])
def test_an_unknown_size_is_refused_in_one_line(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([*command.split(), "--size", "tiny"]) == 2
    said = capsys.readouterr().err
    assert said == f"gfunk: recipe heat has no size 'tiny'; it has {', '.join(SIZES)}\n"


def test_the_list_of_smoke_sizes_has_every_recipe_and_no_results_of_the_full_ones(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "--size", "smoke", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["variant"]) for row in rows] == [(name, "ours") for name in RECIPES]
    assert all(row["rel_l2"] is None and row["n_train"] == RECIPES[row["name"]].smoke.n_train for row in rows)


def learned(
    name: str, folder: Path, n: int | None, problem: list[str], training: list[str], capsys: pytest.CaptureFixture[str]
) -> float:
    """The test error after a smoke size has gone all the way, from the command line."""

    def said(*words: str) -> Any:
        assert main([*words, "--workers", "1", "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    data, run = str(folder / "data"), str(folder / "run")
    changed = [word for setting in problem for word in ("--set", setting)] + ([] if n is None else ["--n", str(n)])
    said("simulate", name, "--size", "smoke", "--out", data, *changed)
    changed = [word for setting in training for word in ("--set", setting)]
    said("train", name, "--size", "smoke", "--data", data, "--out", run, "--device", "cpu", *changed)
    found = said("evaluate", run, "--data", data, "--device", "cpu")
    assert (found["recipe"], found["variant"]) == (name, "ours")
    return found["rel_l2"]


def test_a_flat_smoke_size_learns_waves_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GFUNK_COMPILE", raising=False)
    problem = ["pacing.n_saves=10", "shortest_mm=5", "longest_mm=7"]
    training = ["training.epochs=60", "training.warmup_iterations=5", "training.learning_rate=5e-3"]
    # Before it has learned anything it predicts about nothing, an error of 1.
    assert learned("rectangles", tmp_path, 2, problem, training, capsys) < 0.4
    assert "GFUNK_COMPILE" not in os.environ  # what comes next is compiled again


@pytest.mark.slow
@pytest.mark.parametrize("name", ["single-atrium", "atria", "atria-190", "atria-many", "atria-converged"])
def test_a_smoke_size_learns_waves_on_atria(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert learned(name, tmp_path, None, [], [], capsys) < 0.2
