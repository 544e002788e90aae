// SPDX-License-Identifier: Apache-2.0
// MARS-M: Muon on a variance-reduced gradient (approximate mode).
//
// Liu et al., "MARS-M: When variance reduction meets matrices", 2025. With c = gamma *
// momentum / (1 - momentum), G the gradient and G_prev the previous one (initially 0):
//
//   C  = G + c (G - G_prev);   if ||C|| > 1: C <- C / ||C||
//   M <- momentum * M + (1 - momentum) C
//   O  = NS(M / (||M|| + eps))             coefficients = four: NS(X / sqrt(||X^T X||_F)) of that X
//   normalize = rows: as Muon's (rode/optim/muon.h); row_eps = 1e-8
//   W <- (1 - lr * weight_decay) W - lr * 0.2 sqrt(max(m, n)) O
//   G_prev <- G
//
// cautious_decay: only elements with O W >= 0 decay (rode/optim/adamw.h), and so it is for the
// rest.
// Deviations: none. State: 8 bytes per matrix parameter; with normalize = rows 4 bytes per row of
// the fan-out.
#pragma once

#include <memory>
#include <optional>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct MarsMOptions {
  double lr = 4.097e-3;
  double weight_decay = 1e-2;
  double momentum = 0.95;
  double gamma = 0.025;
  std::optional<int> ns_steps = {};  // unset: 5; 4 where coefficients = four
  double eps = 1e-7;
  Coefficients coefficients = Coefficients::jordan;
  NsDType ns_dtype = NsDType::automatic;
  NsForm ns_form = NsForm::automatic;
  Normalize normalize = Normalize::none;
  double row_beta = 0.95;  // of the rows' mean squares
  // Unset: 2.693e-3 lr / 4.097e-3.
  std::optional<double> lr_rest = {};
  double weight_decay_rest = 9e-4;
  Betas betas_rest = {0.9, 0.95};
  double eps_rest = 1e-8;
  bool cautious_decay = false;  // of matrices and rest
  StorageOptions storage = {};

  bool operator==(const MarsMOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const MarsMOptions& options);

}  // namespace rode
