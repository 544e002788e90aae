#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target of a build for a bounded time, on its kept corpus.
#
#   tools/fuzz.sh standalone|libfuzzer BUILD_DIRECTORY SECONDS
#
# A target is BUILD_DIRECTORY/bin/fuzz_NAME. It starts from its own seeds, which seeds_NAME writes
# for libFuzzer, and from tests/fuzz/corpus/NAME where there is one. libFuzzer keeps what it finds
# in BUILD_DIRECTORY/corpus/NAME; an input that fails is left in BUILD_DIRECTORY/crashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly usage='usage: tools/fuzz.sh standalone|libfuzzer BUILD_DIRECTORY SECONDS'
driver=${1:?$usage}
build=${2:?$usage}
limit=${3:?$usage}

# fuzz_one TARGET NAME: one program, with the arguments its driver takes.
fuzz_one() {
  local target=$1 name=$2
  local kept=tests/fuzz/corpus/$name crashes=$build/crashes found=$build/corpus/$name
  local corpus=()
  if [[ -d $kept ]]; then
    corpus=("$kept")
  fi
  mkdir -p "$crashes"
  case $driver in
    standalone)
      "$target" --seconds "$limit" --artifacts "$crashes" "${corpus[@]}"
      ;;
    libfuzzer)
      "$build/bin/seeds_$name" --write-seeds "$found" || return 1
      # New inputs go to the first folder; the repository's own is only read.
      "$target" "-max_total_time=$limit" "-artifact_prefix=$crashes/$name-" "$found" "${corpus[@]}"
      ;;
    *)
      printf '%s\n' "$usage" >&2
      return 2
      ;;
  esac
}

targets=0
failures=0
for target in "$build"/bin/fuzz_*; do
  if [[ ! -f $target || ! -x $target ]]; then
    continue
  fi
  name=${target##*/fuzz_}
  printf '== fuzz %s for %s s\n' "$name" "$limit"
  targets=$((targets + 1))
  fuzz_one "$target" "$name" || failures=$((failures + 1))
done
printf 'fuzz: %d targets, %d failed\n' "$targets" "$failures"
if ((targets == 0)); then
  printf 'fuzz: no target in %s/bin\n' "$build" >&2
fi
((targets > 0 && failures == 0))
