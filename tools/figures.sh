#!/bin/bash
# The paper's figures, scaled to this machine: measures every scheme under `tsprun compare`, plans the same points, draws pictures,
# and says in words which of the paper's statements hold here, and on its own clusters in virtual time.
#
#   tools/figures.sh [--quick] [FOLDER]     default: build/figures
#
#   RANKS=8  CONFIG=NAME|FILE  SEQS=256,1024,2048,4096  BATCHES=1,2,4  STEPS=3  FAIR_BATCHES=2,6  FAIR_STEPS=8  PRESET=release
#   may be set in the environment; default configuration: micro's, for sequences up to 8192
#
# --quick: four ranks and short sequences, in a few minutes; to see that it works, not to judge by.
#
# Reports, CSV, pictures and statements.txt lie in FOLDER. Layouts that this version can't run are rows that say why.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

quick=0
[ "${1:-}" != --quick ] || { quick=1; shift; }
case "${1:-}" in -*) echo "figures.sh: $1 is no option; --quick and a folder are" >&2; exit 2 ;; esac
folder=${1:-$root/build/figures}
if [ "$quick" = 1 ]; then
  : "${RANKS:=4}" "${SEQS:=64,128,256}" "${BATCHES:=1,2}" "${STEPS:=1}"
fi
ranks=${RANKS:-8}
seqs=${SEQS:-256,1024,2048,4096}
batches=${BATCHES:-1,2,4}
steps=${STEPS:-3}
tsprun=$root/build/${PRESET:-release}/launcher/tsprun
[ -x "$tsprun" ] || { echo "figures.sh: $tsprun isn't built; tools/demo.sh or cmake --build --preset release builds it" >&2; exit 2; }

install_missing plot
mkdir -p "$folder"
data=$folder/text.txt
config=${CONFIG:-$folder/micro-8192.json}
cat >"$folder/micro-8192.json" <<'JSON'
{"model_type": "llama", "hidden_act": "silu", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
 "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 704, "vocab_size": 256, "max_position_embeddings": 8192}
JSON
# Text enough for every length: this project's own words.
cat "$root"/*.md "$root"/*/README.md >"$data"

half=$((ranks / 2))
layouts="tsp=$ranks;tp=$ranks;sp=$ranks;zero3=$ranks;tp=2,sp=$half;tp=$half,sp=2"
[ "$half" -gt 2 ] || layouts="tsp=$ranks;tp=$ranks;sp=$ranks;zero3=$ranks;tp=2,sp=$half"

# compare NAME ARGUMENTS…
compare() {
  local name=$1
  shift
  say "measuring: $name"
  "$tsprun" compare --data "$data" --json "$folder/$name.json" --csv "$folder/$name.csv" "$@"
}
compare lengths --steps "$steps" --config "$config" --layouts "$layouts" --seqs "$seqs"                    # Figs. 1, 5, 7, 9
compare lengths_forward --steps "$steps" --config "$config" --layouts "$layouts" --seqs "$seqs" --forward  # Figs. 10, 11
training=("$folder/lengths.json")
# Fig. 12; its points of one sequence are among those above.
more_batches=$(tr , '\n' <<<"$batches" | grep -vx 1 | paste -sd, || true)
if [ -n "$more_batches" ]; then
  training+=("$folder/batches.json")
  compare batches --steps "$steps" --config "$config" --layouts "$layouts" --batches "$more_batches" --seq "${seqs%%,*}"
fi
compare sizes --steps "$steps" --configs nano,micro --layouts "$layouts" --seq "${seqs%%,*}"               # Fig. 6
rm -f "$folder/break_even.json"
# Figs. 5, 7 on both sides of BS = 8h, which the larger model doesn't reach.
[ "$ranks" -gt 8 ] || compare break_even --steps "$steps" --config nano --layouts "tsp=$ranks;tp=$ranks" --seq 256 --batches 1,2,4 --forward

# Every scheme and variant where no rank shares a core, so that what ranks wait for is communication; on both sides of the lengths
# at which TSP's bytes break even with TP's, forward alone (8h) and with backward (24h).
if [ "$quick" = 0 ]; then
  fair=(--config "$config" --seq 1024 --batches "${FAIR_BATCHES:-2,6}" --steps "${FAIR_STEPS:-8}")
  compare fair "${fair[@]}" --layouts "tsp=2;tp=2;sp=2;zero3=2"
  compare fair_sequence "${fair[@]}" --layouts "tp=2" --tp sequence
  compare fair_ring "${fair[@]}" --layouts "sp=2" --sp ring
  compare fair_ulysses "${fair[@]}" --layouts "sp=2" --sp ulysses
fi

say "planning the same points"
plans=()
for seq in ${seqs//,/ }; do
  "$tsprun" plan --config "$config" -n "$ranks" --seq "$seq" --json "$folder/plan_$seq.json" >/dev/null
  plans+=("$folder/plan_$seq.json")
done
"$tsprun" plan --paper --json "$folder/paper.json" >"$folder/paper.txt"

say "drawing"
python3="/usr/bin/python3"
"$python3" "$root/tools/plot/plot.py" --out "$folder/training" "${training[@]}" "$folder/sizes.json" "${plans[@]}"
"$python3" "$root/tools/plot/plot.py" --out "$folder/forward" "$folder/lengths_forward.json"
forward=("$folder/lengths_forward.json")
if [ -e "$folder/break_even.json" ]; then
  "$python3" "$root/tools/plot/plot.py" --out "$folder/break_even" "$folder/break_even.json"
  forward+=("$folder/break_even.json")
fi
"$python3" "$root/tools/plot/plot.py" --out "$folder/paper" "$folder/paper.json"

say "the paper's statements on this machine ($ranks ranks, $(basename "$config" .json), training)"
"$python3" "$root/tools/plot/statements.py" "${training[@]}" | tee "$folder/statements.txt"
say "and in forward passes alone"
"$python3" "$root/tools/plot/statements.py" "${forward[@]}" | tee -a "$folder/statements.txt"
if [ "$quick" = 0 ]; then
  say "and of all schemes with a core for each of two ranks"
  "$python3" "$root/tools/plot/statements.py" "$folder"/fair*.json | tail -n 2 | tee -a "$folder/statements.txt"
fi
say "and on the paper's clusters, in virtual time"
played=("$root/tools/plot/played.py" "$tsprun" "$root/layers/theory/machines/mi300x.json" "$folder")
[ "$quick" = 0 ] || played+=(--quick)
"$python3" "${played[@]}" | tee "$folder/played.txt"
"$python3" "$root/tools/plot/plot.py" --out "$folder/played" "$folder/played.json"
echo
echo "all of it: $folder"
