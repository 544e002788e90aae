// SPDX-License-Identifier: Apache-2.0
// Random numbers of the data: the same on every platform, and derived per sample, so that
// neither threads nor a restart change them.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "rules/splitmix64.h"

namespace rode::lab {

using rules::mix64;

// A seed for one purpose out of a run's seed: derive_seed(seed, {epoch, index}).
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> path) {
  std::uint64_t state = mix64(seed + rules::kSplitMixStep);
  for (const std::uint64_t step : path) state = mix64(state ^ mix64(step + 0xd1b54a32d192ed03U));
  return state;
}

// SplitMix64: eight bytes of state, cheap to make one per sample.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() { return rules::next_splitmix64(state_); }

  // In [0, 1), a multiple of 2^-53.
  constexpr double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }
  constexpr double uniform(double low, double high) { return low + (high - low) * uniform(); }

  // In [0, n), n > 0; rejection keeps it exactly uniform.
  constexpr std::uint64_t below(std::uint64_t n) {
    const std::uint64_t excess = (0 - n) % n;  // 2^64 mod n
    std::uint64_t draw = next();
    while (draw < excess) draw = next();
    return draw % n;
  }

 private:
  std::uint64_t state_;
};

}  // namespace rode::lab
