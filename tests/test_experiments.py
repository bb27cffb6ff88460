"""Laws of whole experiments at toy size."""

from dataclasses import replace
from pathlib import Path

import torch

from gfunk.experiments import evaluate_reported, simulated_set, train_variant
from gfunk.recipes.heat import heat
from gfunk.simulation import split_seeds


def test_what_was_learned_on_one_mesh_holds_on_four_times_the_nodes(toy_data: Path, tmp_path: Path):
    ours = heat.variant("ours")
    assert ours.training is not None
    variant = replace(
        ours,
        network=replace(ours.network, width=12, n_layers=2, n_modes=40),
        view=replace(ours.view, n_modes=40),
        training=replace(ours.training, epochs=12, batch_size=5, strides=((1, 1), (2, 1))),
    )
    operator, outcome = train_variant(
        heat, variant, toy_data, tmp_path / "run",
        device=torch.device("cpu"), resume=False, minutes=None, n_train=None, n_val=None, n_workers=1,
    )  # fmt: skip
    seeds = split_seeds("test", 6)
    coarse, fine = (
        evaluate_reported(operator, variant, problem, simulated_set(problem, variant.view, seeds))
        for problem in (replace(heat.problem, max_cell=size) for size in (0.005, 0.005 / 4))
    )
    assert outcome.reason == "done"
    assert coarse.rel_l2 < 0.05
    assert fine.rel_l2 < 1.1 * coarse.rel_l2
