// SPDX-License-Identifier: Apache-2.0
// Checks loaded state element by element.
#include "optim/state_values.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "rode/error.h"
#include "rode/stored_state.h"
#include "rules/rounding.h"

namespace rode {
namespace {

bool never_negative(std::string_view key) {
  if (key.ends_with(scale_key(""))) return true;
  constexpr std::array<std::string_view, 8> keys{"exp_avg_sq", "row",           "col",
                                                 "radius",     "radius_avg_sq", "row_avg_sq",
                                                 "snr_norm",   "start_norm"};
  return std::ranges::find(keys, key) != keys.end();
}

[[noreturn]] void refuse(std::string_view name, std::string_view value, std::string_view expected) {
  throw Error(ErrorKind::state_mismatch, "load state",
              fmt::format("'{}' holds {}; expected {}; the file is damaged or was not saved by "
                          "rode; load another checkpoint",
                          name, value, expected));
}

}  // namespace

void check_state_values(std::string_view name, std::string_view key, const ConstTensorView& values,
                        bool with_sign) {
  const auto count = static_cast<std::size_t>(values.numel());
  if (values.dtype == DType::i64) {
    const auto* steps = static_cast<const std::int64_t*>(values.data);
    for (std::size_t i = 0; i < count; ++i) {
      if (steps[i] < 0 || steps[i] > kMostSteps) {
        refuse(name, fmt::format("{}", steps[i]), "a step count");
      }
    }
    return;
  }
  if (values.dtype == DType::i8) {
    const auto* q = static_cast<const std::int8_t*>(values.data);
    if (std::find(q, q + count, -128) != q + count) refuse(name, "-128", "numbers -127 to 127");
    return;
  }
  if (values.dtype != DType::f32 && values.dtype != DType::bf16) return;
  const bool positive = never_negative(key) && !with_sign;
  for (std::size_t i = 0; i < count; ++i) {
    const float x = values.dtype == DType::f32
                        ? static_cast<const float*>(values.data)[i]
                        : rules::bf16_to_float(static_cast<const std::uint16_t*>(values.data)[i]);
    if (!std::isfinite(x)) refuse(name, fmt::format("{}", x), "finite numbers");
    if (positive && x < 0) refuse(name, fmt::format("{}", x), "numbers >= 0");
  }
}

}  // namespace rode
