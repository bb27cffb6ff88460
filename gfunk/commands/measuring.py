"""What operators, the solver and synthetic atria cost, and how good they are for it."""

import argparse
from collections import Counter
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from gfunk.commands.meshing import draw_atria
from gfunk.commands.refusals import check_writable
from gfunk.commands.viewing import its_packages
from gfunk.console import bar, people, show
from gfunk.errors import InputError


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
    elif options.recipe == "predict":
        _bench_predict(options)
    elif options.recipe == "view":
        _bench_view(options)
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
        draw_atria(options.picture, range(min(4, options.n)), options.edge)
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


def _bench_predict(options: argparse.Namespace):
    from gfunk.atria.synthetic import left_atrium
    from gfunk.experiments import chosen_device
    from gfunk.prediction_cost import Row, prediction_cost
    from gfunk.records import hardware, record
    from gfunk.simulation import FIRST_SEED

    if options.record is not None:
        check_writable(options.record)
    model = _one_model(options)
    device = chosen_device(options.device)
    seed = FIRST_SEED["val"] if options.seed is None else options.seed
    with bar("predicting", 5) as advance:

        def said(row: Row):
            advance()
            # Should the rest take too long, this much is known.
            people.print(
                f"{row.what}: {row.together:.3g} s ({', '.join(f'{name} {s:.2g}' for name, s in row.seconds.items())})"
            )

        found = prediction_cost(
            left_atrium(seed, options.edge), model, 90.0, options.n, str(device), options.compile or None, said
        )
    rows = [
        {"what": row.what, "nodes": row.nodes, "waves": row.waves, **row.seconds, "together": row.together} for row in found
    ]
    answer = {"device": hardware(device), "seed": seed, "edge_mm": options.edge, "until_ms": 90.0, "rows": rows}
    if options.record is not None:
        label = "predict, compiled" if options.compile else "predict"
        record(options.record, {"recipe": model, "label": label, **answer}, options.words, device)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    show(options.json, answer, [{name: row.get(name) for name in columns} for row in rows])


def _bench_view(options: argparse.Namespace):
    from gfunk.atria.synthetic import left_atrium
    from gfunk.experiments import chosen_device, operator_named
    from gfunk.records import hardware, record
    from gfunk.simulation import FIRST_SEED

    with its_packages():
        from gfunk.viewing_cost import Click, viewing_cost
    if options.record is not None:
        check_writable(options.record)
    model = _one_model(options)
    # It refuses now, not in the middle of a visit.
    operator_named(model)
    device = chosen_device(options.device)
    seed = FIRST_SEED["val"] if options.seed is None else options.seed
    with bar("clicking", options.n) as advance:

        def said(click: Click):
            advance()
            stages = ", ".join(f"{name} {s:.2g}" for name, s in click.stages.items())
            people.print(f"node {click.node} plays after {click.plays:.3g} s ({stages})")

        visit = viewing_cost(left_atrium(seed, options.edge), model, options.n, str(device), said)
    rows = [{"node": click.node, "plays": click.plays, "whole": click.whole, **click.stages} for click in visit.clicks]
    answer = {
        "device": hardware(device), "seed": seed, "edge_mm": options.edge, "nodes": visit.nodes, "warming": visit.warming,
        **{f"median_{name}": median(row[name] for row in rows) for name in ("plays", "whole")},
        **{f"worst_{name}": max(row[name] for row in rows) for name in ("plays", "whole")},
        "rows": rows,
    }  # fmt: skip
    if options.record is not None:
        record(options.record, {"recipe": model, "label": "view", **answer}, options.words, device)
    people.print(f"{visit.nodes:,} nodes: a wave plays {answer['median_plays']:.3g} s after its click (median)")
    show(options.json, answer, rows)


def _one_model(options: argparse.Namespace) -> str:
    [model, *more] = options.run or ["atria"]
    if more:
        raise InputError(f"bench {options.recipe} takes one --run")
    return model


def _bench_pareto(options: argparse.Namespace):
    from gfunk.experiments import check_same_tissue, chosen_device, one_a_domain, operator_named
    from gfunk.pareto import compared
    from gfunk.pareto.kept import NOWHERE, kept_in
    from gfunk.pareto.operators import Contender
    from gfunk.pareto.pictures import pareto_picture
    from gfunk.recipes.book import recipe_named
    from gfunk.recipes.heat_data import HeatProblem
    from gfunk.records import hardware, record
    from gfunk.settings import to_json, with_overrides
    from gfunk.simulation import split_of, split_seeds

    if options.picture is not None:
        from gfunk.figures import pyplot

        pyplot()
    for path in filter(None, (options.picture, options.record)):
        check_writable(path)
    recipe = recipe_named(options.of or "rectangles")
    problem = with_overrides(one_a_domain(recipe.problem), options.set)
    if isinstance(problem, HeatProblem):
        raise InputError("bench pareto is for waves: heat's solver is direct, and its truth extrapolated already")
    contenders = []
    for name, n_halvings in (*((name, 0) for name in options.run), *((name, 1) for name in options.halved)):
        operator, trained_on, learned, variant = operator_named(name)
        check_same_tissue(name, trained_on, learned, recipe)
        said = f"{name}, edges halved" if n_halvings else name
        contenders.append(Contender(name=said, operator=operator, variant=variant, problem=learned, n_halvings=n_halvings))
    # Validation seeds, so that nobody tunes on test ones.
    seeds = split_seeds("val" if options.seed is None else split_of(options.seed), options.n, options.seed)
    device = chosen_device(options.device)
    together = options.batch or (100 if device.type == "cuda" else 1)
    terms = {
        "device": hardware(device), "seeds": list(seeds), "together": together, "truth_refine": options.truth_refine,
    }  # fmt: skip
    kept = NOWHERE if options.out is None else kept_in(options.out, problem=to_json(problem), **terms)
    with bar("solving", None) as advance:
        found = compared(
            problem, seeds, contenders, device=device, refine=options.truth_refine, together=together, kept=kept,
            on_part=advance,
        )  # fmt: skip
    answer = terms | {"truth_rel_l2": found.truth_rel_l2, "answers": found.answers(), "rows": found.table}
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


def _compiled(operator: Any) -> Any:
    import torch

    return torch.compile(operator, dynamic=False)
