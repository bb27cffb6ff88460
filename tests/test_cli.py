import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_heat import TOY_OPTIONS, logged, small_options

from gfunk import cli, console, records
from gfunk.cli import main
from gfunk.recipes.book import RECIPES
from gfunk.settings import to_json
from gfunk.store import read_json

Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, *words: str | Path) -> Any:
    """What a command prints with --json: valid, strict JSON and nothing else."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out, parse_constant=refuse_constant)


def refuse_constant(name: str):
    raise AssertionError(f"{name} is not JSON")


def refusal(capsys: Capture, *words: str | Path) -> str:
    """The one line a command says when its input is bad."""
    capsys.readouterr()
    try:
        status = main([str(word) for word in words])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status == 2
    assert said.out == ""
    assert said.err.count("\n") == 1 and said.err.startswith("gfunk: "), said.err
    return said.err


@pytest.fixture(scope="module")
def toy_run(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our small variant trained for three epochs by the command line, with TensorBoard logs."""
    run = tmp_path_factory.mktemp("runs") / "ours"
    assert main(["train", "heat", "--data", str(toy_data), "--out", str(run), "--tensorboard", *small_options()]) == 0
    return run


def command_names() -> list[str]:
    choices = [each.choices for each in cli._parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return list(choices[0])


@pytest.mark.parametrize("words", [[], *([name] for name in command_names())], ids=lambda words: " ".join(words) or "gfunk")
def test_every_command_explains_itself(capsys: Capture, words: list[str]):
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    said = capsys.readouterr()
    assert said.out.startswith("usage: gfunk") and len(said.out.splitlines()) > 5 and said.err == ""


def test_the_commands_of_the_contract_that_exist_are_there():
    assert {"demo", "recipes", "simulate", "train", "evaluate", "bench", "results"} <= set(command_names())


def test_from_simulation_over_training_to_evaluation(capsys: Capture, tmp_path: Path):
    data, run = tmp_path / "data", tmp_path / "run"
    made = answer(capsys, "simulate", "heat", "--out", data, "--n", "3", "--workers", "1", *TOY_OPTIONS)
    assert [(row["split"], row["samples"], row["simulated"]) for row in made] == [
        ("train", 3, 3),
        ("val", 3, 3),
        ("test", 3, 3),
    ]
    again = answer(capsys, "simulate", "heat", "--out", data, "--n", "3", "--workers", "1", *TOY_OPTIONS)
    assert [row["simulated"] for row in again] == [0, 0, 0]
    outcome = answer(capsys, "train", "heat", "--data", data, "--out", run, "--workers", "1", *small_options())
    assert (outcome["reason"], outcome["epochs"]) == ("done", 3)
    result = answer(capsys, "evaluate", run, "--data", data, "--workers", "1")
    assert {"rel_l2", "rel_h1", "n", "seconds", "rows"} <= result.keys()
    assert (result["n"], result["recipe"], result["variant"]) == (3, "heat", "ours")
    assert 0 < result["rel_l2"] < 0.5 and 0 < result["rel_h1"] < 1
    assert [row["seed"] for row in result["rows"]] == [200_000, 200_001, 200_002]
    assert result["rel_l2"] == pytest.approx(sum(row["rel_l2"] for row in result["rows"]) / 3)


def test_fresh_samples_give_what_the_same_samples_from_disk_give(capsys: Capture, toy_data: Path, toy_run: Path):
    stored = answer(capsys, "evaluate", toy_run, "--data", toy_data, "--n", "2", "--workers", "1")
    fresh = answer(capsys, "evaluate", toy_run, "--n", "2")
    assert fresh["rel_l2"] == pytest.approx(stored["rel_l2"], rel=1e-4)


def test_a_run_is_tried_on_another_recipes_samples_and_the_row_says_so(capsys: Capture, toy_run: Path, tmp_path: Path):
    words = ["evaluate", toy_run, "--n", "2", "--recipe", "heat", *TOY_OPTIONS, "--record", tmp_path / "rows.json"]
    assert answer(capsys, *words)["rows"] == answer(capsys, "evaluate", toy_run, "--n", "2")["rows"]
    assert read_json(tmp_path / "rows.json")[0]["label"] == "ours on heat"


@pytest.mark.parametrize("degrees", ["90", "33.3"])
def test_turning_the_domains_does_not_change_our_error(capsys: Capture, toy_data: Path, toy_run: Path, degrees: str):
    straight = answer(capsys, "evaluate", toy_run, "--data", toy_data, "--workers", "1")
    turned = answer(capsys, "evaluate", toy_run, "--data", toy_data, "--workers", "1", "--rotate", degrees)
    assert turned["rel_l2"] == pytest.approx(straight["rel_l2"], rel=1e-4)


def test_a_variant_without_learning_is_evaluated_by_its_name(capsys: Capture, toy_data: Path):
    result = answer(capsys, "evaluate", "heat/no-learning-50", "--data", toy_data, "--workers", "1")
    assert result["parameters"] == 0 and 0 < result["rel_l2"] < 0.1


def test_recording_appends_a_row_with_command_hardware_and_commit(capsys: Capture, toy_data: Path, tmp_path: Path):
    record = tmp_path / "new" / "rows.json"
    words = ["evaluate", "heat/no-learning-50", "--data", toy_data, "--workers", "1", "--record", record]
    first = answer(capsys, *words)
    answer(capsys, *words, "--label", "a second row")
    rows = read_json(record)
    assert [row["label"] for row in rows] == ["no-learning-50", "a second row"]
    assert rows[0]["rel_l2"] == first["rel_l2"] and rows[0]["problem"]["max_cell"] == 0.005
    assert rows[0]["command"] == shlex.join(["gfunk", *map(str, words), "--json"])
    assert all(rows[0][name] for name in ("hardware", "commit", "date"))


def test_a_recorded_row_says_how_its_run_was_trained(capsys: Capture, toy_data: Path, toy_run: Path, tmp_path: Path):
    answer(capsys, "evaluate", toy_run, "--data", toy_data, "--workers", "1", "--record", tmp_path / "rows.json")
    trained = read_json(tmp_path / "rows.json")[0]["trained"]
    assert trained["epochs"] == 3 and trained["seconds"] > 0 and "CPU" in trained["hardware"] and trained["commit"]


def test_a_full_gpu_is_said_in_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    def recipes(_: argparse.Namespace):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cli, "recipes", recipes)
    assert "the GPU's memory is full" in refusal(capsys, "recipes")


def test_results_are_the_recorded_rows_and_the_best_stands_beside_its_recipe(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(records, "_results_folder", lambda: tmp_path)
    assert answer(capsys, "results") == []
    assert main(["results"]) == 0
    row = {"recipe": "heat", "variant": "ours", "label": "ours", "rel_l2": 0.02, "command": "gfunk evaluate", "n": 100}
    row |= {"problem": to_json(RECIPES["heat"].problem)}
    rows = [row, row | {"rel_l2": 0.01}, row | {"rel_l2": 0.001, "label": "on finer meshes"}]
    # What the recipe was once is another problem.
    rows.append(row | {"rel_l2": 0.002, "problem": to_json(RECIPES["rectangles"].problem)})
    (tmp_path / "heat.json").write_text(json.dumps(rows))
    assert answer(capsys, "results") == rows
    elsewhere = {"recipe": "atria-many", "variant": "ours", "label": "ours on atria", "rel_l2": 0.005}
    elsewhere |= {"problem": to_json(RECIPES["atria"].problem)}
    other = {"recipe": "predict", "label": "cost"}
    (tmp_path / "atria.json").write_text(json.dumps([elsewhere, other, elsewhere | {"label": "ours on atria, turned"}]))
    measured = {(row["name"], row["variant"]): row for row in answer(capsys, "recipes")}
    assert measured["heat", "ours"]["rel_l2"] == 0.01 and measured["heat", "ours"]["learned_from"] == "heat"
    assert measured["atria", "ours"]["rel_l2"] == 0.005 and measured["atria", "ours"]["learned_from"] == "atria-many"
    assert measured["heat", "paper"]["rel_l2"] is None and measured["atria-many", "ours"]["rel_l2"] is None
    (tmp_path / "broken.json").write_text("[")
    assert "broken.json" in refusal(capsys, "results")


def test_bench_has_a_row_for_each_variant(capsys: Capture, tmp_path: Path):
    asked = ["--variant", "ours", "--variant", "no-learning-50", "--record", tmp_path / "cost.json"]
    result = answer(capsys, "bench", "--n", "2", "--device", "cpu", *asked, *TOY_OPTIONS)
    assert [row["variant"] for row in result["rows"]] == ["ours", "no-learning-50"]
    assert result["ceilings"]["flops_per_second"] > 0 and result["batch"] == 2
    for row in result["rows"]:
        assert row["predict_ms"] > 0 and row["nodes"] == 225
    assert result["rows"][0]["epoch_seconds"] > 0 and result["rows"][1]["epoch_seconds"] == 0
    assert read_json(tmp_path / "cost.json")[0]["label"] == "cost"


def test_tables_for_people_go_to_stdout(capsys: Capture, toy_data: Path):
    assert main(["recipes"]) == 0
    assert "197,465" in capsys.readouterr().out
    assert main(["evaluate", "heat/no-learning-50", "--data", str(toy_data), "--workers", "1"]) == 0
    assert "rel_l2" in capsys.readouterr().out


def test_numbers_that_json_does_not_know_become_null(capsys: Capture):
    console.show(True, {"a": float("nan"), "b": [float("inf"), 1.5], "c": ({"d": -float("inf")},)}, [])
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [{"d": None}]}


def test_tensorboard_logs_hold_every_epoch(toy_run: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(toy_run / "tensorboard"))
    events.Reload()
    for name, key in (("loss", "loss"), ("validation", "validation")):
        written = [(event.step, event.value) for event in events.Scalars(name)]
        assert written == [(row["number"], pytest.approx(row[key], rel=1e-6)) for row in logged(toy_run)]


def test_a_killed_training_resumes_to_the_weights_of_one_never_killed(toy_data: Path, tmp_path: Path):
    options = ["--data", str(toy_data), "--workers", "1", *small_options("ours", epochs=40)]
    command = [sys.executable, "-m", "gfunk.cli", "train", "heat", "--out", str(tmp_path / "killed"), *options]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "killed" / "last.safetensors").exists():
            assert time.monotonic() < end and child.poll() is None
            time.sleep(0.005)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert len(logged(tmp_path / "killed")) < 40
    assert main(["train", "heat", "--out", str(tmp_path / "killed"), "--resume", *options]) == 0
    assert main(["train", "heat", "--out", str(tmp_path / "whole"), *options]) == 0
    for name in ("best.safetensors", "last.safetensors"):
        kept, wanted = (torch_arrays(tmp_path / run / name) for run in ("killed", "whole"))
        assert kept.keys() == wanted.keys() and all(torch.equal(kept[key], wanted[key]) for key in wanted)


def torch_arrays(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def test_bad_input_is_refused_in_one_line(capsys: Capture, toy_data: Path, toy_run: Path, tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("not a folder")
    train = ["train", "heat", "--data", toy_data, "--workers", "1"]
    small = ["--n", "1", "--split", "train", "--workers", "1", *TOY_OPTIONS]
    for words, said in [
        (["simulate", "soup", "--out", tmp_path / "a"], "no recipe 'soup'; there are heat"),
        (
            [
                "simulate",
                "atria",
                "--out",
                tmp_path / "a",
                "--n",
                "1",
                "--split",
                "val",
                "--workers",
                "1",
                "--set",
                "kept_edge_mm=9",
            ],
            "edges of 0.25 to 1.5 mm, not 9",
        ),
        (["atrium", "--seed", "1", "--edge", "9", "--out", tmp_path / "a.vtp"], "edges of 0.25 to 1.5 mm, not 9"),
        (["atrium", "--seed", "-1", "--out", tmp_path / "a.vtp"], "'-1' is not a whole number from 0 up"),
        (["atrium", "--seed", "1", "--out", tmp_path / "a.txt"], "a mesh is written as .vtp"),
        (["atrium", "--seed", "1", "--edge", "1.5", "--out", file / "a.vtp"], "can't be written"),
        (["simulate", "rectangles", "--out", tmp_path / "a", "--device", "tpu"], "device 'tpu' can't be used here"),
        (["simulate", "heat", "--out", tmp_path / "a", *small, "--seed", "300000"], "not all of split 'train'"),
        (["simulate", "heat", "--out", file / "below", *small], "can't be written"),
        (["simulate", "heat", "--out", tmp_path / "a", *small, "--seed", "100000"], "not all of split 'train'"),
        (["simulate", "heat", "--out", tmp_path / "a", *small, "--set", "colour=1"], "there are max_cell, ratio"),
        (["simulate", "heat", "--out", tmp_path / "a", *small, "--set", "max_cell=-1"], "must be positive"),
        (["simulate", "heat", "--out", toy_data, *small, "--set", "ratio=4"], "another problem"),
        ([*train, "--out", tmp_path / "b", "--variant", "theirs"], "no variant 'theirs'; it has ours"),
        ([*train, "--out", tmp_path / "b", "--variant", "no-learning-50"], "nothing to learn"),
        ([*train, "--out", tmp_path / "b", "--set", "training.epoch=1"], "there are epochs, batch_size"),
        ([*train, "--out", tmp_path / "b", "--set", "training.loss=l3"], "'l2' or 'h1' expected"),
        ([*train, "--out", tmp_path / "b", "--n-train", "1000"], "holds 10 samples, 1000 were asked for"),
        ([*train, "--out", tmp_path / "b", "--set", "network.n_modes=300"], "view.n_modes only 128"),
        ([*train, "--out", tmp_path / "b", "--set", "view.n_modes=300"], "300 modes can't be had from 225 nodes"),
        ([*train, "--out", file / "below"], "can't be written"),
        ([*train, "--out", file / "below", "--tensorboard"], "file/below"),
        ([*train, "--out", toy_run], "a run is there already"),
        ([*train, "--out", tmp_path / "none", "--resume"], "no run there"),
        (["train", "heat", "--data", tmp_path / "none", "--out", tmp_path / "b"], "no such dataset; make it with"),
        (["evaluate", "heat/ours"], "heat/ours has to be trained first"),
        (["evaluate", "heat/theirs"], "no variant 'theirs'"),
        (["evaluate", tmp_path / "none"], "no run there"),
        (["evaluate", toy_run, "--data", tmp_path / "none"], "no such dataset"),
        (["evaluate", toy_run, "--seed", "5"], "not all of split 'test'"),
        (["evaluate", toy_run, "--data", toy_data, "--set", "ratio=4"], "can't change those in --data"),
        (["evaluate", toy_run, "--data", toy_data, "--recipe", "heat"], "can't change those in --data"),
        (["evaluate", toy_run, "--recipe", "atria"], "was trained on heat, not on atria"),
        (["evaluate", toy_run, "--recipe", "soup"], "no recipe 'soup'"),
        (["export", "atria-190", "--out", tmp_path / "a.onnx"], "no model of that name is shipped"),
        (["evaluate", f"{toy_run}@13"], "ask for 1 to 12 of them"),
        (["evaluate", toy_run, "--data", toy_data, "--workers", "1", "--record", file / "below"], "can't be written"),
        (["evaluate", toy_run, "--data", toy_data, "--device", "abacus"], "device 'abacus' can't be used here"),
        (["bench", "heat", "--variant", "theirs", *TOY_OPTIONS], "no variant 'theirs'"),
        ([], "the following arguments are required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["simulate", "heat"], "required: --out"),
        (["simulate", "heat", "--out", tmp_path / "a", "--n", "0"], "'0' is not a positive whole number"),
        (["simulate", "heat", "--out", tmp_path / "a", "--n", "many"], "'many' is not a positive whole number"),
        (["simulate", "heat", "--out", tmp_path / "a", "--split", "exam"], "invalid choice: 'exam'"),
        (["recipes", "--colour"], "unrecognized arguments: --colour"),
    ]:
        assert said in refusal(capsys, *words), words


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_in_one_line(capsys: Capture, toy_data: Path, toy_run: Path):
    assert "device 'cuda' can't be used here" in refusal(capsys, "evaluate", toy_run, "--data", toy_data, "--device", "cuda")
    assert "device 'cuda' can't be used here" in refusal(capsys, "bench", "--device", "cuda", *TOY_OPTIONS)


def test_the_installed_command_ends_with_status_two_and_one_line():
    command = [sys.executable, "-m", "gfunk.cli", "simulate", "soup", "--out", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m gfunk.cli recipes --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_demo_predicts_a_wave_on_an_atrium_never_seen_and_says_how_far_it_is_off(tmp_path: Path):
    command = [sys.executable, "-m", "gfunk.cli", "demo", "--out", str(tmp_path), "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["rel_l2"] < 0.03 and said["activation_error_ms"] < 0.3
    assert {path.name for path in tmp_path.iterdir()} >= {"atrium.vtp", "wave.png", "wave.html"}


@pytest.mark.slow
def test_the_demo_of_heat_learns_to_predict_unseen_fibre_fields_and_draws_one(tmp_path: Path):
    command = [sys.executable, "-m", "gfunk.cli", "demo", "--of", "heat", "--out", str(tmp_path), "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    error = {row["predicted by"]: row["rel_l2 on unseen fibre fields"] for row in json.loads(done.stdout)}
    assert error["ours"] < 0.02
    assert error["ours"] <= 1.1 * error["no-learning-128"]
    assert (tmp_path / "heat.png").stat().st_size > 10_000
