// SPDX-License-Identifier: Apache-2.0
// Refuses, on load, values that no run of rode could have saved.
#pragma once

#include <cstdint>
#include <string_view>

#include "rode/tensor_view.h"

namespace rode {

// Far beyond any training, far from overflow.
inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 62;

// `key` is the last part of `name`. Throws Error{state_mismatch} for NaN or Inf, for a
// negative square, norm, radius or scale, for -128 in 8 bits, and for a step count outside 0 ..
// kMostSteps. `with_sign`: whatever the key, numbers may be negative.
void check_state_values(std::string_view name, std::string_view key, const ConstTensorView& values,
                        bool with_sign);

}  // namespace rode
