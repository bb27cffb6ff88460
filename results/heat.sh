#!/usr/bin/env bash
# Heat at the paper's size, as recorded in results/heat.json: data, training and test of our operator, the paper's and the
# rivals. Any machine. VARIANTS chooses some, MINUTES stops each after so long (again: goes on), DATA and RUNS say where to work.
set -euo pipefail
VARIANTS=${VARIANTS:-"ours paper fno gnn gnn-unweighted transolver diffusion-net"}
DATA=${DATA:-data/heat}
RUNS=${RUNS:-runs/heat}
RECORD=${RECORD:-results/heat.json}
gfunk="python -m gfunk.cli"
mkdir -p "$RUNS"
[[ ${TOY:-} ]] && small=(--n 6 --set max_cell=0.002) || small=()

for split in train val test; do $gfunk simulate heat --out "$DATA" --split $split "${small[@]}" --json; done
for variant in $VARIANTS; do
  resume=""; [[ -f $RUNS/$variant/last.safetensors ]] && resume="--resume"
  $gfunk train heat --variant $variant --data "$DATA" --out "$RUNS/$variant" ${MINUTES:+--minutes $MINUTES} $resume \
    ${COMPILE:+--compile} --say-every ${SAY:-20} --json | tee "$RUNS/outcome.json"
  # Only what is trained to its end meets the test set.
  grep -q "time is up" "$RUNS/outcome.json" && continue
  $gfunk evaluate "$RUNS/$variant" --data "$DATA" --record "$RECORD" --json | cut -c 1-300
done
