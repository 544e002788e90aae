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

  // Options are factors, not branches: the CPU's loop is then one for all of them.
  struct Coefficients {
    float lr, weight_decay, momentum;
    float sign;                    // of the gradient: -1 to maximize
    float buffer_old, buffer_new;  // b' = buffer_old b + buffer_new next; without momentum b stays
                                   // as it is, unused, as in PyTorch
    float on_d, on_next;           // the move is on_d d + on_next next
  };

  RODE_HOST_DEVICE static Coefficients coefficients(const Constants& c, double multiplier,
                                                    std::int64_t /*t*/) {
    const bool moves = c.momentum != 0;
    return {static_cast<float>(multiplier * c.lr),
            static_cast<float>(c.weight_decay),
            static_cast<float>(c.momentum),
            c.maximize != 0 ? -1.0F : 1.0F,
            moves ? 0.0F : 1.0F,
            moves ? 1.0F : 0.0F,
            c.nesterov != 0 ? 1.0F : 0.0F,
            c.nesterov != 0 ? static_cast<float>(c.momentum) : 1.0F};
  }

  RODE_HOST_DEVICE static float element(const Coefficients& c, float w, float g,
                                        float (&moments)[kMoments]) {
    float& b = moments[0];
    const float d = c.sign * g + c.weight_decay * w;
    const float next = c.momentum * b + d;
    b = c.buffer_old * b + c.buffer_new * next;
    return w - c.lr * (c.on_d * d + c.on_next * next);
  }
};

}  // namespace rode::rules
