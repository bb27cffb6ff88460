#!/usr/bin/env bash
# A cardiac recipe at full size: data, training and test, recorded in results/RECIPE.json. Any machine; made for a GPU.
# VARIANTS chooses some, MINUTES stops each training after so long (again: goes on), DATA and RUNS say where to work, SET and
# TRAIN_SET pass settings on, N chooses how many training samples. SPLITS=none leaves the data as they are.
set -euo pipefail
RECIPE=${1:?which recipe}
VARIANTS=${VARIANTS:-ours}
DATA=${DATA:-data/$RECIPE}
RUNS=${RUNS:-runs/$RECIPE}
RECORD=${RECORD:-results/$RECIPE.json}
DEVICE=${DEVICE:-cuda}
gfunk="python -m gfunk.cli"
mkdir -p "$RUNS"

for split in ${SPLITS:-train val test}; do
  [[ $split == none ]] && continue
  n=(); [[ $split == train && ${N:-} ]] && n=(--n "$N"); [[ ${TOY:-} ]] && n=(--n 4)
  $gfunk simulate "$RECIPE" --out "$DATA" --split "$split" --device "$DEVICE" "${n[@]}" ${SET:-} --json
done
for variant in $VARIANTS; do
  run=$RUNS/$variant${NAME:+-$NAME}
  resume=""; [[ -f $run/last.safetensors ]] && resume="--resume"
  $gfunk train "$RECIPE" --variant "$variant" --data "$DATA" --out "$run" --device "$DEVICE" ${MINUTES:+--minutes $MINUTES} \
    $resume ${COMPILE:+--compile} ${TRAIN_SET:-} --say-every "${SAY:-20}" --json | tee "$run.outcome.json"
  # Only what is trained to its end meets the test set.
  grep -q "time is up" "$run.outcome.json" && continue
  label=$variant${NAME:+-$NAME}
  $gfunk evaluate "$run" --data "$DATA" --device "$DEVICE" --label "$label" --record "$RECORD" --rows "$run.rows.jsonl" --json | cut -c 1-900
  if [[ $RECIPE == rectangles ]]; then
    $gfunk evaluate "$run" --data "$DATA" --device "$DEVICE" --rotate 90 --label "$label, turned" --record "$RECORD" --json | cut -c 1-400
  fi
done
