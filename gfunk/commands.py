"""What each command does; torch is loaded only by those that need it, so that --help answers at once."""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from gfunk.console import _finite, bar, people, progress_bars, show
from gfunk.errors import InputError


def recipes(options: argparse.Namespace):
    from gfunk.operators.make import make_operator, n_parameters
    from gfunk.recipes.book import RECIPES
    from gfunk.records import best_results

    # Results are those of full sizes.
    measured = best_results() if options.size == "full" else {}
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
        for recipe in (each.sized(options.size) for each in RECIPES.values())
        for variant in recipe.variants
    ]
    show(options.json, rows, rows, ["name", "variant", "parameters", "paper_parameters", "paper_rel_l2", "rel_l2"])


def simulate(options: argparse.Namespace):
    from gfunk.recipes.book import recipe_named
    from gfunk.settings import with_overrides
    from gfunk.simulation import missing_seeds, simulate_missing, split_of, split_seeds

    recipe = recipe_named(options.recipe).sized(options.size)
    problem = with_overrides(recipe.problem, options.set)
    sizes = {"train": recipe.n_train, "val": recipe.n_val, "test": recipe.n_test}
    # A seed belongs to one split.
    split = options.split or (split_of(options.seed) if options.seed is not None else None)
    splits = [split] if split else list(sizes)
    seeds_of = {split: split_seeds(split, options.n or sizes[split], options.seed) for split in splits}
    device = "cpu"
    if options.device != "cpu" and options.scheduler is not None:
        raise InputError("--scheduler simulates on the CPUs of its workers: leave out --device")
    if options.device != "cpu":
        from gfunk.experiments import chosen_device

        device = str(chosen_device(options.device))
    done = []
    for split, seeds in seeds_of.items():
        folder = options.out / split
        missing = missing_seeds(folder, problem, seeds)
        started = time.monotonic()
        with bar(f"simulating {split}", len(missing)) as advance, _uncompiled(options.size == "smoke"):
            for _ in simulate_missing(problem, folder, missing, options.workers, device, options.scheduler):
                advance()
        done.append(
            {
                "split": split, "folder": str(folder), "samples": len(seeds), "simulated": len(missing),
                "seconds": round(time.monotonic() - started, 2),
            }
        )  # fmt: skip
    show(options.json, done, done)


@contextmanager
def _uncompiled(is_so: bool) -> Iterator[None]:
    """The solver's cells are not compiled, here and in new processes, which for little work takes longer than the work."""
    before = os.environ.get("GFUNK_COMPILE")
    if is_so and before is None:
        os.environ["GFUNK_COMPILE"] = "0"
    try:
        yield
    finally:
        if is_so and before is None:
            del os.environ["GFUNK_COMPILE"]


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


def evaluate(options: argparse.Namespace):
    from gfunk.evaluation import evaluate as evaluated
    from gfunk.experiments import (
        active_from,
        chosen_device,
        dataset_problem,
        load_split,
        one_a_domain,
        operator_named,
        reported,
        simulated_set,
    )  # fmt: skip
    from gfunk.operators.make import n_parameters
    from gfunk.records import record
    from gfunk.settings import to_json, with_overrides
    from gfunk.simulation import split_seeds
    from gfunk.store import read_object, write_bytes

    for path in filter(None, (options.worst, options.rows)):
        _check_writable(path)
    if options.worst is not None:
        from gfunk.figures import pyplot

        pyplot()
        if options.worst.suffix != ".png":
            raise InputError(f"{options.worst}: a picture is written as .png")
    operator, recipe_name, problem, variant = operator_named(options.model)
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
    if options.record is not None:
        outcome = Path(options.model) / "outcome.json"
        how = {"trained": read_object(outcome)} if outcome.exists() else {}
        about = {"label": options.label or variant.name, "problem": to_json(problem), **how}
        record(options.record, answer | about, options.words, device)
    rows = [asdict(row) for row in result.rows]
    if options.rows is not None:
        write_bytes(options.rows, "".join(json.dumps(_finite(row)) + "\n" for row in rows).encode())
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


def _check_writable(path: Path):
    """It refuses now, not after the work."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror})") from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{path}: can't be written: it is a folder, or lies in one that is not yours")


def compare(options: argparse.Namespace):
    from gfunk.comparison import Lever, Score, levers_of, missing_runs, read_levers
    from gfunk.comparison import compare as compared
    from gfunk.experiments import chosen_device
    from gfunk.recipes.book import recipe_named
    from gfunk.records import hardware, record

    if options.record is not None:
        _check_writable(options.record)
    recipe = recipe_named(options.recipe)
    texts = [*([] if options.levers is None else read_levers(options.levers)), *options.lever]
    levers = levers_of(recipe, options.variant, options.set, texts)
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


def bench(options: argparse.Namespace):
    if options.of is not None and options.recipe != "pareto":
        raise InputError(f"only `bench pareto` is of a recipe: leave out {options.of!r}")
    if options.n is None:
        options.n = 2 if options.recipe == "pareto" else 20
    if options.recipe == "solver":
        _bench_solver(options)
    elif options.recipe == "pareto":
        _bench_pareto(options)
    elif options.recipe == "scale":
        _bench_scale(options)
    elif options.recipe == "atria":
        _bench_atria(options)
    else:
        _bench_operators(options)


def _bench_solver(options: argparse.Namespace):
    from gfunk.experiments import chosen_device
    from gfunk.race import interpreters, raced
    from gfunk.records import hardware, record
    from gfunk.solver_cost import sheets, solver_cost, tube

    device = chosen_device(options.device)
    is_gpu = device.type == "cuda"
    # As much as keeps a GPU busy; a core is with the smallest.
    cases = (sheets(200, 110.0), tube(50_000, 100, 100.0)) if is_gpu else (sheets(1, 30.0), tube(10_000, 1, 30.0))
    with bar("stepping", len(cases)) as advance:
        rows = []
        for case in cases:
            rows.append(asdict(solver_cost(case, device)))
            advance()
    answer: dict[str, Any] = {"device": hardware(device), "rows": rows}
    if not is_gpu:
        with bar("racing", None) as advance:
            race = raced(interpreters(options.rivals), with_errors=not options.no_errors, on_run=advance)
        # Both have rows; ours keep the name.
        answer = asdict(race) | answer | {"race": race.table}
        rows = [*rows, *race.table]
        for name, reason in race.left_out.items():
            people.print(f"{name} is left out: {reason}")
    if options.record is not None:
        record(options.record, {"recipe": "solver", "label": "cost", **answer}, options.words, device)
    show(options.json, answer, rows)


def _bench_atria(options: argparse.Namespace):
    from gfunk.atrium_survey import compared, surveyed
    from gfunk.experiments import chosen_device
    from gfunk.parallel import in_parallel
    from gfunk.records import record

    if options.picture is not None:
        # It refuses now, not after the work.
        from gfunk.figures import pyplot

        pyplot()
    atria = []
    with bar("making atria", options.n) as advance:
        for atrium in in_parallel(partial(surveyed, edge_mm=options.edge), range(options.n), options.workers):
            atria.append(atrium)
            advance()
    if options.picture is not None:
        _draw_atria(options.picture, range(min(4, options.n)), options.edge)
    rows = compared(atria)
    answer = {
        "edge_mm": options.edge,
        "atria": len(atria),
        "valid": sum(not atrium.faults for atrium in atria),
        "faults": {atrium.seed: list(atrium.faults) for atrium in atria if atrium.faults},
        "labels": dict(Counter(atrium.labels for atrium in atria)),
        "median_seconds": median(atrium.seconds for atrium in atria),
        "median_nodes": median(atrium.nodes for atrium in atria),
        "worst_angle_degrees": min(atrium.worst_angle_degrees for atrium in atria),
        "shortest_edge": min(atrium.shortest_edge for atrium in atria),
        "longest_edge": max(atrium.longest_edge for atrium in atria),
        "rows": rows,
    }
    if options.record is not None:
        record(options.record, {"recipe": "atria", "label": "survey", **answer}, options.words, chosen_device("cpu"))
    people.print(f"{answer['valid']} of {len(atria)} atria are valid")
    show(options.json, answer, rows)


def _bench_pareto(options: argparse.Namespace):
    from gfunk.experiments import chosen_device, one_a_domain, operator_named
    from gfunk.pareto import Contender, compared, pareto_picture
    from gfunk.recipes.book import recipe_named
    from gfunk.recipes.heat_data import HeatProblem
    from gfunk.records import hardware, record
    from gfunk.settings import to_json, with_overrides
    from gfunk.simulation import split_of, split_seeds

    if options.picture is not None:
        from gfunk.figures import pyplot

        pyplot()
    for path in filter(None, (options.picture, options.record)):
        _check_writable(path)
    recipe = recipe_named(options.of or "rectangles")
    problem = with_overrides(one_a_domain(recipe.problem), options.set)
    if isinstance(problem, HeatProblem):
        raise InputError("bench pareto is for waves: heat's solver is direct, and its truth extrapolated already")
    contenders = []
    for name in options.run:
        operator, trained_on, _, variant = operator_named(name)
        if trained_on != recipe.name:
            raise InputError(f"{name} was trained on {trained_on}, not on {recipe.name}")
        contenders.append(Contender(name=name, operator=operator, variant=variant))
    # Validation seeds, so that nobody tunes on test ones.
    seeds = split_seeds("val" if options.seed is None else split_of(options.seed), options.n, options.seed)
    device = chosen_device(options.device)
    together = options.batch or (100 if device.type == "cuda" else 1)
    with bar("solving", None) as advance:
        found = compared(
            problem, seeds, contenders, device=device, refine=options.truth_refine, together=together, on_part=advance
        )
    answer = {
        "device": hardware(device), "seeds": list(seeds), "together": together, "truth_refine": options.truth_refine,
        "truth_rel_l2": found.truth_rel_l2, "answers": found.answers(), "rows": found.table,
    }  # fmt: skip
    if options.record is not None:
        about = {"recipe": recipe.name, "label": "pareto", "problem": to_json(problem)}
        record(options.record, about | answer, options.words, device)
    if options.picture is not None:
        pareto_picture(options.picture, found, f"{recipe.name}, seeds {seeds[0]} to {seeds[-1]}, {hardware(device)}")
    people.print(f"the truth itself may be off by {found.truth_rel_l2:.2g}")
    for sentence in found.answers():
        people.print(sentence, markup=False)
    # What no row has is no column.
    columns = [name for name in found.table[0] if name != "kind" and any(row[name] for row in found.table)]
    show(options.json, answer, found.table, columns)


def _bench_scale(options: argparse.Namespace):
    from gfunk.experiments import chosen_device
    from gfunk.recipes.book import recipe_named
    from gfunk.records import hardware, record
    from gfunk.scaling import measured

    [name, *more] = options.variant or ["rectangles/ours"]
    recipe_name, _, variant_name = name.partition("/")
    if more or not variant_name:
        raise InputError(f"bench scale takes one --variant RECIPE/VARIANT, not {' and '.join([name, *more])}")
    recipe = recipe_named(recipe_name)
    device = chosen_device(options.device)
    is_gpu = device.type == "cuda"
    nodes = options.nodes or ([1000, 5000, 20_000, 50_000, 100_000, 200_000] if is_gpu else [1000, 3000, 10_000])
    modes = options.modes or ([25, 50, 100, 200, 500] if is_gpu else [25, 50, 100])
    batch_size = options.batch or (4 if is_gpu else 1)
    with bar("measuring", len(set(nodes)) * len(set(modes))) as advance:
        found = measured(
            recipe, recipe.variant(variant_name), nodes, modes, batch_size=batch_size, device=device, on_row=advance
        )
    exponents = {what: found.exponents(what) for what in ("epoch_seconds", "predict_ms", "eigensolve_seconds")}
    rows = [asdict(row) for row in found.rows]
    answer = {"variant": name, "device": hardware(device), "exponents": exponents, "rows": rows}
    if options.record is not None:
        record(options.record, {"recipe": recipe.name, "label": "scale", **answer}, options.words, device)
    for what, found_exponents in exponents.items():
        said = ", ".join(f"{of.replace('_', ' ')}^{p:.2f}" for of, p in found_exponents.items() if p is not None)
        people.print(f"{what} ~ {said}")
    show(options.json, answer, rows)


def _bench_operators(options: argparse.Namespace):
    from gfunk.bench import cost, measured_ceilings
    from gfunk.experiments import chosen_device, seeded_operator, simulated_set
    from gfunk.recipes.book import recipe_named
    from gfunk.records import hardware, record
    from gfunk.settings import with_overrides
    from gfunk.simulation import split_seeds

    recipe = recipe_named(options.recipe)
    problem = with_overrides(recipe.problem, options.set)
    device = chosen_device(options.device)
    ceilings = measured_ceilings(device)
    rows = []
    for name in options.variant or ["ours", "paper"]:
        variant = recipe.variant(name)
        with bar("simulating", options.n) as advance:
            seeds = split_seeds("val", options.n)
            data = simulated_set(problem, variant.view, seeds, n_workers=options.workers, on_sample=advance).to(device)
        operator = seeded_operator(variant).to(device)
        step = _compiled(operator) if options.compile else operator
        rows.append(asdict(cost(operator, step, variant, data, recipe.n_train, ceilings)))
    answer = {"device": hardware(device), "ceilings": asdict(ceilings), "batch": options.n, "rows": rows}
    if options.record is not None:
        record(options.record, {"recipe": recipe.name, "label": "cost", **answer}, options.words, device)
    show(options.json, answer, rows)


def atrium(options: argparse.Namespace):
    import numpy as np

    from gfunk.atria.anatomy import REGIONS, region_numbers
    from gfunk.atria.synthetic import atrium_fibres, synthetic_atrium
    from gfunk.files.mending import Mended
    from gfunk.files.reading import described, write_mesh

    if options.picture is not None:
        # It refuses now, not after the work.
        from gfunk.figures import pyplot

        pyplot()
    made = synthetic_atrium(options.seed, options.edge)
    fibres = atrium_fibres(made, options.seed, options.turned)
    at_nodes, tags = region_numbers(made.regions, made.cells)
    answer: dict[str, Any] = {"seed": options.seed, **asdict(described(made.points_mm, made.cells))}
    answer["regions"] = {name: {"number": number, "nodes": len(made.regions[name])} for number, name in enumerate(REGIONS)}
    mesh = Mended(
        points_mm=made.points_mm, cells=made.cells, fibres=fibres, tags=tags, point_data={"region": at_nodes}, cell_data={},
        file_nodes=np.full(len(at_nodes), -1), file_cells=np.full(len(tags), -1), repairs=(),
    )  # fmt: skip
    write_mesh(options.out, mesh)
    answer["out"] = str(options.out)
    if options.picture is not None:
        _draw_atria(options.picture, [options.seed], options.edge, options.turned)
        answer["picture"] = str(options.picture)
    show(options.json, answer, [answer], ["seed", *_MESH_COLUMNS, "out"])


def _draw_atria(path: Path, seeds: Sequence[int], edge_mm: float, turned_degrees: float = 20.0):
    from gfunk.atria.anatomy import REGIONS, region_numbers
    from gfunk.atria.synthetic import atrium_fibres, synthetic_atrium
    from gfunk.surface_pictures import Pictured, surfaces_picture

    shown = []
    for seed in seeds:
        made = synthetic_atrium(seed, edge_mm)
        _, labels = region_numbers(made.regions, made.cells)
        fibres = atrium_fibres(made, seed, turned_degrees)
        shown.append(Pictured(title=f"seed {seed}", points=made.points_mm, cells=made.cells, labels=labels, fibres=fibres))
    surfaces_picture(path, shown, REGIONS)


def mesh(options: argparse.Namespace):
    import numpy as np

    from gfunk.files.reading import described, read_mesh, with_rule_fibres, write_mesh
    from gfunk.remeshing import remeshed
    from gfunk.resampling import carried_fibres

    found = read_mesh(options.file, unit=options.unit, keep_all=options.keep_all)
    if found.cells.shape[1] != 3:
        raise InputError(f"{options.file}: has tetrahedra; `gfunk mesh` is for surfaces")
    answer: dict[str, Any] = {"file": str(options.file), **asdict(described(found.points_mm, found.cells))}
    if options.edge is not None:
        points, cells = remeshed(found.points_mm, found.cells, options.edge)
        fibres = found.fibres
        if fibres is not None:
            fibres = carried_fibres(found.points_mm, found.cells, fibres, points, cells)
        # Other data belong to the nodes and cells that were.
        found = replace(
            found, points_mm=points, cells=cells, fibres=fibres, tags=None, point_data={}, cell_data={},
            file_nodes=np.full(len(points), -1), file_cells=np.full(len(cells), -1),
        )  # fmt: skip
        answer["remeshed"] = asdict(described(points, cells))
    if options.fibres == "rule":
        found, regions = with_rule_fibres(found, dict(options.label))
        answer["regions"] = {name: len(nodes) for name, nodes in regions.items()}
    answer |= {"has_fibres": found.fibres is not None, "repairs": list(found.repairs)}
    if options.out is not None:
        write_mesh(options.out, found)
        answer["out"] = str(options.out)
    for sentence in answer["repairs"]:
        people.print(f"- {sentence}")
    show(options.json, answer, [answer, *([answer["remeshed"]] if "remeshed" in answer else [])], _MESH_COLUMNS)


_MESH_COLUMNS = ["nodes", "cells", "area_cm2", "volume_ml", "genus", "holes", "mean_edge_mm", "worst_angle_degrees"]


def verify(options: argparse.Namespace) -> int:
    from gfunk.experiments import chosen_device
    from gfunk.figures import pyplot
    from gfunk.records import hardware
    from gfunk.verification import checks

    device = chosen_device(options.device)
    if options.out is not None:
        # Both refuse now, not after minutes.
        pyplot()
        options.out.mkdir(parents=True, exist_ok=True)
    findings, pictures = [], []
    started = time.monotonic()
    for check in checks(options.quick):
        with bar(check.about, check.n_parts) as advance:
            evidence = check.gather(device, advance)
        findings += evidence.findings
        if options.out is not None:
            for name, draw in evidence.pictures.items():
                draw(options.out / name)
                pictures.append(str(options.out / name))
    rows = [asdict(finding) | {"passed": finding.passed} for finding in findings]
    all_passed = all(finding.passed for finding in findings)
    answer = {
        "passed": all_passed, "device": hardware(device), "seconds": round(time.monotonic() - started, 1),
        "pictures": pictures, "rows": rows,
    }  # fmt: skip
    show(options.json, answer, rows, ["law", "found", "known", "tolerance", "unit", "passed"])
    return 0 if all_passed else 1


def results(options: argparse.Namespace):
    from gfunk.records import recorded

    rows = recorded()
    shown = [row for row in rows if "rel_l2" in row]
    columns = ["recipe", "label", "rel_l2", "n", "nodes", "parameters", "hardware", "commit", "command"]
    show(options.json, rows, shown, columns)


def ship(options: argparse.Namespace):
    from gfunk import pretrained

    card = pretrained.ship(
        options.run, name=options.name, record=options.record, label=options.label, limits=options.limits,
        data=options.data, n_train=options.n_train, n_val=options.n_val,
        precision=options.dtype, unfinished=options.unfinished,
    )  # fmt: skip
    _show_models(options.json, [card.name])


def models(options: argparse.Namespace):
    from gfunk.pretrained import pretrained_names

    _show_models(options.json, pretrained_names())


def _show_models(as_json: bool, names: Sequence[str]):
    from gfunk.pretrained import n_bytes, read_model_card

    rows = []
    for card in map(read_model_card, names):
        about = {"name": card.name, "recipe": card.recipe, "variant": card.variant.name, "parameters": card.parameters}
        tested = {"rel_l2": card.tested["rel_l2"], "n": card.tested["n"]}
        rows.append(about | tested | {"precision": card.precision, "bytes": n_bytes(card.name), "limits": card.limits})
    show(as_json, rows, rows, ["name", "recipe", "variant", "parameters", "rel_l2", "n", "precision", "bytes"])


def demo(options: argparse.Namespace):
    from gfunk.demo import heat_demo

    show(options.json, *heat_demo(options.out, options.workers, bar, people.print))


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
