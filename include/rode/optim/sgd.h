// SPDX-License-Identifier: Apache-2.0
// SGD with heavy-ball momentum and coupled weight decay, as torch.optim.SGD.
//
//   d  = g + weight_decay W
//   B <- momentum * B + d        (B = d at the first step: B starts at 0)
//                                (momentum = 0: B stays as it is, and W - lr d)
//   W <- W - lr B                (nesterov: W - lr (d + momentum * B))
//
// maximize: g is the negated gradient.
// The rest takes the same rule with lr_rest and weight_decay_rest.
// Deviations: none. State: 4 bytes per parameter.
#pragma once

#include <memory>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct SgdOptions {
  double lr = 1e-1;
  double weight_decay = 5e-4;
  double momentum = 0.9;
  bool nesterov = false;
  bool maximize = false;
  double lr_rest = 1e-1;
  double weight_decay_rest = 5e-4;
  StorageOptions storage = {};

  bool operator==(const SgdOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const SgdOptions& options);

}  // namespace rode
