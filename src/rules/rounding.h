// SPDX-License-Identifier: Apache-2.0
// bf16 and its three ways of writing an fp32 result back.
#pragma once

#include <cstdint>

#include "rules/host_device.h"

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

// Round to nearest, ties to even. NaN keeps a set mantissa bit; without that an
// all-low-bits NaN would round to infinity.
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
RODE_HOST_DEVICE inline float join_halves(std::uint16_t high, std::uint16_t low) {
  return bits_float((static_cast<std::uint32_t>(high) << 16) | low);
}

// Counter-based randomness: the same (stream, index) gives the same bits on every
// backend, thread and run. The finaliser is splitmix64's.
RODE_HOST_DEVICE inline std::uint32_t random_bits(std::uint64_t stream, std::uint64_t index) {
  std::uint64_t z = stream + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
}

}  // namespace rode::rules
