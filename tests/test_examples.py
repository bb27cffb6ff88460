"""The numbered examples, as a reader would run them."""

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("[0-9]*.py"))


def example(number: int) -> dict[str, Any]:
    (path,) = (path for path in EXAMPLES if path.name.startswith(f"{number}_"))
    return runpy.run_path(str(path))


def test_examples_are_numbered_from_one_and_short():
    assert [int(path.name.split("_")[0]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))
    assert all(len(path.read_text().splitlines()) < 90 for path in EXAMPLES)


def test_heat_settles_to_its_mean():
    made = example(1)
    mass = made["matrices"].mass
    mean = (mass @ made["heat"]).sum() / mass.sum()
    np.testing.assert_allclose(made["later"], mean, rtol=1e-4)


def test_the_solver_finds_a_wave_that_reaches_all_corners(capsys: pytest.CaptureFixture[str]):
    example(2)
    right, up, far = (float(ms) for ms in re.findall(r"after ([0-9.]+) ms", capsys.readouterr().out))
    # Fibres run to the right at first, and turn upwards.
    assert right < 2 * up and up < far < 20


def test_a_wave_is_predicted_over_the_whole_atrium_without_doubts():
    wave = example(3)["wave"]
    assert np.isfinite(wave.activation_ms).all() and 30 < wave.activation_ms.max() < 50 and wave.warnings == ()


def test_a_sweep_tells_from_where_all_is_active_soonest():
    made = example(4)
    assert made["total"].shape == (6,) and np.isfinite(made["total"]).all() and made["total"].min() < 40


def test_a_gradient_leads_back_to_where_heat_was():
    assert example(5)["error"] < 0.02
