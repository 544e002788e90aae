// SPDX-License-Identifier: Apache-2.0
// What reprojections inside the product kernel have in common, whether tiles are held (held.cuh) or
// corrected in device memory (behind.cuh): the sum of a matrix's tiles, and the correction
// itself.
#pragma once

#include <cstdint>

#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/plan/plan.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda::hopper {

// Runs of 8 elements across a tile.
inline constexpr int kRunsAcross = kTileSide / 8;

// A matrix's word: t in steps of 2^-34 above, the tiles that have been added to it below. Integers
// add up to the same sum in any order, and one access tells both whether t is there and what it is.
// |t| <= ||D|| ||U||, which the guard keeps below 2.04 sqrt(n), whatever the set: far from 2^13.
inline constexpr int kCountBits = 16;
static_assert(kMostCounted < 1 << kCountBits);
inline constexpr double kSumSteps = 17179869184.0;  // 2^34

// kOrdered: with what the thread has seen to be in device memory; else the word alone is told,
// which costs no fence.
template <bool kOrdered>
__device__ inline void add_to_word(long long* word, double share) {
  const long long value = (__double2ll_rn(share * kSumSteps) << kCountBits) + 1;
  if constexpr (kOrdered) {
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  } else {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
}

__device__ inline long long read_word(const long long* word) {
  long long value;
  asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

// The matrix's t, once all its tiles were measured.
__device__ inline double wait_for_sum(const long long* at, int tiles) {
  long long word = read_word(at);
  while ((word & ((1LL << kCountBits) - 1)) != tiles) word = read_word(at);
  return static_cast<double>(word >> kCountBits) / kSumSteps;
}

template <class Element>
__device__ inline std::uint32_t corrected(std::uint32_t x, std::uint32_t u, float t, float factor) {
  const float2 a = unpack(x, Element()), b = unpack(u, __half());
  return pack(rules::ns_project(a.x, b.x, t, factor), rules::ns_project(a.y, b.y, t, factor),
              Element());
}

// A run of eight.
template <class Element>
__device__ inline uint4 corrected(const uint4& x, const uint4& u, float t, float factor) {
  return {corrected<Element>(x.x, u.x, t, factor), corrected<Element>(x.y, u.y, t, factor),
          corrected<Element>(x.z, u.z, t, factor), corrected<Element>(x.w, u.w, t, factor)};
}

}  // namespace rode::cuda::hopper
