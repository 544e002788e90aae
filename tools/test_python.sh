#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Python package into .venv and runs its tests.
#
#   tools/test_python.sh REPORT     REPORT: where the JUnit file goes
#
# RODE_BIN is the command line that values are compared with. RODE_WITH_CUDA is OFF unless it says
# ON or AUTO; JOBS overrides the number of cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

report=${1:?usage: tools/test_python.sh REPORT}
python=.venv/bin/python
jobs=${JOBS:-$(nproc)}
cuda=${RODE_WITH_CUDA:-OFF}

# What it needs is in .venv already. The compiler's work is shared with the other builds by ccache,
# for which files must be joined as they are there.
werror=$([[ ${CI:-} == true ]] && echo ON || echo OFF)
RODE_WITH_CUDA=$cuda CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
  "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  "--config-settings=cmake.define.RODE_WERROR=$werror" \
  "--config-settings=cmake.define.CMAKE_UNITY_BUILD=ON" .
"$python" -m rode
# Tests on a GPU one after the other: they would share it.
parallel=()
if [[ $cuda == OFF ]]; then
  parallel=(--numprocesses "$jobs" --dist worksteal)
fi
"$python" -m pytest -ra -o cache_dir=build/.pytest_cache "${parallel[@]}" --junitxml="$report" \
  python/tests
