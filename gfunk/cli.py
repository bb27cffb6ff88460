"""The command line: parsing, progress and printing only."""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gfunk.errors import InputError
from gfunk.parallel import default_workers

people = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 on success, 2 with one line for bad input, 130 when interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words, argparse.Namespace(words=words))
    try:
        options.command(options)
        sys.stdout.flush()
    except InputError as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        print(
            "gfunk: interrupted; what was written is whole: the same command (train --resume) goes on there", file=sys.stderr
        )
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _refused(str(error))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not loaded for every command
            raise
        return _refused(
            "the GPU's memory is full: take fewer trajectories at a time (--batch; --set training.batch_size=...), "
            "recompute instead of keeping (--set training.saves_memory=True) or launch instead of replaying (--no-replay)"
        )
    return 0


def recipes(options: argparse.Namespace):
    from gfunk.operators.make import make_operator, n_parameters
    from gfunk.recipes.book import RECIPES

    measured = _best_results()
    rows = [
        {
            "name": recipe.name,
            "variant": variant.name,
            "parameters": n_parameters(make_operator(variant.network)),
            "paper_parameters": variant.paper_parameters,
            "paper_rel_l2": variant.paper_rel_l2,
            "rel_l2": measured.get((recipe.name, variant.name)),
            "n_train": recipe.n_train,
            "n_test": recipe.n_test,
        }
        for recipe in RECIPES.values()
        for variant in recipe.variants
    ]
    _show(options, rows, rows, ["name", "variant", "parameters", "paper_parameters", "paper_rel_l2", "rel_l2"])


def simulate(options: argparse.Namespace):
    from gfunk.recipes.book import recipe_named
    from gfunk.settings import with_overrides
    from gfunk.simulation import missing_seeds, simulate_missing, split_seeds

    recipe = recipe_named(options.recipe)
    problem = with_overrides(recipe.simulated_problem(), options.set)
    sizes = {"train": recipe.n_train, "val": recipe.n_val, "test": recipe.n_test}
    splits = [options.split] if options.split else list(sizes)
    seeds_of = {split: split_seeds(split, options.n or sizes[split], options.seed) for split in splits}
    done = []
    for split, seeds in seeds_of.items():
        folder = options.out / split
        missing = missing_seeds(folder, problem, seeds)
        started = time.monotonic()
        with _bar(f"simulating {split}", len(missing)) as advance:
            for _ in simulate_missing(problem, folder, missing, options.workers):
                advance()
        done.append(
            {
                "split": split, "folder": str(folder), "samples": len(seeds), "simulated": len(missing),
                "seconds": round(time.monotonic() - started, 2),
            }
        )  # fmt: skip
    _show(options, done, done)


def train(options: argparse.Namespace):
    import torch.distributed as dist

    from gfunk.experiments import chosen_device, train_variant
    from gfunk.operators.make import n_parameters
    from gfunk.recipes.book import recipe_named
    from gfunk.settings import with_overrides
    from gfunk.training import Epoch

    recipe = recipe_named(options.recipe)
    variant = with_overrides(recipe.variant(options.variant), options.set)
    device = _in_group(chosen_device(options.device))
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    people.quiet = not is_first
    n_batches = 0
    with _progress() as progress, _board(options.out if options.tensorboard and is_first else None) as board:
        reading = progress.add_task("preparing domains", total=None)
        learning = progress.add_task("training", total=None, visible=False)

        def start(operator: Any, data: Any):
            nonlocal n_batches
            n_batches = -(-data.n_trajectories // variant.training.batch_size)  # pyright: ignore[reportOptionalMemberAccess]
            progress.update(reading, visible=False)
            progress.update(learning, visible=True, total=variant.training.epochs * n_batches)  # pyright: ignore[reportOptionalMemberAccess]
            people.print(f"{recipe.name}/{variant.name}: {n_parameters(operator):,} parameters on {device}")

        def epoch_done(epoch: Epoch):
            said = f"epoch {epoch.number}  loss {epoch.loss:.5f}"
            if epoch.validation is not None:
                said += f"  validation {epoch.validation:.5f}"
            progress.update(learning, completed=epoch.number * n_batches, description=said)
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
        _show(options, asdict(outcome), [asdict(outcome)])
    if dist.is_initialized():
        dist.destroy_process_group()


def evaluate(options: argparse.Namespace):
    from gfunk.experiments import chosen_device, dataset_problem, evaluate_on, load_split, simulated_set
    from gfunk.operators.make import n_parameters
    from gfunk.settings import to_json, with_overrides
    from gfunk.simulation import split_seeds

    operator, recipe_name, problem, variant = _operator_named(options.model)
    variant = replace(
        variant,
        view=replace(variant.view, rotation_degrees=options.rotate),
        integrator=with_overrides(variant.integrator, options.set_integrator),
    )
    if options.data is not None and options.set:
        raise InputError("--set changes how fresh samples are simulated; it can't change those in --data")
    device = chosen_device(options.device)
    if options.data is not None:
        problem = dataset_problem(options.data / options.split)
        with _bar("preparing domains", None) as advance:
            data = load_split(
                options.data / options.split, variant.view,
                n=options.n, n_workers=options.workers, on_sample=advance,
            )  # fmt: skip
    else:
        problem = with_overrides(problem, options.set)
        seeds = split_seeds("test", options.n or 4, options.seed)
        with _bar("simulating", len(seeds)) as advance:
            data = simulated_set(problem, variant.view, seeds, n_workers=options.workers, on_sample=advance)
    result = evaluate_on(operator, variant, data, device, batch_size=options.batch)
    answer = {
        "recipe": recipe_name, "variant": variant.name, **result.summary(), "parameters": n_parameters(operator),
        "nodes": data.values.shape[2], "milliseconds_per_trajectory": 1e3 * result.seconds / len(result.rows),
        "worst_rel_l2": max(row.rel_l2 for row in result.rows),
    }  # fmt: skip
    if options.record is not None:
        _record(options, answer | {"label": options.label or variant.name, "problem": to_json(problem)}, device)
    _show(options, answer | {"rows": [asdict(row) for row in result.rows]}, [answer])


def bench(options: argparse.Namespace):
    from gfunk.bench import cost, measured_ceilings
    from gfunk.experiments import chosen_device, seeded_operator, simulated_set
    from gfunk.recipes.book import recipe_named
    from gfunk.settings import with_overrides
    from gfunk.simulation import split_seeds

    recipe = recipe_named(options.recipe)
    problem = with_overrides(recipe.simulated_problem(), options.set)
    device = chosen_device(options.device)
    ceilings = measured_ceilings(device)
    rows = []
    for name in options.variant or ["ours", "paper"]:
        variant = recipe.variant(name)
        with _bar("simulating", options.n) as advance:
            seeds = split_seeds("val", options.n)
            data = simulated_set(problem, variant.view, seeds, n_workers=options.workers, on_sample=advance).to(device)
        operator = seeded_operator(variant).to(device)
        step = _compiled(operator) if options.compile else operator
        rows.append(asdict(cost(operator, step, variant, data, recipe.n_train, ceilings)))
    answer = {"device": _hardware(device), "ceilings": asdict(ceilings), "batch": options.n, "rows": rows}
    if options.record is not None:
        _record(options, {"recipe": recipe.name, "label": "cost", **answer}, device)
    _show(options, answer, rows)


def results(options: argparse.Namespace):
    rows = _recorded()
    shown = [row for row in rows if "rel_l2" in row]
    _show(options, rows, shown, ["recipe", "label", "rel_l2", "n", "nodes", "parameters", "hardware", "commit", "command"])


def demo(options: argparse.Namespace):
    from gfunk.demo import heat_demo

    _show(options, *heat_demo(options.out, options.workers, _bar, people.print))


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_refused(f"{message} (see {self.prog} --help)"))


def _refused(message: str) -> int:
    print("gfunk:", " ".join(message.split()), file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="gfunk", description="Predict how a diffusive PDE evolves on domains never seen before.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(action: Any, about: str) -> argparse.ArgumentParser:
        each = commands.add_parser(action.__name__, help=about, description=about)
        each.set_defaults(command=action)
        each.add_argument("--json", action="store_true", help="print JSON for machines")
        return each

    def shared(each: argparse.ArgumentParser, *names: str):
        forms = {
            "workers": {"type": _positive, "default": default_workers(), "help": "processes (default: one a core)"},
            "device": {"default": "auto", "help": "cpu, cuda, or auto"},
            "set": {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "change a setting"},
            "record": {"type": Path, "help": "append the result, command and hardware to this JSON file"},
            "compile": {"action": "store_true", "help": "compile the operator first (pays on a GPU)"},
        }
        for name in names:
            each.add_argument(f"--{name}", **forms[name])

    each = command(demo, "learn heat on small meshes and predict it on fibre fields never seen; writes a picture")
    each.add_argument("--out", type=Path, default=Path("demo"))
    shared(each, "workers")

    command(recipes, "the experiments: variants, parameter counts, the paper's number, ours")

    each = command(simulate, "make a recipe's data with the solver; goes on where it was stopped")
    each.add_argument("recipe")
    each.add_argument("--out", type=Path, required=True, help="folder; each split has its own below it")
    each.add_argument("--split", choices=["train", "val", "test"], help="default: all three")
    each.add_argument("--n", type=_positive, help="samples (default: the recipe's)")
    each.add_argument("--seed", type=int, help="first seed (default: the split's)")
    shared(each, "workers", "set")

    each = command(train, "train a variant of a recipe (torchrun runs it on many devices)")
    each.add_argument("recipe")
    each.add_argument("--variant", help="default: ours")
    each.add_argument("--data", type=Path, required=True, help="folder made by simulate")
    each.add_argument("--out", type=Path, required=True, help="run folder")
    each.add_argument("--minutes", type=float, help="stop after so long, at a checkpoint")
    each.add_argument("--resume", action="store_true", help="go on from the last checkpoint, exactly")
    each.add_argument("--n-train", type=_positive, help="use only so many training samples")
    each.add_argument("--n-val", type=_positive, help="use only so many validation samples")
    each.add_argument("--tensorboard", action="store_true", help="write TensorBoard logs into the run folder")
    each.add_argument("--say-every", type=_positive, default=1, help="epochs between lines when not on a terminal")
    each.add_argument("--no-replay", action="store_true", help="on a GPU, launch each kernel anew: slower, less memory")
    shared(each, "workers", "device", "set", "compile")

    each = command(evaluate, "error of a trained run, or of RECIPE/VARIANT where nothing is learned, on test data")
    each.add_argument("model", help="run folder, or RECIPE/VARIANT")
    each.add_argument("--data", type=Path, help="folder made by simulate (default: simulate afresh)")
    each.add_argument("--split", choices=["val", "test"], default="test")
    each.add_argument("--seed", type=int, help="first seed of fresh test samples (default 200000)")
    each.add_argument("--n", type=_positive, help="samples (default: all of --data, or 4 fresh ones)")
    each.add_argument("--rotate", type=float, default=0.0, metavar="DEG", help="turn every domain first")
    each.add_argument("--batch", type=_positive, default=20, help="trajectories at a time")
    each.add_argument("--label", help="name of the recorded row (default: the variant)")
    each.add_argument(
        "--set-integrator", action="append", default=[], metavar="KEY=VALUE", help="for example longest_step=0.002"
    )
    shared(each, "workers", "device", "set", "record")

    each = command(bench, "what operators cost, beside the least they could")
    each.add_argument("recipe", nargs="?", default="heat")
    each.add_argument("--variant", action="append", help="default: ours and paper")
    each.add_argument("--n", type=_positive, default=20, help="trajectories at a time")
    shared(each, "workers", "device", "set", "record", "compile")

    command(results, "what was reached, on what, by which command")
    return parser


def _operator_named(name: str) -> tuple[Any, str, Any, Any]:
    """A trained run, or a variant with nothing to learn: operator, recipe name, problem, variant."""
    from gfunk.operators.make import make_operator
    from gfunk.recipes.book import RECIPES
    from gfunk.runs import load_run

    recipe_name, _, variant_name = name.partition("/")
    if recipe_name in RECIPES and variant_name and not Path(name).exists():
        recipe = RECIPES[recipe_name]
        variant = recipe.variant(variant_name)
        if variant.training is not None:
            raise InputError(f"{name} has to be trained first: `gfunk train {recipe_name} --variant {variant_name} ...`")
        return make_operator(variant.network), recipe.name, recipe.simulated_problem(), variant
    operator, card = load_run(Path(name))
    return operator, card.recipe, card.problem, card.variant


def _in_group(device: Any) -> Any:
    """Join the processes torchrun started, if it did; each takes its own GPU."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return device
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def _compiled(operator: Any) -> Any:
    import torch

    return torch.compile(operator, dynamic=False)


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


def _record(options: argparse.Namespace, row: dict[str, Any], device: Any):
    from gfunk.store import commit, read_json, write_json

    path = options.record
    rows = read_json(path) if path.exists() else []
    about = {
        "command": shlex.join(["gfunk", *options.words]), "hardware": _hardware(device), "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    write_json(path, [*rows, row | about])


def _hardware(device: Any) -> str:
    import torch

    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _results_folder() -> Path:
    beside = Path(__file__).parent / "results"
    return beside if beside.is_dir() else Path(__file__).parent.parent / "results"


def _recorded() -> list[dict[str, Any]]:
    from gfunk.store import read_json

    return [row for path in sorted(_results_folder().glob("*.json")) for row in read_json(path)]


def _best_results() -> dict[tuple[str, str], float]:
    """The lowest recorded error of each recipe and variant, as trained and tested at full size."""
    best: dict[tuple[str, str], float] = {}
    for row in _recorded():
        if "rel_l2" in row and row["label"] == row["variant"]:
            key = row["recipe"], row["variant"]
            best[key] = min(best.get(key, float("inf")), row["rel_l2"])
    return best


def _show(options: argparse.Namespace, content: Any, rows: list[dict[str, Any]], columns: list[str] | None = None):
    """JSON for machines, a table for people."""
    if options.json:
        print(json.dumps(_finite(content)))
        return
    columns = columns or list(rows[0]) if rows else columns or []
    table = Table(*columns)
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _finite(content: Any) -> Any:
    """JSON knows neither NaN nor infinity: null stands for them."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=people, transient=True,
        disable=not people.is_terminal,
    )  # fmt: skip


@contextmanager
def _bar(about: str, total: int | None) -> Iterator[Any]:
    """A bar with the time left; calling what it gives moves it on, optionally saying something new."""
    with _progress() as progress:
        task: TaskID = progress.add_task(about, total=total)

        def advance(said: str | None = None):
            progress.update(task, advance=1, description=said or about)

        yield advance


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
