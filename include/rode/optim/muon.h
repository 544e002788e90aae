// SPDX-License-Identifier: Apache-2.0
// Muon: orthogonalised momentum, with the original or the RMS-matched scale.
//
// Jordan et al., "Muon", 2024; Liu et al., "Muon is scalable for LLM training", 2025.
// For a matrix W (m x n, m = fan-out) with gradient g and buffer B:
//
//   B <- momentum * B + (1 - momentum) g
//   S  = (1 - momentum) g + momentum * B   (nesterov), else B
//   O  = NS(S / max(||S||, eps))           coefficients = four: NS(X / sqrt(||X^T X||_F)) of that X
//   normalize = rows (NorMuon; Li et al., 2025): row i of O, of n elements, row_eps = 1e-8:
//     v_i <- row_beta v_i + (1 - row_beta) ||O_i||^2 / n,  O'_i = O_i / (sqrt(v_i) + row_eps)
//     O <- O' ||O|| / ||O'||;  without a momentum to follow (O = 0), v stays
//   W <- (1 - lr * weight_decay) W - lr * scale * O
//   scale: original sqrt(max(1, m/n)),  rms 0.2 sqrt(max(m, n))
//
// cautious_decay: only elements with O W >= 0 decay (rode/optim/adamw.h), and so it is for the
//   rest; not with constraint = normproj and weight_decay > 0
// constraint = normproj:  then W <- R W / ||W||, R = ||W|| at construction
// constraint = hyperball: W <- R Norm(W - lr R Norm(O)), no decay (Wen et al., 2026)
//
// Deviations: none from torch.optim.Muon except the precision of the products.
// State: 4 bytes per matrix parameter; with normalize = rows 4 bytes per row of the fan-out.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rode/optim/common.h"

namespace rode {

class Rule;

enum class MuonScale { original, rms };
enum class MuonConstraint { none, normproj, hyperball };

struct MuonOptions {
  std::optional<double> lr = {};  // unset: 2.257e-2; with scale = rms 5.160e-3
  double weight_decay = 0;
  double momentum = 0.95;
  bool nesterov = true;
  std::optional<int> ns_steps = {};  // unset: 5; 4 where coefficients = four
  double eps = 1e-7;
  MuonScale scale = MuonScale::original;
  MuonConstraint constraint = MuonConstraint::none;
  Coefficients coefficients = Coefficients::jordan;
  NsDType ns_dtype = NsDType::automatic;
  NsForm ns_form = NsForm::automatic;
  Normalize normalize = Normalize::none;
  double row_beta = 0.95;  // of the rows' mean squares
  std::string splits = {};
  // Unset: 2.897e-3 (with scale = rms 2.913e-3) times lr / default lr.
  std::optional<double> lr_rest = {};
  double weight_decay_rest = 9e-4;
  Betas betas_rest = {0.9, 0.95};
  double eps_rest = 1e-8;
  bool cautious_decay = false;  // of matrices and rest
  StorageOptions storage = {};

  bool operator==(const MuonOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const MuonOptions& options);

}  // namespace rode
