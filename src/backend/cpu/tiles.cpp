// SPDX-License-Identifier: Apache-2.0
// Conversions between stored arrays and fp32 tiles.
#include "backend/cpu/tiles.h"

#include <cstring>

#include "backend/cpu/kernels.h"
#include "rules/rounding.h"

namespace rode::cpu {

const float* read(const Grads& grad, std::int64_t at, std::int64_t n, float* scratch) {
  if (grad.dtype == DType::f32) return static_cast<const float*>(grad.data) + at;
  widen(static_cast<const std::uint16_t*>(grad.data) + at, scratch, n);
  return scratch;
}

const float* read(const Weights& weight, std::int64_t at, std::int64_t n, float* scratch) {
  if (weight.dtype == DType::f32) return static_cast<const float*>(weight.data) + at;
  const auto* half = static_cast<const std::uint16_t*>(weight.data) + at;
  if (weight.low_bits != nullptr) {
    join(half, weight.low_bits + at, scratch, n);
  } else {
    widen(half, scratch, n);
  }
  return scratch;
}

float* read(const Moments& moments, std::int64_t at, std::int64_t n, float* scratch) {
  if (moments.dtype == DType::f32) return static_cast<float*>(moments.data) + at;
  widen(static_cast<const std::uint16_t*>(moments.data) + at, scratch, n);
  return scratch;
}

void write(const Moments& moments, std::int64_t at, std::int64_t n, const float* values) {
  if (moments.dtype == DType::f32) {
    float* stored = static_cast<float*>(moments.data) + at;
    if (stored != values) std::memcpy(stored, values, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  narrow_nearest(values, static_cast<std::uint16_t*>(moments.data) + at, n);
}

double write_weights(const Weights& weight, std::uint64_t sequence, std::int64_t index,
                     std::int64_t at, std::int64_t n, const float* w, float* fresh) {
  if (weight.dtype == DType::f32) {
    const double moved = squared_distance(fresh, w, n);
    std::memcpy(static_cast<float*>(weight.data) + at, fresh,
                static_cast<std::size_t>(n) * sizeof(float));
    return moved;
  }
  auto* half = static_cast<std::uint16_t*>(weight.data) + at;
  switch (weight.rounding) {
    case Rounding::nearest:
      narrow_nearest(fresh, half, n);
      widen(half, fresh, n);
      break;
    case Rounding::stochastic:
      for (std::int64_t i = 0; i < n; ++i) {
        const auto position = static_cast<std::uint64_t>(index + i);
        half[i] = rules::bf16_stochastic(fresh[i], rules::random_bits(sequence, position));
      }
      widen(half, fresh, n);
      break;
    case Rounding::exact:
      for (std::int64_t i = 0; i < n; ++i) {
        const rules::Halves halves = rules::split_halves(fresh[i]);
        half[i] = halves.high;
        weight.low_bits[at + i] = halves.low;
      }
      break;
  }
  return squared_distance(fresh, w, n);
}

}  // namespace rode::cpu
