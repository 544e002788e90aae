// SPDX-License-Identifier: Apache-2.0
// Adafactor with an explicit rate: no relative step, no parameter scaling, no warm-up.
//
// Shazeer & Stern, 2018, as in Hugging Face transformers with relative_step, scale_parameter
// and warmup_init off. With t counting the parameter's gradients from 1:
//
//   b = 1 - t^decay_rate,   S = g^2 + eps
//   rank >= 2 (over the last two dimensions):
//     row <- b row + (1 - b) mean over columns of S,   col likewise over rows
//     u = g (row / mean(row))^-1/2 col^-1/2
//   rank < 2: v <- b v + (1 - b) S,   u = g v^-1/2
//   u <- u / max(1, RMS(u) / clip_threshold)
//   W <- (1 - lr * weight_decay) W - lr u
//
// Deviations: none. State: rows + columns, or 4 bytes per parameter for rank < 2.
#pragma once

#include <memory>
#include <optional>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct AdafactorOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double eps = 1e-30;
  double clip_threshold = 1.0;
  double decay_rate = -0.8;
  std::optional<double> lr_rest = {};            // unset: lr
  std::optional<double> weight_decay_rest = {};  // unset: weight_decay
  StorageOptions storage = {};

  bool operator==(const AdafactorOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const AdafactorOptions& options);

}  // namespace rode
