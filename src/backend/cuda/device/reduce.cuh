// SPDX-License-Identifier: Apache-2.0
// Sums over a block, in an order that the thread numbers alone decide.
#pragma once

#include <cstdint>

#include "rules/matrix_step.h"

namespace rode::cuda {

// Every lane gets the sum. All 32 lanes take part.
__device__ inline double warp_sum(double value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  return value;
}

// Every thread gets the sums. All kThreads threads of the block take part.
template <int kThreads, int kCount>
__device__ inline void block_sums(double (&values)[kCount]) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kThreads % 32 == 0);
  __shared__ double parts[kWarps][kCount];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = warp_sum(values[i]);
    if (lane == 0) parts[warp][i] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = parts[0][i];
    for (int w = 1; w < kWarps; ++w) values[i] += parts[w][i];
  }
  __syncthreads();  // `parts` may be used again
}

template <int kThreads>
__device__ inline double block_sum(double value) {
  double values[1] = {value};
  block_sums<kThreads>(values);
  return values[0];
}

// parts[0], parts[width], ... added by the whole block; every thread gets the sum.
template <int kThreads>
__device__ inline double strided_sum(const double* parts, std::int64_t count, int width) {
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += parts[width * i];
  return block_sum<kThreads>(sum);
}

// Sums of a job's six products. Every thread gets the sums. All kThreads threads of the block take
// part.
template <int kThreads>
__device__ inline void block_sums(rules::MatrixProducts& p) {
  double values[6] = {p.tt, p.bt, p.gt, p.bb, p.bg, p.gg};
  block_sums<kThreads>(values);
  p = {values[0], values[1], values[2], values[3], values[4], values[5]};
}

}  // namespace rode::cuda
