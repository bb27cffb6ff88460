import json
from typing import Any

import pytest

from gfunk.cli import main
from gfunk.errors import InputError
from gfunk.operators.make import make_operator, n_parameters
from gfunk.recipes.book import RECIPES, recipe_named
from gfunk.recipes.recipe import Recipe, Variant

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


@pytest.mark.parametrize(("recipe", "variant"), VARIANTS, ids=IDS)
def test_a_variant_is_trained_just_if_it_has_parameters(recipe: Recipe, variant: Variant):
    assert (variant.training is not None) == (n_parameters(make_operator(variant.network)) > 0)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_variants_have_different_names_and_the_default_is_ours_where_there_is_one(recipe: Recipe):
    names = [variant.name for variant in recipe.variants]
    assert len(set(names)) == len(names)
    assert recipe.variant(None).name == ("ours" if "ours" in names else names[0])


def test_an_unknown_recipe_or_variant_is_refused_and_the_known_are_listed():
    with pytest.raises(InputError, match="no recipe 'soup'; there are heat, rectangles"):
        recipe_named("soup")
    with pytest.raises(InputError, match="recipe heat has no variant 'theirs'; it has ours, paper"):
        recipe_named("heat").variant("theirs")
