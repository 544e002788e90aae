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

# What it needs is in .venv already. The compiler's work is shared with the other builds by ccache.
werror=$([[ ${CI:-} == true ]] && echo ON || echo OFF)
RODE_WITH_CUDA=${RODE_WITH_CUDA:-OFF} CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} \
  "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  "--config-settings=cmake.define.RODE_WERROR=$werror" .
"$python" -m rode
"$python" -m pytest -ra -o cache_dir=build/.pytest_cache --junitxml="$report" python/tests
