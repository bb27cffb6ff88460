#!/usr/bin/env bash
# What each lever is worth, at smoke size with more to learn from, on one CPU thread: data, then all levers of
# results/levers-smoke-RECIPE.txt (or LEVERS) with three seeds, recorded in results/ablation.json. Killed, it goes on where it was.
set -euo pipefail
RECIPE=${1:?which recipe}
DATA=${DATA:-data/ablation/$RECIPE}
RUNS=${RUNS:-runs/ablation/$RECIPE}
export OMP_NUM_THREADS=1
gfunk="python -m gfunk.cli"
simulate() { $gfunk simulate "$RECIPE" --size smoke --out "$DATA" --split "$1" --n "$2" --json; }
case $RECIPE in atria*) n_train=40 n_val=8 ;; *) n_train=160 n_val=32 ;; esac
simulate train $n_train
simulate val $n_val
$gfunk compare "$RECIPE" --size smoke --levers "${LEVERS:-results/levers-smoke-$RECIPE.txt}" --data "$DATA" --out "$RUNS" \
  --seconds "${SECONDS_EACH:-45}" --seeds "${SEEDS:-3}" --device cpu --record "${RECORD:-results/ablation.json}"
