import torch
from laws import largest_gap
from torch import Tensor, nn

from gfunk.soap import Soap


def drawn(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def minimised(target: Tensor, left: Tensor, right: Tensor, n_steps: int, start: Tensor) -> Tensor:
    """|left (x - target) right| made small, from a start."""
    parameter = nn.Parameter(start.clone())
    optimizer = Soap([parameter], lr=0.02, turn_every=10)
    for _ in range(n_steps):
        optimizer.zero_grad()
        (left @ (parameter - target) @ right).square().sum().backward()
        optimizer.step()
    return parameter.detach()


def test_it_turns_with_the_rows_and_columns_of_what_it_minimises():
    rng = torch.Generator().manual_seed(1)
    target, start, left, right = (drawn(rng, 6, 6) for _ in range(4))
    turn, other = (torch.linalg.qr(drawn(rng, 6, 6))[0] for _ in range(2))
    found = minimised(target, left, right, 35, start)
    turned = minimised(turn @ target @ other.T, left @ turn.T, other @ right, 35, turn @ start @ other.T)
    assert largest_gap(turned, turn @ found @ other.T) < 1e-4  # small eigenvalues of squares are not so sure of their axes
    assert largest_gap(found, start) > 0.1


def test_it_finds_the_least_of_a_long_valley():
    rng = torch.Generator().manual_seed(2)
    target, axes = drawn(rng, 8, 12), torch.linalg.qr(drawn(rng, 8, 8))[0]
    valley = axes @ torch.diag(torch.logspace(0, -2, 8, dtype=torch.float64)) @ axes.T
    found = minimised(target, valley, torch.eye(12, dtype=torch.float64), 800, torch.zeros(8, 12, dtype=torch.float64))
    assert largest_gap(found, target) < 0.1


def test_matrices_side_by_side_move_as_one_by_one():
    rng = torch.Generator().manual_seed(3)
    goals = [drawn(rng, 4, 5) for _ in range(3)]

    def moved(parts: list[list[Tensor]]) -> list[Tensor]:
        parameters = [[nn.Parameter(torch.zeros_like(goal)) for goal in part] for part in parts]
        optimizers = [Soap(part, lr=0.02, turn_every=10) for part in parameters]
        for _ in range(25):
            for optimizer, part, some in zip(optimizers, parameters, parts, strict=True):
                optimizer.zero_grad()
                torch.stack([(x - goal).square().sum() for x, goal in zip(part, some, strict=True)]).sum().backward()
                optimizer.step()
        return [parameter.detach() for part in parameters for parameter in part]

    together, alone = moved([goals]), moved([[goal] for goal in goals])
    for one, other in zip(together, alone, strict=True):
        assert largest_gap(one, other) < 1e-6 and float(one.abs().max()) > 0.1
