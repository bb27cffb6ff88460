"""Waves on the meshes of others: predicted, drawn, written, compared with the solver's."""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gfunk.commands.refusals import check_writable
from gfunk.console import bar, people, show
from gfunk.errors import InputError

# What follows each stage.
NEXT = {
    "read": "model", "model": "resample", "resample": "modes", "modes": "first wave", "first wave": "operator",
    "operator": "carry back",
}  # fmt: skip
# What a page tells of an answer, and how it calls it.
TOLD = {
    "mesh": "mesh", "model": "model", "sites": "stimulated at (mm)", "nodes": "nodes",
    "even_nodes": "nodes of the even mesh", "until_ms": "until (ms)", "activated": "share of nodes activated",
    "last_activation_ms": "last activation (ms)", "trust": "how far to trust it", "rel_l2": "relative l2 error",
    "activation_error_ms": "activation times off by, mean (ms)", "lag_ms": "later than the solver, mean (ms)",
    "solver_seconds": "solver (s)", "prediction_seconds": "prediction (s)", "out": "wave written to",
}  # fmt: skip


def predict(options: argparse.Namespace):
    import numpy as np

    from gfunk.files.waves import check_wave_path, write_wave
    from gfunk.prediction import asked_times, compared, predicted
    from gfunk.readiness import made_ready
    from gfunk.sites import site_at, usual_site

    times = asked_times(options.until, options.every)
    _refuse_early(options)
    if options.out is not None:
        check_wave_path(options.out)
    with bar("read", len(NEXT) + 1) as advance:

        def ended(name: str, _seconds: float):
            advance(NEXT.get(name))

        started = time.perf_counter()
        domain = _read(options)
        node, where = usual_site(domain)
        sites = options.at or [node]
        # It refuses now, not after the modes.
        for site in sites:
            site_at(domain, site)
        seconds = {"read": time.perf_counter() - started}
        ended("read", seconds["read"])
        ready = made_ready(domain, options.model, edge_mm=options.edge, device=options.device, on_stage=ended)
        (prediction,) = predicted(ready, [sites], times, on_stage=ended)
    seconds |= {**ready.seconds, **prediction.seconds}
    arrived = prediction.activation_ms[np.isfinite(prediction.activation_ms)]
    answer: dict[str, Any] = {
        "mesh": str(options.mesh), "model": options.model, "nodes": domain.n_nodes, "even_nodes": ready.even.n_nodes,
        "sites": prediction.sites.tolist(), "until_ms": float(times[-1]), "seconds": seconds,
        "activated": len(arrived) / domain.n_nodes, "last_activation_ms": float(arrived.max()) if len(arrived) else None,
        "warnings": list(prediction.warnings), "repairs": list(domain.repairs), "trust": prediction.trust,
        "bounds": None if prediction.bounds is None else asdict(prediction.bounds),
    }  # fmt: skip
    comparison = None
    if options.compare:
        with bar("solving: ms", len(times)) as advance:
            comparison = compared(ready, prediction, on_step=_each_ms(ready.problem.pacing.scheme, advance))
        answer |= {
            "rel_l2": comparison.rel_l2, "rel_h1": comparison.rel_h1,
            "activation_error_ms": comparison.activation_error_ms, **asdict(comparison.arrival),
            "solver_seconds": comparison.solver_seconds, "prediction_seconds": comparison.prediction_seconds,
            "speedup": comparison.speedup,
        }  # fmt: skip
    if options.out is not None:
        write_wave(options.out, domain, times, prediction.values_mV, prediction.activation_ms, prediction.sites)
        answer["out"] = str(options.out)
    if options.picture is not None or options.report is not None:
        _draw(options, answer, ready, prediction, comparison)
    if not options.at:
        people.print(f"no --at: stimulated {where}, node {node}", markup=False)
    _say(answer)
    rows = [{"stage": name, "seconds": took} for name, took in seconds.items()]
    show(options.json, answer, [*rows, {"stage": "together", "seconds": sum(seconds.values())}])


def _refuse_early(options: argparse.Namespace):
    for path in filter(None, (options.out, options.picture, options.report)):
        check_writable(path)
    if options.picture is not None or options.report is not None:
        from gfunk.figures import pyplot

        pyplot()
    from gfunk.experiments import operator_named
    from gfunk.prediction import checked_times
    from gfunk.recipes.tissue_data import TissueProblem

    _, _, problem, _ = operator_named(options.model)
    if isinstance(problem, TissueProblem):
        import numpy as np

        checked_times(np.array([options.until]), problem.pacing.first_ms)


def _read(options: argparse.Namespace) -> Any:
    """With its parts named where a site needs them: one that is named, or the usual one, which can do without."""
    from gfunk.files.tissue import read_tissue, with_regions

    domain = read_tissue(options.mesh, fibres=options.fibres, unit=options.unit, labels=dict(options.label))
    names = [site for site in options.at or [] if isinstance(site, str)]
    if options.at and not names:
        return domain
    try:
        return with_regions(domain, dict(options.label))
    except InputError as error:
        if names:
            raise InputError(f"--at {names[0]}: the parts of {options.mesh} can't be told ({error})") from None
        return domain


def _each_ms(scheme: str, advance: Callable[[], None]) -> Callable[[int], None]:
    """Moves a bar on by one for each ms that is solved."""
    from gfunk.physics.schemes import SCHEMES

    told = 0

    def stepped(done: int):
        nonlocal told
        reached = int(done * SCHEMES[scheme].dt_ms)
        for _ in range(told, reached):
            advance()
        told = max(told, reached)

    return stepped


def _draw(options: argparse.Namespace, answer: dict[str, Any], ready: Any, prediction: Any, comparison: Any):
    from gfunk.prediction_report import report_page, wave_picture, write_report
    from gfunk.store import write_bytes

    picture = wave_picture(ready, prediction, comparison)
    if options.picture is not None:
        write_bytes(options.picture, picture)
        answer["picture"] = str(options.picture)
    if options.report is not None:
        told = answer | {"sites": "; ".join(_said_sites(options, answer))}
        about = {words: told[name] for name, words in TOLD.items() if told.get(name) is not None}
        page = report_page(picture, about, answer["seconds"], answer["repairs"], answer["warnings"])
        write_report(options.report, page)
        answer["report"] = str(options.report)


def _said_sites(options: argparse.Namespace, answer: dict[str, Any]) -> Iterator[str]:
    for asked, site in zip(options.at or [None], answer["sites"], strict=True):
        place = ", ".join(f"{x:.2f}" for x in site)
        yield f"{asked} ({place})" if isinstance(asked, str) else place


def _say(answer: dict[str, Any]):
    for sentence in answer["repairs"]:
        people.print(f"- {sentence}", markup=False)
    for sentence in answer["warnings"]:
        people.print(f"doubtful: {sentence}", markup=False)
    reached = f"{100 * answer['activated']:.0f} % of {answer['nodes']:,} nodes activated"
    if answer["last_activation_ms"] is not None:
        reached += f", the last of them after {answer['last_activation_ms']:.1f} ms"
    people.print(reached, markup=False)
    people.print(answer["trust"], markup=False)
    if "rel_l2" in answer:
        lat = answer["activation_error_ms"]
        late = "" if lat is None else f", activation times off by {lat:.2f} ms on average"
        people.print(
            f"beside the solver: relative l2 {answer['rel_l2']:.4f}{late}; "
            f"solver {answer['solver_seconds']:.1f} s, prediction {answer['prediction_seconds']:.1f} s "
            f"({answer['speedup']:.2g} times as fast)",
            markup=False,
        )
    for name in ("out", "picture", "report"):
        if name in answer:
            people.print(f"{name}: {Path(answer[name])}", markup=False)
