"""Clicks on a running viewer are timed one by one, and nothing of it is left."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from toy_surfaces import egg, write_untrained

from gfunk import viewing_cost as costs
from gfunk.atria import synthetic
from gfunk.cli import main
from gfunk.errors import InputError
from gfunk.viewer.server import Viewer
from gfunk.viewer.serving import running
from gfunk.viewer.shipped import ModelPredictor
from gfunk.viewing_cost import Click, Visit, viewing_cost


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    monkeypatch.setenv("GFUNK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Viewer, int]]:
    """Viewers that ran, and their ports."""
    found = []

    @contextmanager
    def noted(viewer: Viewer) -> Iterator[int]:
        with running(viewer) as port:
            found.append((viewer, port))
            yield port

    monkeypatch.setattr(costs, "running", noted)
    return found


def is_served(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_each_click_is_a_wave_of_its_own_and_the_server_goes_with_the_last(
    tmp_path: Path, visited: list[tuple[Viewer, int]]
):
    told: list[Click] = []
    was_served: list[bool] = []

    def said(click: Click):
        told.append(click)
        was_served.append(is_served(visited[0][1]))

    visit = viewing_cost(egg(), write_untrained(tmp_path / "run"), 3, on_click=said)
    assert visit.clicks == told and visit.nodes == egg().n_nodes
    assert len({click.node for click in visit.clicks}) == 3
    for click in visit.clicks:
        # What the server was busy with, the page waited for.
        assert 0 < sum(click.stages.values()) <= click.whole
        # A wave plays before all of it is found.
        assert 0 < click.plays < click.whole
    assert set(visit.warming) == {"mesh", "parts", "ready", "first click", "compiling"}
    [(viewer, port)] = visited
    assert was_served == [True] * 3 and not is_served(port)
    # Neither is anything kept, here or where users keep it.
    predictor = viewer.studio.predictor
    assert isinstance(predictor, ModelPredictor) and isinstance(predictor.cache, Path)
    assert not predictor.cache.exists() and not (tmp_path / "cache").exists()


def test_what_the_viewer_refuses_is_said_and_the_server_goes(tmp_path: Path, visited: list[tuple[Viewer, int]]):
    run = write_untrained(tmp_path / "run")
    (run / "best.safetensors").write_bytes(b"no weights")
    with pytest.raises(InputError, match="safetensors"):
        viewing_cost(egg(), run, 1)
    assert not is_served(visited[0][1])


def test_the_command_states_and_records_each_click(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    clicks = [Click(node=n, plays=s, whole=s + 0.25, stages={"operator": 0.5}) for n, s in ((7, 0.75), (4, 1.0), (9, 2.0))]
    asked = []
    monkeypatch.setattr(synthetic, "left_atrium", lambda *args: asked.append(args) or egg())
    visit = Visit(nodes=642, warming={"ready": 2.0}, clicks=clicks)
    monkeypatch.setattr(costs, "viewing_cost", lambda *args: asked.append(args) or visit)
    record = tmp_path / "view.json"
    words = ["bench", "view", "--edge", "1.5", "--seed", "7", "--n", "3", "--json", "--record", str(record)]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rows"][0] == {"node": 7, "plays": 0.75, "whole": 1.0, "operator": 0.5}
    assert [said[f"{which}_plays"] for which in ("median", "worst")] == [1.0, 2.0] and said["nodes"] == 642
    assert json.loads(record.read_text())[0]["rows"] == said["rows"]
    assert asked[0] == (7, 1.5) and asked[1][1:3] == ("atria", 3)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--run", "atria", "--run", "heat"], "takes one --run"),
        (["--run", "nonesuch"], "no shipped model 'nonesuch'"),
        (["--edge", "9"], "edge"),
        (["--record", "/dev/null/view.json"], "can't be written"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(words: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "view", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and why in said
