// SPDX-License-Identifier: Apache-2.0
// AdamW: Adam with decoupled weight decay.
//
// Loshchilov & Hutter, 2019. With t counting the parameter's gradients from 1:
//
//   W <- (1 - lr * weight_decay) W
//   m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
//   W <- W - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// maximize: g is the negated gradient.
// cautious_decay (Chen et al., "Cautious Weight Decay", 2025): only the elements decay whose weight
// and update, what lr multiplies in the last line, do not have opposite signs: u W >= 0.
// The rest uses the same rule; lr_rest is lr and weight_decay_rest weight_decay unless set.
// Deviations: none (torch.optim.AdamW to rounding). State: 8 bytes per parameter.
#pragma once

#include <memory>
#include <optional>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct AdamWOptions {
  double lr = 1.544e-4;
  double weight_decay = 1e-2;
  Betas betas = {0.9, 0.95};
  double eps = 1e-8;
  bool maximize = false;
  bool cautious_decay = false;
  std::optional<double> lr_rest = {};            // unset: lr
  std::optional<double> weight_decay_rest = {};  // unset: weight_decay
  StorageOptions storage = {};

  bool operator==(const AdamWOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const AdamWOptions& options);

}  // namespace rode
