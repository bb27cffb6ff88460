"""Networks are torch modules, so what they predict can be differentiated: where was the heat that is seen later?"""

import numpy as np
import torch

from gfunk import fibre_tensors, load_pretrained, lowest_modes, make_domain, pack, unit_square
from gfunk.rollout import rollout
from gfunk.simulation import viewed_domain

operator, card = load_pretrained("heat")
square = unit_square(33)
fibres = np.tile([np.cos(0.6), np.sin(0.6)], (square.n_nodes, 1))
domain = make_domain(square.points, square.cells, fibre_tensors(fibres, 9.0, 1.0))
domain, matrices = viewed_domain(domain, card.variant.view)
batch = pack([(domain, matrices, lowest_modes(matrices, card.variant.view.n_modes))])
points = batch.points[0]


def after_five_steps(place: torch.Tensor) -> torch.Tensor:
    """Heat around a place, predicted."""
    u = torch.exp(-(points - place).square().sum(-1) / 0.01)[None, :, None]
    return rollout(operator, u, batch, [0.001] * 5, card.variant.integrator)[:, -1]


true = torch.tensor([0.3, 0.6])
seen = after_five_steps(true).detach()
place = torch.tensor([0.6, 0.4], requires_grad=True)
descent = torch.optim.Adam([place], lr=0.03)
for _ in range(60):
    descent.zero_grad()
    misfit = (after_five_steps(place) - seen).square().mean()
    misfit.backward()
    descent.step()
error = float((place.detach() - true).norm())
print(f"found at {place.detach().numpy().round(3)}, was at {true.numpy()}: off by {error:.4f}")
