// SPDX-License-Identifier: Apache-2.0
// SOAP: Adam in the slowly changing eigenbasis of Shampoo's preconditioner.
//
// Vyas et al., "SOAP: Improving and stabilizing Shampoo using Adam", 2025. For a tensor
// W of rank >= 2 with gradient G; GG_i is G contracted with itself over all modes except i:
//
//   first gradient: L_i <- (1 - beta2) GG_i, Q_i = eigenvectors of L_i, descending;
//                   the weight does not change
//   then, with k = 1, 2, ... counting the gradients after the first:
//   G' = G rotated by every Q_i^T
//   m <- beta1 m + (1 - beta1) G',   v <- beta2 v + (1 - beta2) G'^2
//   N  = m / (sqrt(v) + eps), rotated back by every Q_i
//   W <- W - lr sqrt(1 - beta2^k) / (1 - beta1^k) N,   then W <- (1 - lr * weight_decay) W
//   L_i <- beta2 L_i + (1 - beta2) GG_i
//   every precondition_frequency-th k: columns of Q_i sorted by diag(Q_i^T L_i Q_i),
//     v permuted the same way, Q_i <- qr(L_i Q_i), m rotated from the old basis to the new
//
// A mode longer than max_precond_dim keeps the identity. Tensors are not flattened.
// Deviations: m is rotated only when the basis changes, which equals the authors' round
// trip at every step in exact arithmetic; `step` counts the first gradient too.
// State: 8 bytes per parameter and 8 bytes per element of each mode's square factor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct SoapOptions {
  double lr = 2.9e-3;
  double weight_decay = 1e-2;
  Betas betas = {0.95, 0.95};
  double eps = 1e-8;
  int precondition_frequency = 10;
  std::int64_t max_precond_dim = 10000;
  // Unset: 2.591e-3 lr / 2.9e-3.
  std::optional<double> lr_rest = {};
  double weight_decay_rest = 9e-4;
  Betas betas_rest = {0.9, 0.95};
  double eps_rest = 1e-8;
  StorageOptions storage = {};

  bool operator==(const SoapOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const SoapOptions& options);

}  // namespace rode
