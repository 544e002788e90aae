// SPDX-License-Identifier: Apache-2.0
// The learning rates of a step.
#pragma once

#include <optional>

namespace rode::lab {

struct Rates {
  double lr = 0;
  std::optional<double> lr_rho = {};
  std::optional<double> lr_rest = {};
};

}  // namespace rode::lab
