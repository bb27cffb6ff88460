"""The predictor the viewer comes with: a shipped model, or a trained run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from gfunk.domain import Domain
from gfunk.experiments import chosen_device
from gfunk.physics.compiling import can_compile
from gfunk.physics.schemes import SCHEMES
from gfunk.prediction import Prediction, asked_times, compared, predicted
from gfunk.readiness import Ready, made_ready
from gfunk.viewer.elsewhere import SolverElsewhere
from gfunk.viewer.predictor import Beside, Say, Show, Site, Wave

# What follows each stage.
NEXT = {"model": "resample", "resample": "modes", "first wave": "operator", "operator": "carry back"}
# Shown first: it plays for 0.8 s, in which the rest is found.
BEGUN_MS = 20.0


@dataclass(frozen=True, kw_only=True)
class ModelPredictor:
    model: str | Path = "atria"
    edge_mm: float | None = None  # as `made_ready` has it
    device: str = "cpu"
    until_ms: float = 100.0
    every_ms: float = 1.0
    cache: Path | Literal["user"] | None = "user"  # where even meshes and modes are kept
    solver: SolverElsewhere = field(default_factory=SolverElsewhere)

    def made_ready(self, domain: Domain, say: Say) -> Ready:
        say("model")
        compiles = chosen_device(self.device).type == "cpu" and can_compile(torch.device("cpu"))
        if compiles:
            self.solver.start()
        how = {"edge_mm": self.edge_mm, "device": self.device, "cache": self.cache}
        ready = made_ready(domain, self.model, **how, on_stage=_then(say))
        if compiles:
            pacing = ready.problem.pacing
            self.solver.prepare(ready.tissue, ready.coupling, pacing.cell, pacing.scheme)
        elif ready.device.type != "cpu":
            _ = ready.tissue_there  # or the first click waits for it
        return ready

    def predicted(self, ready: Ready, sites: Sequence[Site], say: Say, show: Show) -> Wave:
        say("first wave")
        times = asked_times(self.until_ms, self.every_ms)
        with self.solver.held():
            (found,) = predicted(
                ready, [sites], times, solve=self.solver, on_stage=_then(say),
                begun_ms=BEGUN_MS, on_begun=lambda begun: show(replace(_wave(begun), until_ms=float(times[-1]))),
            )  # fmt: skip
        return _wave(found)

    def compared(self, ready: Ready, wave: Wave, say: Say) -> Beside:
        say("solve")
        prediction: Prediction = wave.origin
        n_steps = self.until_ms / SCHEMES[ready.problem.pacing.scheme].dt_ms
        found = compared(ready, prediction, on_step=lambda done: say("solve", done / n_steps))
        truth = Wave(
            times_ms=wave.times_ms, values_mV=found.truth_mV, activation_ms=found.truth_activation_ms,
            seconds={"solve": found.solver_seconds},
        )  # fmt: skip
        return Beside(truth=truth, rel_l2=found.rel_l2, lat_error_ms=found.arrival.lat_error_ms)


def _wave(found: Prediction) -> Wave:
    return Wave(
        times_ms=found.times_ms, values_mV=found.values_mV, activation_ms=found.activation_ms,
        seconds=found.seconds, warnings=found.warnings, origin=found,
        trust=found.trust,
    )  # fmt: skip


def _then(say: Say):
    """Stages are told when they end; the visitor is told which one begins."""
    return lambda name, _seconds: say(NEXT[name]) if name in NEXT else None
