// SPDX-License-Identifier: Apache-2.0
// Momentum in 8 bits: whole numbers -127 .. 127 with one fp32 scale per block of a row.
//
// A block is 256 neighbours in a row of the stored matrix, counted from the row's start; the last
// of a row may be shorter. Its scale is absmax / 127, and 0 where all of it is zero. A block whose
// largest magnitude is below 127 FLT_MIN counts as zero: its scale would have few bits, or none.
#pragma once

#include <cfloat>
#include <cstdint>

#include "rules/host_device.h"
#include "rules/rounding.h"

namespace rode::rules {

inline constexpr std::int64_t kScaleBlock = 256;

RODE_HOST_DEVICE constexpr std::int64_t scales_per_row(std::int64_t cols) {
  return (cols + kScaleBlock - 1) / kScaleBlock;
}

// The order of magnitudes is that of these bits, NaN above all others: one in a block makes its
// scale NaN, which the next measuring pass sees.
RODE_HOST_DEVICE inline std::int32_t magnitude_bits(float x) {
  return static_cast<std::int32_t>(float_bits(x) & 0x7fffffffU);
}
RODE_HOST_DEVICE inline float magnitude(std::int32_t bits) {
  return bits_float(static_cast<std::uint32_t>(bits));
}

// What a block is stored with: its scale, and what its elements are multiplied by.
struct BlockScale {
  float scale, inverse;
};

RODE_HOST_DEVICE inline BlockScale block_scale(float absmax) {
  if (absmax < 127.0F * FLT_MIN) return {0.0F, 0.0F};
  return {absmax / 127.0F, 127.0F / absmax};
}

// To nearest, ties to even: the sum's lowest byte is the whole number. Its callers are compiled
// without contraction, so that all of them round the product first.
RODE_HOST_DEVICE inline std::int8_t int8_nearest(float x, float inverse) {
#if defined(__CUDA_ARCH__)
  const float shifted = __fadd_rn(__fmul_rn(x, inverse), 0x1.8p23F);
#else
  const float shifted = x * inverse + 0x1.8p23F;
#endif
  return static_cast<std::int8_t>(static_cast<std::uint8_t>(float_bits(shifted) & 0xffU));
}

// Four neighbours in a block share a word of the random sequence: elements 4 k .. 4 k + 3 take the
// word at the parameter's element index of the block's first element, plus k, 16 bits each from the
// lowest. Blocks share none.
inline constexpr std::int64_t kDrawsPerWord = 4;

// Adds a random number of [0, 1) and rounds down: the expectation is x. With 16 bits the sum is
// exact except for tiny x.
RODE_HOST_DEVICE inline std::int8_t int8_stochastic(float x, float inverse, std::uint16_t random) {
  const float draw = static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-16F;
#if defined(__CUDA_ARCH__)
  const float sum = __fadd_rn(__fmul_rn(x, inverse), draw);
#else
  const float sum = x * inverse + draw;
#endif
  // Rounding of `inverse` may carry the largest element past 127. Truncation of a positive number
  // rounds down.
  const float shifted = sum + 128.0F;
  const float bounded = shifted < 1.0F ? 1.0F : shifted > 255.0F ? 255.0F : shifted;
  return static_cast<std::int8_t>(static_cast<std::int32_t>(bounded) - 128);
}

RODE_HOST_DEVICE inline float int8_value(std::int8_t q, float scale) {
  return static_cast<float>(q) * scale;
}

// The random sequence of a parameter's state, from that of its weights: the two must not share
// bits.
RODE_HOST_DEVICE inline std::uint64_t state_sequence(std::uint64_t weights) {
  return mix64(weights ^ kSplitMixStep);
}

}  // namespace rode::rules
