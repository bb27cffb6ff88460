"""SOAP: Adam in the eigenbasis of each matrix's gradients (Vyas and others, 2024)."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

REMEMBERED = ("step", "mean", "square", "left", "right", "left_axes", "right_axes")


class Soap(Optimizer):
    """For matrices. It knows no axes of its own: turn the rows of all gradients, and what it makes of them is turned."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, memory: float = 0.95, turn_every: int = 10, tiny: float = 1e-8
    ):
        super().__init__(matrices, {"lr": lr, "memory": memory, "turn_every": turn_every, "tiny": tiny})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._one_step(parameter, parameter.grad, group)

    def _one_step(self, parameter: nn.Parameter, gradient: Tensor, group: dict):
        state, memory = self.state[parameter], group["memory"]
        sides = gradient @ gradient.mT, gradient.mT @ gradient
        if not state:
            # The first gradient says where axes are, and nothing is moved by it yet.
            state["step"] = torch.zeros(())
            state["mean"], state["square"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
            for name, side in zip(("left", "right"), sides, strict=True):
                state[name] = (1 - memory) * side
                # Not on a GPU, which waits for it as long.
                state[f"{name}_axes"] = torch.linalg.eigh(side.cpu())[1].flip(1).to(side).contiguous()
            return
        state["step"] += 1
        left, right, number = state["left_axes"], state["right_axes"], float(state["step"])
        state["mean"].lerp_(gradient, 1 - memory)
        state["square"].lerp_((left.mT @ gradient @ right).square(), 1 - memory)
        seen = 1 - memory**number
        size = (state["square"] / seen).sqrt() + group["tiny"]
        parameter.sub_(left @ (left.mT @ (state["mean"] / seen) @ right / size) @ right.mT, alpha=group["lr"])
        for name, side in zip(("left", "right"), sides, strict=True):
            state[name].lerp_(side, 1 - memory)
            if number % group["turn_every"] == 0:
                self._turn(state, name)

    @staticmethod
    def _turn(state: dict[str, Tensor], name: str):
        """One step of the power method for the axes, largest first, and squares of the gradient in that order too."""
        moments, axes = state[name], state[f"{name}_axes"]
        order = (axes * (moments @ axes)).sum(0).argsort(descending=True, stable=True)
        state["square"] = state["square"].index_select(0 if name == "left" else 1, order)
        state[f"{name}_axes"] = torch.linalg.qr(moments @ axes.index_select(1, order))[0]
