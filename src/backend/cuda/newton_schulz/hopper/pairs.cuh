// SPDX-License-Identifier: Apache-2.0
// Two half-precision numbers in a register.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace rode::cuda::hopper {

// Volatile, so that a tile is rounded group by group (kInFlight) and not all at once: the
// compiler would otherwise run out of registers beside the sums.
__device__ inline std::uint32_t pack(float low, float high, __nv_bfloat16) {
  std::uint32_t pair;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline std::uint32_t pack(float low, float high, __half) {
  std::uint32_t pair;
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline float2 unpack(std::uint32_t pair, __nv_bfloat16) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}
__device__ inline float2 unpack(std::uint32_t pair, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace rode::cuda::hopper
