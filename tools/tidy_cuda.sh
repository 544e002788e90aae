#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the host code of the CUDA backend with clang-tidy; kernels, which it cannot read, are not.
#
# Only configures a CUDA build, in build/tidy/cuda: nothing is compiled. Says so where no nvcc is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! CUDACXX=$(tools/find_nvcc.sh); then
  printf 'tidy: no nvcc of CUDA 12.0 or later, so the CUDA backend is not checked; '
  printf 'tools/setup.sh --cuda installs one\n'
  exit
fi
export CUDACXX
cmake --preset cuda -B build/tidy/cuda -DRODE_BUILD_TESTS=OFF -DRODE_WERROR=OFF >/dev/null

# One process a file. Files that the plain build has too were checked with it.
find src/backend/cuda apps/rode/bench_cublas.cpp apps/rode/bench_cuda.cpp \
  -name '*.cpp' ! -path '*/plan/*' -print0 |
  xargs -0 -n 1 -P "${JOBS:-$(nproc)}" .venv/bin/clang-tidy --quiet -p build/tidy/cuda
