// SPDX-License-Identifier: Apache-2.0
// Reads and writes the workspace of Newton-Schulz in its element type.
//
// Starts and directions are read again at once: their stores are plain, so that L2 keeps them.
#pragma once

#include "backend/cuda/device/load.cuh"
#include "rode/optim/common.h"

namespace rode::cuda {

__device__ inline std::uint32_t half_pair(float low, float high, bool fp16) {
  if (fp16) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline void store_slot(void* data, NsDType dtype, std::int64_t at, const float (&x)[4]) {
  if (dtype == NsDType::fp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + at) =
        make_float4(x[0], x[1], x[2], x[3]);
    return;
  }
  const bool fp16 = dtype == NsDType::fp16;
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(data) + at) =
      make_uint2(half_pair(x[0], x[1], fp16), half_pair(x[2], x[3], fp16));
}

__device__ inline void store_slot(void* data, NsDType dtype, std::int64_t at, const float (&x)[1]) {
  if (dtype == NsDType::fp32) {
    static_cast<float*>(data)[at] = x[0];
    return;
  }
  static_cast<std::uint16_t*>(data)[at] =
      static_cast<std::uint16_t>(half_pair(x[0], 0.0F, dtype == NsDType::fp16) & 0xffffU);
}

template <int kWidth>
__device__ void decode_slot(const Bits<kWidth>& bits, NsDType dtype, float (&x)[kWidth]) {
  if (dtype == NsDType::fp16) {
    decode_fp16(bits, x);
  } else {
    decode(bits, dtype == NsDType::bf16, x);
  }
}

}  // namespace rode::cuda
