#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats the sources in place, or with --check names those that are not formatted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

clang_mode=(-i)
ruff_mode=()
case "${1:-}" in
  '') ;;
  --check)
    clang_mode=(--dry-run --Werror)
    ruff_mode=(--check)
    ;;
  *)
    printf "format: unknown argument '%s'; expected none or --check\n" "$1" >&2
    exit 2
    ;;
esac

folders=()
for folder in include src apps adapters lab python tests tools bench examples; do
  if [[ -d $folder ]]; then
    folders+=("$folder")
  fi
done

# Both run, so that one pass names everything there is to format.
status=0
find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
  -print0 | xargs -0 --no-run-if-empty .venv/bin/clang-format "${clang_mode[@]}" || status=1
.venv/bin/ruff format --quiet --no-cache --line-length 100 "${ruff_mode[@]}" "${folders[@]}" ||
  status=1
exit "$status"
