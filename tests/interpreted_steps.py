"""The GPU's kernels of a step beside what a CPU does, in Triton's interpreter: a program, run with TRITON_INTERPRET=1."""

import torch
from problems import turning_square
from torch import Tensor

from gfunk.physics import cells, diffusion, step_kernels
from gfunk.physics.diffusion import half_step
from gfunk.physics.models import CELLS


def check_gates(dtype: torch.dtype):
    cell = CELLS["courtemanche-af"]
    # At ends of intervals, where formulas change, beyond the table, and no number at all.
    v = torch.tensor([-300.0, -128.0, -85.0, -40.0, -39.99, 0.03125, 20.1, 128.0, 300.0, float("nan")] * 60, dtype=dtype)
    table = cells.gate_table(cell, 0.05, v)
    state = {name: torch.rand(v.shape, generator=torch.manual_seed(0)).to(dtype) for name in table.names}
    expected = torch.stack(list(table.later(state, v).values()))
    gates = torch.stack(list(state.values()))
    found = step_kernels.gates_later(v, gates, table.lower, table.gain, *cells.TABLE_MV, table.per_mV)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, equal_nan=True)


def check_diffusion(n_trajectories: int):
    step = half_step(turning_square(0.01), 0.01).to("cpu", torch.float64)
    first, second = step.weights(2).unbind()
    v, guess = torch.randn(2, step.neighbors.shape[1], n_trajectories, dtype=torch.float64).unbind()

    def iterated(begun, gone_on) -> tuple[Tensor, ...]:
        return gone_on(*begun(v, guess, step, first), step, second)

    expected = iterated(diffusion.begun, diffusion.gone_on)
    for each, found in zip(expected, iterated(step_kernels.begun, step_kernels.gone_on), strict=True):
        torch.testing.assert_close(found, each, rtol=0, atol=1e-12)
    # A constant field stays to the last bit: nothing pulls.
    still = step_kernels.begun(torch.full_like(v, -81.3), torch.zeros_like(v), step, first)
    assert all(not each.any() for each in still)


if __name__ == "__main__":
    check_gates(torch.float32)
    check_gates(torch.float64)
    check_diffusion(1)
    check_diffusion(3)
