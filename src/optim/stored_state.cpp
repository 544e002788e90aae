// SPDX-License-Identifier: Apache-2.0
// Widens, rounds and quantises state on its way between two storages.
#include "rode/stored_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "rode/error.h"
#include "rules/int8_state.h"

namespace rode {
namespace {

[[noreturn]] void refuse(std::string_view name, std::string_view what) {
  throw Error(
      ErrorKind::state_mismatch, "load state",
      fmt::format("'{}' {}; load it with the parameters and options that saved it", name, what));
}

// Calls f(first element, count, index of the scale) for the blocks of a tensor with these scales.
template <class F>
void for_blocks(const ConstTensorView& values, const ConstTensorView& scales, F&& f) {
  const std::int64_t rows = scales.shape[0], per_row = scales.shape[1];
  const std::int64_t cols = rows == 0 ? 0 : values.numel() / rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t block = 0; block < per_row; ++block) {
      const std::int64_t col = block * rules::kScaleBlock;
      f(row * cols + col, std::min(rules::kScaleBlock, cols - col), row * per_row + block);
    }
  }
}

void check_scales(std::string_view name, const ConstTensorView& values,
                  const ConstTensorView& scales) {
  const std::int64_t count = values.numel();
  const bool grid = scales.dtype == DType::f32 && scales.shape.rank() == 2;
  const std::int64_t rows = grid ? scales.shape[0] : 0;
  if (grid && rows > 0 && count % rows == 0 &&
      scales.shape[1] == rules::scales_per_row(count / rows)) {
    return;
  }
  refuse(name, fmt::format("is I8 {}, but its scales are {} {}; expected F32, one per row and {} "
                           "columns",
                           to_string(values.shape), to_string(scales.dtype),
                           to_string(scales.shape), rules::kScaleBlock));
}

float value_at(const ConstTensorView& values, std::int64_t i) {
  if (values.dtype == DType::f32) return static_cast<const float*>(values.data)[i];
  return rules::bf16_to_float(static_cast<const std::uint16_t*>(values.data)[i]);
}

void store(const TensorView& to, std::int64_t i, float value) {
  if (to.dtype == DType::f32) {
    static_cast<float*>(to.data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(to.data)[i] = rules::bf16_nearest(value);
  }
}

// Takes the integers that gave these values with these scales; false: there are none.
bool restore(const ConstStoredState& from, const StoredState& to) {
  const auto* scales = static_cast<const float*>(from.scales.data);
  auto* q = static_cast<std::int8_t*>(to.values.data);
  bool exact = true;
  for_blocks(from.values, from.scales, [&](std::int64_t first, std::int64_t n, std::int64_t at) {
    const float scale = scales[at];
    for (std::int64_t i = first; exact && i < first + n; ++i) {
      const float x = value_at(from.values, i);
      const float whole = scale > 0 ? std::nearbyint(x / scale) : 0.0F;
      exact = std::fabs(whole) <= 127.0F;
      if (!exact) return;
      q[i] = static_cast<std::int8_t>(whole);
      exact = rules::int8_value(q[i], scale) == x;
    }
  });
  if (exact) std::memcpy(to.scales.data, scales, to.scales.bytes());
  return exact;
}

void quantize(std::string_view name, const ConstTensorView& from, const StoredState& to) {
  auto* q = static_cast<std::int8_t*>(to.values.data);
  for_blocks(from, to.scales, [&](std::int64_t first, std::int64_t n, std::int64_t at) {
    std::int32_t most = 0;
    for (std::int64_t i = first; i < first + n; ++i) {
      most = std::max(most, rules::magnitude_bits(value_at(from, i)));
    }
    const float absmax = rules::magnitude(most);
    if (!std::isfinite(absmax)) {
      refuse(name, fmt::format("holds {}; expected finite numbers", absmax));
    }
    const rules::BlockScale block = rules::block_scale(absmax);
    static_cast<float*>(to.scales.data)[at] = block.scale;
    for (std::int64_t i = first; i < first + n; ++i) {
      q[i] = rules::int8_nearest(value_at(from, i), block.inverse);
    }
  });
}

}  // namespace

std::string scale_key(std::string_view key) { return std::string(key) + "_scale"; }

bool is_stored_state(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::i8;
}

void check_convertible(std::string_view name, const ConstStoredState& from, const StoredState& to) {
  if (!(from.values.shape == to.values.shape) || !is_stored_state(from.values.dtype) ||
      !is_stored_state(to.values.dtype)) {
    refuse(name, fmt::format("is {} {} as saved, but {} {} here", to_string(from.values.dtype),
                             to_string(from.values.shape), to_string(to.values.dtype),
                             to_string(to.values.shape)));
  }
  if (from.values.dtype == DType::i8) check_scales(name, from.values, from.scales);
  if (to.values.dtype == DType::i8) check_scales(name, to.values, to.scales);
  if (from.values.dtype == DType::i8 && to.values.dtype == DType::i8 &&
      !(from.scales.shape == to.scales.shape)) {
    refuse(name, fmt::format("has scales {} as saved, but {} here", to_string(from.scales.shape),
                             to_string(to.scales.shape)));
  }
}

void convert_state(std::string_view name, const ConstStoredState& from, const StoredState& to) {
  check_convertible(name, from, to);
  if (from.values.numel() == 0) return;
  if (from.values.dtype == to.values.dtype) {
    std::memcpy(to.values.data, from.values.data, to.values.bytes());
    if (to.values.dtype == DType::i8) {
      std::memcpy(to.scales.data, from.scales.data, to.scales.bytes());
    }
  } else if (to.values.dtype == DType::i8) {
    const bool described = from.scales.data != nullptr && from.scales.dtype == DType::f32 &&
                           from.scales.shape == to.scales.shape;
    if (!described || !restore(from, to)) quantize(name, from.values, to);
  } else if (from.values.dtype == DType::i8) {
    const auto* q = static_cast<const std::int8_t*>(from.values.data);
    const auto* scales = static_cast<const float*>(from.scales.data);
    for_blocks(from.values, from.scales, [&](std::int64_t first, std::int64_t n, std::int64_t at) {
      for (std::int64_t i = first; i < first + n; ++i) {
        store(to.values, i, rules::int8_value(q[i], scales[at]));
      }
    });
  } else {
    for (std::int64_t i = 0; i < from.values.numel(); ++i) {
      store(to.values, i, value_at(from.values, i));
    }
  }
}

}  // namespace rode
