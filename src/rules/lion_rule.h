// SPDX-License-Identifier: Apache-2.0
// Lion's element-wise equation (recurrence: rode/optim/lion.h).
#pragma once

#include <cstdint>

#include "rules/cautious_decay.h"
#include "rules/host_device.h"

namespace rode::rules {

struct LionConstants {
  double lr, weight_decay, beta1, beta2;
  bool cautious = false;  // then the rule is Cautious
};

template <bool kCautious>
struct BasicLion {
  using Constants = LionConstants;
  using Cautious = BasicLion<true>;
  static constexpr int kMoments = 1;
  static constexpr const char* kKeys[kMoments] = {"exp_avg"};
  static constexpr bool kQuantizesFirst = false;
  static constexpr bool kCountsSteps = false;
  static constexpr bool kAveragesSquares = false;

  struct Coefficients {
    float keep;  // 1 - lr * weight_decay
    float lr, beta1, rest1, beta2, rest2;
  };

  RODE_HOST_DEVICE static Coefficients coefficients(const Constants& c, double multiplier,
                                                    std::int64_t /*t*/) {
    const double lr = multiplier * c.lr;
    return {static_cast<float>(1 - lr * c.weight_decay),
            static_cast<float>(lr),
            static_cast<float>(c.beta1),
            static_cast<float>(1 - c.beta1),
            static_cast<float>(c.beta2),
            static_cast<float>(1 - c.beta2)};
  }

  RODE_HOST_DEVICE static float element(const Coefficients& c, float w, float g,
                                        float (&moments)[kMoments]) {
    float& m = moments[0];
    const float u = c.beta1 * m + c.rest1 * g;
    m = c.beta2 * m + c.rest2 * g;
    // 0 u is 0, or NaN if u is not finite: non-finite state must not pass as a sign.
    const float sign = static_cast<float>(u > 0) - static_cast<float>(u < 0) + 0.0F * u;
    if constexpr (kCautious) return cautious_sum(c.keep, w, -c.lr * sign);
    return c.keep * w - c.lr * sign;
  }
};
using Lion = BasicLion<false>;
using CautiousLion = BasicLion<true>;

}  // namespace rode::rules
