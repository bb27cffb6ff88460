"""Small surfaces with fibres, and operators of waves on them that have learned nothing."""

from pathlib import Path

import numpy as np
import torch
from problems import sphere

from gfunk.checkpoints import save_weights
from gfunk.domain import Domain, fibre_tensors, make_domain, rectangle
from gfunk.laplacian import Fem
from gfunk.operators.arrival import ArrivalConfig
from gfunk.operators.gfunk import GFuNKConfig
from gfunk.operators.make import make_operator
from gfunk.recipes.atrium_data import AtrialPacing, AtriumProblem
from gfunk.recipes.recipe import RecipeProblem, Variant
from gfunk.rollout import Direct, FlowMap
from gfunk.runs import RunCard, write_card
from gfunk.simulation import View
from gfunk.surface import oriented, outward, triangle_normals

ACROSS = 0.625 / 1.4
EDGE_MM = 1.5
# Long steps and no finer mesh: all laws hold for those as well.
PROBLEM = AtriumProblem(pacing=AtrialPacing(scheme="paper", n_saves=40), kept_edge_mm=EDGE_MM, n_halvings=0)


def fibrous(points: np.ndarray, cells: np.ndarray, direction: np.ndarray) -> Domain:
    """Fibres along a direction of space, laid into each triangle; five times faster along than across."""
    normals = triangle_normals(points, cells)
    along = direction - (normals @ direction)[:, None] * normals
    return make_domain(points, cells, fibre_tensors(along, 5 * ACROSS, ACROSS), diffusion_at="cell")


def strip(length: float = 50.0, width: float = 12.0, edge: float = 1.0) -> Domain:
    """A strip bent round a cylinder, fibres along the cylinder: waves run along the strip at their slowest."""
    flat = rectangle(length, width, edge)
    angle = flat.points[:, 0] / 20.0
    points = np.stack([20.0 * np.sin(angle), flat.points[:, 1], 20.0 * np.cos(angle)], axis=1)
    return fibrous(points, flat.cells, np.array([0.0, 1.0, 0.0]))


def egg(radius: float = 10.0, n_refinements: int = 3) -> Domain:
    """A ball with three different axes; edges of about 1.5 mm."""
    ball = sphere(n_refinements)
    points = radius * ball.points * np.array([1.0, 0.85, 1.2])
    cells, _ = outward(points, oriented(ball.cells)[0])
    return fibrous(points, cells, np.array([0.3, 0.2, 0.9]))


def write_untrained(
    folder: Path, *, steps: bool = False, ray_times: tuple[float, ...] = (), problem: RecipeProblem = PROBLEM
) -> Path:
    """A run folder with first weights; `steps`: of an operator that goes step by step."""
    network = (
        GFuNKConfig(width=4, n_layers=1, n_modes=12, knows_diffusion=False, time_scale=10.0)
        if steps
        else ArrivalConfig(width=8, n_layers=2, n_modes=12, filter_width=8, profile_width=8, ray_times=ray_times)
    )
    variant = Variant(
        name="untrained",
        network=network,
        view=View(discretisation=Fem(), n_modes=12),
        integrator=FlowMap(longest_step=10.0) if steps else Direct(),
        training=None,
    )
    write_card(folder, RunCard(recipe="atria", problem=problem, variant=variant, data_fingerprint="", commit=""))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        save_weights(folder / "best.safetensors", make_operator(network), {})
    return folder
