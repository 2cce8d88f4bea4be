#!/bin/bash
# Installs what is missing, builds, and runs the tests.
#
#   tools/test.sh          release build, all tests but the slow ones
#   tools/test.sh --full   besides: the slow ones, the sanitizers and fuzzing, built by clang++, clang-format and clang-tidy
#   tools/test.sh PART...  only these: release asan tsan fuzz format tidy, those of --full, and three more: openblas, the
#                          release tests that multiply matrices, by OpenBLAS; clang, the release build by clang++; arm, cross-built
#                          for aarch64 and run under qemu-user: the tests of transport, most of core, and a training on four ranks
#
# For time, --full leaves out the longest runs in the laboratory (label soak), under the sanitizers what tests/long.cmake names and
# comparisons with PyTorch, and under ThreadSanitizer the tests of layers, whose ranks meet in core's collectives alone, and those of
# kernels that compare the numbers of one thread (others, FlashAttention's and FlashWindow's, have threads). It fuzzes each target for 10
# seconds instead of 30. Its tidy doesn't read the tests, which the sanitizers' builds compile with clang++'s warnings, and of the other
# sources only what changed since the commit in .ci/tidy-base, and what includes it. Parts that are named are whole. Either tidy, once it
# finds nothing in a tree without changes, moves that commit: a chain of such readings has read all. Nor is clang in --full, since tidy
# reads the sources with that build's flags, nor, again for time, openblas and arm.
# A part that fails doesn't keep the others from running; what its failed tests printed stands once more at the end. The last line says
# passed or failed, with the counts and which tests were skipped (each says why when it runs alone: ctest -V -R NAME); the exit code is 0
# or 1, and 2 for a wrong argument.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

full=(release asan tsan fuzz format tidy)
chosen=("$@")
soaks=()
left_out=slow
raced='.'
unraced='^$'
raced_programs=(threaded_tests)
untidied='^$'
tidied=
fuzz_seconds=30
# Tests that multiply matrices, in their process or by jobs that they start.
products='^core\.(Gemm|OpenBlas)|^layers\.|^multiprocess\.(AlikeNodes|Block|BuiltInRanks|CalibrateCommand|CompareCommand|Eval|GemmOption|Generate'
products+='|Gpt2|KillAndResume|Layouts|Memory|ModelSourceOfRuns|NotFiniteCommands|SaveFolder|TheSignalToSave|Trac|Train)'
if [ "$*" = --full ]; then
  chosen=("${full[@]}")
  soaks=(-LE soak)
  left_out="slow|long|torch"
  raced='^(transport|core|house)\.'
  unraced='^core\.(At/)?(FlashDocuments|FlashLevels|FlashExtremes|FlashCap|OpenBlas)[A-Za-z]*\.'
  raced_programs=(transport_tests core_tests)
  untidied=/database/tests/
  fuzz_seconds=10
  tidied=$(cat "$root/.ci/tidy-base")
fi
for argument in "${chosen[@]}"; do
  case " ${full[*]} openblas clang arm " in
    *" $argument "*) ;;
    *)
      echo "test.sh: unknown argument '$argument'; give none, --full, or some of: ${full[*]} openblas clang arm" >&2
      exit 2
      ;;
  esac
done

log=$(mktemp)
failures=$(mktemp)
trap 'rm -f "$log" "$failures"' EXIT
tests=0
failed_tests=0
parts=0
failed_parts=()
skipped=()

# part NAME COMMAND…: runs one part, adds up the tests that ctest counted in it, remembers failures and skipped tests.
part() {
  local name=$1 begin=$SECONDS code=0 summary of_part
  shift
  say "$name"
  parts=$((parts + 1))
  "$@" 2>&1 | tee "$log" || code=$?
  # ctest's "97% tests passed, 3 tests failed out of 100"
  summary=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests* failed out of \([0-9]*\)$/\1 \2/p' "$log" | tail -n 1)
  if [ -n "$summary" ]; then
    failed_tests=$((failed_tests + ${summary% *}))
    tests=$((tests + ${summary#* }))
  fi
  # ctest counts them as passed, and lists them at the end: "	 12 - rdma.LimitsAndSlabs (Skipped)"
  mapfile -t of_part < <(sed -n '/^The following tests did not run:$/,$s/^[[:space:]]*[0-9]* - \(.*\) (Skipped)$/\1/p' "$log")
  skipped+=("${of_part[@]}")
  if [ "$code" -eq 0 ]; then
    echo "-- $name: passed, $(duration $((SECONDS - begin)))"
  else
    failed_parts+=("$name")
    # ctest's "12/34 Test #5: core.Name ...***Failed  0.1 sec" and what follows, to the next test's line
    awk -v part="$name" '/^ *[0-9]+\/[0-9]+ Test +#/ {show = /\*\*\*/ && !/\*\*\*Skipped/; if (show) print "-- " part ":"}
                         /^ +Start +[0-9]+:/ || /^[0-9]+% tests passed/ {show = 0} show' "$log" >>"$failures"
    echo "-- $name: FAILED, $(duration $((SECONDS - begin)))"
  fi
}

# build_and_test PRESET [CTEST ARGUMENTS…].
build_and_test() {
  local preset=$1 wrap=() targets=()
  shift
  case $preset in
    release | asan) targets=(test_programs) ;;
    tsan) targets=("${raced_programs[@]}") ;;
  esac
  # ThreadSanitizer of these compilers can't map its shadow where the kernel randomises addresses by more than 28 bits.
  if [ "$preset" = tsan ] && [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ]; then wrap=(setarch -R); fi
  build_preset "$preset" "${targets[@]}" || return 1
  # More than cores: tests wait a third of their time, for deadlines and for machines of the laboratory.
  (cd "$root" && "${wrap[@]}" ctest --preset "$preset" -j "$(($(nproc) + $(nproc) / 2 + 1))" "$@")
}

# The project's own sources.
sources() {
  (cd "$root" && find [a-z]* -path build -prune -o \( -name '*.cpp' -o -name '*.h' \) -print | sort)
}

# What can't hold under qemu-user, which keeps the kernel's advice about mappings to itself, and takes memory for the code that it
# translates: that secrets are left out of core dumps, that heaps get large pages, that a product of OpenBLAS takes no more than is
# counted. And what takes it minutes: 160 threads that multiply large matrices.
unheld='^(transport\.(Secret\.(LiesInAPageThatCoreDumpsLeaveOutAndCopiesShare|IsThereInAForkedChild)|NodeMemory\.LaysLargePages.*)'
unheld+='|core\.OpenBlas\.(NeverNeedsMoreBuffersThanThereAre|TouchesNoMoreMemoryThanItsWorkspaceCounts))$'

# The cross-built tests, without the variable that names a core of this machine to OpenBLAS.
test_arm() {
  "$root/tools/arm_sysroot.sh" && build_preset arm transport_tests core_tests tsprun &&
    (cd "$root" && env -u OPENBLAS_CORETYPE ctest --preset arm -j "$(nproc)" -LE "slow|long" -R '^(transport|core|emulated)\.' -E "$unheld")
}

fuzz() {
  (cd "$root" && cmake --preset asan -DTSP_FUZZ_SECONDS="$fuzz_seconds") && build_preset asan fuzz_targets && (cd "$root" && ctest --preset asan -j "$(nproc)" -L fuzz)
}

check_format() {
  (cd "$root" && sources | xargs -r clang-format --dry-run --Werror)
}

# tidy_one BATCH: a batch that passed is skipped until a source of it, a header or the rules change (a stamp under build/tidy).
tidy_one() {
  local batch=$1 stamp
  stamp=build/tidy/$(sed -n 's/^#include "\(.*\)"$/\1/p' "$batch" | xargs cat "$batch" "$TIDY_COMMON" | sha256sum | cut -c1-32)
  [ -e "$stamp" ] && return
  echo "clang-tidy $batch"
  clang-tidy --quiet --checks=-bugprone-suspicious-include -p build/tidy/database "$batch" 2>/dev/null && touch "$stamp"
}
export -f tidy_one

# keep_reached BATCH: leaves in a batch of sources only those that stand in build/tidy/reached, and says its name if there are any.
keep_reached() {
  local batch=$1 sources
  sources=$(sed -n "s|^#include \"\($root/\)\?\(.*\.cpp\)\"\$|\2|p" "$batch")
  sources=$(grep -Fxf build/tidy/reached <<<"${sources:-$batch}") || return 0
  case $batch in */Unity/*) sed "s|.*|#include \"$root/&\"|" <<<"$sources" >"$batch" ;; esac
  echo "$batch"
}

# Every source with the flags that clang++ has for it, in larger batches than are compiled: one by one they take five times as long, most
# of it for the same headers. All cores at once. Nothing is built, so there are no precompiled headers.
check_tidy() {
  cd "$root"
  rm -rf build/tidy/database
  cmake --preset clang -B build/tidy/database -DCMAKE_UNITY_BUILD_BATCH_SIZE=64 -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
  if [ -n "$tidied" ]; then tools/affected.py "$tidied" >build/tidy/reached; else echo all >build/tidy/reached; fi
  export TIDY_COMMON=build/tidy/common
  sources | grep '\.h$' | xargs cat .clang-tidy >"$TIDY_COMMON"
  grep -o '"file": "[^"]*"' build/tidy/database/compile_commands.json | cut -d'"' -f4 | sed "s|^$root/||" | grep -v "$untidied" | sort -u |
    while read -r batch; do if [ "$(cat build/tidy/reached)" = all ]; then echo "$batch"; else keep_reached "$batch"; fi; done |
    xargs -r -P "$(nproc)" -I{} timeout 900 bash -c 'tidy_one {}' || return 1
  if [ -z "$(git status --porcelain)" ]; then git rev-parse HEAD >.ci/tidy-base; fi
}

run_part() {
  case $1 in
    release) part "release, all tests" build_and_test release "${soaks[@]}" ;;
    openblas) TSP_GEMM=openblas part "openblas: matrix products by OpenBLAS" build_and_test release -LE "slow|torch" -R "$products" ;;
    asan) part "asan: AddressSanitizer and UndefinedBehaviorSanitizer" build_and_test asan -LE "$left_out" ;;
    tsan) part "tsan: ThreadSanitizer, ranks as threads" build_and_test tsan -LE "$left_out" -R "$raced" -E "$unraced" ;;
    clang) part "clang: release by clang++" build_and_test clang -LE "slow|rdma" ;;
    arm) part "arm: cross-built for aarch64, under qemu-user" test_arm ;;
    fuzz) part "fuzz: each target for $fuzz_seconds s" fuzz ;;
    format) part "clang-format" check_format ;;
    tidy) part "clang-tidy" check_tidy ;;
  esac
}

# The last line, and the exit code.
verdict() {
  local skips=
  if [ ${#skipped[@]} -gt 0 ]; then skips=", ${#skipped[@]} skipped: ${skipped[*]}"; fi
  if [ ${#failed_parts[@]} -eq 0 ]; then
    echo "test.sh: passed: $((tests - ${#skipped[@]})) tests in $parts part$([ "$parts" -eq 1 ] || echo s)$skips"
  else
    echo "test.sh: failed: $failed_tests of $tests tests; failed parts: $(IFS=';'; echo "${failed_parts[*]}")$skips"
    return 1
  fi
}

# One function, so that bash has read the script before the first part starts: an edit meanwhile changes the next run, not this one.
main() {
  if [ ${#chosen[@]} -gt 0 ]; then
    install_missing build test rdma full
    case " ${chosen[*]} " in *" arm "*) install_missing arm ;; esac
    for argument in "${chosen[@]}"; do run_part "$argument"; done
  else
    install_missing build test rdma
    part "release, all tests but the slow ones" build_and_test release -LE slow
  fi

  if [ -s "$failures" ]; then
    say "what failed"
    tail -n 200 "$failures"
  fi
  say "$(duration $SECONDS)"
  verdict
}

main
