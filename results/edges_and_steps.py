"""How late waves on an atrium are for the edges and steps they are solved with, beside where finer ones lead.

python results/edges_and_steps.py --record results/edges.json    # hours on one core; killed, it goes on where it was
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gfunk.console import bar, show
from gfunk.domain import halved
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import Scheme
from gfunk.recipes.book import recipe_named
from gfunk.records import record

# Halvings of edges of 1 mm, steps in ms, mass.
WAYS = [
    (0, 0.05, "mixed"), (0, 0.05, "balanced"), (0, 0.025, "balanced"),
    (1, 0.05, "mixed"), (1, 0.025, "mixed"), (1, 0.1, "balanced"), (1, 0.05, "balanced"), (1, 0.025, "balanced"),
    (2, 0.05, "mixed"), (2, 0.025, "mixed"), (2, 0.1, "balanced"), (2, 0.05, "balanced"), (2, 0.025, "balanced"),
    (3, 0.1, "balanced"), (3, 0.0125, "mixed"),
]  # fmt: skip
UNTIL_MS = 66.0

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=100_000)
parser.add_argument("--out", type=Path, default=Path("data/edges"))
parser.add_argument("--device", default="cpu")
parser.add_argument("--record", type=Path)
options = parser.parse_args()

problem = replace(recipe_named("atria-many").problem, n_sites=1, n_halvings=0)
experiment = problem.experiment(options.seed)
options.out.mkdir(parents=True, exist_ok=True)
found = {}
with bar("waves", len(WAYS)) as advance:
    for n_halvings, dt_ms, mass in WAYS:
        path = options.out / f"{options.seed}-{n_halvings}-{dt_ms}-{mass}.npy"
        if not path.exists():
            [wave] = simulate_many(
                [halved(experiment.kept, n_halvings)], [[list(experiment.stimuli)]], [UNTIL_MS], cell=problem.pacing.cell,
                scheme=Scheme(dt_ms=dt_ms, mass=mass), device=options.device, kept=[experiment.nearest],
            )  # fmt: skip
            np.save(path, wave.activation_ms[0])
        found[n_halvings, dt_ms, mass] = np.load(path).astype(np.float64)
        advance()


def of_steps(n_halvings: int, dt_ms: float) -> np.ndarray:
    """What steps make a wave late by, on one mesh: without any, those of 0.05 and 0.025 ms lead to the same."""
    half, quarter = found[n_halvings, 0.05, "balanced"], found[n_halvings, 0.025, "balanced"]
    return found[n_halvings, dt_ms, "balanced"] - (4 * quarter - half) / 3


# Errors of order 2 in edge and step together; the finest two waves are.
finer, fine = found[3, 0.0125, "mixed"], found[2, 0.025, "mixed"]
where_they_lead = finer + (finer - fine) / 3
is_reached = where_they_lead < UNTIL_MS - 4


def row(way: str, late_ms: np.ndarray) -> dict[str, str | float]:
    late = late_ms[is_reached & np.isfinite(late_ms)]
    sizes = np.abs(late)
    return {"way": way, "late_ms": late.mean(), "size_ms": sizes.mean(), "size_ms_95": np.quantile(sizes, 0.95)}


rows = [row(f"{1 / 2**n:g} mm, {dt:g} ms, {mass}", found[n, dt, mass] - where_they_lead) for n, dt, mass in WAYS]
converged = found[3, 0.1, "balanced"] - of_steps(1, 0.1)
rows.append(row("converged, as atria-converged has it", converged - where_they_lead))
rows += [row(f"steps of 0.05 ms alone, on {1 / 2**n:g} mm", of_steps(n, 0.05)) for n in (0, 1, 2)]
rows += [row(f"steps of 0.1 ms alone, on {1 / 2**n:g} mm", of_steps(n, 0.1)) for n in (1, 2)]
show(False, {}, rows)
if options.record is not None:
    answer = {"label": "edges and steps", "recipe": "atria-many", "seed": options.seed, "rows": rows}
    record(options.record, answer, sys.argv, torch.device(options.device), program="python")
