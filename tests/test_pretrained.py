import hashlib
import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_heat import SMALL_NETWORKS, small_options, small_variant, toy_problem, toy_set
from toy_surfaces import PROBLEM, write_untrained

from gfunk import load_pretrained, pretrained
from gfunk.cli import main
from gfunk.errors import InputError
from gfunk.experiments import check_same_tissue, seeded_operator, shipped_for
from gfunk.pretrained import MOST_BYTES, ModelCard, pretrained_names, read_model_card, ship
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.book import RECIPES
from gfunk.rollout import rollout
from gfunk.runs import RunCard, load_run, write_bounds, write_card
from gfunk.settings import to_json
from gfunk.store import CorruptFile, read_arrays, write_arrays, write_json
from gfunk.trust import Bounds, Trust

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

DOCUMENT = Path(__file__).parent.parent / "docs" / "models.md"
OUTCOME = {"reason": "done", "epochs": 3, "best_epoch": 2, "best_validation": 0.1, "seconds": 1.5, "hardware": "an abacus"}
ROW = {
    "recipe": "heat", "variant": "ours", "label": "ours", "rel_l2": 0.02, "rel_h1": 0.3, "n": 4, "parameters": 7,
    "problem": to_json(toy_problem), "trained": OUTCOME, "command": "gfunk evaluate run", "commit": "c0ffee",
}  # fmt: skip
PLAIN: dict[str, Any] = {"name": None, "label": None, "limits": "toys", "data": None, "n_train": 10, "n_val": 4}


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: Patch) -> Path:
    """An empty folder in place of the package's."""
    folder = tmp_path / "weights"
    monkeypatch.setattr(pretrained, "weights_folder", lambda: folder)
    return folder


def make_run(
    folder: Path, variant_name: str = "ours", outcome: dict[str, Any] | None = OUTCOME, factor: float = 1.0
) -> Path:
    """A run as training leaves it, its weights those it began with; beside it a record of its test."""
    variant = small_variant(variant_name)
    write_card(
        folder, RunCard(recipe="heat", problem=toy_problem, variant=variant, data_fingerprint="f00 ba2", commit="c0ffee")
    )
    arrays = {name: factor * tensor.numpy() for name, tensor in seeded_operator(variant).state_dict().items()}
    write_arrays(folder / "best.safetensors", arrays)
    if outcome is not None:
        write_json(folder / "outcome.json", outcome)
    write_json(folder / "rows.json", [ROW | {"variant": variant_name, "label": variant_name}])
    return folder


def ship_run(run: Path, **how: Any) -> ModelCard:
    return ship(run, record=run / "rows.json", **(PLAIN | how))


def predicted(operator: torch.nn.Module, data: Path, name: str) -> torch.Tensor:
    test = toy_set(data, "test", name)
    with torch.no_grad():
        return rollout(
            operator, test.values[:, 0], test.batch, torch.diff(test.times).tolist(), small_variant(name).integrator
        )


@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_a_model_shipped_in_float32_is_the_run_bit_for_bit(tmp_path: Path, weights: Path, toy_data: Path, name: str):
    run = make_run(tmp_path / "run", name)
    ship_run(run)
    operator, card = load_pretrained("heat")
    assert card.precision == "float32" and not operator.training
    trained = load_run(run)[0].state_dict()
    assert all(torch.equal(tensor, trained[each]) for each, tensor in operator.state_dict().items())
    assert torch.equal(predicted(operator, toy_data, name), predicted(load_run(run)[0], toy_data, name))


@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_a_model_shipped_in_float16_rounds_weights_once_and_hardly_changes_predictions(
    tmp_path: Path, weights: Path, toy_data: Path, name: str
):
    run = make_run(tmp_path / "run", name)
    card = ship_run(run, precision="float16")
    operator, trained = load_pretrained("heat")[0], load_run(run)[0]
    assert card.precision == "float16"
    for rounded, exact in zip(operator.state_dict().values(), trained.state_dict().values(), strict=True):
        assert rounded.dtype == exact.dtype
        # Half the distance of two float16, for normal numbers and for those below them.
        assert torch.all((rounded - exact).abs() <= exact.abs() / 2**11 + 2**-25)
    rounded, exact = (predicted(each, toy_data, name) for each in (operator, trained))
    assert 0 < (rounded - exact).norm() < 1e-3 * exact.norm()


def test_a_card_comes_back_as_it_was_written_and_says_where_the_model_comes_from(tmp_path: Path, weights: Path):
    run = make_run(tmp_path / "run")
    card = ship_run(run, name="small-heat", limits=" Squares only. ")
    assert read_model_card("small-heat") == card == load_pretrained("small-heat")[1]
    assert (card.recipe, card.commit, card.training, card.limits) == ("heat", "c0ffee", OUTCOME, "Squares only.")
    assert (card.data.fingerprint, card.data.train.first, card.data.train.n, card.data.val.first, card.data.val.n) == (
        "f00 ba2", 0, 10, 100_000, 4,
    )  # fmt: skip
    assert card.tested["rel_l2"] == 0.02 and card.tested["n"] == 4 and card.tested["command"] == "gfunk evaluate run"
    assert card.sha256 == hashlib.sha256((weights / "small-heat.safetensors").read_bytes()).hexdigest()


def test_a_card_has_the_bounds_that_were_found_for_the_run(tmp_path: Path, weights: Path):
    run = make_run(tmp_path / "run")
    assert ship_run(run).trust == Trust()
    smooth = Bounds(share=0.9, rel_l2=0.01, lat_error_ms=0.1, lat_error_ms_95=0.2, n_waves=9, n_domains=3)
    rough = replace(smooth, fibre_turn=16.0)
    write_bounds(run, [rough, smooth])
    assert ship_run(run).trust == read_model_card("heat").trust == Trust(bounds=smooth, rough=(rough,))


def test_shipping_twice_gives_the_same_bytes(tmp_path: Path, weights: Path):
    run = make_run(tmp_path / "run")
    ship_run(run)
    first = {path.name: path.read_bytes() for path in weights.iterdir()}
    ship_run(run)
    assert {path.name: path.read_bytes() for path in weights.iterdir()} == first


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_single_changed_bit_is_found(tmp_path_factory: pytest.TempPathFactory, place: float, bit: int):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("tampered")
        patch.setattr(pretrained, "weights_folder", lambda: folder)
        ship_run(make_run(folder / "run"))
        content = bytearray((folder / "heat.safetensors").read_bytes())
        content[int(place * len(content))] ^= 1 << bit
        (folder / "heat.safetensors").write_bytes(content)
        with pytest.raises(CorruptFile, match=r"heat\.safetensors: not the weights its card speaks of"):
            load_pretrained("heat")


def test_other_whole_weights_under_the_same_name_are_found(tmp_path: Path, weights: Path):
    ship_run(make_run(tmp_path / "run"))
    arrays, _ = read_arrays(weights / "heat.safetensors")
    write_arrays(weights / "heat.safetensors", {name: 2 * array for name, array in arrays.items()})
    with pytest.raises(CorruptFile, match="another sha256"):
        load_pretrained("heat")
    (weights / "heat.safetensors").unlink()
    with pytest.raises(InputError, match="no weights there"):
        load_pretrained("heat")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "another version"),
        ({"mood": "fine"}, "mood"),
        ({"variant": {"is": "Sonnet"}}, "unknown kind 'Sonnet'"),
    ],
)
def test_a_card_of_another_kind_is_refused(tmp_path: Path, weights: Path, change: dict[str, Any], said: str):
    ship_run(make_run(tmp_path / "run"))
    content = json.loads((weights / "heat.json").read_text())
    (weights / "heat.json").write_text(json.dumps(content | change))
    with pytest.raises(InputError, match=said):
        load_pretrained("heat")


def test_an_unknown_name_is_answered_with_those_known(tmp_path: Path, weights: Path):
    with pytest.raises(InputError, match=r"no shipped model 'heart'.*shipped are none"):
        load_pretrained("heart")
    for name in ("heat", "cold"):
        ship_run(make_run(tmp_path / "run"), name=name)
    with pytest.raises(InputError, match=r"no shipped model 'heart'.*shipped are cold, heat"):
        load_pretrained("heart")


@pytest.mark.parametrize("name", ["", "Heat", "../heat", "a/b", "a--b", "-a", "a.b"])
def test_a_name_that_is_no_plain_word_is_refused(tmp_path: Path, weights: Path, name: str):
    with pytest.raises(InputError, match="lower-case letters"):
        ship_run(make_run(tmp_path / "run"), name=name)


def test_weights_that_do_not_fit_are_halved_and_then_refused(tmp_path: Path, weights: Path, monkeypatch: Patch):
    run = make_run(tmp_path / "run")
    whole, half = (len(shipped_bytes(weights, run, precision=each)) for each in ("float32", "float16"))
    assert half < whole
    monkeypatch.setattr(pretrained, "MOST_BYTES", whole + half)
    assert ship_run(run, name="first").precision == "float32"
    (weights / "heat.safetensors").unlink()
    assert ship_run(run, name="second").precision == "float16"
    assert ship_run(run, name="first").precision == "float32", "it makes way for itself"
    with pytest.raises(InputError, match="only 0 are left"):
        ship_run(run, name="third")
    with pytest.raises(InputError, match=f"{whole:,} bytes in float32, but only {half:,} are left"):
        ship_run(run, name="second", precision="float32")
    assert pretrained_names() == ["first", "heat", "second"]


def shipped_bytes(weights: Path, run: Path, **how: Any) -> bytes:
    ship_run(run, **how)
    return (weights / "heat.safetensors").read_bytes()


def test_weights_beyond_float16_are_refused_in_it_and_shipped_in_float32(tmp_path: Path, weights: Path):
    run = make_run(tmp_path / "run", factor=1e7)
    with pytest.raises(InputError, match="numbers beyond 65,504"):
        ship_run(run, precision="float16")
    assert ship_run(run).precision == "float32"


@pytest.mark.parametrize("outcome", [None, OUTCOME | {"reason": "time is up"}])
def test_a_run_not_trained_to_its_end_is_shipped_only_if_that_is_said(
    tmp_path: Path, weights: Path, outcome: dict[str, Any] | None
):
    run = make_run(tmp_path / "run", outcome=outcome)
    write_json(run / "rows.json", [{name: value for name, value in ROW.items() if name != "trained"}])
    if outcome:
        write_json(run / "rows.json", [ROW | {"trained": outcome}])
    lines = [{"number": number, "validation": error, "seconds": 2.0} for number, error in ((1, 0.5), (2, 0.25), (3, None))]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match="not trained to its end"):
        ship_run(run)
    training = ship_run(run, unfinished=True).training
    by_log = {"reason": "stopped", "epochs": 3, "best_epoch": 2, "best_validation": 0.25, "seconds_without_validation": 6.0}
    assert training == (outcome or by_log)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (None, "neither outcome.json nor log.jsonl"),
        ("", "no epoch was validated"),
        ('{"number": 1, "validation": null}', "no epoch was validated"),
        ('{"number": 1, "valid', "not one JSON object a line"),
    ],
)
def test_a_run_that_nothing_tells_of_is_refused(tmp_path: Path, weights: Path, log: str | None, said: str):
    run = make_run(tmp_path / "run", outcome=None)
    write_json(run / "rows.json", [{name: value for name, value in ROW.items() if name != "trained"}])
    if log is not None:
        (run / "log.jsonl").write_text(log)
    with pytest.raises(InputError, match=said):
        ship_run(run, unfinished=True)
    assert pretrained_names() == []


def test_only_a_row_measured_on_this_very_run_is_taken(tmp_path: Path, weights: Path):
    run = make_run(tmp_path / "run")
    others = [
        ROW | {"trained": OUTCOME | {"seconds": 1.6}},
        ROW | {"problem": ROW["problem"] | {"ratio": 4.0}},
        {name: value for name, value in ROW.items() if name != "trained"},
    ]
    for rows, said in [
        ([], "no row 'ours' of heat/ours"),
        ([ROW | {"label": "turned"}, ROW | {"variant": "paper"}], "no row 'ours' of heat/ours"),
        (others, "of another run or problem"),
    ]:
        write_json(run / "rows.json", rows)
        with pytest.raises(InputError, match=said):
            ship_run(run)
    write_json(run / "rows.json", [ROW, ROW | {"rel_l2": 0.01}, *others, ROW | {"label": "turned", "rel_l2": 0.03}])
    assert ship_run(run).tested["rel_l2"] == 0.01, "the newest"
    assert ship_run(run, label="turned").tested["rel_l2"] == 0.03


def test_an_atrium_may_be_tested_from_more_sites_but_not_otherwise_paced(tmp_path: Path, weights: Path):
    run = write_untrained(tmp_path / "run")
    write_json(run / "outcome.json", OUTCOME)
    row = ROW | {"recipe": "atria", "variant": "untrained", "label": "untrained"}

    def shipped(tested_on: AtriumProblem) -> ModelCard:
        write_json(run / "rows.json", [row | {"problem": to_json(tested_on)}])
        return ship_run(run)

    assert shipped(replace(PROBLEM, n_sites=PROBLEM.n_sites + 1)).problem == PROBLEM
    later = replace(PROBLEM.pacing, n_saves=PROBLEM.pacing.n_saves + 1)
    for other in (replace(PROBLEM, pacing=later), replace(PROBLEM, pacing=later, n_sites=1), replace(PROBLEM, ratio=4.0)):
        with pytest.raises(InputError, match="of another run or problem"):
            shipped(other)


def test_what_a_model_learned_from_must_be_said(tmp_path: Path, weights: Path):
    run = make_run(tmp_path / "run")
    for part in ({"n_train": None}, {"n_val": None}):
        with pytest.raises(InputError, match="say what it was trained on"):
            ship_run(run, **part)
    with pytest.raises(InputError, match="where the model ends"):
        ship_run(run, limits=" ")
    assert not weights.exists()


def answer(capsys: Capture, *words: str | Path) -> Any:
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_trained_run_is_shipped_listed_and_checked_by_name(
    capsys: Capture, toy_data: Path, tmp_path: Path, weights: Path, monkeypatch: Patch
):
    run, record = tmp_path / "run", tmp_path / "rows.json"
    small = [*small_options(), "--n-train", "8", "--workers", "1"]
    answer(capsys, "train", "heat", "--data", toy_data, "--out", run, *small)
    fresh = ["--seed", "200000", "--n", "2", "--workers", "1"]
    before = answer(capsys, "evaluate", run, *fresh, "--record", record)
    words = ["ship", run, "--record", record, "--limits", "Toys.", "--data", toy_data]
    assert main([*map(str, words)]) == 2
    assert "10 training and 4 validation samples are not what the run was trained on" in capsys.readouterr().err
    (shipped,) = answer(capsys, *words, "--n-train", "8")
    assert shipped == answer(capsys, "models")[0]
    assert (shipped["name"], shipped["variant"], shipped["rel_l2"], shipped["n"]) == ("heat", "ours", before["rel_l2"], 2)
    assert shipped["parameters"] == before["parameters"]
    assert shipped["bytes"] == (weights / "heat.safetensors").stat().st_size

    # A folder of the same name is no model; a run of the same name is.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat").mkdir()
    after = answer(capsys, "evaluate", "heat", *fresh)
    assert (after["recipe"], after["variant"], after["n"]) == ("heat", "ours", 2)
    assert [row["rel_l2"] for row in after["rows"]] == [row["rel_l2"] for row in before["rows"]]
    assert main(["evaluate", "soup"]) == 2
    assert "no shipped model 'soup', nor a run folder of that name; shipped are heat" in capsys.readouterr().err
    (tmp_path / "soup").symlink_to(run)
    assert answer(capsys, "evaluate", "soup", *fresh)["rel_l2"] == before["rel_l2"]

    card = read_model_card("heat")
    assert card.data.is_checked and (card.data.train.n, card.data.val.n) == (8, 4)
    assert card.training["epochs"] == 3 and card.training["hardware"]


def test_without_models_the_list_is_empty(capsys: Capture, weights: Path):
    assert answer(capsys, "models") == []
    assert main(["models"]) == 0


def shipped_files() -> dict[str, Path]:
    """What an installed package holds."""
    with resources.as_file(resources.files("gfunk") / "weights") as folder:
        return {path.name: path for path in folder.iterdir()}


def test_every_shipped_file_is_a_card_or_the_weights_of_one():
    names = pretrained_names()
    assert set(shipped_files()) == {f"{name}.{end}" for name in names for end in ("json", "safetensors")}
    assert sum(shipped_files()[f"{name}.safetensors"].stat().st_size for name in names) <= MOST_BYTES == 5_000_000


@pytest.mark.parametrize("name", pretrained_names())
def test_a_shipped_model_is_what_its_card_says(name: str):
    operator, card = load_pretrained(name)
    assert card.name == name and card.recipe in RECIPES and card.limits and card.commit and card.licence == "MIT"
    assert all(torch.isfinite(tensor).all() for tensor in operator.state_dict().values())
    arrays, _ = read_arrays(shipped_files()[f"{name}.safetensors"])
    assert {array.dtype for array in arrays.values() if array.dtype.kind == "f"} == {np.dtype(card.precision)}
    assert 0 < card.tested["rel_l2"] < 1 and card.tested["n"] > 0 and card.tested["command"].startswith("gfunk evaluate")
    assert f"\n## {name}\n" in DOCUMENT.read_text(), "every model has a section"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_predicted_by_a_shipped_model_of_its_tissue(name: str):
    model, recipe = shipped_for(name)
    assert model in pretrained_names() and recipe in (None, name) and (recipe is None) == (model == name)
    check_same_tissue(model, name, read_model_card(model).problem, RECIPES[name])


def test_a_recipe_that_no_model_is_named_after_is_evaluated_by_its_name(capsys: Capture, monkeypatch: Patch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    small = {"kept_edge_mm": 1.5, "n_halvings": 0, "pacing.n_saves": 5, "pacing.scheme": "paper"}
    words = ["--n", 1, "--workers", 1, *(word for name, value in small.items() for word in ("--set", f"{name}={value}"))]
    by_recipe = answer(capsys, "evaluate", "atria-190@16", *words)
    assert by_recipe["rows"] == answer(capsys, "evaluate", "atria@16", "--recipe", "atria-190", *words)["rows"]
    assert by_recipe["rel_l2"] != answer(capsys, "evaluate", "atria-190@12", *words)["rel_l2"]


def test_the_python_example_of_the_document_predicts_well():
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    scope: dict[str, Any] = {}
    exec(example, scope)
    assert scope["error"] < 1e-3
