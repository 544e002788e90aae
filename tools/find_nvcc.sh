#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of an nvcc that can compile the kernels (CUDA 12.0 or later), or fails.
#
# First $CUDACXX, then PATH, then the places toolkits are installed in, then the one that
# `tools/setup.sh --cuda` leaves in .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

candidates=()
if [[ -n ${CUDACXX:-} ]]; then
  candidates+=("$CUDACXX")
fi
if found=$(command -v nvcc); then
  candidates+=("$found")
fi
# The newest of several versions first.
mapfile -t -O "${#candidates[@]}" candidates < <(
  printf '%s\n' /usr/local/cuda/bin/nvcc
  compgen -G '/usr/local/cuda-*/bin/nvcc' | sort -rV
)
candidates+=("$PWD/.venv/cuda/nvidia/cu13/bin/nvcc")

for candidate in "${candidates[@]}"; do
  major=$("$candidate" --version 2>/dev/null | sed -nE 's/.*release ([0-9]+)\..*/\1/p') || continue
  if [[ -n $major ]] && ((major >= 12)); then
    printf '%s\n' "$candidate"
    exit
  fi
done
exit 1
