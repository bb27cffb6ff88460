"""Results: what was measured, by which command, on what, at which commit."""

import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gfunk.store import commit, read_json, write_json


def record(path: Path, row: dict[str, Any], words: Sequence[str], device: Any):
    """Append a row to the file, with the words of the command that measured it."""
    rows = read_json(path) if path.exists() else []
    about = {
        "command": shlex.join(["gfunk", *words]), "hardware": hardware(device), "commit": commit(),
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


def best_results() -> dict[tuple[str, str], float]:
    """The lowest recorded error of each recipe and variant, as trained and tested at full size."""
    best: dict[tuple[str, str], float] = {}
    for row in recorded():
        if "rel_l2" in row and row["label"] == row["variant"]:
            key = row["recipe"], row["variant"]
            best[key] = min(best.get(key, float("inf")), row["rel_l2"])
    return best
