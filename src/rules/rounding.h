// SPDX-License-Identifier: Apache-2.0
// bf16 and its three ways of writing an fp32 result back, with the random bits of one of them.
#pragma once

#include <cstdint>

#include "rules/host_device.h"
#include "rules/splitmix64.h"

namespace rode::rules {

RODE_HOST_DEVICE inline std::uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  std::uint32_t bits;
  static_assert(sizeof(bits) == sizeof(x));
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

RODE_HOST_DEVICE inline float bits_float(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

RODE_HOST_DEVICE inline float bf16_to_float(std::uint16_t half) {
  return bits_float(static_cast<std::uint32_t>(half) << 16);
}

// Rounds to nearest, ties to even. NaN keeps a mantissa bit set; otherwise a NaN with only low bits
// would round to infinity.
RODE_HOST_DEVICE inline std::uint16_t bf16_nearest(float x) {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>((nan ? (bits | 0x400000U) : rounded) >> 16);
}

// Adds 16 random bits below the cut and truncates: the expectation is x.
RODE_HOST_DEVICE inline std::uint16_t bf16_stochastic(float x, std::uint32_t random) {
  const std::uint32_t bits = float_bits(x);
  const bool finite = (bits & 0x7f800000U) != 0x7f800000U;
  return static_cast<std::uint16_t>((finite ? bits + (random & 0xffffU) : bits) >> 16);
}

// Exact: the bf16 weight is the upper half of the fp32 value, the state the lower half.
struct Halves {
  std::uint16_t high, low;
};

RODE_HOST_DEVICE inline Halves split_halves(float x) {
  const std::uint32_t bits = float_bits(x);
  return {static_cast<std::uint16_t>(bits >> 16), static_cast<std::uint16_t>(bits & 0xffffU)};
}

RODE_HOST_DEVICE inline float join_halves(std::uint16_t high, std::uint16_t low) {
  return bits_float((static_cast<std::uint32_t>(high) << 16) | low);
}

// Counter-based randomness: the same (sequence, index) gives the same bits on every
// backend, thread and run.
RODE_HOST_DEVICE inline std::uint64_t random_word(std::uint64_t sequence, std::uint64_t index) {
  return mix64(sequence + (index + 1) * kSplitMixStep);
}
RODE_HOST_DEVICE inline std::uint32_t random_bits(std::uint64_t sequence, std::uint64_t index) {
  return static_cast<std::uint32_t>(random_word(sequence, index) >> 32);
}

// The sequence of one parameter (seed and name) in one step: the step is spread over all bits,
// because neighbouring steps must not share a shifted sequence.
RODE_HOST_DEVICE inline std::uint64_t step_sequence(std::uint64_t parameter, std::int64_t step) {
  const auto count = static_cast<std::uint64_t>(step);
  const std::uint64_t high = random_bits(parameter, 2 * count);
  const std::uint64_t low = random_bits(parameter, 2 * count + 1);
  return high << 32 | low;
}

}  // namespace rode::rules
