"""Run by test_gfunk.py in its own process, as checked signatures can't be compiled: compiled = not compiled."""

import sys

import torch
from problems import batch_of, random_field, turning_square

from gfunk.operators.gfunk import GFuNK, GFuNKConfig

torch.manual_seed(0)
operator = GFuNK(GFuNKConfig(width=8, n_layers=2, n_modes=9, local_width=4, local_time=0.01, filter_width=8, time_scale=0.1))
batch = batch_of(turning_square(0.04), turning_square(0.02), dtype=torch.float32)
u, tau = random_field(2, batch.points.shape[1], torch.float32), torch.tensor(0.05)
answers = []
for step in (operator, torch.compile(operator, fullgraph=True, backend=sys.argv[1])):
    operator.zero_grad()
    rate = step(u, batch, tau)
    rate.square().sum().backward()
    answers.append([rate.detach(), *(parameter.grad.clone() for parameter in operator.parameters())])
for expected, got in zip(*answers, strict=True):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
