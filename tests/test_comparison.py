"""Laws of comparing: the same seconds for all, no run trained twice, each an ordinary run, no test data."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_heat import assert_same_run, small_options, small_variant, toy_recipe, toy_set

from gfunk import comparison
from gfunk.cli import main
from gfunk.comparison import Lever, Row, compare, levers_of, read_levers
from gfunk.errors import InputError
from gfunk.pace import Pace, _seconds_each, epochs_within, measured_pace
from gfunk.recipes.book import recipe_named
from gfunk.rollout import Euler
from gfunk.runs import read_card
from gfunk.store import read_json, read_object
from gfunk.training import TrainingConfig, draws, horizon

ROOT = Path(__file__).parent.parent
SECONDS = 0.3


def small_settings(name: str) -> list[str]:
    words = small_options(name)[2:]
    return [word for word in words if "=" in word and not word.startswith("training.epochs")]


SMALL = small_settings("ours")
FEWER = "fewer modes: network.n_modes=6 view.n_modes=6"
PAPER = f"the paper's: variant=paper {' '.join(small_settings('paper'))}"
WILD = "wild: training.learning_rate=1e9"
MANY_SIZES = "many sizes: training.n_sizes=11"
TOO_MANY = "too many modes: network.n_modes=300 view.n_modes=300"


def compared(data: Path, out: Path, texts: list[str], **how: Any) -> list[Row]:
    recipe = toy_recipe()
    how = {"seconds": SECONDS, "n_seeds": 1, "device": torch.device("cpu"), "hardware": "a core"} | how
    return compare(recipe, levers_of(recipe, recipe.variant("ours"), SMALL, texts), data, out, **how)


def fit_epochs(monkeypatch: pytest.MonkeyPatch, epochs: int):
    """So many epochs fit, whatever the clock says."""
    pace = Pace(epoch={False: {1: 0.999 * SECONDS / epochs}}, validation=0.0)
    monkeypatch.setattr(comparison, "measured_pace", lambda *_, **__: pace)


@pytest.fixture(scope="module")
def untested(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy data without their test split."""
    folder = tmp_path_factory.mktemp("untested")
    for split in ("train", "val"):
        shutil.copytree(toy_data / split, folder / split)
    return folder


@pytest.fixture(scope="module")
def done(untested: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """Two seeds of five levers, three of which fail."""
    out = tmp_path_factory.mktemp("compared")
    return out, compared(untested, out, [WILD, FEWER, TOO_MANY, MANY_SIZES, PAPER], n_seeds=2)


def test_each_lever_has_a_row_of_means_over_its_seeds_and_the_unchanged_variant_comes_first(done: tuple[Path, list[Row]]):
    out, rows = done
    assert rows[0].lever == "as it is" and rows[0].settings.split() == SMALL
    assert {row.lever for row in rows[1:3]} == {"fewer modes", "the paper's"}
    for row in rows[:3]:
        assert row.failed is None and [run.seed for run in row.runs] == [0, 1] and row.seeds == 2
        errors = [run.val_rel_l2 for run in row.runs]
        assert row.val_rel_l2 == fmean(errors) and row.spread == stdev(errors) > 0
        assert len({(run.epochs, run.parameters) for run in row.runs}) == 1
        assert row.milliseconds_per_trajectory is not None and row.milliseconds_per_trajectory > 0
    assert (rows[1].val_rel_l2 or 0) <= (rows[2].val_rel_l2 or 0)
    assert {path.name for path in out.iterdir()} == {
        "comparison.json", "as-it-is", "fewer-modes", "the-paper-s", "wild"
    }  # fmt: skip


def test_a_lever_that_fails_says_why_and_the_others_go_on(done: tuple[Path, list[Row]]):
    failed = {row.lever: row for row in done[1][3:]}
    assert "the loss became" in (failed["wild"].failed or "")
    assert "training.n_sizes is 11, more than the 10 trajectories" in (failed["many sizes"].failed or "")
    assert "300 modes can't be had from 225 nodes" in (failed["too many modes"].failed or "")
    assert all(row.seeds == 0 and row.val_rel_l2 is None and row.runs == () for row in failed.values())


def test_a_second_call_trains_and_reads_nothing(
    done: tuple[Path, list[Row]], untested: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any, **__: Any):
        raise AssertionError("done already")

    for name in ("load_split", "measured_pace", "train"):
        monkeypatch.setattr(comparison, name, refuse)
    again = compared(untested, done[0], [FEWER, PAPER], n_seeds=2)
    assert again == done[1][:3]


def test_where_every_lever_fails_there_is_no_table(untested: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"every lever failed.*train: holds 10 samples, 1000 were asked for"):
        compared(untested, tmp_path, [FEWER], n_train=1000)


def test_levers_that_see_the_same_domains_share_them(untested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loaded = []

    def load_split(folder: Path, view: Any, **how: Any):
        loaded.append((folder.name, type(view.discretisation).__name__, view.n_modes))
        return comparison_load(folder, view, **how)

    comparison_load = comparison.load_split
    monkeypatch.setattr(comparison, "load_split", load_split)
    fit_epochs(monkeypatch, 1)
    compared(untested, tmp_path, [PAPER, FEWER, "wider: network.width=9"])
    expected = [(split, kind, 12) for kind in ("Fem", "PaperGraph") for split in ("train", "val")]
    assert loaded == expected


def trained_alone(data: Path, run: Path, out: Path, texts: list[str] = SMALL):
    """What `gfunk train` makes of the settings, with the epochs and seed of the run's card."""
    training = read_card(run).variant.training
    assert training is not None
    settings = [*texts, f"training.epochs={training.epochs}", f"training.seed={training.seed}"]
    words = ["train", "heat", "--data", str(data), "--out", str(out), "--workers", "1", "--device", "cpu"]
    assert main([*words, *(word for setting in settings for word in ("--set", setting))]) == 0


def test_a_run_is_the_one_that_train_makes_with_its_epochs_and_seed(
    done: tuple[Path, list[Row]], toy_data: Path, tmp_path: Path
):
    run = done[0] / "as-it-is" / "seed-1"
    trained_alone(toy_data, run, tmp_path / "alone")
    assert_same_run(run, tmp_path / "alone")


def test_a_lever_with_fewer_modes_than_were_found_is_the_one_for_which_no_more_were_found(
    done: tuple[Path, list[Row]], toy_data: Path, tmp_path: Path
):
    run = done[0] / "fewer-modes" / "seed-0"
    trained_alone(toy_data, run, tmp_path / "alone", [*SMALL, "network.n_modes=6", "view.n_modes=6"])
    outcomes = [read_object(folder / "outcome.json") for folder in (run, tmp_path / "alone")]
    assert outcomes[0]["best_validation"] == pytest.approx(outcomes[1]["best_validation"], rel=1e-3)


@pytest.mark.parametrize("lever", ["as-it-is", "fewer-modes", "the-paper-s"])
def test_the_error_is_the_one_that_evaluate_finds_on_the_validation_split(
    done: tuple[Path, list[Row]], toy_data: Path, capsys: pytest.CaptureFixture[str], lever: str
):
    run = done[0] / lever / "seed-0"
    words = ["evaluate", str(run), "--data", str(toy_data), "--split", "val", "--workers", "1", "--device", "cpu", "--json"]
    assert main(words) == 0
    found, score = json.loads(capsys.readouterr().out), read_object(run / "score.json")
    assert score["val_rel_l2"] == pytest.approx(found["rel_l2"], rel=1e-5)
    assert score["val_rel_h1"] == pytest.approx(found["rel_h1"], rel=1e-5)
    assert score["parameters"] == found["parameters"]


@pytest.mark.parametrize("epochs_before", [0, 2])
def test_a_comparison_broken_and_begun_again_is_the_one_never_broken(
    untested: Path, toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs_before: int
):
    fit_epochs(monkeypatch, 4)
    seen = 0

    def break_in(*_: Any):
        nonlocal seen
        seen += 1
        if seen > epochs_before:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared(untested, tmp_path, [], on_epoch=break_in)
    # The epochs are those of the run that was begun, not what would fit now.
    fit_epochs(monkeypatch, 9)
    (row,) = compared(untested, tmp_path, [])
    assert row.epochs == 4
    trained_alone(toy_data, tmp_path / "as-it-is" / "seed-0", tmp_path / "alone")
    assert_same_run(tmp_path / "as-it-is" / "seed-0", tmp_path / "alone")


def test_what_would_make_it_unfair_is_refused(done: tuple[Path, list[Row]], untested: Path):
    for how, said in [
        ({"seconds": 7.0}, "was begun with other seconds (0.3, not 7.0)"),
        ({"hardware": "an abacus"}, "was begun with other hardware (a core, not an abacus)"),
        ({"n_train": 5}, "was begun with other data: compare in another folder"),
        ({"texts": ["fewer modes: network.n_modes=5"]}, "give the lever 'fewer modes' another name"),
    ]:
        with pytest.raises(InputError) as refused:
            compared(untested, done[0], **({"texts": [], "n_seeds": 2} | how))
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("lever", "said"),
    [
        ("l3: training.los=l2", "lever 'l3': training.los=l2: no setting 'los' here; there are epochs"),
        ("l3: training.loss=l3", "lever 'l3': training.loss=l3: 'l2' or 'h1' expected"),
        ("theirs: variant=theirs", "no variant 'theirs'; it has ours"),
        ("exact: variant=no-learning-50", "lever 'exact': no-learning-50 has nothing to learn"),
        ("more: network.n_modes=300", "lever 'more': network.n_modes is 300, but view.n_modes only 12"),
        ("thin: network.width=-1", "lever 'thin': no such network"),
        ("long: training.epochs=9", "lever 'long': training.epochs can't be set"),
        ("l2 training.loss=l2", "write it as NAME: KEY=VALUE"),
        ("l2:", "write it as NAME: KEY=VALUE"),
        ("l2: training.loss='l2", "No closing quotation"),
        ("as it is: training.loss=h1", "2 levers would have the folder 'as-it-is'"),
    ],
)
def test_a_lever_that_can_not_be_is_refused_before_any_training(
    untested: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lever: str, said: str
):
    words = ["compare", "heat", "--data", str(untested), "--out", str(tmp_path / "out"), "--seconds", "1"]
    settings = [word for setting in SMALL for word in ("--set", setting)]
    assert main([*words, *settings, "--lever", "fine: training.clip=2.0", "--lever", lever]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_reads_levers_from_a_file_and_records_what_it_found(
    untested: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "levers.txt").write_text("# a remark\n\nclip: training.clip=2.0\n")
    words = ["compare", "heat", "--data", untested, "--out", tmp_path / "out", "--seconds", "0.01"]
    words += ["--levers", tmp_path / "levers.txt", "--lever", "h1: training.loss=h1", "--record", tmp_path / "rows.json"]
    settings = [word for setting in SMALL for word in ("--set", setting)]
    words = [*map(str, words), "--workers", "1", "--device", "cpu", *settings, "--json"]
    assert main(words) == 0
    answer, (recorded,) = json.loads(capsys.readouterr().out), read_json(tmp_path / "rows.json")
    assert {row["lever"] for row in answer["rows"]} == {"as it is", "clip", "h1"}
    assert all(row["seeds"] == 1 for row in answer["rows"]) and answer["seconds"] == 0.01
    assert recorded["rows"] == answer["rows"] and recorded["command"].startswith("gfunk compare heat")
    assert all(recorded[name] for name in ("hardware", "commit", "date"))
    # The least there can be is an epoch.
    assert {row["epochs"] for row in answer["rows"]} == {1}


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("levers-*.txt")), ids=lambda path: path.stem)
def test_the_levers_kept_here_are_changes_of_their_recipe(path: Path):
    size, name = "full", path.stem.removeprefix("levers-")
    if name.startswith("smoke-"):
        size, name = "smoke", name.removeprefix("smoke-")
    recipe = recipe_named(re.sub("-(patient|rivals|starts)$", "", name))
    levers = levers_of(recipe, recipe.sized(size).variant(None), [], read_levers(path))
    unchanged, *others = (lever.variant for lever in levers)
    assert others and all(variant != unchanged for variant in others)


@given(
    first=st.integers(0, 20),
    growth=st.floats(0.1, 1.0),
    power=st.floats(1.0, 30.0),
    coarse_part=st.sampled_from([0.0, 0.5, 1.0]),
    validate_every=st.integers(1, 10),
    seconds=st.floats(0.5, 200.0),
)
def test_so_many_epochs_take_no_longer_than_the_seconds_and_one_more_would(
    first: int, growth: float, power: float, coarse_part: float, validate_every: int, seconds: float
):
    config = TrainingConfig(
        epochs=1, batch_size=1, learning_rate=1.0, first_horizon=first, growth=growth, growth_power=power,
        coarse_part=coarse_part, validate_every=validate_every,
    )  # fmt: skip
    pace = Pace(epoch={True: {1: 0.1, 20: 0.3}, False: {1: 0.2, 20: 2.1}}, validation=0.7)

    def total(epochs: int) -> float:
        config_then = replace(config, epochs=epochs)
        spent = 0.7 * -(-epochs // validate_every)
        for epoch in range(epochs):
            n = max(1, horizon(config_then, epoch, 20))
            low, rise = (0.1, 0.2 / 19) if epoch < coarse_part * epochs else (0.2, 0.1)
            spent += low + rise * (n - 1)
        return spent

    found = epochs_within(seconds, config, 20, pace)
    assert found == 1 or total(found) <= seconds + 1e-9
    assert total(found + 1) > seconds - 1e-9


@pytest.mark.parametrize("name", ["ours", "paper"])
def test_the_pace_is_found_from_a_few_iterations(toy_data: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    # A clock that only work moves: a save takes a step of 10 ms, or four where they are not coarse.
    variant = small_variant(name)
    config, integrator = variant.training, variant.integrator
    data, validation = toy_set(toy_data, "train", name), toy_set(toy_data, "val", name)
    now = 0.0

    def seconds_of(draw: Any) -> float:
        return 0.005 + 0.01 * (len(draw.saves) - 1) * (4 if isinstance(integrator, Euler) and not draw.is_coarse else 1)

    def work(*arguments: Any):
        nonlocal now
        now += seconds_of(arguments[6])
        for parameter in arguments[0].parameters():
            parameter.grad = torch.zeros_like(parameter)

    def validate(*_: Any):
        nonlocal now
        now += 0.5

    monkeypatch.setattr("gfunk.pace._clock", lambda _: now)
    monkeypatch.setattr("gfunk.pace.put_gradients", work)
    monkeypatch.setattr("gfunk.pace.mean_loss", validate)
    pace = measured_pace(variant, data, validation, limit_seconds=2.0)
    assert pace.validation == pytest.approx(0.5)
    assert config is not None
    epochs = epochs_within(60.0, config, len(data.times) - 1, pace)
    config = replace(config, epochs=epochs)
    drawn = [draw for epoch in range(epochs) for draw in draws(config, epoch, data.n_nodes(), len(data.times), integrator)]
    spent = sum(map(seconds_of, drawn)) + 0.5 * -(-epochs // config.validate_every)
    assert spent == pytest.approx(60.0, rel=0.15)


@given(every=st.integers(2, 12), n=st.integers(1, 16))
def test_iterations_that_are_slow_now_and_then_count_as_often_as_they_come(every: int, n: int):
    # As those of SOAP that turn its axes.
    now, done = 0.0, 0

    def iterate():
        nonlocal now, done
        done += 1
        now += 0.5 if done % every == 0 else 0.01

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gfunk.pace._clock", lambda _: now)
        found = _seconds_each([iterate] * n, torch.device("cpu"), limit_seconds=60.0)
    assert found == pytest.approx(0.01 + 0.49 / every, rel=0.05)


def test_names_of_levers_make_folders_of_their_own():
    lever = levers_of(toy_recipe(), toy_recipe().variant("ours"), SMALL, ["../../rate 1e-3, l2: training.loss=l2"])[1]
    assert isinstance(lever, Lever) and lever.folder == "rate-1e-3-l2"
