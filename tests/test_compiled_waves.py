"""Waves whose steps are compiled. That can't pass checked signatures, so most are solved in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gfunk.domain import make_domain, rectangle
from gfunk.physics import compiling
from gfunk.physics.compiling import can_compile
from gfunk.physics.monodomain import simulate


def test_compilation_can_be_forbidden(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    assert not can_compile(torch.device("cpu"))
    assert not can_compile(torch.device("cuda"))
    monkeypatch.delenv("GFUNK_COMPILE")
    monkeypatch.setenv("PATH", "")
    assert not can_compile(torch.device("cpu"))


def answer_of(script: str, *words: str) -> Any:
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COMPILED_AND_NOT = """
import json
import numpy as np
from gfunk.domain import make_domain, rectangle
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import Scheme
from gfunk.physics.stimulus import Stimulus
mesh = rectangle(4.0, 1.0, 0.2)
domain = make_domain(mesh.points, mesh.cells, np.tile(np.diag([0.2, 0.05]), (mesh.n_nodes, 1, 1)))
stimuli = [Stimulus(sites=((0.0, 0.0),)), Stimulus(sites=((4.0, 1.0),), start_ms=3.03)]
runs = [simulate_many([domain], [[stimuli]], [5.0, 8.0], scheme=Scheme(dt_ms=0.05), compiles=c)[0] for c in (True, False)]
print(json.dumps({
    "values": float(np.abs(runs[0].values_mV - runs[1].values_mV).max()),
    "activation": float(np.nanmax(np.abs(runs[0].activation_ms - runs[1].activation_ms))),
    "same nan": bool((np.isnan(runs[0].activation_ms) == np.isnan(runs[1].activation_ms)).all()),
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="no compiler here")
def test_compiled_steps_are_those_not_compiled():
    gap = answer_of(COMPILED_AND_NOT)
    assert gap["same nan"] and gap["values"] < 0.02 and gap["activation"] < 1e-3


@pytest.mark.parametrize("least", [0.0, 1e9])
def test_a_wave_is_compiled_only_where_that_pays(monkeypatch: pytest.MonkeyPatch, least: float):
    asked = []
    monkeypatch.setattr(compiling, "can_compile", lambda _device: True)
    monkeypatch.setattr(compiling, "COMPILED_FROM", least)
    # What is compiled is noted, and left as it is.
    monkeypatch.setattr(torch, "compile", lambda action, **_: asked.append(action) or action)
    mesh = rectangle(2.0, 1.0, 0.5)
    tissue = make_domain(mesh.points, mesh.cells, np.tile(np.diag([0.2, 0.05]), (mesh.n_nodes, 1, 1)))
    simulate(tissue, [(0.0, 0.0)], until_ms=1.0, cell="mitchell-schaeffer")
    assert bool(asked) == (least == 0)


COMPILED_ANEW = """
import json
import numpy as np
from torch._dynamo.utils import counters
from gfunk.domain import make_domain, rectangle
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import Scheme
from gfunk.physics.stimulus import Stimulus
mesh = rectangle(2.0, 1.0, 0.25)
domain = make_domain(mesh.points, mesh.cells, np.tile(np.diag([0.2, 0.05]), (mesh.n_nodes, 1, 1)))
compiled, gaps = [], []
for dt in (0.05, 0.04, 0.025):
    how = dict(cell="mitchell-schaeffer", scheme=Scheme(dt_ms=dt))
    given = [domain], [[[Stimulus(sites=((0.0, 0.0),))]]], [4.0]
    waves = [simulate_many(*given, compiles=compiles, **how)[0] for compiles in (True, False)]
    compiled.append(counters["stats"]["unique_graphs"])
    gaps.append(float(np.abs(waves[0].values_mV - waves[1].values_mV).max()))
print(json.dumps([compiled, gaps]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="no compiler here")
def test_steps_of_another_length_are_not_compiled_anew():
    compiled, gaps = answer_of(COMPILED_ANEW)
    assert compiled[0] > 0 and len(set(compiled)) == 1
    assert max(gaps) < 0.02


BENCHMARK = """
import json
import sys
import numpy as np
from gfunk.domain import make_domain, rectangle
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import Scheme, diffusivity
from gfunk.physics.stimulus import Stimulus
times = []
for edge, dt, order, *mass in json.loads(sys.argv[1]):
    mesh = rectangle(20.0, 7.0, edge)
    tensor = np.diag([diffusivity(0.3125), diffusivity(0.0625)])
    domain = make_domain(mesh.points, mesh.cells, np.tile(tensor, (mesh.n_nodes, 1, 1)))
    sites = mesh.points[(mesh.points <= 1.5 + 1e-9).all(axis=1)].tolist()
    stimulus = Stimulus(sites=tuple(map(tuple, sites)), radius_mm=1e-6)
    scheme = Scheme(dt_ms=dt, order=order, mass=(mass or ["consistent"])[0])
    run = simulate_many([domain], [[[stimulus]]], [36.0], scheme=scheme)[0]
    places = [(0, 7), (20, 0), (20, 7), (10, 3.5)]
    nodes = [np.linalg.norm(mesh.points - place, axis=1).argmin() for place in places]
    times.append(run.activation_ms[0, nodes].astype(float).tolist())
print(json.dumps(times))
"""


@pytest.mark.slow
def test_the_wave_of_the_benchmark_sheet_comes_to_its_corners_in_time():
    """docs/verification.md: 20 x 7 mm, 5:1, Courtemanche; (0, 7), (20, 0), (20, 7) and the middle, h -> 0."""
    coarse, fine = np.array(answer_of(BENCHMARK, json.dumps([(0.1, 0.02, 2), (0.05, 0.02, 2)])))
    np.testing.assert_allclose(fine + (fine - coarse) / 3, [17.55, 25.38, 31.04, 15.00], rtol=0, atol=0.2)


@pytest.mark.slow
def test_balanced_mass_errs_least_on_the_benchmark_sheet_and_mixed_mass_comes_next():
    """The other table there: mean error of the four times with the steps of `accurate`."""
    ways = [(edge, 0.05, 2, mass) for edge in (0.2, 0.1) for mass in ("consistent", "lumped", "mixed", "balanced")]
    found = np.array(answer_of(BENCHMARK, json.dumps(ways)))
    errors = np.abs(found - [17.55, 25.38, 31.04, 15.00]).mean(axis=1).reshape(2, 4)
    np.testing.assert_allclose(errors, [[1.10, 1.78, 0.66, 0.57], [0.47, 0.48, 0.25, 0.15]], rtol=0, atol=0.02)


@pytest.mark.slow
def test_the_far_corner_tells_what_longer_steps_cost():
    """The table at the end of docs/verification.md."""
    steps = [(0.2, 0.01, 2), (0.2, 0.02, 2), (0.2, 0.05, 2), (0.2, 0.1, 2), (0.2, 0.02, 1)]
    corner = np.array(answer_of(BENCHMARK, json.dumps(steps)))[:, 2]
    np.testing.assert_allclose(corner, [28.41, 28.45, 28.67, 29.23, 28.84], rtol=0, atol=0.02)
