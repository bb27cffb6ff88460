import json
from pathlib import Path

import pytest
from toy_surfaces import egg, write_untrained

from gfunk import prediction_cost as costs
from gfunk import store
from gfunk.atria import synthetic
from gfunk.cli import main
from gfunk.prediction_cost import Row, prediction_cost
from gfunk.spectrum import lowest_modes

STAGES = ["read", "model", "resample", "modes", "first wave", "operator", "carry back"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    monkeypatch.setenv("GFUNK_CACHE", str(tmp_path / "cache"))


def test_what_is_kept_saves_the_second_command_its_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sought = []
    monkeypatch.setattr(store, "lowest_modes", lambda *args: sought.append(args) or lowest_modes(*args))
    rows = prediction_cost(egg(), write_untrained(tmp_path), 20.0, 2)
    assert [row.what for row in rows] == ["cold", "warm", "one more", "many at once", "as many again"]
    cold, warm, more, *many = rows
    assert list(cold.seconds) == list(warm.seconds) == STAGES
    assert len(sought) == 1
    # One wave more needs nothing that is known of the surface.
    assert list(more.seconds) == STAGES[4:]
    assert [row.waves for row in many] == [2, 2] and cold.nodes == egg().n_nodes
    assert all(seconds > 0 for row in rows for seconds in row.seconds.values())
    # What users have kept themselves is neither read nor written.
    assert not (tmp_path / "cache").exists()


def test_the_command_states_and_records_each_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    rows = [
        Row(what="cold", nodes=7, waves=1, seconds={"read": 0.25, "modes": 0.5}),
        Row(what="one more", nodes=7, waves=1, seconds={"operator": 0.5}),
    ]
    asked = []
    monkeypatch.setattr(synthetic, "left_atrium", lambda *_: egg())
    monkeypatch.setattr(costs, "prediction_cost", lambda *args: asked.append(args) or rows)
    record = tmp_path / "predict.json"
    assert main(["bench", "predict", "--edge", "1.5", "--n", "3", "--json", "--record", str(record)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rows"][0] == {"what": "cold", "nodes": 7, "waves": 1, "read": 0.25, "modes": 0.5, "together": 0.75}
    assert json.loads(record.read_text())[0]["rows"] == said["rows"]
    assert asked[0][1:4] == ("atria", 90.0, 3)
    assert main(["bench", "predict", "--run", "atria", "--run", "heat"]) == 2
