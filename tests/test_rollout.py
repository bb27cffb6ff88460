import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_order, largest_gap
from problems import batch_of, random_field, seeded, turning_square
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.domain import unit_square
from gfunk.errors import InputError
from gfunk.operators.gfunk import GFuNKConfig
from gfunk.operators.modes import ExactModes, ExactModesConfig
from gfunk.rollout import RK4, Adaptive, Direct, Euler, FlowMap, Integrator, rollout

BATCH = batch_of(unit_square(3), n_modes=4)
START = random_field(2, 9)
FIXED_STEP = pytest.mark.parametrize("method", [Euler, RK4])


class Linear(nn.Module):
    """du/dt = A u, a stable A without symmetry."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(9, 9, generator=generator, dtype=torch.float64) / 3 - torch.eye(9))

    def forward(self, u: Tensor, batch: Batch, tau: Tensor) -> Tensor:
        return self.matrix @ u

    def solution(self, start: Tensor, time: float) -> Tensor:
        return torch.matrix_exp(time * self.matrix) @ start


def logistic(u: Tensor, batch: Batch, tau: Tensor) -> Tensor:
    return u * (1 - u)


class Counting:
    """Stands still, and counts how often it is asked and for which tau."""

    def __init__(self):
        self.taus: list[float] = []

    def __call__(self, u: Tensor, batch: Batch, tau: Tensor) -> Tensor:
        self.taus.append(float(tau))
        return torch.zeros_like(u)


class Solved:
    """The linear system's solution at any times; it keeps count of how often the first state is looked at."""

    def __init__(self):
        self.system = Linear()
        self.n_firsts = 0

    def first(self, u: Tensor, batch: Batch) -> Tensor:
        self.n_firsts += 1
        return torch.cat([u, torch.ones_like(u)], dim=-1)

    def __call__(self, first: Tensor, batch: Batch, times: Tensor) -> Tensor:
        start, ones = first.split(1, dim=-1)
        return torch.stack([self.system.solution(start * ones, float(time)) for time in times], dim=1)


@torch.no_grad()
@FIXED_STEP
def test_declared_order_is_observed_on_a_linear_system(method: type[Euler] | type[RK4]):
    system, steps = Linear(), [0.05, 0.025, 0.0125]
    exact = system.solution(START, 1.0)
    errors = [largest_gap(rollout(system, START, BATCH, [1.0], method(step=step))[:, -1], exact) for step in steps]
    assert_order(errors, steps, method.order, within=0.1)


@torch.no_grad()
@FIXED_STEP
def test_declared_order_is_observed_on_logistic_growth(method: type[Euler] | type[RK4]):
    start, steps = START.sigmoid(), [0.2, 0.1, 0.05]
    exact = 1 / (1 + (1 / start - 1) * np.exp(-2.0))
    errors = [largest_gap(rollout(logistic, start, BATCH, [2.0], method(step=step))[:, -1], exact) for step in steps]
    assert_order(errors, steps, method.order, within=0.15)


@torch.no_grad()
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
def test_adaptive_steps_meet_their_tolerance(tolerance: float, adjoint: bool):
    system = Linear()
    method = Adaptive(rtol=tolerance, atol=tolerance, adjoint=adjoint)
    got = rollout(system, START, BATCH, [0.5, 1.5], method)
    exact = torch.stack([START, system.solution(START, 0.5), system.solution(START, 2.0)], dim=1)
    assert largest_gap(got, exact) < 5 * tolerance


def test_adjoint_gradients_are_those_of_backpropagation():
    gradients = []
    for method in (Adaptive(rtol=1e-9, atol=1e-9, adjoint=True), Adaptive(rtol=1e-9, atol=1e-9), RK4(step=0.01)):
        system, start = Linear(), START.clone().requires_grad_()
        rollout(system, start, BATCH, [0.5, 0.7], method).square().sum().backward()
        gradients.append((start.grad, system.matrix.grad))
    for adjoint, direct, fixed in zip(*gradients, strict=True):
        assert largest_gap(adjoint, direct) < 1e-7
        assert largest_gap(fixed, direct) < 1e-7


def test_the_adjoint_refuses_a_function_whose_parameters_it_cannot_see():
    with pytest.raises(InputError, match=r"the adjoint needs an nn\.Module"):
        rollout(logistic, START.sigmoid(), BATCH, [1.0], Adaptive(adjoint=True))
    with torch.no_grad():
        rollout(logistic, START.sigmoid(), BATCH, [1.0], Adaptive(adjoint=True))


def test_without_torchdiffeq_adaptive_steps_say_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(InputError, match=r"needs torchdiffeq: pip install 'gfunk\[adaptive\]'"):
        rollout(logistic, START, BATCH, [1.0], Adaptive())


@pytest.mark.parametrize("method", [FlowMap(longest_step=0.1), Euler(step=0.1), RK4(step=0.1)])
def test_gradients_through_a_rollout_agree_with_finite_differences(method: Integrator):
    operator = seeded(GFuNKConfig(width=4, n_layers=1, n_modes=4, local_width=2, filter_width=4))

    def trajectory(u: Tensor, weight: Tensor) -> Tensor:
        def with_weight(*arguments) -> Tensor:
            return torch.func.functional_call(operator, {"lift.weight": weight}, arguments)

        return rollout(with_weight, u, BATCH, [0.1, 0.2], method)

    weight = operator.get_parameter("lift.weight").detach().requires_grad_()
    assert torch.autograd.gradcheck(trajectory, (START[:1].clone().requires_grad_(), weight))


@pytest.mark.parametrize(
    ("method", "calls_a_step"), [(FlowMap(longest_step=0.001), 1), (Euler(step=0.001), 1), (RK4(step=0.001), 4)]
)
def test_three_steps_fit_into_three_times_the_step(method: Integrator, calls_a_step: int):
    operator = Counting()
    rollout(operator, START, BATCH, [0.003], method)
    assert len(operator.taus) == 3 * calls_a_step


@given(n_steps=st.integers(1, 200), step=st.floats(1e-4, 10), n_before=st.integers(0, 1000))
def test_steps_are_counted_exactly_whatever_rounding_does_to_times(n_steps: int, step: float, n_before: int):
    operator = Counting()
    duration = (n_before + n_steps) * step - n_before * step
    rollout(operator, START, BATCH, [duration], FlowMap(longest_step=step))
    assert len(operator.taus) == n_steps
    assert set(operator.taus) == {duration / n_steps}


@given(duration=st.floats(1e-3, 10), longest=st.floats(0.05, 20))
def test_steps_are_equal_few_and_no_longer_than_allowed(duration: float, longest: float):
    operator = Counting()
    rollout(operator, START, BATCH, [duration], FlowMap(longest_step=longest))
    n_steps = len(operator.taus)
    assert set(operator.taus) == {duration / n_steps}
    assert duration / n_steps <= longest * (1 + 1e-6)
    assert n_steps == 1 or duration / (n_steps - 1) > longest


def test_a_flow_map_is_told_its_step_and_a_rate_is_asked_for_now():
    for method, told in ((FlowMap(longest_step=0.1), 0.1), (Euler(step=0.1), 0.0), (RK4(step=0.1), 0.0)):
        operator = Counting()
        rollout(operator, START, BATCH, [0.3], method)
        assert operator.taus == pytest.approx([told] * len(operator.taus))


@torch.no_grad()
@given(longest=st.floats(0.001, 1), durations=st.lists(st.floats(0.001, 0.05), min_size=1, max_size=4))
def test_an_exact_flow_gives_the_same_trajectory_for_any_steps_and_output_times(longest: float, durations: list[float]):
    batch = batch_of(turning_square(0.04))
    start = batch.synthesis @ torch.ones(1, 9, 1, dtype=torch.float64)
    got = rollout(ExactModes(ExactModesConfig(n_modes=9)), start, batch, durations, FlowMap(longest_step=longest))
    times = torch.tensor([0.0, *np.cumsum(durations)], dtype=torch.float64)
    decay = torch.exp(-batch.eigenvalues[:, None] * times[:, None])
    exact = torch.einsum("bnk,btk->btn", batch.synthesis, decay)[..., None]
    torch.testing.assert_close(got, exact, rtol=1e-10, atol=1e-10)


def test_the_first_saved_value_is_the_initial_one_and_progress_is_told_after_each_interval():
    seen: list[None] = []
    got = rollout(logistic, START, BATCH, [0.1, 0.4, 0.2], Euler(step=0.1), between=lambda: seen.append(None))
    assert got.shape == (2, 4, 9, 1)
    assert torch.equal(got[:, 0], START)
    assert len(seen) == 3


@torch.no_grad()
@given(durations=st.lists(st.floats(0.01, 0.5), min_size=1, max_size=6))
def test_a_direct_operator_is_asked_once_for_all_times_since_the_first_state(durations: list[float]):
    solved = Solved()
    got = rollout(solved, START, BATCH, durations, Direct())
    assert solved.n_firsts == 1
    assert torch.equal(got[:, 0], START)
    for later, time in zip(got[:, 1:].unbind(1), np.cumsum(durations), strict=True):
        torch.testing.assert_close(later, solved.system.solution(START, float(time)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("duration", [0.0, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("method", [Euler(step=0.1), Direct()])
def test_output_times_that_do_not_rise_are_refused(method: Integrator | Direct, duration: float):
    with pytest.raises(InputError, match="output times must rise"):
        rollout(Solved() if isinstance(method, Direct) else logistic, START, BATCH, [0.1, duration], method)


@pytest.mark.parametrize("method", [lambda step: FlowMap(longest_step=step), lambda step: Euler(step=step)])
@pytest.mark.parametrize("step", [0.0, -0.1, float("nan")])
def test_steps_that_are_not_positive_are_refused(method: Callable[[float], Integrator], step: float):
    with pytest.raises(InputError, match="a step must be positive"):
        rollout(logistic, START, BATCH, [0.1], method(step))


def test_an_operator_of_rates_is_no_direct_one():
    with pytest.raises(InputError, match="needs steps"):
        rollout(logistic, START, BATCH, [0.1], Direct())
