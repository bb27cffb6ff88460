"""How far off the front is that operators start from, for the edges it is solved on: beside edges of 0.125 mm, same steps.

python results/first_states.py --record results/edges.json    # five minutes on one core
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
from gfunk.physics.schemes import SCHEMES
from gfunk.recipes.book import recipe_named
from gfunk.records import record

WAYS = [
    (3, "balanced"),
    (1, "accurate"),
    (1, "balanced"),
    (2, "accurate"),
    (2, "balanced"),
]  # halvings of 1 mm; the truth first
ARRIVED_MS = 7.0, 10.0  # of all nodes those that the front has just come to as operators begin

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=100_042, help="of a small atrium")
parser.add_argument("--sites", type=int, default=3)
parser.add_argument("--device", default="cpu")
parser.add_argument("--record", type=Path)
options = parser.parse_args()

problem = replace(recipe_named("atria-many").problem, n_sites=options.sites, n_halvings=0)
experiment = problem.experiment(options.seed)
found = []
with bar("waves", len(WAYS)) as advance:
    for n_halvings, scheme in WAYS:
        [wave] = simulate_many(
            [halved(experiment.kept, n_halvings)], [[[stimulus] for stimulus in experiment.stimuli]], [ARRIVED_MS[1] + 3],
            cell=problem.pacing.cell, scheme=SCHEMES[scheme], device=options.device, kept=[experiment.nearest],
        )  # fmt: skip
        found.append(wave.activation_ms)
        advance()
true, *others = found
is_front = (true > ARRIVED_MS[0]) & (true < ARRIVED_MS[1])
rows = []
for (n_halvings, scheme), arrival in zip(WAYS[1:], others, strict=True):
    late = (arrival - true)[is_front]
    rows.append(
        {
            "way": f"{1 / 2**n_halvings:g} mm, {scheme}",
            "late_ms": float(np.nanmean(late)),
            "spread_ms": float(np.nanstd(late)),
        }
    )
show(False, {}, rows)
if options.record is not None:
    answer = {"label": "first states", "recipe": "atria-many", "seed": options.seed, "n_sites": options.sites, "rows": rows}
    record(options.record, answer, sys.argv, torch.device(options.device), program="python")
