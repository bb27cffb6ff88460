"""The viewer's own predictor says what `gfunk.prediction` says."""

from pathlib import Path

import numpy as np
import pytest
from toy_surfaces import egg, write_untrained

from gfunk.prediction import asked_times, compared, predicted
from gfunk.readiness import made_ready
from gfunk.viewer.predictor import Predictor, Wave
from gfunk.viewer.shipped import ModelPredictor


@pytest.mark.parametrize("edge_mm", [None, 0.75])
def test_a_click_is_a_prediction_and_its_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge_mm: float | None):
    monkeypatch.setenv("GFUNK_COMPILE", "0")  # else the wave would depend on when that is done
    run = write_untrained(tmp_path / "run", ray_times=(2.0,))
    predictor = ModelPredictor(model=run, edge_mm=edge_mm, until_ms=15.0, cache=None)
    assert isinstance(predictor, Predictor)
    domain, stages = egg(), []
    site = tuple(domain.points[100].tolist())

    def say(stage: str, share: float | None = None):
        assert share is None or 0 <= share <= 1
        if stages[-1:] != [stage]:
            stages.append(stage)

    ready = predictor.made_ready(domain, say)
    begun: list[Wave] = []
    wave = predictor.predicted(ready, [site], say, begun.append)
    beside = predictor.compared(ready, wave, say)
    assert stages == ["model", "resample", "modes", "first wave", "operator", "carry back", "solve"]

    by_hand = made_ready(domain, run, edge_mm=edge_mm, cache=None)
    (expected,) = predicted(by_hand, [[site]], asked_times(15.0, 1.0))
    np.testing.assert_array_equal(wave.values_mV, expected.values_mV)
    np.testing.assert_array_equal(wave.activation_ms, expected.activation_ms)
    assert wave.warnings == expected.warnings
    assert begun == []  # it is over too soon
    truth = compared(by_hand, expected)
    np.testing.assert_array_equal(beside.truth.values_mV, truth.truth_mV)
    assert beside.rel_l2 == truth.rel_l2
