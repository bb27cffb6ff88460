#!/usr/bin/env bash
# The rivals of a cardiac recipe beside ours: the same data and seconds of training each, then the test set, recorded in
# results/RECIPE.json. Any machine; made for a GPU. Killed, it goes on where it was: `gfunk compare` resumes.
# results/waves.sh RECIPE comes first: it makes the data. SECONDS_EACH: what ours was trained for. SET: settings of them all,
# KEY=VALUE ...
set -euo pipefail
RECIPE=${1:?which recipe}
VARIANTS=${VARIANTS:-$(python -c "from gfunk.recipes.book import recipe_named as r; print(*(v.name for v in r('$RECIPE').variants if v.name != 'ours'))")}
DATA=${DATA:-data/$RECIPE}
RUNS=${RUNS:-runs/$RECIPE-rivals}
RECORD=${RECORD:-results/$RECIPE.json}
DEVICE=${DEVICE:-cuda}
SECONDS_EACH=${SECONDS_EACH:-150}
gfunk="python -m gfunk.cli"

# In one process, so that data are read and modes found once. The first is what compare calls unchanged.
first=${VARIANTS%% *}
levers=()
for variant in $VARIANTS; do [[ $variant == "$first" ]] || levers+=(--lever "$variant: variant=$variant ${SET:-}"); done
for setting in ${SET:-}; do levers+=(--set "$setting"); done
$gfunk compare "$RECIPE" --variant "$first" "${levers[@]}" --data "$DATA" --out "$RUNS" --seconds "$SECONDS_EACH" --seeds 1 \
  --device "$DEVICE" ${COMPILE:+--compile} --json | cut -c 1-600 &
comparing=$!

# Each is tested as soon as it is trained.
is_over=""
while [[ ! $is_over ]]; do
  sleep 2
  kill -0 $comparing 2> /dev/null || is_over=yes
  for score in "$RUNS"/*/seed-0/score.json; do
    run=$(dirname "$score")
    [[ -f $score && ! -f $run/tested ]] || continue
    variant=$(python -c "import json, sys; print(json.load(open(sys.argv[1]))['variant']['name'])" "$run/run.json")
    # Ours among them has a row of its own, beside that of the whole training.
    label=$variant; [[ $variant == ours ]] && label="ours, $SECONDS_EACH s"
    tested=(--data "$DATA" --device "$DEVICE" --record "$RECORD" --rows "$run/rows.jsonl" --json)
    $gfunk evaluate "$run" "${tested[@]}" --label "$label" | cut -c 1-600
    if [[ $RECIPE == rectangles ]]; then $gfunk evaluate "$run" "${tested[@]}" --rotate 90 --label "$label, turned" | cut -c 1-300; fi
    touch "$run/tested"
  done
done
wait $comparing
