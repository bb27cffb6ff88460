"""Means of weights over a training."""

import pytest
import torch
from torch import nn

from gfunk.averaging import Averages


def moved(operator: nn.Linear, value: float) -> nn.Linear:
    with torch.no_grad():
        operator.weight.fill_(value)
    return operator


def test_weights_that_stay_are_their_own_mean():
    operator = moved(nn.Linear(2, 2, bias=False), 3.0)
    averages = Averages(operator, 10.0)
    for iteration in range(1, 20):
        averages.take(operator, iteration)
    with averages.in_place(operator):
        assert (operator.weight == 3.0).all()


def test_the_mean_lags_behind_weights_that_move_evenly_by_its_memory():
    operator = nn.Linear(1, 1, bias=False)
    averages = Averages(operator, 8.0)
    for iteration in range(1, 400):
        averages.take(moved(operator, float(iteration)), iteration)
    with averages.in_place(operator):
        assert float(operator.weight.detach()) == pytest.approx(399.0 - 7.0, abs=1e-3)
    assert float(operator.weight.detach()) == 399.0


def test_without_a_memory_the_newest_weights_stand():
    operator = nn.Linear(1, 1, bias=False)
    averages = Averages(operator, 0.0)
    averages.take(moved(operator, 5.0), 1)
    with averages.in_place(operator):
        assert float(operator.weight.detach()) == 5.0
