"""A solver in a process of its own finds what the one here finds, and nobody minds when it is gone."""

import os
import pickle
import signal
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from problems import batch_of
from toy_surfaces import strip
from viewing import until

from gfunk.domain import Domain
from gfunk.first_waves import first_waves
from gfunk.physics.diffusion import HalfStep
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import coupling
from gfunk.physics.stimulus import Stimulus
from gfunk.physics.waves import Paced
from gfunk.recipes.atrium_data import AtrialPacing
from gfunk.viewer.elsewhere import SolverElsewhere, answer_all

PACING = AtrialPacing(scheme="paper")
TIMES = np.array([2.0, 5.0])


@cache
def tissue() -> Domain:
    return strip(20.0, 6.0)


@cache
def step(scheme: str = PACING.scheme) -> HalfStep:
    return coupling(tissue(), scheme)


def asked(scheme: str = PACING.scheme, **changes: Any) -> dict[str, Any]:
    """A wave from the strip's middle, as `simulate_many` is asked for it."""
    x, y, z = tissue().points[tissue().n_nodes // 2].tolist()
    how = {"cell": PACING.cell, "scheme": scheme, "couplings": [step(scheme)], "compiles": False}
    return {"domains": [tissue()], "protocols": [[[PACING.stimulus((x, y, z))]]], "times_ms": TIMES} | how | changes


class Here:
    """Solves here, and counts how often."""

    n_asked = 0

    def __call__(self, *args: Any, **options: Any) -> list[Paced]:
        self.n_asked += 1
        return simulate_many(*args, **options)


@pytest.fixture(scope="module")
def solver() -> Iterator[tuple[SolverElsewhere, Here]]:
    """Ready for the strip; it compiles nothing, as that takes half a minute."""
    here = Here()
    found = SolverElsewhere(here, compiles=False)
    found.prepare(tissue(), step(), PACING.cell, PACING.scheme)
    found.settle()
    assert found.is_ready(PACING.cell, PACING.scheme, step())
    yield found, here
    found.close()


def same(one: list[Paced], other: list[Paced]) -> bool:
    return all(
        np.array_equal(a.values_mV, b.values_mV) and np.array_equal(a.activation_ms, b.activation_ms, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def test_what_is_solved_elsewhere_is_what_is_solved_here(solver: tuple[SolverElsewhere, Here]):
    elsewhere, here = solver
    n_before = here.n_asked
    assert same(elsewhere(**asked()), simulate_many(**asked()))
    assert here.n_asked == n_before


def test_wherever_the_stimulus_is_its_patch_is_solved_there(solver: tuple[SolverElsewhere, Here]):
    elsewhere, here = solver
    n_before, batch = here.n_asked, batch_of(tissue(), n_modes=2)
    for node in range(0, tissue().n_nodes, 30):
        stimulus = Stimulus(sites=(tuple(tissue().points[node].tolist()),), radius_mm=PACING.radius_mm)
        first_waves(tissue(), batch, [stimulus], TIMES, PACING, 0, whole=step().solving, compiles=False, solve=elsewhere)
    assert here.n_asked == n_before


def test_steps_of_another_kind_are_taken_here(solver: tuple[SolverElsewhere, Here]):
    elsewhere, here = solver
    n_before = here.n_asked
    assert not elsewhere.is_ready(PACING.cell, "accurate", step("accurate"))
    assert same(elsewhere(**asked("accurate")), simulate_many(**asked("accurate")))
    assert here.n_asked == n_before + 1


def test_what_is_wrong_with_a_wave_is_said_here_and_the_next_one_is_solved_there(solver: tuple[SolverElsewhere, Here]):
    elsewhere, here = solver
    nowhere = Stimulus(sites=((1e3, 0.0, 0.0),))
    with pytest.raises(ValueError, match="no node within"):
        elsewhere(**asked(protocols=[[[nowhere]]]))
    n_before = here.n_asked
    assert same(elsewhere(**asked()), simulate_many(**asked())) and here.n_asked == n_before


def test_before_and_after_the_other_process_is_there_waves_are_solved_here():
    here = Here()
    elsewhere = SolverElsewhere(here, compiles=False)
    assert same(elsewhere(**asked()), simulate_many(**asked())) and here.n_asked == 1
    elsewhere.prepare(tissue(), step(), PACING.cell, PACING.scheme)
    until(lambda: elsewhere.is_ready(PACING.cell, PACING.scheme, step()), patience_s=60)
    elsewhere.close()
    assert same(elsewhere(**asked()), simulate_many(**asked())) and here.n_asked == 2


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes can't be held here")
def test_while_it_is_held_nothing_is_prepared_and_waves_are_solved_here():
    here = Here()
    elsewhere = SolverElsewhere(here, compiles=False)
    elsewhere.prepare(tissue(), step(), PACING.cell, PACING.scheme)
    until(elsewhere._turn.locked)
    with elsewhere.held():
        assert elsewhere._process is not None
        _, flags = os.waitpid(elsewhere._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(flags)
        assert same(elsewhere(**asked()), simulate_many(**asked())) and here.n_asked == 1
    until(lambda: elsewhere.is_ready(PACING.cell, PACING.scheme, step()), patience_s=60)
    # What is ready is not held: it is of use.
    with elsewhere.held():
        assert same(elsewhere(**asked()), simulate_many(**asked())) and here.n_asked == 1
    elsewhere.close()


def test_it_can_be_closed_while_it_prepares():
    elsewhere = SolverElsewhere(compiles=False)
    elsewhere.prepare(tissue(), step(), PACING.cell, PACING.scheme)
    elsewhere.close()
    assert not elsewhere.is_ready(PACING.cell, PACING.scheme, step())


def test_the_other_process_answers_all_and_ends_when_nobody_asks(capsys: pytest.CaptureFixture[str]):
    answers = BytesIO()
    answer_all(BytesIO(b"".join(pickle.dumps(((), each)) for each in (asked(), asked(domains=[]), asked()))), answers)
    answers.seek(0)
    first, refused, last = (pickle.load(answers) for _ in range(3))
    assert refused is None and "domains" in capsys.readouterr().err
    assert same(first, last) and not answers.read()


@pytest.mark.slow
def test_compiled_steps_lead_to_the_same_wave():
    elsewhere = SolverElsewhere()
    try:
        elsewhere.prepare(tissue(), step(), PACING.cell, PACING.scheme)
        until(lambda: elsewhere.is_ready(PACING.cell, PACING.scheme, step()), patience_s=300)
        (compiled,), (plain,) = elsewhere(**asked()), simulate_many(**asked())
    finally:
        elsewhere.close()
    assert np.abs(compiled.values_mV - plain.values_mV).max() < 1e-3 * 105
