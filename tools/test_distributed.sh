#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of several processes, one suite after the other, and prints how long each took and
# all together. They are part of `make test`; this times them as one set.
#
#   tools/test_distributed.sh [PRESET]     PRESET: a build with LibTorch and the lab; ci
#
# Builds nothing: run `make test` before, or build rode and rode_torch_ranks_tests and install the
# package. PYTHON is the interpreter that has it; .venv's unless given.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=$PWD/build/${1:-ci}
python=${PYTHON:-.venv/bin/python}
export PYTHONDONTWRITEBYTECODE=1 RODE_BIN=${RODE_BIN:-$build/bin/rode}

suites=(
  python/tests/test_parallel.py
  python/tests/test_shards.py
  python/tests/test_shards_alone.py
  python/tests/test_wholes.py
  python/tests/test_distributed.py
  python/tests/test_torchrun.py
  python/tests/test_parallel_cuda.py
  tests/cli/test_train_ranks.py
)

lines=()
failed=0
timed() {
  local name=$1 status=0 began=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  ((status == 0)) || failed=$((failed + 1))
  lines+=("$(printf '%5d s  %s%s' "$((SECONDS - began))" "$name" "$( ((status == 0)) || echo '  FAILED')")")
}

SECONDS=0
timed tests/torch "$build/bin/rode_torch_ranks_tests"
for suite in "${suites[@]}"; do
  timed "$suite" "$python" -m pytest -q -rs -p no:cacheprovider "$suite"
done
printf '\n'
printf '%s\n' "${lines[@]}"
printf '%5d s  total, %d of %d suites failed\n' "$SECONDS" "$failed" "${#lines[@]}"
((failed == 0))
