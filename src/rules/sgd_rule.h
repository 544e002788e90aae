// SPDX-License-Identifier: Apache-2.0
// SGD's element-wise equation (recurrence: rode/optim/sgd.h).
#pragma once

#include <cstdint>

#include "rules/host_device.h"

namespace rode::rules {

struct SgdConstants {
  double lr, weight_decay, momentum;
  std::int32_t nesterov, maximize;
};

// What every element of a parameter shares in a step.
struct SgdCoefficients {
  float lr, weight_decay, momentum;
  std::int32_t nesterov, maximize;
};

RODE_HOST_DEVICE inline SgdCoefficients sgd_coefficients(const SgdConstants& c, double multiplier) {
  return {static_cast<float>(multiplier * c.lr), static_cast<float>(c.weight_decay),
          static_cast<float>(c.momentum), c.nesterov, c.maximize};
}

RODE_HOST_DEVICE inline float sgd_element(const SgdCoefficients& c, float w, float g, float& b) {
  const float d = (c.maximize != 0 ? -g : g) + c.weight_decay * w;
  b = c.momentum * b + d;
  return w - c.lr * (c.nesterov != 0 ? d + c.momentum * b : b);
}

}  // namespace rode::rules
