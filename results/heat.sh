#!/usr/bin/env bash
# Heat at the paper's size, as recorded in results/heat.json: data, training and test of our operator, the paper's and the
# rivals. Any machine; MINUTES of training for each variant. VARIANTS chooses some, DATA and RUNS say where to work.
set -euo pipefail
MINUTES=${MINUTES:-8}
VARIANTS=${VARIANTS:-"ours paper fno gnn gnn-unweighted"}
DATA=${DATA:-data/heat}
RUNS=${RUNS:-runs/heat}
RECORD=${RECORD:-results/heat.json}
gfunk="python -m gfunk.cli"
# For time and memory; the paper does not say that it used half precision.
lean="--set training.half_precision=True --set training.saves_memory=True"
[[ ${TOY:-} ]] && small=(--n 6 --set max_cell=0.002) || small=()

for split in train val test; do $gfunk simulate heat --out "$DATA" --split $split "${small[@]}" --json; done
for variant in $VARIANTS; do
  settings=""
  case $variant in paper | gnn*) settings=$lean ;; esac
  resume=""; [[ -f $RUNS/$variant/last.safetensors ]] && resume="--resume"
  $gfunk train heat --variant $variant --data "$DATA" --out "$RUNS/$variant" --minutes "$MINUTES" $settings $resume \
    ${COMPILE:+--compile} --say-every 5 --json
  $gfunk evaluate "$RUNS/$variant" --data "$DATA" --record "$RECORD" --json | cut -c 1-300
done
