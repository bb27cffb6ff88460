"""The viewer: a page in the browser."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager

from gfunk.console import people
from gfunk.errors import InputError


@contextmanager
def its_packages() -> Iterator[None]:
    """What is imported meanwhile may be missing, and it is said how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise InputError("the viewer needs more packages: pip install 'gfunk[viewer]'") from None


def view(options: argparse.Namespace):
    with its_packages():
        from gfunk.viewer.serving import serve
    from gfunk.experiments import operator_named
    from gfunk.readiness import check_edge
    from gfunk.recipes.atrium_data import AtriumProblem
    from gfunk.viewer.sessions import Limits
    from gfunk.viewer.shipped import ModelPredictor

    # It refuses now; else the page would say so.
    _, _, problem, variant = operator_named(options.model)
    if isinstance(problem, AtriumProblem) and options.edge not in (None, problem.kept_edge_mm):
        check_edge(options.edge, problem, variant)

    def say(address: str):
        print(json.dumps({"address": address}) if options.json else f"The viewer is at {address}", flush=True)
        if not options.json:
            people.print("Ctrl-C ends it.")

    serve(
        ModelPredictor(model=options.model, edge_mm=options.edge, device=options.device, until_ms=options.until),
        host=options.host, port=options.port, given=options.mesh, on_start=say, opens_browser=not options.no_browser,
        limits=Limits(upload_bytes=options.upload_mb * 1_000_000, nodes=options.nodes),
    )  # fmt: skip
