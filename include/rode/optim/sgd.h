// SPDX-License-Identifier: Apache-2.0
// SGD with heavy-ball momentum and coupled weight decay, like torch.optim.SGD.
//
//   d  = g + weight_decay W
//   B <- momentum * B + d        (B = d at the first step: B starts at 0)
//                                (momentum = 0: B stays unchanged, and W - lr d)
//   W <- W - lr B                (nesterov: W - lr (d + momentum * B))
//
// maximize: g is the negated gradient.
// The rest uses the same rule; lr_rest is lr and weight_decay_rest weight_decay unless set.
// Deviations: none. State: 4 bytes per parameter.
#pragma once

#include <memory>
#include <optional>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct SgdOptions {
  double lr = 1e-1;
  double weight_decay = 5e-4;
  double momentum = 0.9;
  bool nesterov = false;
  bool maximize = false;
  std::optional<double> lr_rest = {};            // unset: lr
  std::optional<double> weight_decay_rest = {};  // unset: weight_decay
  StorageOptions storage = {};

  bool operator==(const SgdOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const SgdOptions& options);

}  // namespace rode
