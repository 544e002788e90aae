#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the command line that trains, build/lab/bin/rode, from nothing where need be.
#
# PyTorch is brought while the other packages are installed and while everything is compiled that
# does not include it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly jobs=${JOBS:-$(nproc)}

torch=''
if ! tools/setup.sh --has-torch; then
  tools/setup.sh --python
  tools/setup.sh --torch &
  torch=$!
  trap 'kill "$torch" 2>/dev/null || true' EXIT
fi
tools/setup.sh --build
if [[ -n $torch ]]; then
  cmake --preset lab -DRODE_WITH_TORCH=OFF
  cmake --build --preset lab --parallel "$jobs" --target rode_cli_parts rode_lab_runs rode_reference
  wait "$torch"
  trap - EXIT
fi
cmake --preset lab
cmake --build --preset lab --parallel "$jobs"
