// SPDX-License-Identifier: Apache-2.0
// SGD's element-wise equation (recurrence: rode/optim/sgd.h).
#pragma once

#include <cstdint>

#include "rules/host_device.h"

namespace rode::rules {

struct Sgd {
  static constexpr int kMoments = 1;
  static constexpr const char* kKeys[kMoments] = {"momentum"};
  static constexpr bool kQuantizesFirst = false;
  static constexpr bool kCountsSteps = false;
  static constexpr bool kAveragesSquares = false;

  struct Constants {
    double lr, weight_decay, momentum;
    std::int32_t nesterov, maximize;
  };

  struct Coefficients {
    float lr, weight_decay, momentum;
    std::int32_t nesterov, maximize;
  };

  RODE_HOST_DEVICE static Coefficients coefficients(const Constants& c, double multiplier,
                                                    std::int64_t /*t*/) {
    return {static_cast<float>(multiplier * c.lr), static_cast<float>(c.weight_decay),
            static_cast<float>(c.momentum), c.nesterov, c.maximize};
  }

  RODE_HOST_DEVICE static float element(const Coefficients& c, float w, float g,
                                        float (&moments)[kMoments]) {
    float& b = moments[0];
    const float d = (c.maximize != 0 ? -g : g) + c.weight_decay * w;
    const float next = c.momentum * b + d;
    b = c.momentum != 0 ? next : b;  // without momentum the buffer is unused, as in PyTorch
    return w - c.lr * (c.nesterov != 0 ? d + c.momentum * next : next);
  }
};

}  // namespace rode::rules
