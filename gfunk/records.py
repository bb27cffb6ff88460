"""Results: what was measured, by which command, on what, at which commit."""

import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gfunk.store import commit, read_json, write_json


def record(path: Path, row: dict[str, Any], words: Sequence[str], device: Any, program: str = "gfunk"):
    """Append a row to the file, with the words of the command that measured it."""
    rows = read_json(path) if path.exists() else []
    about = {
        "command": shlex.join([program, *words]), "hardware": hardware(device), "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    write_json(path, [*rows, row | about])


def hardware(device: Any) -> str:
    import torch  # here, as reading results needs none

    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _results_folder() -> Path:
    beside = Path(__file__).parent / "results"
    return beside if beside.is_dir() else Path(__file__).parent.parent / "results"


def recorded() -> list[dict[str, Any]]:
    return [row for path in sorted(_results_folder().glob("*.json")) for row in read_json(path)]


def best_results() -> dict[tuple[str, str], dict[str, Any]]:
    """The row of the lowest error of each recipe and variant, as tested at full size; it may have learned another recipe.

    By its label: `VARIANT`, or `VARIANT on RECIPE` if its own recipe is not that of the test. What was measured on another
    problem than the recipe has now is no result of it.
    """
    from gfunk.recipes.book import RECIPES
    from gfunk.runs import RECORDS
    from gfunk.settings import from_json

    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in recorded():
        variant, _, tested = row["label"].partition(" on ")
        if "rel_l2" not in row or variant != row["variant"]:
            continue
        recipe = RECIPES.get(tested or row["recipe"])
        if recipe is not None and from_json(row.get("problem"), RECORDS) == recipe.problem:
            key = recipe.name, variant
            best[key] = min(best.get(key, row), row, key=lambda each: each["rel_l2"])
    return best
