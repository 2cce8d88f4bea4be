#!/bin/bash
# The first minute: installs what is missing, builds, shows what the machine can do, trains a small model with TSP on four ranks on
# real text for about a minute, prints the audit of memory, traffic and time, and samples a line from the model.
#
#   tools/demo.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

uses=(build)
[ "$(uname -m)" = x86_64 ] || uses+=(other)
install_missing "${uses[@]}"
say "building (release)"
(cd "$root" && cmake --preset release -DTSP_BUILD_TESTS=OFF -DTSP_BUILD_BENCH=OFF -DTSP_BUILD_TORCH=OFF &&
  cmake --build --preset release --target tsprun)
tsprun=$root/build/release/launcher/tsprun

say "tsprun doctor: what this machine can do"
"$tsprun" doctor

say "tsprun -n 4 bench: four ranks, four processes, collectives over shared memory"
"$tsprun" -n 4 bench all_reduce,all_gather --sizes 1K,1M,16M

say "tsprun -n 4 run: any program, once per rank"
"$tsprun" -n 4 run -- sh -c 'echo "I am rank $RANK of $WORLD_SIZE, process $$"'

# The texts of the licences, which every Debian machine has (package base-files).
mapfile -t texts < <(find /usr/share/common-licenses -type f | sort)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say "tsprun --layout tsp=4 train: a small transformer, weights and sequence sharded over four ranks, on ${#texts[@]} licence texts"
"$tsprun" --layout tsp=4 train --config nano --data "${texts[@]}" --batch 8 --steps 700 --lr 3e-3 --warmup 20 \
  --save "$work/model" --json "$work/report.json"

say "tsprun --layout tsp=4 generate: a line from it, bytes it has learnt to string together within the minute"
"$tsprun" --layout tsp=4 generate --model "$work/model/step-000700" --prompt "The " --tokens 160 --temperature 0.6
