// SPDX-License-Identifier: Apache-2.0
// AdEMAMix: Adam with a second, much slower momentum.
//
// Pagliardini et al., 2024. With t counting the parameter's gradients from 1:
//
//   m1 <- beta1 m1 + (1 - beta1) g,   m2 <- beta3 m2 + (1 - beta3) g
//   v  <- beta2 v + (1 - beta2) g^2
//   W  <- W - lr [ (m1 / (1 - beta1^t) + alpha m2) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//                  + weight_decay W ]
//
// warmup_steps = T > 0, while t < T: alpha_t = alpha t / T and
//   beta3_t = f^-1((1 - t/T) f(beta1) + (t/T) f(beta3)),
//   f(b) = ln(0.5) / ln(b + 1e-8) - 1,   f^-1(x) = 0.5^(1 / (x + 1))
//
// The rest uses the same rule; lr_rest is lr and weight_decay_rest weight_decay unless set.
// Deviations: none. State: 12 bytes per parameter.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct AdEMAMixOptions {
  double lr = 2.237e-4;
  double weight_decay = 1e-2;
  std::array<double, 3> betas = {0.9, 0.999, 0.9999};
  double alpha = 2.0;
  double eps = 1e-8;
  std::int64_t warmup_steps = 0;
  std::optional<double> lr_rest = {};            // unset: lr
  std::optional<double> weight_decay_rest = {};  // unset: weight_decay
  StorageOptions storage = {};

  bool operator==(const AdEMAMixOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const AdEMAMixOptions& options);

}  // namespace rode
