// SPDX-License-Identifier: Apache-2.0
// Writes weights back as they are stored, and tells how far they moved.
#pragma once

#include <cstdint>

#include "backend/cuda/device/load.cuh"

namespace rode::cuda {

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
