#!/bin/bash
# Fuzzes for longer than tools/test.sh does.
#
#   tools/fuzz.sh [--runs N] [--seconds S] [TARGET…]     default: ten million executions of every target of tests/fuzz
#
# Builds preset fuzz and runs the targets, one a core. A target ends after N executions or S seconds, whichever comes first; 0: no limit.
# Inputs that reach new code stay in build/fuzz/tests/fuzz/TARGET, those that fail in TARGET.failed.* beside it. The table says how
# often each ran; the exit code is 1 if one failed, 2 for a wrong argument.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

runs=10000000
seconds=0
chosen=()
whole() {
  case $2 in '' | *[!0-9]*) echo "fuzz.sh: $1 '$2' is no whole number; try $1 $3" >&2; exit 2 ;; esac
}
while [ $# -gt 0 ]; do
  case $1 in
    --runs) runs=${2:-}; whole --runs "$runs" 1000000; shift 2 ;;
    --seconds) seconds=${2:-}; whole --seconds "$seconds" 600; shift 2 ;;
    -*) echo "fuzz.sh: $1 is no option; --runs and --seconds are" >&2; exit 2 ;;
    *) chosen+=("$1"); shift ;;
  esac
done
all=()
for source in "$root"/tests/fuzz/*_fuzz.cpp; do all+=("$(basename "$source" _fuzz.cpp)"); done
[ ${#chosen[@]} -gt 0 ] || chosen=("${all[@]}")
for target in "${chosen[@]}"; do
  case " ${all[*]} " in *" $target "*) ;; *) echo "fuzz.sh: there is no target '$target'; there are ${all[*]}" >&2; exit 2 ;; esac
done

# fuzz_one TARGET: its log is found/TARGET.log.
fuzz_one() {
  local target=$1 seeds=$root/tests/fuzz/corpus/$1 limits=()
  [ "$RUNS" -eq 0 ] || limits+=("-runs=$RUNS")
  [ "$SECONDS_EACH" -eq 0 ] || limits+=("-max_total_time=$SECONDS_EACH")
  mkdir -p "$FOUND/$target"
  [ -d "$seeds" ] || seeds=
  # Call stacks of allocations and the rarity of features cost a third of the time.
  ASAN_OPTIONS=malloc_context_size=1:quarantine_size_mb=8:thread_local_quarantine_size_kb=64 \
    "$root/build/fuzz/tests/${target}_fuzz" "${limits[@]}" -entropic=0 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$FOUND/$target.failed." "$FOUND/$target" ${seeds:+"$seeds"} >"$FOUND/$target.log" 2>&1 && code=0 || code=$?
  awk -v target="$target" -v code="$code" '
    /stat::number_of_executed_units/ {units = $2}
    /stat::average_exec_per_sec/ {speed = $2}
    END {printf "%-14s %12d executions %8d/s  %s\n", target, units, speed, code == 0 ? "nothing found" : "FAILED, see its log"}' \
    "$FOUND/$target.log"
  return "$code"
}
export -f fuzz_one
export root RUNS=$runs SECONDS_EACH=$seconds FOUND=$root/build/fuzz/tests/fuzz

install_missing build full
build_preset fuzz
say "fuzzing: $runs executions or $seconds s a target (0: no limit); logs in $FOUND"
printf '%s\n' "${chosen[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one {}' || exit 1
