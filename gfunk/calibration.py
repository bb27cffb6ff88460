"""How far a model may be off, by how rough fibres are: found from waves it has not learned from, tried on others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

import torch

from gfunk.doubts import fibre_turn
from gfunk.errors import InputError
from gfunk.experiments import dataset_problem, evaluate_reported, is_run, load_split, operator_named
from gfunk.pretrained import is_of, read_model_card, write_model_card
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.recipe import RecipeProblem
from gfunk.runs import write_bounds
from gfunk.store import peeked_domain
from gfunk.trust import Bounds, Trust, calibrated, fewest_waves, kept, roughness_of

Rows = Sequence[Mapping[str, Any]]


def errors_of_waves(
    model: str, data: Path, split: Literal["val", "test"], *, device: torch.device, n_workers: int = 1,
    on_sample: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each wave of the split, as `gfunk evaluate` has it, and how much its fibres turn; 0 in flat tissue."""
    operator, _, learned, variant = operator_named(model)
    folder = data / split
    problem = dataset_problem(folder)
    if not _is_alike(problem, learned):
        raise InputError(
            f"{folder}: made from another problem than {model} learned from: its errors there bound nothing here"
        )
    waves = load_split(folder, variant.view, n=None, n_workers=n_workers, device=device, on_sample=on_sample).to(device)
    found = evaluate_reported(operator.to(device), variant, problem, waves)
    is_surface = isinstance(problem, AtriumProblem)
    turns = {
        seed: fibre_turn(peeked_domain(folder, seed)) if is_surface else 0.0 for seed in {row.seed for row in found.rows}
    }
    rows = [asdict(row) | {"fibre_turn": turns[row.seed]} for row in found.rows]
    # A model of smooth fibres has data of its own for those; here they are only the smoothest of rough ones.
    is_smooth = isinstance(learned, AtriumProblem) and learned.rough_degrees == 0
    if isinstance(problem, AtriumProblem) and problem.rough_degrees > 0 and is_smooth:
        return [row for row in rows if roughness_of(row["fibre_turn"]) is not None]
    return rows


def bounds_by_roughness(rows: Rows) -> list[Bounds]:
    """Of each roughness that enough of the waves have."""
    found = [calibrated(some, fibre_turn=most) for most, some in _by_roughness(rows) if len(some) >= fewest_waves()]
    if not found:
        raise InputError(f"{len(rows)} waves are too few: bounds take {fewest_waves()} on fibres about as rough")
    return found


def kept_by_roughness(trust: Trust, rows: Rows) -> list[dict[str, Any]]:
    """For each roughness that has bounds: how many waves, and the share of them that keep each bound."""
    known = {each.fibre_turn: each for each in trust.all_bounds}
    found = [
        {"fibre_turn": most, "n": len(some)} | kept(known[most], some) for most, some in _by_roughness(rows) if most in known
    ]
    if not found:
        raise InputError("no bounds are known for fibres like these: find some first (`gfunk calibrate` without --check)")
    return found


def write_trust(model: str, trust: Trust):
    """Beside a run's weights, or into a shipped model's card."""
    if is_run(model):
        write_bounds(Path(model), trust.all_bounds)
    else:
        write_model_card(replace(read_model_card(model), trust=trust))


def _by_roughness(rows: Rows) -> list[tuple[float | None, Rows]]:
    """Smooth ones first; those rougher than all that is told apart are left out."""
    classes = {roughness_of(row["fibre_turn"]) for row in rows} - {inf}
    return [
        (each, [row for row in rows if roughness_of(row["fibre_turn"]) == each])
        for each in sorted(classes, key=lambda each: each or 0.0)
    ]


def _is_alike(problem: RecipeProblem, learned: RecipeProblem) -> bool:
    """Whether they differ in the number of waves a domain and in roughness alone."""
    if isinstance(problem, AtriumProblem) and isinstance(learned, AtriumProblem):
        problem = replace(problem, rough_degrees=learned.rough_degrees)
    return is_of(problem, learned)
