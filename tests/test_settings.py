import json
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfunk.errors import InputError
from gfunk.recipes.book import RECIPES
from gfunk.recipes.heat_data import HeatProblem
from gfunk.recipes.recipe import Variant
from gfunk.runs import RECORDS
from gfunk.settings import from_json, to_json, with_overrides

ALL = [(recipe.name, variant) for recipe in RECIPES.values() for variant in recipe.variants]


@dataclass(frozen=True, kw_only=True)
class Leaf:
    n: int = 3
    rate: float = 0.5
    is_on: bool = False
    kind: Literal["round", "square"] = "round"
    label: str = "plain"
    pairs: tuple[tuple[int, int], ...] = ((1, 1),)
    powers: tuple[int, ...] = (0,)
    patience: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tree:
    leaf: Leaf = Leaf()
    rest: Leaf | None = None
    height: float = 1.0


@pytest.mark.parametrize(("name", "variant"), ALL, ids=[f"{name}-{variant.name}" for name, variant in ALL])
def test_reading_undoes_writing_for_every_variant_of_every_recipe(name: str, variant: Variant):
    written = json.loads(json.dumps(to_json(variant)))
    assert from_json(written, RECORDS) == variant
    assert to_json(from_json(written, RECORDS)) == written


@given(st.floats(1e-6, 0.5), st.floats(1, 100), st.integers(1, 1000))
def test_numbers_come_back_to_the_last_bit(max_cell: float, ratio: float, n_saves: int):
    problem = HeatProblem(max_cell=max_cell, ratio=ratio, n_saves=n_saves)
    assert from_json(json.loads(json.dumps(to_json(problem))), [HeatProblem]) == problem


def test_an_unknown_kind_is_refused_and_the_known_are_listed():
    with pytest.raises(InputError, match="unknown kind 'Leaf'; known are HeatProblem"):
        from_json(to_json(Leaf()), [HeatProblem])
    with pytest.raises(InputError, match="unknown kind None"):
        from_json({"n": 3}, [Leaf])


def test_an_unknown_setting_in_a_file_is_refused_and_the_known_are_listed():
    with pytest.raises(InputError, match="Leaf has no setting 'colour'; it has is_on, kind, label, n"):
        from_json({"is": "Leaf", "colour": 1}, [Leaf])


def test_no_override_changes_nothing():
    assert with_overrides(Tree(), []) == Tree()


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("leaf.n=7", {"n": 7}),
        (" leaf.n = 7 ", {"n": 7}),
        ("leaf.rate=1e-4", {"rate": 1e-4}),
        ("leaf.rate=2", {"rate": 2.0}),
        ("leaf.is_on=True", {"is_on": True}),
        ("leaf.kind=square", {"kind": "square"}),
        ("leaf.kind='square'", {"kind": "square"}),
        ("leaf.label=a=b", {"label": "a=b"}),
        ("leaf.label=12", {"label": "12"}),
        ("leaf.pairs=((1,1),(2,1))", {"pairs": ((1, 1), (2, 1))}),
        ("leaf.pairs=[[4, 1]]", {"pairs": ((4, 1),)}),
        ("leaf.powers=0,1,2", {"powers": (0, 1, 2)}),
        ("leaf.powers=()", {"powers": ()}),
        ("leaf.patience=5", {"patience": 5}),
        ("leaf.patience=None", {"patience": None}),
    ],
)
def test_an_override_changes_its_setting_and_no_other(override: str, changes: dict[str, Any]):
    changed = with_overrides(Tree(), [override])
    assert changed == Tree(leaf=replace(Leaf(), **changes))
    assert all(type(getattr(changed.leaf, name)) is type(value) for name, value in changes.items())


def test_the_last_of_several_overrides_wins():
    assert with_overrides(Tree(), ["leaf.n=7", "height=3", "leaf.n=8"]) == Tree(leaf=Leaf(n=8), height=3.0)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("leaf.colour=1", "no setting 'colour' here; there are n, rate, is_on, kind, label, pairs, powers, patience"),
        ("twig=1", "no setting 'twig' here; there are leaf, rest, height"),
        ("leaf=1", "set one of leaf.n, leaf.rate"),
        ("height.n=1", "height is a plain value"),
        ("rest.n=1", "rest is a plain value"),
        ("leaf.n", "write it as key=value"),
        ("leaf.n=", "int expected, not str ''"),
        ("leaf.n=True", "int expected, not bool True (now 3)"),
        ("leaf.n=3.0", "int expected, not float 3.0"),
        ("leaf.n=None", "int expected, not NoneType None"),
        ("leaf.n=many", "int expected, not str 'many'"),
        ("leaf.rate=True", "float expected, not bool"),
        ("leaf.rate=fast", "float expected, not str"),
        ("leaf.is_on=1", "bool expected, not int"),
        ("leaf.kind=oval", "'round' or 'square' expected, not str 'oval'"),
        ("leaf.pairs=3", "tuple[tuple[int, int], ...] expected, not int"),
        ("leaf.pairs=((1,2,3),)", "tuple[int, int] expected, not tuple (1, 2, 3)"),
        ("leaf.pairs=((1,2.5),)", "int expected, not float 2.5"),
        ("leaf.patience=long", "int | None expected, not str 'long'"),
        ("leaf.n=__import__('os')", "int expected, not str"),
    ],
)
def test_a_wrong_override_is_refused_with_its_reason(override: str, said: str):
    with pytest.raises(InputError) as refusal:
        with_overrides(Tree(), [override])
    assert said in str(refusal.value) and override in str(refusal.value)
    assert "\n" not in str(refusal.value)
