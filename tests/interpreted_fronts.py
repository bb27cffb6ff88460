"""The GPU's kernels of fronts beside what a CPU does, in Triton's interpreter: a program, run with TRITON_INTERPRET=1."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from problems import batch_of, turning_square
from torch import Tensor

from gfunk.batch import Batch
from gfunk.operators import eikonal, front_kernels, fronts
from gfunk.operators.arrival import ArrivalConfig
from gfunk.operators.eikonal import marched, rays_of, ways_across
from gfunk.operators.fronts import front_times, met_on_the_way, slowed_front
from gfunk.operators.gfunk import diffusion

CONFIG = ArrivalConfig(speed=30.0, time_scale=0.1, ray_times=(0.002,))


def same(found: Tensor, expected: Tensor, within: float = 1e-9):
    torch.testing.assert_close(found, expected, rtol=0, atol=within * float(expected.abs().max()))


def check_marched(batch: Batch, start: Tensor):
    same(front_kernels.marched(start, batch.points, batch.ends, ways_across(batch)), marched(start, batch))


def check_rays(batch: Batch, ahead: Tensor, only_forwards: bool):
    expected, triangles = (
        rays_of(ahead, batch, 30.0, only_forwards=only_forwards),
        torch.stack(eikonal._triangles(batch, ahead.dtype)),
    )
    ends, shares, lengths = front_kernels.rays(30.0 * ahead[..., 0], batch.ends, triangles, only_forwards)
    # Of two triangles with an end in common either may be chosen: the place is the same.
    points, is_node = batch.points.expand(len(ahead), -1, -1), batch.is_node[..., None]
    same(is_node * replace(expected, ends=ends, shares=shares).before(points), is_node * expected.before(points))
    same(torch.where(ahead > 0, lengths / 30.0, 0), expected.lasting)


def check_diffusion(batch: Batch, field: Tensor):
    recurrence = partial(front_kernels.next_term, batch.neighbors.int(), batch.couplings.contiguous())
    for found, expected in zip(
        diffusion(field, batch, (0.002, 0.01), recurrence=recurrence), diffusion(field, batch, (0.002, 0.01)), strict=True
    ):
        same(found * batch.is_node[..., None], expected * batch.is_node[..., None])


def check_solved(batch: Batch, u: Tensor):
    """All that a front meets, with the kernel in place of the solver."""
    fronts.SLOWED_ACCURACY = fronts.MET_ACCURACY = 1e-5
    ahead, _ = front_times(u, batch, CONFIG)
    slowed = slowed_front(u, ahead, batch, CONFIG)
    met = met_on_the_way(u, slowed, batch, CONFIG)
    eikonal.solver = fronts.solver = lambda ahead, **_: partial(front_kernels.solved, ahead[..., 0].argsort(-1))
    same(slowed_front(u, ahead, batch, CONFIG), slowed, 1e-3)
    same(met_on_the_way(u, slowed, batch, CONFIG), met, 1e-3)


if __name__ == "__main__":
    # Several blocks of few nodes.
    front_kernels.LAUNCHES, front_kernels.MARCHED, front_kernels.SOLVED, front_kernels.DIFFUSED = 4, 64, 32, 64
    front_kernels.SWEEPS = 3
    random = torch.Generator().manual_seed(0)
    one, several = batch_of(turning_square(0.008, 4.0)), batch_of(turning_square(0.008, 4.0), turning_square(0.012, 9.0))
    centres = torch.from_numpy(np.random.default_rng(0).uniform(0, 1, (2, 1, 2)))
    for batch in (one, several):
        u = torch.exp(-(batch.points - centres).square().sum(-1, keepdim=True) / 0.01)
        check_marched(batch, 5 * torch.rand(3, *u.shape[:2], generator=random, dtype=u.dtype))
        check_diffusion(batch, u.repeat(1, 1, 3))
        ahead, _ = front_times(u, batch, CONFIG)
        for only_forwards in (False, True):
            check_rays(batch, ahead, only_forwards)
    small = batch_of(turning_square(0.02, 4.0))
    check_solved(small, torch.exp(-(small.points - centres[:1]).square().sum(-1, keepdim=True) / 0.01))
