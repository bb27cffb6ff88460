#!/usr/bin/env bash
# A cardiac recipe at full size: data, training and test, recorded in results/RECIPE.json. Any machine; made for a GPU.
# VARIANTS chooses some, MINUTES stops each training after so long (again: goes on), DATA and RUNS say where to work, SET and
# TRAIN_SET pass settings on, N chooses how many training samples, SPLITS which are simulated (none: the data are there), ALSO
# names recipes whose test sets, simulated with ALSO_SET, are predicted too.
set -euo pipefail
RECIPE=${1:?which recipe}
VARIANTS=${VARIANTS:-ours}
DATA=${DATA:-data/$RECIPE}
RUNS=${RUNS:-runs/$RECIPE}
RECORD=${RECORD:-results/$RECIPE.json}
DEVICE=${DEVICE:-cuda}
gfunk="python -m gfunk.cli"
mkdir -p "$RUNS"

simulate() { $gfunk simulate "$1" --out "$2" --device "$DEVICE" "${@:3}" ${TOY:+--n 2} --json; }
if [[ -z ${SPLITS:-} && -z ${N:-} ]]; then
  # In one process, which compiles once.
  simulate "$RECIPE" "$DATA" ${SET:-}
else
  for split in ${SPLITS:-train val test}; do
    [[ $split == none ]] && continue
    n=(); [[ $split == train && ${N:-} ]] && n=(--n "$N")
    simulate "$RECIPE" "$DATA" --split "$split" "${n[@]}" ${SET:-}
  done
fi
for other in ${ALSO:-}; do
  simulate "$other" "data/$other" --split test ${ALSO_SET:-}
done
for variant in $VARIANTS; do
  run=$RUNS/$variant${NAME:+-$NAME}
  resume=""; [[ -f $run/last.safetensors ]] && resume="--resume"
  $gfunk train "$RECIPE" --variant "$variant" --data "$DATA" --out "$run" --device "$DEVICE" ${MINUTES:+--minutes $MINUTES} \
    $resume ${COMPILE:+--compile} ${TRAIN_SET:-} --say-every "${SAY:-20}" --json | tee "$run.outcome.json"
  # Only what is trained to its end meets the test set.
  grep -q "time is up" "$run.outcome.json" && continue
  label=$variant${NAME:+-$NAME}
  evaluate() { $gfunk evaluate "$run" --device "$DEVICE" --record "$RECORD" --rows "$run.rows.jsonl" --json "$@" | cut -c 1-900; }
  if [[ $RECIPE == rectangles ]]; then evaluate --data "$DATA" --rotate 90 --label "$label, turned"; fi
  for other in ${ALSO:-}; do evaluate --data "data/$other" --label "$label on $other"; done
  evaluate --data "$DATA" --label "$label"
done
