// SPDX-License-Identifier: Apache-2.0
// The learning rates of a step: as configured, times the multiplier of the schedule.
#pragma once

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

}  // namespace rode::lab
