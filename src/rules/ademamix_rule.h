// SPDX-License-Identifier: Apache-2.0
// AdEMAMix's element-wise equation and its two schedulers (recurrence: rode/optim/ademamix.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "rules/host_device.h"

namespace rode::rules {

struct AdEMAMix {
  static constexpr int kMoments = 3;
  static constexpr const char* kKeys[kMoments] = {"exp_avg_fast", "exp_avg_slow", "exp_avg_sq"};
  static constexpr bool kQuantizesFirst = false;
  static constexpr bool kCountsSteps = true;
  static constexpr bool kAveragesSquares = true;

  struct Constants {
    double lr, weight_decay, beta1, beta2, beta3, alpha, eps;
    std::int64_t warmup_steps;
  };

  struct Coefficients {
    float keep;
    float beta1, rest1, beta2, rest2, beta3, rest3;
    float lr, correct1, alpha, root, eps;
  };

  // beta3 grows so that the half-life of the slow average grows linearly.
  RODE_HOST_DEVICE static double warm_beta3(const Constants& c, double progress) {
    // beta1 = 0 has half-life 0: ln(1e-8) keeps the expression finite, as the authors' does.
    const double from = std::log(0.5) / std::log(c.beta1 + 1e-8) - 1;
    const double to = std::log(0.5) / std::log(c.beta3 + 1e-8) - 1;
    const double half_life = (1 - progress) * from + progress * to;
    return std::pow(0.5, 1 / (half_life + 1));
  }

  RODE_HOST_DEVICE static Coefficients coefficients(const Constants& c, double multiplier,
                                                    std::int64_t t) {
    const double lr = multiplier * c.lr;
    const double time = static_cast<double>(t);
    double alpha = c.alpha, beta3 = c.beta3;
    if (t < c.warmup_steps) {
      const double progress = time / static_cast<double>(c.warmup_steps);
      alpha *= progress;
      beta3 = warm_beta3(c, progress);
    }
    return {static_cast<float>(1 - lr * c.weight_decay),
            static_cast<float>(c.beta1),
            static_cast<float>(1 - c.beta1),
            static_cast<float>(c.beta2),
            static_cast<float>(1 - c.beta2),
            static_cast<float>(beta3),
            static_cast<float>(1 - beta3),
            static_cast<float>(lr),
            static_cast<float>(1 / (1 - std::pow(c.beta1, time))),
            static_cast<float>(alpha),
            static_cast<float>(1 / std::sqrt(1 - std::pow(c.beta2, time))),
            static_cast<float>(c.eps)};
  }

  RODE_HOST_DEVICE static float element(const Coefficients& c, float w, float g,
                                        float (&moments)[kMoments]) {
    float &fast = moments[0], &slow = moments[1], &v = moments[2];
    fast = c.beta1 * fast + c.rest1 * g;
    slow = c.beta3 * slow + c.rest3 * g;
    v = c.beta2 * v + c.rest2 * g * g;
    const float direction = (fast * c.correct1 + c.alpha * slow) / (std::sqrt(v) * c.root + c.eps);
    return c.keep * w - c.lr * direction;
  }
};

}  // namespace rode::rules
