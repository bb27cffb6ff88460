"""Waves from many sites of one mesh."""

import argparse
import time
from pathlib import Path
from typing import Any

from gfunk.commands.predicting import NEXT
from gfunk.commands.refusals import check_writable
from gfunk.console import bar, people, progress_bars, show
from gfunk.errors import InputError

SHOWN = ("site", "node", "region", "total_ms", "mean_ms", "share", "last_node", "last_region")
# Before the waves themselves.
STAGES = ("read", "model", "resample", "modes")


def sweep(options: argparse.Namespace):
    from gfunk.readiness import made_ready
    from gfunk.sites import site_at
    from gfunk.sweep_report import site_rows, write_maps, write_table
    from gfunk.sweeping import spread_nodes, swept

    _refuse_early(options)
    with bar("read", len(STAGES)) as advance:

        def ended(name: str, _seconds: float):
            advance(NEXT.get(name))

        started = time.perf_counter()
        domain = _read(options)
        sites = [*options.at, *(spread_nodes(domain, options.sites, options.region, options.seed) if options.sites else ())]
        # It refuses now, not after the modes.
        for site in options.at:
            site_at(domain, site)
        seconds = {"read": time.perf_counter() - started}
        ended("read", seconds["read"])
        ready = made_ready(domain, options.model, edge_mm=options.edge, device=options.device, on_stage=ended)
    started = time.perf_counter()
    with progress_bars() as progress:
        task = progress.add_task("sites", total=len(sites))
        # Those of an earlier run come in one go at first, which a bar does not take for its speed.
        waves = swept(ready, sites, options.until, folder=options.out, on_sites=lambda found: progress.advance(task, found))
    seconds |= {**ready.seconds, "waves": time.perf_counter() - started}
    write_table(options.out / "sites.csv", waves)
    write_maps(options.out / "sweep.vtp", waves)
    write_maps(options.out / "activation.npz", waves)
    written = ["sites.csv", "sweep.vtp", "activation.npz"]
    if _draws(options.out / "sweep.png", waves):
        written.append("sweep.png")
    rows = site_rows(waves)
    earliest, latest = (rows[waves.earliest_first[end]] for end in (0, -1))
    answer: dict[str, Any] = {
        "mesh": str(options.mesh), "model": options.model, "nodes": domain.n_nodes, "even_nodes": ready.even.n_nodes,
        "sites": len(rows), "until_ms": options.until, "earliest": earliest, "latest": latest, "seconds": seconds,
        "out": [str(options.out / name) for name in written],
        "warnings": list(waves.warnings), "repairs": list(domain.repairs),
    }  # fmt: skip
    for sentence in answer["repairs"]:
        people.print(f"- {sentence}", markup=False)
    for sentence in answer["warnings"]:
        people.print(f"doubtful: {sentence}", markup=False)
    for path in answer["out"]:
        people.print(f"written: {path}", markup=False)
    table = [{"": name, **{column: row[column] for column in SHOWN}} for name, row in _summary(rows, waves).items()]
    show(options.json, answer, table)


def _refuse_early(options: argparse.Namespace):
    from gfunk.experiments import operator_named
    from gfunk.prediction import checked_times
    from gfunk.recipes.tissue_data import TissueProblem
    from gfunk.sweeping import sweep_times

    if not options.sites and not options.at:
        raise InputError("no sites: say how many with --sites, or where with --at")
    if options.region is not None and not options.sites:
        raise InputError("--region says where --sites lie, and there are none")
    times = sweep_times(options.until)
    check_writable(options.out / "sites.csv")
    _, _, problem, _ = operator_named(options.model)
    if isinstance(problem, TissueProblem):
        checked_times(times, problem.pacing.first_ms)


def _read(options: argparse.Namespace) -> Any:
    """With its parts named where they can be told; they must be where the options name one."""
    from gfunk.files.tissue import read_tissue, with_regions

    domain = read_tissue(options.mesh, fibres=options.fibres, unit=options.unit, labels=dict(options.label))
    names = [name for name in (options.region, *options.at) if isinstance(name, str)]
    try:
        return with_regions(domain, dict(options.label))
    except InputError as error:
        if names:
            raise InputError(f"{names[0]}: the parts of {options.mesh} can't be told ({error})") from None
        return domain


def _draws(path: Path, waves: Any) -> bool:
    from gfunk.store import write_bytes
    from gfunk.sweep_report import sweep_picture

    try:
        picture = sweep_picture(waves)
    except InputError as error:
        people.print(f"no picture: {error}", markup=False)
        return False
    write_bytes(path, picture)
    return True


def _summary(rows: list[dict[str, Any]], waves: Any) -> dict[str, dict[str, Any]]:
    order = waves.earliest_first
    return {"earliest": rows[order[0]], "middle": rows[order[len(order) // 2]], "latest": rows[order[-1]]}
