"""Run by test_gfunk.py in its own process, as checked signatures can't be compiled: both of ours compiled = not compiled."""

import sys

import torch
from problems import batch_of, random_field, turning_square

from gfunk.operators.arrival import Arrival, ArrivalConfig
from gfunk.operators.gfunk import GFuNK, GFuNKConfig
from gfunk.rollout import FlowMap, rollout

torch.manual_seed(0)
operator = GFuNK(
    GFuNKConfig(width=8, n_layers=2, n_modes=9, local_width=4, local_times=(0.0005, 0.002), filter_width=8, time_scale=0.1)
)
batch = batch_of(turning_square(0.04), turning_square(0.02), dtype=torch.float32)
u, tau = random_field(2, batch.points.shape[1], torch.float32), torch.tensor(0.05)
by_arrival = Arrival(
    ArrivalConfig(width=8, n_layers=2, n_modes=9, filter_width=8, n_latents=2, profile_width=8, time_scale=0.1)
)
first, times = by_arrival.first(u, batch), torch.linspace(0.01, 0.3, 20)
for network, *given in ((operator, u, batch, tau), (by_arrival, first, batch, times)):
    answers = []
    for step in (network, torch.compile(network, fullgraph=True, backend=sys.argv[1])):
        network.zero_grad()
        answer = step(*given)
        answer.square().sum().backward()
        answers.append([answer.detach(), *(parameter.grad.clone() for parameter in network.parameters())])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))

# A window cut out of trajectories of any length is the same work to the compiler: once with u given, once with u computed.
graphs = []


def counting(graph, inputs):
    graphs.append(graph)
    return graph.forward


step = torch.compile(operator, fullgraph=True, dynamic=False, backend=counting)
for n_times in (3, 5, 8):
    trajectory = random_field(2, n_times * batch.points.shape[1], torch.float32).unflatten(1, (n_times, -1))
    rollout(step, trajectory[:, 0], batch, [0.05] * (n_times - 1), FlowMap(longest_step=0.05)).sum().backward()
assert len(graphs) == 2, len(graphs)

# As many times of other values are the same work too.
graphs.clear()
step = torch.compile(by_arrival, fullgraph=True, dynamic=False, backend=counting)
for _ in range(3):
    step(first, batch, torch.rand(5)).sum().backward()
assert len(graphs) == 1, len(graphs)
