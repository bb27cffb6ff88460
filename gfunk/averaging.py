"""Weights averaged over the last part of a training: what is validated and kept in place of the newest."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Averages:
    """An exponential mean of all weights, of a memory given in iterations; 0: none is kept, and the newest stand for it."""

    def __init__(self, operator: nn.Module, memory: float):
        self.memory = memory
        self.kept: dict[str, Tensor] = {}
        if memory > 0:
            self.kept = {name: parameter.detach().clone() for name, parameter in operator.named_parameters()}

    @torch.no_grad()
    def take(self, operator: nn.Module, iteration: int):
        """The weights after so many iterations join; the first ones are forgotten sooner, as they are of no use."""
        part = 1 / min(max(self.memory, 1.0), 1 + iteration / 4)
        for name, parameter in operator.named_parameters() if self.kept else ():
            self.kept[name].lerp_(parameter, part)

    @contextmanager
    def in_place(self, operator: nn.Module) -> Iterator[None]:
        """Meanwhile the operator has the mean for its weights: in the same memory, which recordings read."""
        parameters = dict(operator.named_parameters())
        newest = {name: parameters[name].detach().clone() for name in self.kept}
        try:
            self._put(parameters, self.kept)
            yield
        finally:
            self._put(parameters, newest)

    @staticmethod
    @torch.no_grad()
    def _put(parameters: dict[str, nn.Parameter], values: dict[str, Tensor]):
        for name, value in values.items():
            parameters[name].copy_(value)
