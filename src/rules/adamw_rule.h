// SPDX-License-Identifier: Apache-2.0
// AdamW's element-wise equation (recurrence: rode/optim/adamw.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "rules/cautious_decay.h"
#include "rules/host_device.h"

namespace rode::rules {

struct AdamWConstants {
  double lr, weight_decay, beta1, beta2, eps;
  double sign;            // of the gradient: -1 to maximize
  bool cautious = false;  // then the rule is Cautious
};

template <bool kCautious>
struct BasicAdamW {
  using Constants = AdamWConstants;
  using Cautious = BasicAdamW<true>;
  static constexpr int kMoments = 2;
  static constexpr const char* kKeys[kMoments] = {"exp_avg", "exp_avg_sq"};
  static constexpr bool kQuantizesFirst = true;
  static constexpr bool kCountsSteps = true;
  static constexpr bool kAveragesSquares = true;

  struct Coefficients {
    float keep;                        // 1 - lr * weight_decay
    float beta1, rest1, beta2, rest2;  // rest1 has the gradient's sign
    float step_size;                   // lr / (1 - beta1^t)
    float root;                        // 1 / sqrt(1 - beta2^t)
    float eps;
  };

  RODE_HOST_DEVICE static Coefficients coefficients(const Constants& c, double multiplier,
                                                    std::int64_t t) {
    const double lr = multiplier * c.lr;
    const double time = static_cast<double>(t);
    return {static_cast<float>(1 - lr * c.weight_decay),
            static_cast<float>(c.beta1),
            static_cast<float>(c.sign * (1 - c.beta1)),
            static_cast<float>(c.beta2),
            static_cast<float>(1 - c.beta2),
            static_cast<float>(lr / (1 - std::pow(c.beta1, time))),
            static_cast<float>(1 / std::sqrt(1 - std::pow(c.beta2, time))),
            static_cast<float>(c.eps)};
  }

  RODE_HOST_DEVICE static float element(const Coefficients& c, float w, float g,
                                        float (&moments)[kMoments]) {
    float &m = moments[0], &v = moments[1];
    m = c.beta1 * m + c.rest1 * g;
    v = c.beta2 * v + c.rest2 * g * g;
    const float update = c.step_size * m / (std::sqrt(v) * c.root + c.eps);
    if constexpr (kCautious) return cautious_sum(c.keep, w, -update);
    return c.keep * w - update;
  }
};
using AdamW = BasicAdamW<false>;
using CautiousAdamW = BasicAdamW<true>;

}  // namespace rode::rules
