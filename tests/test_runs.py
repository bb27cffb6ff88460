import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import batch_of, turning_square
from toy_heat import small_variant, toy_problem

from gfunk.checkpoints import save_weights
from gfunk.errors import InputError
from gfunk.experiments import operator_named, seeded_operator
from gfunk.recipes.book import RECIPES
from gfunk.recipes.heat import heat
from gfunk.recipes.recipe import Recipe, Variant
from gfunk.runs import RunCard, load_run, read_card, write_card
from gfunk.store import CorruptFile

SIMULATED = [(recipe, variant) for recipe in RECIPES.values() if recipe.problem for variant in recipe.variants]


def card_of(variant: Variant) -> RunCard:
    return RunCard(recipe="heat", problem=toy_problem, variant=variant, data_fingerprint="f00", commit="c0ffee")


def written_run(folder: Path, variant: Variant) -> str:
    write_card(folder, card_of(variant))
    save_weights(folder / "best.safetensors", seeded_operator(variant), {})
    return str(folder)


def changed_card(folder: Path, **changes: object):
    write_card(folder, card_of(small_variant()))
    content = json.loads((folder / "run.json").read_text()) | changes
    (folder / "run.json").write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


@pytest.mark.parametrize(("recipe", "variant"), SIMULATED, ids=[f"{recipe.name}-{each.name}" for recipe, each in SIMULATED])
def test_a_card_comes_back_as_it_was_written(tmp_path: Path, recipe: Recipe, variant: Variant):
    card = replace(card_of(variant), recipe=recipe.name, problem=recipe.problem)
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card


def test_a_run_comes_back_with_its_weights_in_evaluation_mode(tmp_path: Path):
    variant = small_variant(seed=3)
    written_run(tmp_path, variant)
    loaded, card = load_run(tmp_path)
    assert card.variant == variant and not loaded.training
    for name, tensor in seeded_operator(variant).state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_a_variant_starts_from_a_run_of_the_same_network_and_no_other(tmp_path: Path):
    variant = small_variant(seed=3)
    started = seeded_operator(replace(small_variant(seed=4), starts_from=written_run(tmp_path, variant)))
    assert started.training
    for name, tensor in seeded_operator(variant).state_dict().items():
        assert torch.equal(started.state_dict()[name], tensor)
    other = replace(variant, starts_from=str(tmp_path), network=replace(variant.network, n_modes=3))
    with pytest.raises(InputError, match="which is another network"):
        seeded_operator(other)


@given(n_modes=st.integers(1, 12))
@settings(max_examples=12)
def test_with_fewer_modes_an_operator_is_what_it_would_be_had_no_more_been_found(tmp_path_factory, n_modes: int):
    name = written_run(tmp_path_factory.mktemp("run"), small_variant(seed=3))
    batch = batch_of(turning_square(0.02), n_modes=12, dtype=torch.float32)
    u = torch.rand(2, batch.points.shape[1], 1, generator=torch.Generator().manual_seed(n_modes))
    whole, *_ = operator_named(name)
    fewer, recipe, problem, variant = operator_named(f"{name}@{n_modes}")
    assert (recipe, problem) == ("heat", toy_problem) and not fewer.training
    assert variant.view.n_modes == variant.network.n_modes == n_modes
    tau = torch.tensor(0.001)
    with torch.no_grad():
        found = fewer(u, batch, tau)
        assert torch.equal(found, whole(u, batch.with_modes(n_modes), tau))
        assert torch.equal(found, whole(u, batch, tau)) == (n_modes == 12)


def test_a_variant_starts_from_a_run_with_fewer_of_its_modes(tmp_path: Path):
    name = written_run(tmp_path, small_variant(seed=3))
    variant = small_variant(seed=4)
    fewer = replace(variant, network=replace(variant.network, n_modes=5), starts_from=f"{name}@5")
    for key, tensor in seeded_operator(small_variant(seed=3)).state_dict().items():
        assert torch.equal(seeded_operator(fewer).state_dict()[key], tensor)


@pytest.mark.parametrize(
    ("name", "n_modes", "said"),
    [
        ("ours", 0, "has learned with 12 modes: ask for 1 to 12 of them"),
        ("ours", 13, "has learned with 12 modes: ask for 1 to 12 of them"),
        ("paper", 5, "knows its modes by their numbers, and needs all 12"),
        ("fno", 2, "knows its modes by their numbers, and needs all 3"),
        ("gnn", 5, "has learned with 0 modes"),
    ],
)
def test_modes_that_an_operator_can_t_do_with_are_refused(tmp_path: Path, name: str, n_modes: int, said: str):
    run = written_run(tmp_path, small_variant(name))
    with pytest.raises(InputError, match=said):
        operator_named(f"{run}@{n_modes}")


def test_a_run_folder_named_like_fewer_modes_is_itself(tmp_path: Path):
    name = written_run(tmp_path / "of-june@5", small_variant())
    assert operator_named(name)[-1] == small_variant()
    assert operator_named(f"{name}@7")[-1].view.n_modes == 7


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no run there"):
        read_card(tmp_path / "nowhere")


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_a_run_of_another_schema_is_refused(tmp_path: Path, schema: object):
    changed_card(tmp_path, schema=schema)
    with pytest.raises(InputError, match="another version; this one reads schema 1"):
        read_card(tmp_path)


def test_settings_of_an_unknown_kind_are_refused(tmp_path: Path):
    changed_card(tmp_path, variant={"is": "Transformer", "width": 8})
    with pytest.raises(InputError, match="unknown kind 'Transformer'; known are Adaptive, ArrivalConfig"):
        read_card(tmp_path)


def test_a_card_with_a_part_missing_or_too_many_is_refused(tmp_path: Path):
    changed_card(tmp_path, commit=None)
    with pytest.raises(InputError, match="commit"):
        read_card(tmp_path)
    changed_card(tmp_path, mood="fine")
    with pytest.raises(InputError, match="mood"):
        read_card(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "\0"])
def test_a_card_that_is_no_card_is_called_corrupt(tmp_path: Path, content: str):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(CorruptFile, match=r"run\.json"):
        read_card(tmp_path)


def test_a_run_without_weights_is_refused(tmp_path: Path):
    write_card(tmp_path, card_of(small_variant()))
    with pytest.raises(InputError, match=r"best\.safetensors: no weights there"):
        load_run(tmp_path)


def test_a_run_with_the_weights_of_another_is_refused(tmp_path: Path):
    write_card(tmp_path, card_of(small_variant("ours")))
    save_weights(tmp_path / "best.safetensors", seeded_operator(small_variant("gnn")), {})
    with pytest.raises(InputError, match="weights of another network"):
        load_run(tmp_path)


def test_the_heat_recipe_is_among_those_tested():
    assert {variant.name for recipe, variant in SIMULATED if recipe is heat} >= {"ours", "paper", "fno", "gnn"}
