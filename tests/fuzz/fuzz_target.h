// SPDX-License-Identifier: Apache-2.0
// What a fuzz target provides: one entry point, as libFuzzer calls it, and seeds to start from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Returns 0, or ends the process: by abort(), a sanitizer or a signal.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Valid inputs of different kinds. Mutations of nearly valid input reach deeper than noise.
std::vector<std::string> fuzz_seeds();
