"""gfunk: how a diffusive PDE evolves on domains never seen before."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gfunk.atria.synthetic import left_atrium
from gfunk.domain import Domain, fibre_tensors, make_domain, perturbed_square, rectangle, unit_square
from gfunk.errors import InputError
from gfunk.files.reading import read_domain
from gfunk.laplacian import Fem, Knn, Laplacian, PaperGraph, laplacian
from gfunk.physics.heat import simulate_heat
from gfunk.spectrum import Spectrum, lowest_modes
from gfunk.store import cached_modes
from gfunk.trajectory import Trajectory

if TYPE_CHECKING:
    from gfunk.batch import Batch, pack
    from gfunk.exporting.trajectories import as_xarray
    from gfunk.operators.gfunk import GFuNK, GFuNKConfig, PaperGFuNK, PaperGFuNKConfig
    from gfunk.operators.modes import ExactModes, ExactModesConfig
    from gfunk.physics.monodomain import simulate, simulate_many
    from gfunk.physics.schemes import diffusivity
    from gfunk.physics.stimulus import Stimulus
    from gfunk.physics.waves import Paced
    from gfunk.prediction import Prediction, predict
    from gfunk.pretrained import load_pretrained
    from gfunk.runs import load_run
    from gfunk.sweeping import Sweep, sweep

# Imported when first used: geometry and the solver, also in worker processes, should not wait for torch.
_WITH_TORCH = {
    "Batch": "batch",
    "ExactModes": "operators.modes",
    "ExactModesConfig": "operators.modes",
    "GFuNK": "operators.gfunk",
    "GFuNKConfig": "operators.gfunk",
    "Paced": "physics.waves",
    "PaperGFuNK": "operators.gfunk",
    "PaperGFuNKConfig": "operators.gfunk",
    "Prediction": "prediction",
    "Stimulus": "physics.stimulus",
    "Sweep": "sweeping",
    "as_xarray": "exporting.trajectories",
    "diffusivity": "physics.schemes",
    "load_pretrained": "pretrained",
    "load_run": "runs",
    "pack": "batch",
    "predict": "prediction",
    "simulate": "physics.monodomain",
    "simulate_many": "physics.monodomain",
    "sweep": "sweeping",
}

__all__ = [
    "Batch", "Domain", "ExactModes", "ExactModesConfig", "Fem", "GFuNK", "GFuNKConfig", "InputError", "Knn", "Laplacian",
    "Paced", "PaperGFuNK", "PaperGFuNKConfig", "PaperGraph", "Prediction", "Spectrum", "Stimulus", "Sweep", "Trajectory",
    "as_xarray", "cached_modes", "diffusivity", "fibre_tensors", "laplacian", "left_atrium", "load_pretrained", "load_run",
    "lowest_modes", "make_domain", "pack", "perturbed_square", "predict", "read_domain", "rectangle", "simulate",
    "simulate_heat", "simulate_many", "sweep", "unit_square",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'gfunk' has no attribute {name!r}")
    return getattr(import_module(f"gfunk.{_WITH_TORCH[name]}"), name)
