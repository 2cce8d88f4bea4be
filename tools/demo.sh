#!/bin/bash
# The first minute: installs what is missing, builds, and shows what this version does.
#
#   tools/demo.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install_missing build
say "building (release)"
build_preset release
tsprun=$root/build/release/launcher/tsprun

say "tsprun doctor: what this machine can do"
"$tsprun" doctor

say "tsprun -n 4 bench: four ranks, four processes, collectives over shared memory"
"$tsprun" -n 4 bench all_reduce,all_gather --sizes 1K,1M,16M

say "tsprun -n 4 run: any program, once per rank"
"$tsprun" -n 4 run -- sh -c 'echo "I am rank $RANK of $WORLD_SIZE, process $$"'

cat <<'END'

This is the foundation: launcher, shared-memory transport, collectives and their benchmark. Models and training aren't part of
this version, so the demo trains nothing.
END
