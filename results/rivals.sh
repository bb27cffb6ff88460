#!/usr/bin/env bash
# The rivals of a cardiac recipe beside ours: the same data and seconds of training each, then the test set, recorded in
# results/RECIPE.json. Any machine; made for a GPU. Killed, it goes on where it was: `gfunk compare` resumes.
# results/waves.sh RECIPE comes first: it makes the data. SECONDS_EACH: what ours was trained for.
set -euo pipefail
RECIPE=${1:?which recipe}
VARIANTS=${VARIANTS:-$(python -c "from gfunk.recipes.book import recipe_named as r; print(*(v.name for v in r('$RECIPE').variants if v.name != 'ours'))")}
DATA=${DATA:-data/$RECIPE}
RUNS=${RUNS:-runs/$RECIPE-rivals}
RECORD=${RECORD:-results/$RECIPE.json}
DEVICE=${DEVICE:-cuda}
gfunk="python -m gfunk.cli"

# One after the other: what is done is tested before the next begins.
for variant in $VARIANTS; do
  $gfunk compare "$RECIPE" --variant "$variant" --data "$DATA" --out "$RUNS/$variant" --seconds "${SECONDS_EACH:-280}" --seeds 1 \
    --device "$DEVICE" ${SET:-} --json | cut -c 1-600
  run=$(dirname "$(find "$RUNS/$variant" -name run.json | head -1)")
  tested=(--data "$DATA" --device "$DEVICE" --record "$RECORD" --rows "$RUNS/$variant.rows.jsonl" --json)
  [[ -f $RUNS/$variant.tested ]] && continue
  $gfunk evaluate "$run" "${tested[@]}" --label "$variant" | cut -c 1-600
  if [[ $RECIPE == rectangles ]]; then $gfunk evaluate "$run" "${tested[@]}" --rotate 90 --label "$variant, turned" | cut -c 1-300; fi
  touch "$RUNS/$variant.tested"
done
