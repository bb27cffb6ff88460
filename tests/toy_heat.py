"""Heat at toy size, simulated once a session, and variants of the recipe small enough to train in moments."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from gfunk.batch import TrajectorySet
from gfunk.experiments import load_split, seeded_operator
from gfunk.recipes.heat import heat
from gfunk.recipes.heat_data import HeatProblem
from gfunk.recipes.recipe import Recipe, Variant
from gfunk.simulation import missing_seeds, simulate_missing, split_seeds
from gfunk.store import read_arrays
from gfunk.training import Outcome, TrainingConfig, train

SIZES = {"train": 10, "val": 4, "test": 4}
# As options of the command line, and as the problem they make.
TOY_SETTINGS = {"max_cell": 0.005, "until": 0.006, "n_saves": 6, "steps_per_save": 4}
TOY_OPTIONS = [word for name, value in TOY_SETTINGS.items() for word in ("--set", f"{name}={value}")]
toy_problem = HeatProblem(**TOY_SETTINGS)

SMALL_NETWORKS = {
    "ours": {"width": 8, "n_layers": 1, "n_modes": 12, "filter_width": 8},
    "paper": {"width": 8, "n_layers": 1, "n_modes": 12},
    "fno": {"width": 4, "n_layers": 1, "n_modes": 3, "n_side": 12},
    "gnn": {"message_widths": (4, 4), "node_widths": (4, 1)},
    "gnn-unweighted": {"message_widths": (4, 4), "node_widths": (4, 1)},
}


def small_variant(name: str = "ours", **training: Any) -> Variant:
    """A variant of the heat recipe with a small network, three epochs of batches of four, and what is said here."""
    variant = heat.variant(name)
    assert variant.training is not None
    n_modes = 12 if name in ("ours", "paper") else 1
    view = replace(variant.view, n_modes=n_modes, grid_side=12 if name == "fno" else None)
    network = replace(variant.network, **SMALL_NETWORKS[name])
    settings = replace(variant.training, **({"epochs": 3, "batch_size": 4} | training))
    return replace(variant, network=network, view=view, training=settings)


def small_options(name: str = "ours", **training: Any) -> list[str]:
    """The same as options of `gfunk train`."""
    settings = {f"network.{key}": value for key, value in SMALL_NETWORKS[name].items()} | {"view.n_modes": 12}
    settings |= {f"training.{key}": value for key, value in ({"epochs": 3, "batch_size": 4} | training).items()}
    return ["--variant", name, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def toy_recipe() -> Recipe:
    return replace(heat, problem=toy_problem)


def simulate_toy(folder: Path):
    for split, n in SIZES.items():
        seeds = missing_seeds(folder / split, toy_problem, split_seeds(split, n))
        list(simulate_missing(toy_problem, dict.fromkeys(seeds, folder / split), n_workers=1))


@cache
def toy_set(folder: Path, split: str, name: str = "ours", n: int | None = None) -> TrajectorySet:
    return load_split(folder / split, small_variant(name).view, n=n, n_workers=1)


def train_small(
    data: Path,
    run: Path,
    name: str = "ours",
    n_train: int | None = None,
    settings: dict[str, Any] | None = None,
    device: str = "cpu",
    **how: Any,
) -> tuple[nn.Module, Outcome]:
    """Train a small variant on the toy data, without card or command line."""
    variant = small_variant(name, **(settings or {}))
    assert isinstance(variant.training, TrainingConfig)
    operator = seeded_operator(variant).to(device)
    sets = toy_set(data, "train", name, n_train).to(device), toy_set(data, "val", name).to(device)
    return operator, train(operator, *sets, variant.integrator, variant.training, run, **how)


def logged(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def without_clock(run: Path) -> list[dict[str, Any]]:
    """The log less what may differ from run to run."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in logged(run)]


def checkpoint_epoch(run: Path) -> int:
    _, note = read_arrays(run / "last.safetensors")
    return json.loads(note["progress"])["epoch"]


def assert_same_run(got: Path, expected: Path):
    """Bitwise: the same weights and state of training, the same losses."""
    for name in ("best.safetensors", "last.safetensors"):
        arrays, wanted = read_arrays(got / name)[0], read_arrays(expected / name)[0]
        assert arrays.keys() == wanted.keys()
        for key in wanted:
            np.testing.assert_array_equal(arrays[key], wanted[key], err_msg=f"{name}: {key}")
    assert without_clock(got) == without_clock(expected)
