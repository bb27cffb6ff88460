#!/usr/bin/env bash
# The model of converged waves: data, training, test (results/waves.sh), then the model `atria` on the same waves, bounds of errors
# by how rough fibres are, and error against cost. Recorded in results/. Made for a GPU. Killed, it goes on where it was.
set -euo pipefail
RUN=runs/atria-converged/ours
DATA=data/atria-converged
on=(--device "${DEVICE:-cuda}" --json)
gfunk="python -m gfunk.cli"
[[ -f $RUN/outcome.json ]] || results/waves.sh atria-converged
$gfunk evaluate atria --data $DATA "${on[@]}" --record results/atria-converged.json --label "the model atria" | cut -c 1-900
$gfunk calibrate $RUN --data $DATA "${on[@]}" --record results/trust.json
$gfunk calibrate $RUN --data $DATA --check "${on[@]}" --record results/trust.json
$gfunk bench pareto atria-converged --run $RUN --run $RUN@64 --run atria@64 --halved atria@64 --n "${N:-2}" --batch 10 \
  --set pacing.n_saves=45 --out runs/atria-converged/pareto "${on[@]}" --record results/pareto.json
