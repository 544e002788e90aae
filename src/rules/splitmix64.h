// SPDX-License-Identifier: Apache-2.0
// SplitMix64 (Steele, Lea, Flood 2014): a counter and a finaliser.
#pragma once

#include <cstdint>

#include "rules/host_device.h"

namespace rode::rules {

// What the counter advances by: 2^64 over the golden ratio.
inline constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15ULL;

// The finaliser: a bijection of 64-bit words that spreads every bit.
RODE_HOST_DEVICE constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The generator's next number.
RODE_HOST_DEVICE constexpr std::uint64_t next_splitmix64(std::uint64_t& state) {
  return mix64(state += kSplitMixStep);
}

}  // namespace rode::rules
