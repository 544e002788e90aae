// SPDX-License-Identifier: Apache-2.0
// Runs of stored elements as fp32, and sums over a block.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace rode::lab::fused {

struct Bf16 {
  std::uint16_t bits;
};

__device__ inline float value_of(float x) { return x; }
__device__ inline float value_of(Bf16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}

__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(pair.y)) << 16 |
         __bfloat16_as_ushort(pair.x);
}

__device__ inline void unpack(uint4 word, float (&x)[8]) {
  const std::uint32_t words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
}

__device__ inline uint4 packed(const float (&x)[8]) {
  return make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]),
                    bf16_pair(x[6], x[7]));
}

// Runs of eight begin at multiples of 16 bytes.
__device__ inline void load(const Bf16* from, float (&x)[8]) {
  unpack(*reinterpret_cast<const uint4*>(from), x);
}
__device__ inline void load(const float* from, float (&x)[8]) {
  const auto* quads = reinterpret_cast<const float4*>(from);
  const float4 a = quads[0], b = quads[1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
template <class T>
__device__ void load(const T* from, float (&x)[1]) {
  x[0] = value_of(*from);
}

__device__ inline void store(Bf16* to, const float (&x)[8]) {
  *reinterpret_cast<uint4*>(to) = packed(x);
}
__device__ inline void store(float* to, const float (&x)[8]) {
  auto* quads = reinterpret_cast<float4*>(to);
  quads[0] = make_float4(x[0], x[1], x[2], x[3]);
  quads[1] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ inline void store(Bf16* to, const float (&x)[1]) {
  to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x[0]));
}
__device__ inline void store(float* to, const float (&x)[1]) { *to = x[0]; }

// x as a T holds it.
__device__ inline float rounded(float x, const float*) { return x; }
__device__ inline float rounded(float x, const Bf16*) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

// Every thread gets the sum. All threads of the block take part, whole warps of them; `parts` has
// an element for each warp.
__device__ inline float block_sum(float value, float* parts) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  const unsigned warp = threadIdx.x / 32, warps = blockDim.x / 32;
  __syncthreads();  // `parts` may be in use from an earlier sum
  if (threadIdx.x % 32 == 0) parts[warp] = value;
  __syncthreads();
  float sum = parts[0];
  for (unsigned w = 1; w < warps; ++w) sum += parts[w];
  return sum;
}

}  // namespace rode::lab::fused
