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

// The new row or column mean of S = g^2 + eps from a sum of `count` squares: eps is added
// to the mean, because in the sum it would vanish.
RODE_HOST_DEVICE inline float adafactor_mean(double decay, double eps, float old, double sum,
                                             std::int64_t count) {
  const double mean = sum / static_cast<double>(count) + eps;
  return static_cast<float>(decay * static_cast<double>(old) + (1 - decay) * mean);
}

// (row / mean(row))^-1/2
RODE_HOST_DEVICE inline float adafactor_on_row(float row, double mean) {
  return static_cast<float>(std::sqrt(mean / static_cast<double>(row)));
}

// u of a factored tensor.
RODE_HOST_DEVICE inline float adafactor_factored(float g, float on_row, float col) {
  return g * on_row / std::sqrt(col);
}

// v of a tensor of rank < 2; then u = g / sqrt(v).
RODE_HOST_DEVICE inline float adafactor_second(float decay, float rest, float eps, float g,
                                               float v) {
  return decay * v + rest * (g * g + eps);
}

// W' = keep * W - scale * u for the unclipped u with mean square `mean_square`.
struct AdafactorWrite {
  float keep, scale;
};

RODE_HOST_DEVICE inline AdafactorWrite adafactor_write(const AdafactorConstants& c,
                                                       double multiplier, double mean_square) {
  const double lr = multiplier * c.lr;
  const double rms = std::sqrt(mean_square) / c.clip_threshold;
  return {static_cast<float>(1 - lr * c.weight_decay),
          static_cast<float>(lr / (rms > 1 ? rms : 1))};
}

}  // namespace rode::rules
