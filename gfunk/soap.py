"""SOAP: Adam in the eigenbasis of each matrix's gradients (Vyas and others, 2024)."""

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

REMEMBERED = ("step", "mean", "square", "left", "right", "left_axes", "right_axes")


class Soap(Optimizer):
    """For matrices. It knows no axes of its own: turn the rows of all gradients, and what it makes of them is turned."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, memory: float = 0.95, turn_every: int = 100, tiny: float = 1e-8
    ):
        super().__init__(matrices, {"lr": lr, "memory": memory, "turn_every": turn_every, "tiny": tiny})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            # Side by side, as each by itself is so small that calling takes longer than computing.
            alike: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault(parameter.shape, []).append(parameter)
            for parameters in alike.values():
                self._move(parameters, torch.stack([each.grad for each in parameters if each.grad is not None]), group)

    def _move(self, parameters: Sequence[nn.Parameter], gradient: Float[Tensor, "parameter row column"], group: dict):
        memory, n_steps = group["memory"], torch.zeros(())
        known = [self.state[parameter] for parameter in parameters]
        sides = {"left": gradient @ gradient.mT, "right": gradient.mT @ gradient}
        if not known[0]:
            # The first gradients say where axes are, and move nothing yet.
            now = {"mean": torch.zeros_like(gradient), "square": torch.zeros_like(gradient)}
            for name, side in sides.items():
                now |= {name: (1 - memory) * side, f"{name}_axes": _axes(side)}
        else:
            n_steps = known[0]["step"] + 1
            now = {name: torch.stack([each[name] for each in known]) for name in REMEMBERED if name != "step"}
            left, right, seen = now["left_axes"], now["right_axes"], 1 - memory ** float(n_steps)
            now["mean"].lerp_(gradient, 1 - memory)
            now["square"].lerp_((left.mT @ gradient @ right).square(), 1 - memory)
            size = (now["square"] / seen).sqrt() + group["tiny"]
            change = left @ (left.mT @ (now["mean"] / seen) @ right / size) @ right.mT
            for parameter, each in zip(parameters, change, strict=True):
                parameter.sub_(each, alpha=group["lr"])
            for name, side in sides.items():
                now[name].lerp_(side, 1 - memory)
            if float(n_steps) % group["turn_every"] == 0:
                _turn(now)
        for number, each in enumerate(known):
            each.update({name: tensor[number] for name, tensor in now.items()}, step=n_steps.clone())


# Not on a GPU, which has small matrices factored one after the other, and each takes it longer.
def _axes(side: Float[Tensor, "parameter row row"]) -> Float[Tensor, "parameter row row"]:
    return torch.linalg.eigh(side.cpu())[1].flip(-1).contiguous().to(side.device)


def _orthonormal(columns: Float[Tensor, "parameter row row"]) -> Float[Tensor, "parameter row row"]:
    return torch.linalg.qr(columns.cpu())[0].contiguous().to(columns.device)


def _turn(now: dict[str, Tensor]):
    """One step of the power method for the axes, largest first, and squares of gradients in that order too."""
    for name, rows in (("left", -2), ("right", -1)):
        moments, axes = now[name], now[f"{name}_axes"]
        order = (axes * (moments @ axes)).sum(-2).argsort(dim=-1, descending=True, stable=True)
        square = now["square"]
        now["square"] = square.gather(rows, (order[:, :, None] if rows == -2 else order[:, None]).expand_as(square))
        now[f"{name}_axes"] = _orthonormal(moments @ axes.gather(-1, order[:, None].expand_as(axes)))
