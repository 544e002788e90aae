#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures, builds and tests one preset, then counts all its suites in one line.
#
#   tools/test.sh PRESET      ci (C++ and Python tests, the Python package), dev, asan or tsan (C++
#                             tests), cuda (the C++ tests on the GPU)
#
# JUnit reports are left in build/reports/PRESET. JOBS overrides the number of cores,
# RODE_CUDA_ARCHITECTURES what the kernels are compiled for; RODE_WITH_TORCH=ON adds LibTorch to cuda.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:?usage: tools/test.sh PRESET}
jobs=${JOBS:-$(nproc)}
reports=$PWD/build/reports/$preset
python=.venv/bin/python
export PYTHONDONTWRITEBYTECODE=1

# ThreadSanitizer of older compilers cannot map its shadow under strong address
# randomisation (the default of newer kernels), neither here nor in the build,
# which runs the test programs to list their tests.
if [[ $preset == tsan && -z ${RODE_NO_ASLR:-} ]] && setarch -R true 2>/dev/null; then
  export RODE_NO_ASLR=1
  exec setarch -R "${BASH_SOURCE[0]}" "$@"
fi

rm -rf "$reports"
mkdir -p "$reports"

options=()
if [[ $preset == cuda ]]; then
  CUDACXX=$(tools/find_nvcc.sh) || {
    printf 'test: no nvcc of CUDA 12.0 or later; run tools/setup.sh --cuda\n' >&2
    exit 1
  }
  export CUDACXX
  # That is how this project finds it. A project that uses the installed package, as the install
  # test does, looks for the toolkit around it.
  toolkit=$(dirname "$(dirname "$CUDACXX")")
  if [[ -e $toolkit/include/cuda_runtime.h ]]; then
    export CUDAToolkit_ROOT=${CUDAToolkit_ROOT:-$toolkit}
  fi
  options+=("-DRODE_CUDA_ARCHITECTURES=${RODE_CUDA_ARCHITECTURES:-90a}")
  options+=("-DRODE_WITH_TORCH=${RODE_WITH_TORCH:-OFF}")
fi

# A compiler newer than ours may warn where ours does not: an error to us, not to users.
options+=("-DRODE_WERROR=$([[ ${CI:-} == true ]] && echo ON || echo OFF)")
cmake --preset "$preset" "${options[@]}"
# -k 0: one run shows every file that does not compile.
cmake --build --preset "$preset" --parallel "$jobs" -- -k 0

# Every suite runs even when an earlier one failed: one run shows all failures.
# A suite that ends badly without leaving a failure in its report counts as one.
broken=0
run_suite() {
  local name=$1 status=0
  shift
  printf '\n== %s: %s\n' "$preset" "$name"
  "$@" || status=$?
  if ((status != 0)) && ! grep -qE '<(failure|error)[ />]|status="fail"' "$reports/$name.xml"; then
    printf '%s: ended with status %d and no failed test in its report\n' "$name" "$status" >&2
    broken=$((broken + 1))
  fi
}

# Tests on a GPU one after the other: they would share it.
if [[ $preset == cuda ]]; then
  test_jobs=1
else
  test_jobs=$jobs
fi
rm -rf "build/$preset/gtest"
run_suite ctest ctest --preset "$preset" --parallel "$test_jobs" --output-junit "$reports/ctest.xml"
if [[ -d build/$preset/gtest ]]; then
  cp -r "build/$preset/gtest" "$reports/gtest"
fi

if [[ $preset == ci ]]; then
  suites=()
  for folder in tests/trajectory tests/cli tests/lab; do
    # Folders may hold C++ tests only.
    if compgen -G "$folder/test_*.py" >/dev/null; then
      suites+=("$folder")
    fi
  done
  if ((${#suites[@]})); then
    export RODE_BIN=$PWD/build/ci/bin/rode RODE_STEP_BIN=$PWD/build/ci/bin/rode_no_train
    run_suite pytest "$python" -m pytest -ra -o cache_dir=build/.pytest_cache \
      --numprocesses "$jobs" --dist worksteal --junitxml="$reports/pytest.xml" "${suites[@]}"
  fi
  RODE_BIN=$PWD/build/ci/bin/rode_no_train RODE_TRAIN_BIN=$PWD/build/ci/bin/rode \
    run_suite python tools/test_python.sh "$reports/python.xml"
fi

printf '\n'
"$python" tools/summary.py --failed "$broken" "$reports"
