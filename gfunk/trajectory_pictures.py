"""A trajectory of a test set beside its prediction."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import nn

from gfunk.batch import TrajectorySet
from gfunk.domain import make_domain, unit_square
from gfunk.figures import comparison_picture
from gfunk.recipes.recipe import RecipeProblem, Variant
from gfunk.recipes.tissue_data import TissueProblem
from gfunk.rollout import rollout
from gfunk.simulation import View
from gfunk.store import read_sample

N_MOMENTS = 4


@torch.no_grad()
def prediction_picture(
    path: Path,
    operator: nn.Module,
    variant: Variant,
    problem: RecipeProblem,
    data: TrajectorySet,
    trajectory: int,
    folder: Path | None,
    title: str,
):
    """Truth, prediction and difference at four times, that of the largest error among them.

    folder: where the samples are; None if they were made afresh.
    """
    batch, true = data.take(torch.tensor([trajectory], device=data.values.device))
    predicted = rollout(operator, true[:, 0], batch, torch.diff(data.times).tolist(), variant.integrator)
    is_node = batch.is_node[0]
    points, fibres = (field[0, is_node].double().cpu().numpy() for field in (batch.points, batch.fibres))
    truth, prediction = (
        field[0, :, :, 0][:, is_node].double().cpu().numpy() * problem.scale + problem.offset for field in (true, predicted)
    )
    cells = _triangles(problem, variant.view, data.seeds[trajectory], folder)
    moments = np.linspace(1, len(data.times) - 1, N_MOMENTS).round().astype(int)
    apart, size = ((field[:, :, is_node] ** 2).sum((0, 2, 3)) for field in (predicted - true, true))
    worst = 1 + int((apart / size)[1:].argmax())
    moments[np.abs(moments - worst).argmin()] = worst
    columns = np.unique(moments).tolist()
    units = {"unit": "mV", "time_unit": "ms"} if isinstance(problem, TissueProblem) else {}
    domain = make_domain(points, cells, fibres=fibres)
    comparison_picture(path, domain, data.times.cpu().numpy(), truth, prediction, title, columns, **units)


def _triangles(problem: RecipeProblem, view: View, seed: int, folder: Path | None) -> Int[np.ndarray, "cell corner"]:
    """Those of a sample as an operator sees it, which a batch does not keep."""
    if view.grid_side is not None:
        return unit_square(view.grid_side).cells
    if folder is not None:
        return read_sample(folder, seed).domain.cells
    # What a seed stands for is known without solving it again.
    return problem.experiment(seed).kept.cells if isinstance(problem, TissueProblem) else problem.sample(seed).domain.cells
