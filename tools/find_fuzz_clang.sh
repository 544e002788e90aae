#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the first clang++ that builds and links a C++20 libFuzzer target; fails when there is none.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# std::source_location is what older clang versions lack with libstdc++.
cat >"$scratch/probe.cpp" <<'CPP'
#include <cstddef>
#include <cstdint>
#include <source_location>
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) {
  return std::source_location::current().line() == 0 ? -1 : 0;
}
CPP
for compiler in "${CLANGXX:-}" clang++-19 clang++-18 clang++-17 clang++-16 clang++; do
  if [[ -n $compiler ]] && command -v "$compiler" >/dev/null &&
    "$compiler" -std=c++20 -fsanitize=fuzzer,address,undefined "$scratch/probe.cpp" \
      -o "$scratch/probe" 2>/dev/null; then
    command -v "$compiler"
    exit 0
  fi
done
exit 1
