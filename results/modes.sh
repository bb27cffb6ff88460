#!/usr/bin/env bash
# What the shipped models lose with fewer of their modes, on validation waves; recorded in results/modes.json. Any machine.
# Killed, it goes on where it was, but measures again.
set -euo pipefail
MODES=${MODES:-"200 128 96 64 48 32 16"}
DATA=${DATA:-data/modes}
RECORD=${RECORD:-results/modes.json}
gfunk="python -m gfunk.cli"
measured() { # MODEL RECIPE, then options of simulate
  $gfunk simulate "$2" --out "$DATA/$1" --split val "${@:3}" --json
  for n in $MODES; do
    $gfunk evaluate "$1@$n" --data "$DATA/$1" --split val --device "${DEVICE:-cpu}" --record "$RECORD" \
      --label "$1, $n modes" --json | cut -c 1-200
  done
}
measured rectangles rectangles --n 24
measured random-fibres random-fibres --n 12
measured atria atria-many --n 4 --set n_sites=2
