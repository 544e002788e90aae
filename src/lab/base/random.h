// SPDX-License-Identifier: Apache-2.0
// Random numbers of the data: the same on every platform, and derived per sample, so that
// neither threads nor a restart change them.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace rode::lab {

// SplitMix64's finaliser: a bijection of 64-bit words that spreads every bit.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x ^= x >> 30U;
  x *= 0xbf58476d1ce4e5b9U;
  x ^= x >> 27U;
  x *= 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

// A seed for one purpose out of a run's seed: derive_seed(seed, {epoch, index}).
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> path) {
  std::uint64_t state = mix64(seed + 0x9e3779b97f4a7c15U);
  for (const std::uint64_t step : path) state = mix64(state ^ mix64(step + 0xd1b54a32d192ed03U));
  return state;
}

// SplitMix64 (Steele, Lea, Flood 2014): eight bytes of state, cheap to make one a sample.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15U); }

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
