#!/bin/bash
# Trains a small model with TSP on four ranks, kills one of them, and goes on from the last checkpoint on two ranks with tensor
# parallelism.
#
#   examples/break_and_resume.sh [FOLDER]     FOLDER takes the text and the checkpoints; default: a new one under /tmp
#
# tsprun is taken from PATH, or from where $TSPRUN says.
set -euo pipefail
tsprun=${TSPRUN:-tsprun}
folder=${1:-$(mktemp -d /tmp/tsprun.XXXXXX)}
mkdir -p "$folder"
cat /usr/share/common-licenses/* >"$folder/book.txt"
train=(train --data "$folder/book.txt" --steps 8)

echo "== four ranks; rank 2 is killed in step 7, after the checkpoints of steps 3 and 6"
code=0
"$tsprun" --layout tsp=4 --fault kill:rank=2,step=7 "${train[@]}" \
  --config nano --batch 4 --seq 64 --lr 3e-3 --save "$folder/run" --save-every 3 || code=$?
if [ "$code" = 0 ]; then
  echo "the job should have failed" >&2
  exit 1
fi

echo "== the job ended with code $code; two ranks go on under another layout"
"$tsprun" --layout tp=2 "${train[@]}" --resume "$folder/run"
