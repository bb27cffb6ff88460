import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from toy_heat import (
    assert_same_run,
    checkpoint_epoch,
    logged,
    small_variant,
    toy_recipe,
    toy_set,
    train_small,
    without_clock,
)
from toy_waves import SMALL, train_waves, wave_set, wave_variant

from gfunk.batch import TrajectorySet
from gfunk.checkpoints import load_weights, save_weights
from gfunk.errors import InputError
from gfunk.evaluation import evaluate
from gfunk.experiments import load_split, seeded_operator, train_variant
from gfunk.operators.arrival import Arrival
from gfunk.operators.make import make_operator
from gfunk.recipes.heat import heat
from gfunk.rollout import Direct, Euler, FlowMap
from gfunk.soap import Soap
from gfunk.store import CorruptFile, read_arrays
from gfunk.training import (
    Outcome,
    TrainingConfig,
    draws,
    horizon,
    learning_rate,
    make_optimizers,
    mean_loss,
    n_batches,
    train,
    with_firsts,
)

TRAINED = ("ours", "paper", "fno", "gnn", "gnn-unweighted")


class Stopped(Exception):
    """Raised in the middle of a run."""


def weights(operator: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().to(torch.complex128) for parameter in operator.parameters()])


def spoiled(data: TrajectorySet, trajectory: int) -> TrajectorySet:
    values = data.values.clone()
    values[trajectory, 2, 7] = torch.nan
    return replace(data, values=values)


def config_of(variant: Any) -> TrainingConfig:
    assert isinstance(variant.training, TrainingConfig)
    return variant.training


@pytest.mark.parametrize("name", ["ours", "paper"])
def test_one_trajectory_is_learned_by_heart(toy_data: Path, tmp_path: Path, name: str):
    settings = {"epochs": 150, "learning_rate": 1e-2, "schedule": "cosine", "patience": None, "validate_every": 150}
    variant = small_variant(name, first_horizon=0, strides=((1, 1),), **settings)
    network = replace(variant.network, width=20, n_layers=2, n_modes=60)
    if name == "ours":
        network = replace(network, learned_scale=0.1)  # a first guess with something to unlearn
    variant = replace(variant, network=network, view=replace(variant.view, n_modes=60))
    one = load_split(toy_data / "train", variant.view, n=1, n_workers=1)
    operator = seeded_operator(variant)
    before = mean_loss(operator, one, variant.integrator, config_of(variant))
    train(operator, one, one, variant.integrator, config_of(variant), tmp_path)
    assert mean_loss(operator, one, variant.integrator, config_of(variant)) < before / 4


def test_waves_are_learned_by_heart_from_when_they_arrive(tmp_path: Path):
    network = replace(SMALL, width=16, n_layers=2, filter_width=16, n_latents=4, profile_width=32)
    variant = wave_variant(network, epochs=150, learning_rate=1e-2, batch_size=2, validate_every=150, n_times=8)
    two, operator = wave_set("train", 2), seeded_operator(variant)
    assert evaluate(operator, two, variant.integrator).rel_l2 > 0.5
    train(operator, two, two, variant.integrator, config_of(variant), tmp_path)
    assert evaluate(operator, two, variant.integrator).rel_l2 < 0.06


@pytest.mark.parametrize("name", TRAINED)
def test_a_run_stopped_after_every_epoch_and_resumed_is_the_run_never_stopped(toy_data: Path, tmp_path: Path, name: str):
    train_small(toy_data, tmp_path / "whole", name)
    outcomes = [train_small(toy_data, tmp_path / "cut", name, resume=part > 0, minutes=0.0)[1] for part in range(3)]
    assert [outcome.reason for outcome in outcomes] == ["time is up", "time is up", "done"]
    assert [outcome.epochs for outcome in outcomes] == [1, 2, 3]
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("settings", [{}, {"n_sizes": 3, "starts": (0, 1, 3)}, {"half_precision": True}], ids=str)
def test_a_direct_operator_stopped_after_every_epoch_and_resumed_is_as_if_never_stopped(
    tmp_path: Path, settings: dict[str, Any]
):
    train_waves(tmp_path / "whole", settings=settings)
    outcomes = [train_waves(tmp_path / "cut", settings=settings, resume=part > 0, minutes=0.0)[1] for part in range(3)]
    assert [outcome.reason for outcome in outcomes] == ["time is up", "time is up", "done"]
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("optimizer", ["muon", "soap"])
def test_other_optimizers_too_resume_to_the_last_bit(
    toy_data: Path, tmp_path: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch
):
    # Ten iterations an epoch: SOAP has turned its axes before it is stopped, and does again after it.
    monkeypatch.setattr("gfunk.training.Soap", partial(Soap, turn_every=10))
    settings = {"optimizer": optimizer, "epochs": 4, "batch_size": 1}
    train_small(toy_data, tmp_path / "whole", settings=settings)
    for part in range(2):
        train_small(toy_data, tmp_path / "parts", settings=settings, resume=part > 0, minutes=0.0)
    assert checkpoint_epoch(tmp_path / "parts") == 2
    train_small(toy_data, tmp_path / "parts", settings=settings, resume=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("optimizer", ["adam", "muon", "soap"])
def test_every_parameter_has_one_optimizer(name: str, optimizer: Literal["adam", "muon", "soap"]):
    operator = make_operator(heat.variant(name).network)
    config = TrainingConfig(epochs=1, batch_size=1, learning_rate=1e-3, optimizer=optimizer)
    made = make_optimizers(operator, config)
    moved = [parameter for each in made for group in each.param_groups for parameter in group["params"]]
    assert sorted(map(id, moved)) == sorted(map(id, operator.parameters()))
    assert len(made) == (1 if optimizer == "adam" else 2)


def test_the_draws_of_an_epoch_cover_every_trajectory_once_and_stay_within_the_saved_times():
    config = TrainingConfig(epochs=9, batch_size=4, learning_rate=1e-3, first_horizon=2, strides=((1, 1), (3, 1), (1, 2)))
    for epoch in range(9):
        drawn = draws(config, epoch, np.full(10, 30), 7, FlowMap(longest_step=1.0))
        assert sorted(np.concatenate([draw.chosen for draw in drawn])) == list(range(10))
        assert all(draw.saves[0] >= 0 and draw.saves[-1] <= 6 for draw in drawn)
        assert {tuple(np.diff(draw.saves)) for draw in drawn} <= {(step,) * n for step in (1, 3) for n in range(1, 7)}


@pytest.mark.parametrize("n_sizes", [1, 3])
@pytest.mark.parametrize("starts", [(0,), (2,), (0, 1, 7)])
def test_direct_draws_cover_every_trajectory_once_and_pad_to_the_largest_of_a_group(n_sizes: int, starts: tuple[int, ...]):
    sizes = np.random.default_rng(0).permutation(np.arange(100, 121))
    config = TrainingConfig(epochs=9, batch_size=4, learning_rate=1e-3, n_times=5, n_sizes=n_sizes, starts=starts)
    seen: set[int] = set()
    for epoch in range(9):
        drawn = draws(config, epoch, sizes, 30, Direct())
        assert sorted(np.concatenate([draw.chosen for draw in drawn])) == list(range(21))
        assert len(drawn) == n_batches(config, 21)
        for draw in drawn:
            assert draw.saves == tuple(sorted({*draw.saves})) and len(draw.saves) == 6 and max(draw.saves) <= 29
            assert sizes[draw.chosen].max() <= draw.n_nodes
        seen |= {draw.saves[0] for draw in drawn}
        assert {draw.n_nodes for draw in drawn} == ({120} if n_sizes == 1 else {106, 113, 120})
    assert seen == {*starts}


def test_batches_of_like_size_are_padded_less_and_learn_too(tmp_path: Path):
    sizes, sets = {}, (wave_set("train", 8), wave_set("val", 3))
    largest = max(sets[0].n_nodes())
    for n_sizes in (1, 3):
        variant = wave_variant(n_sizes=n_sizes, epochs=6, learning_rate=1e-2)
        operator, seen = seeded_operator(variant), []

        def step(first: torch.Tensor, *rest: Any, operator: Any = operator, seen: list[int] = seen) -> torch.Tensor:
            if torch.is_grad_enabled():
                seen.append(first.shape[1])
            return operator(first, *rest)

        train(operator, *sets, variant.integrator, config_of(variant), tmp_path / str(n_sizes), step=step)
        losses = [row["loss"] for row in logged(tmp_path / str(n_sizes))]
        assert losses[-1] < 0.6 * losses[0]
        sizes[n_sizes] = seen
    assert set(sizes[1]) == {largest}
    assert len(set(sizes[3])) == 3 and max(sizes[3]) == largest
    assert np.mean(sizes[3]) < 0.95 * largest


def test_the_first_states_found_before_training_are_those_of_each_trajectory_alone():
    variant, data = wave_variant(), wave_set("train", 8)
    operator = seeded_operator(variant)
    assert isinstance(operator, Arrival)
    firsts = with_firsts(operator, data, config_of(variant)).firsts
    assert firsts is not None
    for number, (n_nodes, first) in enumerate(zip(data.n_nodes(), firsts, strict=True)):
        batch, values = data.take(torch.tensor([number]), n_nodes=int(n_nodes))
        torch.testing.assert_close(first[:n_nodes], operator.first(values[:, 0], batch)[0], rtol=0, atol=1e-5)
        assert (first[n_nodes:] == 0).all()


def test_from_a_later_start_is_learned_what_trajectories_without_all_before_teach(tmp_path: Path):
    data, validation = wave_set("train", 8), wave_set("val", 3)
    later = replace(data, times=data.times[3:] - data.times[3], values=data.values[:, 3:])
    found = []
    for name, some, starts in (("whole", data, (3,)), ("later", later, (0,)), ("from the first", data, (0,))):
        variant = wave_variant(starts=starts, validation_stride=1)
        operator = seeded_operator(variant)
        train(operator, some, validation, variant.integrator, config_of(variant), tmp_path / name)
        found.append([row["loss"] for row in logged(tmp_path / name)])
    assert found[0] == found[1] != found[2]


def test_a_loss_over_whole_trajectories_is_that_of_a_rollout_at_every_so_many_saves():
    variant, data = wave_variant(validation_stride=4), wave_set("val", 3)
    operator = seeded_operator(variant)
    got = mean_loss(operator, with_firsts(operator, data, config_of(variant)), variant.integrator, config_of(variant))
    assert got == pytest.approx(evaluate(operator, data, variant.integrator, every=4).rel_l2, rel=1e-5)


def test_the_coarse_part_of_a_training_is_that_of_an_integrator_with_one_step_a_save(toy_data: Path, tmp_path: Path):
    paper = small_variant("paper", coarse_part=0.5)  # of three epochs, the last is not coarse
    save = float(toy_set(toy_data, "train", "paper").times[1])
    sets = toy_set(toy_data, "train", "paper"), toy_set(toy_data, "val", "paper")
    for folder, variant in (("coarse", paper), ("long", replace(paper, integrator=Euler(step=save)))):
        train(seeded_operator(variant), *sets, variant.integrator, config_of(variant), tmp_path / folder)
    coarse, long = ([row["loss"] for row in logged(tmp_path / folder)] for folder in ("coarse", "long"))
    assert coarse[:2] == long[:2]
    assert coarse[2] != long[2]


@pytest.mark.parametrize("name", ["ours", "paper"])
def test_a_run_broken_in_the_middle_of_an_epoch_and_resumed_is_the_run_never_stopped(
    toy_data: Path, tmp_path: Path, name: str
):
    train_small(toy_data, tmp_path / "whole", name)
    n_left = 5  # batches; an epoch has three

    def count_down():
        nonlocal n_left
        n_left -= 1
        if n_left == 0:
            raise Stopped

    with pytest.raises(Stopped):
        train_small(toy_data, tmp_path / "cut", name, on_iteration=count_down)
    assert checkpoint_epoch(tmp_path / "cut") == 1
    train_small(toy_data, tmp_path / "cut", name, resume=True)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


def test_a_run_broken_after_a_better_epoch_but_before_its_checkpoint_is_the_run_never_stopped(
    toy_data: Path, tmp_path: Path
):
    def break_off(epoch: Any):
        if epoch.number == 3:
            raise Stopped

    train_small(toy_data, tmp_path / "whole", settings={"epochs": 4})
    with pytest.raises(Stopped):
        train_small(toy_data, tmp_path / "cut", settings={"epochs": 4}, on_epoch=break_off)
    assert len(logged(tmp_path / "cut")) == 3 and checkpoint_epoch(tmp_path / "cut") == 1
    train_small(toy_data, tmp_path / "cut", settings={"epochs": 4}, resume=True)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


def test_a_killed_run_loses_at_most_a_checkpoint_interval_and_resumes_exactly(toy_data: Path, tmp_path: Path):
    settings, interval = {"epochs": 60}, 0.3
    train_small(toy_data, tmp_path / "whole", settings=settings)
    run = tmp_path / "killed"
    child = get_context("spawn").Process(
        target=train_small,
        args=(toy_data, run),
        kwargs={"settings": settings, "checkpoint_seconds": interval},
    )
    child.start()
    try:
        wait_for_lines(run / "log.jsonl", 6)
        time.sleep(random.Random().uniform(0, 0.2))  # any moment must do
    finally:
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
    assert child.exitcode == -signal.SIGKILL, "the run ended before it was killed"
    saved, done = checkpoint_epoch(run), logged(run)
    # Epochs after the checkpoint, less the one whose end would have saved them.
    assert sum(epoch["seconds"] for epoch in done[saved:-1]) <= interval
    train_small(toy_data, run, settings=settings, resume=True)
    assert_same_run(run, tmp_path / "whole")


def wait_for_lines(path: Path, n: int, seconds: float = 60.0):
    end = time.monotonic() + seconds
    while not path.exists() or path.read_bytes().count(b"\n") < n:
        assert time.monotonic() < end, f"{path} has not got {n} lines in {seconds} s"
        time.sleep(0.005)


def test_resuming_a_finished_run_changes_nothing(toy_data: Path, tmp_path: Path):
    operator, first = train_small(toy_data, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "before")
    again, second = train_small(toy_data, tmp_path / "run", resume=True)
    assert (second.reason, second.epochs, second.best_epoch) == (first.reason, first.epochs, first.best_epoch)
    assert torch.equal(weights(again), weights(operator))
    assert_same_run(tmp_path / "run", tmp_path / "before")


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(toy_data: Path, tmp_path: Path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train_small(toy_data, tmp_path / name, settings={"seed": seed})
    assert_same_run(tmp_path / "b", tmp_path / "a")
    assert without_clock(tmp_path / "c") != without_clock(tmp_path / "a")
    changed, same = (read_arrays(tmp_path / name / "best.safetensors")[0] for name in ("c", "a"))
    assert all(not np.array_equal(changed[key], same[key]) for key in same if "weight" in key)


def test_training_leaves_the_global_random_state_alone(toy_data: Path, tmp_path: Path):
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 (the state that must not move)
    train_small(toy_data, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_the_operator_ends_holding_the_best_weights(toy_data: Path, tmp_path: Path):
    operator, outcome = train_small(toy_data, tmp_path, settings={"learning_rate": 0.05, "epochs": 6})
    rows = logged(tmp_path)
    assert outcome.best_validation == min(row["validation"] for row in rows)
    assert rows[outcome.best_epoch - 1]["validation"] == outcome.best_validation
    variant = small_variant()
    score = mean_loss(operator, toy_set(toy_data, "val"), variant.integrator, config_of(variant))
    assert score == outcome.best_validation


@pytest.mark.parametrize("patience", [1, 3])
def test_training_stops_after_so_many_epochs_without_a_better_one(toy_data: Path, tmp_path: Path, patience: int):
    # A rate too small to change a weight: the first epoch stays the best.
    settings = {"epochs": 20, "patience": patience, "learning_rate": 1e-30, "schedule": "halving"}
    outcome = train_small(toy_data, tmp_path, settings=settings)[1]
    assert (outcome.reason, outcome.epochs, outcome.best_epoch) == ("no better", 1 + patience, 1)
    again = train_small(toy_data, tmp_path, settings=settings, resume=True)[1]
    assert (again.reason, again.epochs, len(logged(tmp_path))) == ("no better", 1 + patience, 1 + patience)


def test_minutes_stop_a_run_at_a_checkpoint(toy_data: Path, tmp_path: Path):
    started = time.monotonic()
    outcome = train_small(toy_data, tmp_path, settings={"epochs": 100_000}, minutes=0.5 / 60)[1]
    assert outcome.reason == "time is up"
    assert 0.5 <= time.monotonic() - started < 10
    assert checkpoint_epoch(tmp_path) == outcome.epochs == len(logged(tmp_path))


def test_validation_comes_every_so_many_epochs_and_at_the_end(toy_data: Path, tmp_path: Path):
    train_small(toy_data, tmp_path, settings={"epochs": 5, "validate_every": 2})
    assert [row["validation"] is not None for row in logged(tmp_path)] == [False, True, False, True, True]


def test_halving_halves_the_rate_every_so_many_epochs():
    config = TrainingConfig(epochs=1000, batch_size=20, learning_rate=5e-4, schedule="halving", halve_every=100)
    rates = [learning_rate(config, epoch, 25 * epoch, 25) for epoch in range(1000)]
    assert rates == [5e-4 / 2**power for power in range(10) for _ in range(100)]


def test_the_cosine_warms_up_and_ends_near_zero():
    config = TrainingConfig(epochs=10, batch_size=1, learning_rate=1e-3, schedule="cosine", warmup_iterations=20)
    rates = np.array([learning_rate(config, iteration // 50, iteration, 50) for iteration in range(500)])
    assert 0 < rates[0] <= 1e-3 / 20
    assert (np.diff(rates[:20]) > 0).all() and (np.diff(rates[19:]) < 0).all()
    assert 0.99e-3 < rates.max() <= 1e-3
    assert 0 < rates[-1] < 1e-3 / 1e4


def test_the_logged_rate_is_that_of_the_schedule(toy_data: Path, tmp_path: Path):
    train_small(toy_data, tmp_path, settings={"epochs": 4, "schedule": "halving", "halve_every": 2, "learning_rate": 1e-3})
    assert [row["learning_rate"] for row in logged(tmp_path)] == [1e-3, 1e-3, 5e-4, 5e-4]


@pytest.mark.parametrize("first_horizon", [0, 1, 2, 6, 50])
@pytest.mark.parametrize("growth", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("power", [0.5, 1.0, 10.0])
def test_the_horizon_grows_to_all_saves_and_never_shrinks(first_horizon: int, growth: float, power: float):
    config = TrainingConfig(
        epochs=50, batch_size=1, learning_rate=1e-3, first_horizon=first_horizon, growth=growth, growth_power=power
    )
    horizons = [horizon(config, epoch, 20) for epoch in range(50)]
    assert horizons[0] == (min(first_horizon, 20) or 20)
    assert horizons == sorted(horizons)
    assert set(horizons[round(growth * 50) + 1 :]) <= {20}
    assert min(horizons) >= 1 and max(horizons) <= 20


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_sample_that_is_not_finite_is_refused_by_its_seed_before_anything_is_trained(
    toy_data: Path, tmp_path: Path, split: str
):
    variant = small_variant()
    sets = {"train": toy_set(toy_data, "train"), "val": toy_set(toy_data, "val")}
    sets[split] = spoiled(sets[split], 3)
    with pytest.raises(InputError, match=rf"seeds \[{sets[split].seeds[3]}\]"):
        train(seeded_operator(variant), sets["train"], sets["val"], variant.integrator, config_of(variant), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_not_finite_names_the_batch_and_leaves_the_checkpoints_finite(toy_data: Path, tmp_path: Path):
    variant = small_variant(epochs=3)
    data, operator = toy_set(toy_data, "train"), seeded_operator(variant)

    n_left = 7  # after the first batch of the third epoch

    def poison():
        nonlocal n_left
        n_left -= 1
        if n_left == 0:
            with torch.no_grad():
                next(operator.parameters()).fill_(torch.nan)

    sets, how = (data, toy_set(toy_data, "val")), {"on_iteration": poison, "checkpoint_seconds": 0.0}
    with pytest.raises(InputError, match="epoch 3") as refusal:
        train(operator, *sets, variant.integrator, config_of(variant), tmp_path, **how)
    batches = np.array_split(np.random.default_rng((0, 2)).permutation(10), 3)
    assert str(sorted(data.seeds[trajectory] for trajectory in batches[1])) in str(refusal.value)
    assert checkpoint_epoch(tmp_path) == 2
    for name in ("best.safetensors", "last.safetensors"):
        arrays, _ = read_arrays(tmp_path / name)
        assert all(np.isfinite(array).all() for array in arrays.values())


def test_a_slope_that_is_not_finite_stops_the_run_though_the_loss_is(toy_data: Path, tmp_path: Path):
    variant = small_variant()
    operator = seeded_operator(variant)
    next(operator.parameters()).register_hook(lambda slope: slope * torch.nan)
    sets = toy_set(toy_data, "train"), toy_set(toy_data, "val")
    with pytest.raises(InputError, match="its slope nan, in epoch 1"):
        train(operator, *sets, variant.integrator, config_of(variant), tmp_path)
    assert not (tmp_path / "last.safetensors").exists()


@pytest.mark.parametrize("clip", [1e-4, 1e6])
def test_clipping_bounds_the_gradient_and_leaves_smaller_ones_alone(toy_data: Path, tmp_path: Path, clip: float):
    variant = small_variant(clip=clip)
    operator, norms = seeded_operator(variant), []

    def measure():
        slopes = [parameter.grad.flatten() for parameter in operator.parameters() if parameter.grad is not None]
        norms.append(float(torch.cat(slopes).norm()))

    sets = toy_set(toy_data, "train"), toy_set(toy_data, "val")
    train(operator, *sets, variant.integrator, config_of(variant), tmp_path, on_iteration=measure)
    assert len(norms) == 9
    if clip < 1:
        np.testing.assert_allclose(norms, clip, rtol=1e-2)
    else:
        assert min(norms) > 1e-3 and max(norms) < clip


def test_only_the_flow_maps_steps_are_cut(toy_data: Path, tmp_path: Path):
    variant = small_variant()
    sets = toy_set(toy_data, "train"), toy_set(toy_data, "val")
    for integrator, fits in ((Euler(step=1e-3), False), (FlowMap(longest_step=1e-3), True)):
        if fits:
            train(seeded_operator(variant), *sets, integrator, config_of(variant), tmp_path)
        else:
            with pytest.raises(InputError, match="flow map"):
                train(seeded_operator(variant), *sets, integrator, config_of(variant), tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 0}, "at least one epoch"),
        ({"batch_size": 0}, "at least one epoch"),
        ({"strides": ((7, 1),)}, "don't fit 7 saved times"),
        ({"strides": ((1, 0),)}, "don't fit"),
        ({"validate_every": 0}, "training.validate_every must be positive, not 0"),
        ({"halve_every": 0}, "training.halve_every"),
        ({"patience": 0}, "training.patience"),
        ({"learning_rate": -1e-3}, "training.learning_rate"),
        ({"clip": 0.0}, "training.clip"),
        ({"growth_power": 0.0}, "training.growth_power"),
        ({"n_times": 0}, "training.n_times must be positive"),
        ({"starts": (0, 1)}, "only direct operators learn from other starts"),
        ({"n_sizes": 0}, "training.n_sizes must be positive"),
        ({"n_sizes": 11}, "training.n_sizes is 11, more than the 10 trajectories"),
        ({"validation_stride": 4}, "training.validation_stride 4 doesn't divide 6 saves"),
    ],
)
def test_settings_that_make_no_sense_are_refused(toy_data: Path, tmp_path: Path, settings: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        train_small(toy_data, tmp_path, settings=settings)


@pytest.mark.parametrize("starts", [(), (8,), (-1,)])
def test_a_wave_starts_from_a_save_before_the_last(tmp_path: Path, starts: tuple[int, ...]):
    with pytest.raises(InputError, match=r"training.starts \(.*\) don't fit 9 saved times"):
        train_waves(tmp_path, settings={"starts": starts})


def test_a_cut_checkpoint_is_called_corrupt(toy_data: Path, tmp_path: Path):
    train_small(toy_data, tmp_path, minutes=0.0)
    path = tmp_path / "last.safetensors"
    content = path.read_bytes()
    for cut in (content[: len(content) // 2], content[:5], b"", content[:-8] + b"\0" * 8):
        path.write_bytes(cut)
        with pytest.raises(CorruptFile, match=r"last\.safetensors"):
            train_small(toy_data, tmp_path, resume=True)


def test_a_checkpoint_of_another_network_is_refused_in_one_line(toy_data: Path, tmp_path: Path):
    train_small(toy_data, tmp_path, "ours", minutes=0.0)
    wider = replace(small_variant(), network=replace(small_variant().network, width=9))
    for other in (small_variant("paper"), wider):
        sets = toy_set(toy_data, "train"), toy_set(toy_data, "val")
        with pytest.raises(InputError, match="checkpoint of another network") as refusal:
            train(seeded_operator(other), *sets, other.integrator, config_of(other), tmp_path, resume=True)
        assert "\n" not in str(refusal.value)


def test_weights_of_another_network_are_refused(tmp_path: Path):
    save_weights(tmp_path / "w.safetensors", seeded_operator(small_variant("ours")), {})
    with pytest.raises(InputError, match="weights of another network"):
        load_weights(tmp_path / "w.safetensors", seeded_operator(small_variant("paper")))
    wider = replace(small_variant(), network=replace(small_variant().network, width=9))
    with pytest.raises(InputError, match="weights of another network"):
        load_weights(tmp_path / "w.safetensors", seeded_operator(wider))
    with pytest.raises(InputError, match="no weights there"):
        load_weights(tmp_path / "none.safetensors", seeded_operator(wider))


@pytest.mark.parametrize("name", TRAINED)
def test_weights_come_back_to_the_last_bit(tmp_path: Path, name: str):
    operator, other = (seeded_operator(small_variant(name, seed=seed)) for seed in (0, 1))
    assert not torch.equal(weights(operator), weights(other))
    save_weights(tmp_path / "w.safetensors", operator, {})
    load_weights(tmp_path / "w.safetensors", other)
    assert torch.equal(weights(operator), weights(other))


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(toy_data: Path, tmp_path: Path):
    train_small(toy_data, tmp_path, minutes=0.0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match="a run is there already"):
        train_small(toy_data, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def train_card(data: Path, run: Path, n_val: int | None = None, resume: bool = False, **settings: Any) -> Outcome:
    """Train with a card, as the command line does."""
    return train_variant(
        toy_recipe(), small_variant("ours", **settings), data, run,
        device=torch.device("cpu"), resume=resume, minutes=0.0, n_train=None, n_val=n_val, n_workers=1,
    )[1]  # fmt: skip


def test_resuming_with_other_settings_or_data_is_refused(toy_data: Path, tmp_path: Path):
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(toy_data, other)
    train_card(toy_data, run)
    with pytest.raises(InputError, match="begun with another variant"):
        train_card(toy_data, run, resume=True, learning_rate=1e-4)
    with pytest.raises(InputError, match="begun with another data fingerprint"):
        train_card(toy_data, run, resume=True, n_val=2)
    for split, seed in (("train", 9), ("val", 100_003)):
        (other / split / f"{seed:06d}.safetensors").rename(tmp_path / "away")
        with pytest.raises(InputError, match="begun with another data fingerprint"):
            train_card(other, run, resume=True)
        (tmp_path / "away").rename(other / split / f"{seed:06d}.safetensors")
    # The same data elsewhere is the same data.
    assert train_card(other, run, resume=True).epochs == 2


def test_a_run_that_never_ended_an_epoch_leaves_its_folder_to_another(toy_data: Path, tmp_path: Path):
    with pytest.raises(InputError, match="clip"):
        train_card(toy_data, tmp_path, clip=0.0)
    train_card(toy_data, tmp_path, seed=5)
    assert json.loads((tmp_path / "run.json").read_text())["variant"]["training"]["seed"] == 5


def test_more_modes_than_the_view_has_are_refused(toy_data: Path, tmp_path: Path):
    variant = small_variant()
    variant = replace(variant, view=replace(variant.view, n_modes=5))
    with pytest.raises(InputError, match=r"network\.n_modes is 12, but view\.n_modes only 5"):
        train_variant(
            toy_recipe(), variant, toy_data, tmp_path,
            device=torch.device("cpu"), resume=False, minutes=None, n_train=None, n_val=None, n_workers=1,
        )  # fmt: skip


def test_a_cut_sample_is_named(toy_data: Path, tmp_path: Path):
    shutil.copytree(toy_data, tmp_path / "data")
    path = tmp_path / "data" / "train" / "000004.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptFile, match=r"000004\.safetensors"):
        train_card(tmp_path / "data", tmp_path / "run")
