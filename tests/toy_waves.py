"""Waves at toy size, simulated in a moment, and a variant of ours small enough to learn them."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gfunk.batch import TrajectorySet
from gfunk.experiments import seeded_operator, simulated_set
from gfunk.operators.arrival import ArrivalConfig
from gfunk.recipes.cardiac import rectangles
from gfunk.recipes.recipe import Variant
from gfunk.recipes.tissue_data import FlatPacing, RectangleProblem
from gfunk.simulation import split_seeds
from gfunk.training import Outcome, TrainingConfig, train

N_MODES = 12
toy_waves = RectangleProblem(
    pacing=FlatPacing(
        cell="mitchell-schaeffer", scheme="paper", edge_mm=0.7, voxel_mm=0.7, base_conductivity=0.5,
        radius_mm=1.5, first_ms=3.0, every_ms=1.0, n_saves=8,
    ),
    shortest_mm=5.0,
    longest_mm=9.0,
)  # fmt: skip
# Speed and rest are those of this cell on so coarse a mesh.
SMALL = ArrivalConfig(
    width=8, n_layers=1, n_modes=N_MODES, filter_width=8, n_latents=2, profile_width=8, speed=1.0, resting=0.0476
)


def wave_variant(network: ArrivalConfig = SMALL, **training: Any) -> Variant:
    """Ours for rectangles with a small network, three epochs of batches of three, and what is said here."""
    variant = rectangles.variant("ours")
    assert variant.training is not None
    # Not h1: at the saves drawn all of so small a domain may be active, and a gradient relative to none is rounding.
    usual = {"epochs": 3, "batch_size": 3, "n_times": 4, "n_sizes": 1, "loss": "l2", "half_precision": False}
    often = {"warmup_iterations": 2, "validate_every": 1, "validation_stride": 2}
    settings = replace(variant.training, **(usual | often | training))
    view = replace(variant.view, n_modes=N_MODES, homogenises=bool(network.ray_times))
    return replace(variant, network=network, view=view, training=settings)


@cache
def wave_set(split: str, n: int) -> TrajectorySet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GFUNK_COMPILE", "0")
        return simulated_set(toy_waves, wave_variant().view, split_seeds(split, n))


def train_waves(
    run: Path, *, n_train: int = 8, settings: dict[str, Any] | None = None, device: str = "cpu", **how: Any
) -> tuple[nn.Module, Outcome]:
    """Train the small variant, without card or command line."""
    variant = wave_variant(**(settings or {}))
    assert isinstance(variant.training, TrainingConfig)
    operator = seeded_operator(variant).to(device)
    sets = wave_set("train", n_train).to(device), wave_set("val", 3).to(device)
    return operator, train(operator, *sets, variant.integrator, variant.training, run, **how)
