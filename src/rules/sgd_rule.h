// SPDX-License-Identifier: Apache-2.0
// SGD's element-wise equation (recurrence: rode/optim/sgd.h).
#pragma once

#include "rules/host_device.h"

namespace rode::rules {

struct SgdConstants {
  double lr, weight_decay, momentum;
};

RODE_HOST_DEVICE inline float sgd_element(float lr, float weight_decay, float momentum, float w,
                                          float g, float& b) {
  b = momentum * b + (g + weight_decay * w);
  return w - lr * b;
}

}  // namespace rode::rules
