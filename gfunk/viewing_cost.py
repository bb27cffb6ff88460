"""How long a visitor of the viewer waits: a server on loopback, asked as the page asks it."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.prediction_cost import write_surface
from gfunk.sweeping import spread_nodes
from gfunk.viewer.elsewhere import SolverElsewhere
from gfunk.viewer.server import Viewer
from gfunk.viewer.serving import running
from gfunk.viewer.sessions import Limits
from gfunk.viewer.shipped import ModelPredictor


@dataclass(frozen=True, kw_only=True)
class Click:
    """Seconds from the question until the page has a wave to play, which may only have begun, and until it has all of it."""

    node: int
    plays: float
    whole: float
    stages: Mapping[str, float]  # what the server says of the time it took


@dataclass(frozen=True, kw_only=True)
class Visit:
    nodes: int
    warming: Mapping[str, float]  # seconds of what comes before the clicks
    clicks: list[Click]


def viewing_cost(
    domain: Domain, model: str | Path, n_clicks: int, device: str = "cpu", on_click: Callable[[Click], None] = lambda _: None
) -> Visit:
    """The surface is shown from a file, made ready, clicked once and left alone until steps are compiled, if they are to be.

    Then it is clicked at sites far from each other, one after the other. What is kept from visit to visit starts empty.
    """
    first, *sites = spread_nodes(domain, 1 + n_clicks).tolist()
    warming: dict[str, float] = {}
    with TemporaryDirectory(prefix="gfunk-view-") as name, closing(SolverElsewhere()) as solver:
        folder = Path(name)
        write_surface(folder / "atrium.vtp", domain)
        predictor = ModelPredictor(model=model, device=device, cache=folder / "cache", solver=solver)
        viewer = Viewer(predictor, folder, Limits(), given=folder / "atrium.vtp")
        with running(viewer) as port:
            ask = partial(_answer, port, _cookie(port))
            mesh = ask("given", password=viewer.password)
            scene = mesh.about["scene"]
            if not mesh.about["regions"]:
                warming["parts"] = ask("parts", scene=scene).whole
            warming |= {"mesh": mesh.whole, "ready": ask("ready", scene=scene).whole}
            warming["first click"] = ask("wave", scene=scene, nodes=[first]).whole
            started = time.perf_counter()
            solver.settle()
            warming["compiling"] = time.perf_counter() - started
            clicks = []
            for node in sites:
                wave = ask("wave", scene=scene, nodes=[node])
                clicks.append(Click(node=node, plays=wave.begun, whole=wave.whole, stages=wave.about["seconds"]))
                on_click(clicks[-1])
    return Visit(nodes=mesh.about["nodes"], warming=warming, clicks=clicks)


@dataclass(frozen=True)
class _Answer:
    """What was said last, and seconds until the first arrays were there, and the last, which may be the same."""

    about: dict[str, Any]
    begun: float
    whole: float


def _cookie(port: int) -> str:
    """Who opens the page is known from then on."""
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().headers["set-cookie"].split(";")[0]


def _answer(port: int, cookie: str, question: str, **words: Any) -> _Answer:
    """As static/server.js asks: lines tell of stages, those with `bytes` of the arrays that follow them."""
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        started = time.perf_counter()
        headers = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{port}"}
        connection.request("POST", f"/api/{question}", json.dumps(words), headers)
        response = connection.getresponse()
        seconds: list[float] = []
        line: dict[str, Any] = {}
        while not line.get("last"):
            line = json.loads(response.readline() or '{"error": "the answer broke off"}')
            if "error" in line:
                raise InputError(line["error"])
            if "bytes" in line:
                response.read(line["bytes"])
                seconds.append(time.perf_counter() - started)
        return _Answer(line["about"], seconds[0], seconds[-1])
