// SPDX-License-Identifier: Apache-2.0
// Adafactor's scalars and element-wise equations (recurrence: rode/optim/adafactor.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "rules/host_device.h"

namespace rode::rules {

struct AdafactorConstants {
  double lr, weight_decay, eps, clip_threshold, decay_rate;
};

// Weight of the old average at the t-th gradient: 1 - t^decay_rate, 0 at the first.
RODE_HOST_DEVICE inline double adafactor_decay(const AdafactorConstants& c, std::int64_t t) {
  return 1 - std::pow(static_cast<double>(t), c.decay_rate);
}

// W' = keep * W - scale * u for the unclipped u with mean square `mean_square`.
struct AdafactorWrite {
  float keep, scale;
};

RODE_HOST_DEVICE inline AdafactorWrite adafactor_write(const AdafactorConstants& c,
                                                       double multiplier, double mean_square) {
  const double lr = multiplier * c.lr;
  const double rms = std::sqrt(mean_square) / c.clip_threshold;
  return {static_cast<float>(1 - lr * c.weight_decay), static_cast<float>(lr / (rms > 1 ? rms : 1))};
}

}  // namespace rode::rules
