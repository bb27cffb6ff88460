"""A run on disk: what was trained, on which data, by which code, and its weights.

`run.json` says everything needed to build the operator again; `best.safetensors` and `last.safetensors` hold weights and
the state of training, `log.jsonl` one line an epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from gfunk.checkpoints import load_weights
from gfunk.errors import InputError
from gfunk.laplacian import Fem, Knn, PaperGraph
from gfunk.operators.arrival import ArrivalConfig
from gfunk.operators.diffusion_net import DiffusionNetConfig
from gfunk.operators.fno import FNOConfig
from gfunk.operators.geo_fno import GeoFNOConfig
from gfunk.operators.gfunk import GFuNKConfig, PaperGFuNKConfig
from gfunk.operators.gnn import GNNConfig
from gfunk.operators.make import make_operator
from gfunk.operators.modes import ExactModesConfig
from gfunk.operators.transolver import TransolverConfig
from gfunk.recipes.atrium_data import AtrialPacing, AtriumProblem
from gfunk.recipes.heat_data import HeatProblem
from gfunk.recipes.recipe import RecipeProblem, Variant
from gfunk.recipes.tissue_data import FibreSquareProblem, FlatPacing, RectangleProblem
from gfunk.rollout import RK4, Adaptive, Direct, Euler, FlowMap
from gfunk.settings import from_json, to_json
from gfunk.simulation import View
from gfunk.store import read_json, read_object, write_json
from gfunk.training import TrainingConfig
from gfunk.trust import Bounds

RUN_SCHEMA = 1
RECORDS = (
    Adaptive, ArrivalConfig, AtrialPacing, AtriumProblem, DiffusionNetConfig, Direct, Euler, ExactModesConfig, Fem,
    FibreSquareProblem, FlatPacing, FlowMap, FNOConfig, GeoFNOConfig, GFuNKConfig, GNNConfig, HeatProblem, Knn,
    PaperGFuNKConfig, PaperGraph, RectangleProblem, RK4, TrainingConfig, TransolverConfig, Variant, View,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """What a run is."""

    recipe: str
    problem: RecipeProblem
    variant: Variant
    data_fingerprint: str
    commit: str


def write_card(folder: Path, card: RunCard):
    content = {name: to_json(getattr(card, name)) for name in card.__dataclass_fields__}
    write_json(folder / "run.json", {"schema": RUN_SCHEMA} | content)


def read_card(folder: Path) -> RunCard:
    if not (folder / "run.json").exists():
        raise InputError(f"{folder}: no run there (a run folder holds run.json)")
    content = read_object(folder / "run.json")
    if content.pop("schema", None) != RUN_SCHEMA:
        raise InputError(f"{folder}: a run of another version; this one reads schema {RUN_SCHEMA}")
    try:
        return RunCard(**{name: from_json(value, RECORDS) for name, value in content.items()})
    except TypeError as error:
        raise InputError(f"{folder / 'run.json'}: {error}") from error


def load_run(folder: Path) -> tuple[nn.Module, RunCard]:
    """The trained operator with its best weights, and its card."""
    card = read_card(folder)
    operator = make_operator(card.variant.network)
    load_weights(folder / "best.safetensors", operator)
    return operator.eval(), card


def write_bounds(folder: Path, bounds: Sequence[Bounds]):
    """Of a run's errors on waves it has not learned from."""
    write_json(folder / "bounds.json", to_json(tuple(bounds)))


def read_bounds(folder: Path) -> tuple[Bounds, ...]:
    """No bounds where they were never found."""
    path = folder / "bounds.json"
    return from_json(read_json(path), (Bounds,)) if path.exists() else ()
