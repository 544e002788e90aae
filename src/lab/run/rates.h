// SPDX-License-Identifier: Apache-2.0
// The learning rates of a step: as configured, times the multiplier of the schedule.
#pragma once

#include <cstdint>
#include <optional>

#include "rode/method.h"

namespace rode::lab {

struct Rates {
  double lr = 0;
  std::optional<double> lr_rho = {};
  std::optional<double> lr_rest = {};
};

inline Rates rates_at(const Method& method, double multiplier) {
  const auto scaled = [&](const char* key) -> std::optional<double> {
    const std::optional<double> rate = method.number(key);
    return rate ? std::optional(*rate * multiplier) : std::nullopt;
  };
  return {scaled("lr").value_or(0), scaled("lr_rho"), scaled("lr_rest")};
}

// The momentum of a step where it warms up, linear in the step until it is the optimizer's own;
// nothing without a warm-up, or where the optimizer has no momentum.
inline std::optional<double> momentum_at(const Method& method, std::int64_t step,
                                         std::int64_t warmup, double start) {
  const std::optional<double> own = method.number("momentum");
  if (!own || warmup == 0) return {};
  if (step >= warmup) return own;
  return start + (*own - start) * static_cast<double>(step) / static_cast<double>(warmup);
}

}  // namespace rode::lab
