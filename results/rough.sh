#!/usr/bin/env bash
# Bounds of a shipped model's errors on rough fibres: waves held back, bounds put on its card, then the share of test waves
# that keep them; recorded in results/trust.json. Any machine. Killed, it goes on where it was.
set -euo pipefail
MODEL=${1:-atria}
DATA=${DATA:-data/rough}
RECORD=${RECORD:-results/trust.json}
gfunk="python -m gfunk.cli"
simulate() { $gfunk simulate atria-many --out "$DATA" --split "$1" --seed "$2" --n "$3" --set n_sites=1 --set rough_degrees=40.0 --device "${DEVICE:-cpu}"; }
simulate val 100100 48
simulate test 200200 24
$gfunk calibrate "$MODEL" --data "$DATA" --device "${DEVICE:-cpu}" --record "$RECORD"
$gfunk calibrate "$MODEL" --data "$DATA" --check --device "${DEVICE:-cpu}" --record "$RECORD"
