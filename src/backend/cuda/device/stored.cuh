// SPDX-License-Identifier: Apache-2.0
// Reads and writes runs of stored elements as fp32: arrays of any type, the workspace of
// Newton-Schulz, and weights as they are rounded.
//
// Loading and decoding are apart: a thread first asks for all its runs of all arrays, and
// only then looks at the first one. Element types are looked up at run time; a block sees
// one job, so no warp diverges.
//
// Loads take the read-only path (2 to 7 % of a pass faster than any other; hints of streaming
// cost as much). That is right for arrays which the kernel updates too: an element is read once,
// by the thread that will write it, and nobody reads it after that. Of what an
// earlier kernel may still be writing when this one begins (dependent_launch.cuh) only the iterates
// of Newton-Schulz are read so, and their address comes from a table that is read after the wait.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/device/arrays.h"
#include "backend/cuda/device/walk.cuh"
#include "rode/optim/common.h"
#include "rules/rounding.h"

namespace rode::cuda {

// A run as it was read. f32: the bits. Halves of four: two words of them, then two words of
// low bits. A single half: the upper part of the word, low bits below.
template <int kWidth>
struct Bits;
template <>
struct Bits<4> {
  uint4 word;
};
template <>
struct Bits<1> {
  std::uint32_t word;
};

__device__ inline void clear(Bits<4>& bits) { bits.word = make_uint4(0, 0, 0, 0); }
__device__ inline void clear(Bits<1>& bits) { bits.word = 0; }

__device__ inline void load_float(const void* data, std::int64_t at, Bits<4>& bits) {
  bits.word = __ldg(reinterpret_cast<const uint4*>(static_cast<const float*>(data) + at));
}
__device__ inline void load_float(const void* data, std::int64_t at, Bits<1>& bits) {
  bits.word = __ldg(static_cast<const std::uint32_t*>(data) + at);
}

__device__ inline void load_half(const void* data, std::int64_t at, Bits<4>& bits) {
  const auto* half = static_cast<const std::uint16_t*>(data) + at;
  const uint2 high = __ldg(reinterpret_cast<const uint2*>(half));
  bits.word = make_uint4(high.x, high.y, 0, 0);
}
__device__ inline void load_half(const void* data, std::int64_t at, Bits<1>& bits) {
  bits.word = static_cast<std::uint32_t>(__ldg(static_cast<const std::uint16_t*>(data) + at)) << 16;
}

__device__ inline void load_low(const std::uint16_t* low, std::int64_t at, Bits<4>& bits) {
  const uint2 word = __ldg(reinterpret_cast<const uint2*>(low + at));
  bits.word.z = word.x;
  bits.word.w = word.y;
}
__device__ inline void load_low(const std::uint16_t* low, std::int64_t at, Bits<1>& bits) {
  bits.word |= __ldg(low + at);
}

// Runs that are not there read as zeros. `at[u]` is where run u begins.
template <int kWidth, int kCount, int kThreads>
__device__ void load(const void* data, bool half, const Runs<kWidth, kCount, kThreads>& runs,
                     const std::int64_t (&at)[kCount], Bits<kWidth> (&bits)[kCount]) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) clear(bits[u]);
  if (half) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if (runs.valid(u)) load_half(data, at[u], bits[u]);
    }
  } else {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if (runs.valid(u)) load_float(data, at[u], bits[u]);
    }
  }
}

template <int kWidth, int kCount, int kThreads>
__device__ void load(const ArrayView& array, const Runs<kWidth, kCount, kThreads>& runs,
                     const std::int64_t (&at)[kCount], Bits<kWidth> (&bits)[kCount]) {
  load(array.data, array.bf16 != 0, runs, at, bits);
}

template <int kWidth, int kCount, int kThreads>
__device__ void load(const WeightView& weight, const Runs<kWidth, kCount, kThreads>& runs,
                     const std::int64_t (&at)[kCount], Bits<kWidth> (&bits)[kCount]) {
  load(weight.data, weight.bf16 != 0, runs, at, bits);
  if (weight.low_bits == nullptr) return;
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    if (runs.valid(u)) load_low(weight.low_bits, at[u], bits[u]);
  }
}

__device__ inline void decode(const Bits<4>& bits, bool bf16, float (&x)[4]) {
  const uint4 w = bits.word;
  x[0] = __uint_as_float(bf16 ? w.x << 16 | (w.z & 0xffffU) : w.x);
  x[1] = __uint_as_float(bf16 ? (w.x & 0xffff0000U) | w.z >> 16 : w.y);
  x[2] = __uint_as_float(bf16 ? w.y << 16 | (w.w & 0xffffU) : w.z);
  x[3] = __uint_as_float(bf16 ? (w.y & 0xffff0000U) | w.w >> 16 : w.w);
}
__device__ inline void decode(const Bits<1>& bits, bool, float (&x)[1]) {
  x[0] = __uint_as_float(bits.word);
}

// Two halves as fp16.
__device__ inline void decode_fp16(const Bits<4>& bits, float (&x)[4]) {
  const std::uint32_t words[2] = {bits.word.x, bits.word.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    x[2 * i] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i] & 0xffffU)));
    x[2 * i + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i] >> 16)));
  }
}
__device__ inline void decode_fp16(const Bits<1>& bits, float (&x)[1]) {
  x[0] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits.word >> 16)));
}

__device__ inline std::uint32_t pack(std::uint16_t low, std::uint16_t high) {
  return static_cast<std::uint32_t>(high) << 16 | low;
}

__device__ inline void store_float(void* data, std::int64_t at, const float (&x)[4]) {
  *reinterpret_cast<float4*>(static_cast<float*>(data) + at) = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ inline void store_float(void* data, std::int64_t at, const float (&x)[1]) {
  static_cast<float*>(data)[at] = x[0];
}
__device__ inline void store_half(void* data, std::int64_t at, const std::uint16_t (&x)[4]) {
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(data) + at) =
      make_uint2(pack(x[0], x[1]), pack(x[2], x[3]));
}
__device__ inline void store_half(void* data, std::int64_t at, const std::uint16_t (&x)[1]) {
  static_cast<std::uint16_t*>(data)[at] = x[0];
}

// bf16 state is rounded to nearest.
template <int kWidth>
__device__ void store(const ArrayView& array, std::int64_t at, const float (&x)[kWidth]) {
  if (array.bf16 == 0) {
    store_float(array.data, at, x);
    return;
  }
  std::uint16_t half[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) half[i] = rules::bf16_nearest(x[i]);
  store_half(array.data, at, half);
}

// The workspace of Newton-Schulz, in its element type. Starts and directions are read again at
// once: their stores are plain, so that L2 keeps them.

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

// Rounds `fresh` as the weights are stored, writes it at `at` and leaves in `fresh` what was
// written. `index`: position of the first element within the parameter.
template <int kWidth>
__device__ void store_weights(const WeightView& weight, std::uint64_t sequence, std::int64_t index,
                              std::int64_t at, float (&fresh)[kWidth]) {
  if (weight.bf16 == 0) {
    store_float(weight.data, at, fresh);
    return;
  }
  std::uint16_t half[kWidth];
  if (weight.rounding == Rounding::exact) {
    std::uint16_t low[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const rules::Halves halves = rules::split_halves(fresh[i]);
      half[i] = halves.high;
      low[i] = halves.low;
    }
    store_half(weight.low_bits, at, low);
  } else {
    const bool stochastic = weight.rounding == Rounding::stochastic;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const auto position = static_cast<std::uint64_t>(index + i);
      half[i] = stochastic
                    ? rules::bf16_stochastic(fresh[i], rules::random_bits(sequence, position))
                    : rules::bf16_nearest(fresh[i]);
      fresh[i] = rules::bf16_to_float(half[i]);
    }
  }
  store_half(weight.data, at, half);
}

// Squares of the weight before the step and of its move, added up by one thread.
struct Moved {
  double dd = 0, ww = 0;
  template <int kWidth>
  __device__ void add(const float (&w)[kWidth], const float (&stored)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const double old = static_cast<double>(w[i]);
      const double d = static_cast<double>(stored[i]) - old;
      dd += d * d;
      ww += old * old;
    }
  }
};

}  // namespace rode::cuda
