"""The first five minutes: simulate a little heat, learn it, predict it on fibre fields never seen, draw one of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gfunk.experiments import evaluate_reported, load_split, train_variant
from gfunk.figures import comparison_picture
from gfunk.operators.make import make_operator
from gfunk.recipes.heat import heat
from gfunk.recipes.heat_data import HeatProblem
from gfunk.recipes.recipe import Recipe
from gfunk.rollout import rollout
from gfunk.simulation import missing_seeds, simulate_missing, split_seeds
from gfunk.store import read_sample
from gfunk.training import Epoch

SIZES = {"train": 64, "val": 8, "test": 16}

Bar = Callable[[str, int | None], AbstractContextManager[Callable[..., None]]]


def small_heat() -> Recipe:
    """The heat recipe on meshes of about 1,000 nodes, with a network to match."""
    ours = heat.variant("ours")
    if ours.training is None:
        raise AssertionError("our variant is a trained one")
    small = replace(
        ours,
        network=replace(ours.network, width=24, n_layers=2),
        training=replace(ours.training, epochs=12, batch_size=8, validate_every=2),
    )
    variants = tuple(small if variant.name == "ours" else variant for variant in heat.variants)
    return replace(heat, problem=HeatProblem(max_cell=0.001), variants=variants)


def heat_demo(
    out: Path, n_workers: int, bar: Bar, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the rows of its table, twice: as JSON and as shown."""
    recipe = small_heat()
    problem, variant, device = recipe.problem, recipe.variant("ours"), torch.device("cpu")
    for split, n in SIZES.items():
        missing = missing_seeds(out / "data" / split, problem, split_seeds(split, n))
        with bar(f"simulating {n} {split} trajectories", len(missing)) as advance:
            for _ in simulate_missing(problem, dict.fromkeys(missing, out / "data" / split), n_workers):
                advance()

    def said(epoch: Epoch) -> str:
        error = "" if epoch.validation is None else f", error on unseen fibre fields {epoch.validation:.4f}"
        return f"learning: epoch {epoch.number}{error}"

    run = out / "run"
    n_batches = -(-SIZES["train"] // variant.training.batch_size) if variant.training else 0
    with bar("learning", (variant.training.epochs if variant.training else 0) * n_batches) as advance:
        latest = "learning"

        def epoch_done(epoch: Epoch):
            nonlocal latest
            if epoch.validation is not None:
                latest = said(epoch)
                say(latest)

        operator, _ = train_variant(
            recipe, variant, out / "data", run,
            device=device, resume=(run / "run.json").exists(), minutes=None, n_train=None, n_val=None, n_workers=n_workers,
            on_epoch=epoch_done, on_iteration=lambda: advance(latest),
        )  # fmt: skip
    rows = []
    for name in ("ours", f"no-learning-{variant.view.n_modes}", "no-learning-50"):
        each = recipe.variant(name)
        data = load_split(out / "data" / "test", each.view, n=None, n_workers=n_workers)
        model = operator if name == "ours" else make_operator(each.network)
        result = evaluate_reported(model, each, problem, data)
        rows.append(
            {
                "predicted by": name,
                "rel_l2 on unseen fibre fields": result.rel_l2,
                "trajectories": len(result.rows),
                "ms a trajectory": 1e3 * result.seconds / len(result.rows),
            }
        )
    rows.append({"predicted by": "the paper's G-FuNK (published, larger data)", "rel_l2 on unseen fibre fields": 0.0302})
    picture = out / "heat.png"
    _draw(operator, recipe, out, picture)
    say(f"picture: {picture}")
    return rows, rows


def _draw(operator: torch.nn.Module, recipe: Recipe, out: Path, picture: Path):
    problem, variant = recipe.problem, recipe.variant("ours")
    seed = split_seeds("test", 1)[0]
    sample = read_sample(out / "data" / "test", seed)
    data = load_split(out / "data" / "test", variant.view, n=1, n_workers=1)
    with torch.no_grad():
        durations = torch.diff(data.times).tolist()
        predicted = rollout(operator, data.values[:, 0], data.batch, durations, variant.integrator)
    values = predicted[0, :, : sample.domain.n_nodes, 0].double().numpy() * problem.scale
    comparison_picture(
        picture, sample.domain, sample.times, sample.values[0].astype(float), values,
        "heat on a fibre field never seen: G-FuNK beside the solver", columns=(1, 3, 8, 20),
    )  # fmt: skip
