"""Operators learned, tested, and changes of them side by side; the demo does it all at small size."""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gfunk.commands.refusals import check_writable
from gfunk.console import bar, finite, people, progress_bars, show
from gfunk.errors import InputError


def train(options: argparse.Namespace):
    import torch.distributed as dist

    from gfunk.experiments import chosen_device, train_variant
    from gfunk.operators.make import n_parameters
    from gfunk.processes import join_group
    from gfunk.recipes.book import recipe_named
    from gfunk.records import hardware
    from gfunk.settings import with_overrides
    from gfunk.store import commit, write_json
    from gfunk.training import Epoch, n_batches

    recipe = recipe_named(options.recipe).sized(options.size)
    variant = with_overrides(recipe.variant(options.variant), options.set)
    device = join_group(chosen_device(options.device))
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    people.quiet = not is_first
    n_iterations = 0
    with progress_bars() as progress, _board(options.out if options.tensorboard and is_first else None) as board:
        reading = progress.add_task("preparing domains", total=None)
        learning = progress.add_task("training", total=None, visible=False)

        def start(operator: Any, data: Any):
            nonlocal n_iterations
            n_iterations = n_batches(variant.training, data.n_trajectories)  # pyright: ignore[reportArgumentType]
            progress.update(reading, visible=False)
            progress.update(learning, visible=True, total=variant.training.epochs * n_iterations)  # pyright: ignore[reportOptionalMemberAccess]
            people.print(f"{recipe.name}/{variant.name}: {n_parameters(operator):,} parameters on {device}")

        def epoch_done(epoch: Epoch):
            said = f"epoch {epoch.number}  loss {epoch.loss:.5f}"
            if epoch.validation is not None:
                said += f"  validation {epoch.validation:.5f}"
            progress.update(learning, completed=epoch.number * n_iterations, description=said)
            board({"loss": epoch.loss, "validation": epoch.validation, "learning rate": epoch.learning_rate}, epoch.number)
            if not people.is_terminal and (epoch.number % max(1, options.say_every) == 0):
                people.print(f"{said}  horizon {epoch.horizon}  {epoch.seconds:.2f} s")

        _, outcome = train_variant(
            recipe, variant, options.data, options.out,
            device=device, resume=options.resume, minutes=options.minutes, n_train=options.n_train, n_val=options.n_val,
            n_workers=options.workers, compiles=options.compile, replays=not options.no_replay,
            on_sample=lambda: progress.advance(reading), on_start=start, on_epoch=epoch_done,
            on_iteration=lambda: progress.advance(learning),
        )  # fmt: skip
    if is_first:
        write_json(options.out / "outcome.json", asdict(outcome) | {"hardware": hardware(device), "commit": commit()})
        show(options.json, asdict(outcome), [asdict(outcome)])
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _board(folder: Path | None) -> Iterator[Callable[[dict[str, float | None], int], None]]:
    """What writes an epoch's numbers to TensorBoard, or does nothing without a folder."""
    if folder is None:
        yield lambda _numbers, _epoch: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard logs need tensorboard: pip install 'gfunk[logs]'") from error
    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def write(numbers: dict[str, float | None], epoch: int):
            for name, number in numbers.items():
                if number is not None:
                    writer.add_scalar(name, number, epoch)

        yield write


def evaluate(options: argparse.Namespace):
    from gfunk.evaluation import evaluate as evaluated
    from gfunk.experiments import (
        active_from,
        check_same_tissue,
        chosen_device,
        dataset_problem,
        load_split,
        one_a_domain,
        operator_named,
        reported,
        shipped_for,
        simulated_set,
        trust_in,
    )  # fmt: skip
    from gfunk.operators.make import n_parameters
    from gfunk.recipes.book import recipe_named
    from gfunk.records import record
    from gfunk.settings import to_json, with_overrides
    from gfunk.simulation import split_seeds
    from gfunk.store import read_object, write_bytes
    from gfunk.trust import kept

    for path in filter(None, (options.worst, options.rows)):
        check_writable(path)
    if options.worst is not None:
        from gfunk.figures import pyplot

        pyplot()
        if options.worst.suffix != ".png":
            raise InputError(f"{options.worst}: a picture is written as .png")
    model, its_recipe = shipped_for(options.model)
    operator, recipe_name, problem, variant = operator_named(model)
    variant = replace(
        variant,
        view=replace(variant.view, rotation_degrees=options.rotate),
        integrator=with_overrides(variant.integrator, options.set_integrator),
    )
    if options.data is not None and (options.set or options.recipe):
        raise InputError("--set and --recipe say how fresh samples are simulated; they can't change those in --data")
    label = variant.name
    if asked_for := options.recipe or its_recipe:
        asked = recipe_named(asked_for)
        check_same_tissue(model, recipe_name, problem, asked)
        problem, label = asked.problem, f"{variant.name} on {asked.name}"
    device = chosen_device(options.device)
    if options.data is not None:
        problem = dataset_problem(options.data / options.split)
        with bar("preparing domains", None) as advance:
            data = load_split(
                options.data / options.split, variant.view,
                n=options.n, n_workers=options.workers, device=device, on_sample=advance,
            )  # fmt: skip
    else:
        problem = with_overrides(one_a_domain(problem), options.set)
        seeds = split_seeds("test", options.n or 4, options.seed)
        with bar("simulating", len(seeds)) as advance:
            data = simulated_set(problem, variant.view, seeds, n_workers=options.workers, on_sample=advance)
    operator, data = operator.to(device).eval(), data.to(device)
    data, every = reported(variant, problem, data)
    result = evaluated(
        operator, data, variant.integrator,
        batch_size=options.batch, every=options.every or every, threshold=active_from(problem),
    )  # fmt: skip
    answer = {
        "recipe": recipe_name, "variant": variant.name, **result.summary(), "parameters": n_parameters(operator),
        "nodes": data.values.shape[2], "milliseconds_per_trajectory": 1e3 * result.seconds / len(result.rows),
        "worst_rel_l2": result.rows[result.worst].rel_l2,
    }  # fmt: skip
    rows = [asdict(row) for row in result.rows]
    # Rough fibres have bounds of their own, which `calibrate --check` tries.
    if (bounds := trust_in(model).bounds) is not None and not getattr(problem, "rough_degrees", 0):
        answer |= kept(bounds, rows)
    if options.record is not None:
        outcome = Path(model) / "outcome.json"
        how = {"trained": read_object(outcome)} if outcome.exists() else {}
        about = {"label": options.label or label, "problem": to_json(problem), **how}
        record(options.record, answer | about, options.words, device)
    if options.rows is not None:
        write_bytes(options.rows, "".join(json.dumps(finite(row)) + "\n" for row in rows).encode())
    if options.worst is not None:
        from gfunk.trajectory_pictures import prediction_picture

        worst = result.rows[result.worst]
        title = (
            f"{recipe_name}/{variant.name}, the worst of {len(rows)}: "
            f"seed {worst.seed}, number {worst.number}, relative l2 {worst.rel_l2:.4f}"
        )
        folder = None if options.data is None else options.data / options.split
        prediction_picture(options.worst, operator, variant, problem, data, result.worst, folder, title)
    columns = [name for name, value in answer.items() if value is not None and not isinstance(value, list)]
    show(options.json, answer | {"rows": rows}, [answer], columns)


def compare(options: argparse.Namespace):
    from gfunk.comparison import Lever, Score, levers_of, missing_runs, read_levers
    from gfunk.comparison import compare as compared
    from gfunk.experiments import chosen_device
    from gfunk.recipes.book import recipe_named
    from gfunk.records import hardware, record

    if options.record is not None:
        check_writable(options.record)
    recipe = recipe_named(options.recipe)
    texts = [*([] if options.levers is None else read_levers(options.levers)), *options.lever]
    levers = levers_of(recipe, recipe.sized(options.size).variant(options.variant), options.set, texts)
    device = chosen_device(options.device)
    n_epochs = 1
    with progress_bars() as progress:
        preparing = progress.add_task("preparing domains", total=None)
        n_missing = len(missing_runs(levers, options.out, options.seeds))
        learning = progress.add_task("seconds of training", total=n_missing * options.seconds)

        def start(lever: Lever, seed: int, epochs: int):
            nonlocal n_epochs
            n_epochs = epochs
            progress.update(learning, description=f"{lever.name}, seed {seed}: {epochs} epochs")

        def end(lever: Lever, seed: int, result: Score | str):
            said = f"{result.val_rel_l2:.5f} in {result.seconds:.1f} s" if isinstance(result, Score) else f"failed: {result}"
            people.print(f"{lever.name}, seed {seed}: {said}", markup=False)

        rows = compared(
            recipe, levers, options.data, options.out, seconds=options.seconds, n_seeds=options.seeds, device=device,
            hardware=hardware(device), n_train=options.n_train, n_workers=options.workers, compiles=options.compile,
            on_sample=lambda: progress.advance(preparing), on_start=start, on_end=end,
            on_epoch=lambda _: progress.advance(learning, options.seconds / n_epochs),
        )  # fmt: skip
    shown = [asdict(row) for row in rows]
    answer = {"recipe": recipe.name, "seconds": options.seconds, "rows": shown}
    if options.record is not None:
        record(options.record, answer | {"label": "comparison"}, options.words, device)
    # What no row has is no column.
    columns = [name for name in shown[0] if name not in ("settings", "runs") and any(row[name] for row in shown)]
    show(options.json, answer, shown, columns)


def heat_demo(options: argparse.Namespace):
    from gfunk import demo

    show(options.json, *demo.heat_demo(options.out, options.workers, bar, people.print))
