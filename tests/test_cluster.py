"""Simulation on a real Dask scheduler with real workers, on this machine."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from test_distributed import free_port

from gfunk.recipes.heat_data import HeatProblem
from gfunk.simulation import simulate_missing

PROBLEM = HeatProblem(max_cell=0.002)
N = 24
SIMULATE = [sys.executable, "-m", "gfunk.cli", "simulate", "heat", "--split", "train", "--set", "max_cell=0.002", "--json"]


def started(name: str, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *words, "--no-dashboard"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def cluster(n_workers: int) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    address = f"tcp://127.0.0.1:{(port := free_port())}"
    processes = [started("scheduler", "--host", "127.0.0.1", "--port", str(port))]
    try:
        time.sleep(1)
        processes += [started("worker", address, "--nthreads", "1", "--no-nanny") for _ in range(n_workers)]
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def simulated_on(address: str, out: Path, n: int) -> subprocess.Popen:
    command = [*SIMULATE, "--out", str(out), "--n", str(n), "--scheduler", address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def samples(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def wait_until(done: Callable[[], bool], seconds: float = 60):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_worker_killed_midway_costs_nothing_but_time(tmp_path: Path):
    with cluster(2) as (address, workers):
        out = tmp_path / "cluster"
        # Until the workers have joined, there is no one to ask.
        first = [*SIMULATE, "--out", str(out), "--n", "1", "--scheduler", address]
        wait_until(lambda: subprocess.run(first, capture_output=True).returncode == 0)
        run = simulated_on(address, out, N)
        wait_until(lambda: len(samples(out / "train")) > 3)
        workers[0].send_signal(signal.SIGKILL)
        assert len(samples(out / "train")) < N
        _, wrong = run.communicate(timeout=120)
        assert run.returncode == 0, wrong
    list(simulate_missing(PROBLEM, dict.fromkeys(range(N), tmp_path / "here"), n_workers=1))
    assert samples(out / "train") == samples(tmp_path / "here")


def test_a_scheduler_that_is_not_there_or_has_no_workers_is_said_in_one_line(tmp_path: Path):
    with cluster(0) as (address, _):
        alone = simulated_on(address, tmp_path, 1)
        assert "has no workers yet" in alone.communicate(timeout=60)[1] and alone.returncode == 2
    gone = simulated_on(address, tmp_path, 1)
    wrong = gone.communicate(timeout=60)[1]
    assert gone.returncode == 2 and wrong.startswith("gfunk: no Dask scheduler answers at") and len(wrong.splitlines()) == 1
