"""Two processes on this machine (gloo, loopback) train as one does."""

import os
import socket
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from toy_heat import logged, small_options, small_variant, toy_set, train_small
from toy_waves import train_waves

from gfunk.cli import main
from gfunk.experiments import seeded_operator
from gfunk.store import read_arrays
from gfunk.training import TrainingConfig, train

# Training samples, and trajectories a batch: 7 in batches of 2 leaves the second process without any in the last one.
SIZES = {"even": (8, 4), "odd": (7, 2)}
WAVES = {"starts": (0, 2), "batch_size": 2, "n_sizes": 2}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def assert_same_losses(got: Path, expected: Path):
    assert [row["number"] for row in logged(got)] == [row["number"] for row in logged(expected)]
    for name in ("loss", "validation", "learning_rate", "horizon"):
        one, other = ([row[name] for row in logged(run)] for run in (got, expected))
        np.testing.assert_allclose(one, other, rtol=1e-4, err_msg=name)


def assert_same_weights(got: Path, expected: Path):
    arrays, wanted = (read_arrays(run / "best.safetensors")[0] for run in (got, expected))
    for name in wanted:
        np.testing.assert_allclose(arrays[name], wanted[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("name", ["even", "odd"])
def test_torchrun_with_two_processes_gives_the_losses_of_one(toy_data: Path, tmp_path: Path, name: str):
    n_train, batch_size = SIZES[name]
    options = ["--data", str(toy_data), "--workers", "1", "--n-train", str(n_train), "--n-val", "3"]
    options += small_options("ours", batch_size=batch_size)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master-addr=127.0.0.1"]
    command = [*torchrun, f"--master-port={free_port()}", "-m", "gfunk.cli", "train", "heat", "--json"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "two"), *options], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"reason": "done"') == 1
    assert main(["train", "heat", "--out", str(tmp_path / "one"), *options]) == 0
    assert_same_losses(tmp_path / "two", tmp_path / "one")
    assert_same_weights(tmp_path / "two", tmp_path / "one")


def in_two_processes(rank: int, meeting: Path, data: Path, folder: Path):
    """Five runs: the clock of one process says it is time for a checkpoint, the other's never does."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    interval = 0.0 if rank == 0 else 1e9
    for name, (n_train, batch_size) in SIZES.items():
        train_small(data, folder / name, n_train=n_train, settings={"batch_size": batch_size}, checkpoint_seconds=interval)
    train_waves(folder / "waves", n_train=7, settings=WAVES, checkpoint_seconds=interval)
    for part in range(3):
        # Only the first process is out of time.
        minutes = 0.0 if rank == 0 else 1e9
        train_small(data, folder / "cut", n_train=7, settings={"batch_size": 2}, resume=part > 0, minutes=minutes)
    dist.destroy_process_group()
    # As the command line does: threads of the group may abort a process that shuts down after a good run.
    os._exit(0)


def test_processes_whose_clocks_differ_agree_and_resume_exactly(toy_data: Path, tmp_path: Path):
    context = get_context("spawn")
    two = [
        context.Process(target=in_two_processes, args=(rank, tmp_path / "meeting", toy_data, tmp_path / "two"))
        for rank in range(2)
    ]
    for process in two:
        process.start()
    for process in two:
        process.join(timeout=120)
    stuck = [process for process in two if process.is_alive()]
    for process in stuck:
        process.kill()
    assert not stuck and [process.exitcode for process in two] == [0, 0]
    for name, (n_train, batch_size) in SIZES.items():
        train_small(toy_data, tmp_path / name, n_train=n_train, settings={"batch_size": batch_size})
        assert_same_losses(tmp_path / "two" / name, tmp_path / name)
        assert_same_weights(tmp_path / "two" / name, tmp_path / name)
    train_waves(tmp_path / "waves", n_train=7, settings=WAVES)
    assert_same_losses(tmp_path / "two" / "waves", tmp_path / "waves")
    assert_same_weights(tmp_path / "two" / "waves", tmp_path / "waves")
    cut, whole = (read_arrays(tmp_path / "two" / name / "last.safetensors")[0] for name in ("cut", "odd"))
    assert all(np.array_equal(cut[name], whole[name]) for name in whole)


def test_a_group_of_one_process_is_one_process(toy_data: Path, tmp_path: Path):
    variant = small_variant()
    assert isinstance(variant.training, TrainingConfig)
    sets = toy_set(toy_data, "train"), toy_set(toy_data, "val")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        train(seeded_operator(variant), *sets, variant.integrator, variant.training, tmp_path / "group")
    finally:
        dist.destroy_process_group()
    train(seeded_operator(variant), *sets, variant.integrator, variant.training, tmp_path / "alone")
    assert [row["loss"] for row in logged(tmp_path / "group")] == [row["loss"] for row in logged(tmp_path / "alone")]
