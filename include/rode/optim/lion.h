// SPDX-License-Identifier: Apache-2.0
// Lion: the sign of an interpolated momentum.
//
// Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, Algorithm 2:
//
//   u  = sign(beta1 m + (1 - beta1) g),   sign(0) = 0
//   W <- W - lr (u + weight_decay W)
//   m <- beta2 m + (1 - beta2) g
//
// cautious_decay: only elements with u W >= 0 decay (rode/optim/adamw.h).
// The rest uses the same rule; lr_rest is lr and weight_decay_rest weight_decay unless set.
// Deviations: none. State: 4 bytes per parameter.
#pragma once

#include <memory>
#include <optional>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct LionOptions {
  double lr = 1e-4;
  double weight_decay = 0.1;
  Betas betas = {0.9, 0.99};
  bool cautious_decay = false;
  std::optional<double> lr_rest = {};            // unset: lr
  std::optional<double> weight_decay_rest = {};  // unset: weight_decay
  StorageOptions storage = {};

  bool operator==(const LionOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const LionOptions& options);

}  // namespace rode
