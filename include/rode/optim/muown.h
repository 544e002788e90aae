// SPDX-License-Identifier: Apache-2.0
// Muown: Muon on the direction of every row, Adam on its length.
//
// Lion, Huebler, Li, Orvieto, He, "Muown: Row-norm control for Muon optimization", 2026
// (arXiv 2605.10797), as in the authors' code (kcc-lion/muown, optim/muown.py). For a matrix W
// (m x n, m = fan-out) with gradient G, every row i is W_i = g_i v_i / n_i, n_i = ||v_i||; at the
// start g_i = n_i = ||W_i||:
//
//   u_i = W_i / g_i,  s_i = <G_i, u_i>,  D_i = (g_i / n_i) (G_i - s_i u_i)
//   B <- momentum * B + D
//   S  = D + momentum * B   (nesterov), else B
//   O  = NS(S / (||S|| + eps))             coefficients = four: NS(X / sqrt(||X^T X||_F)) of that X
//   v'_i = n_i u_i - lr * 0.2 sqrt(max(m, n)) O_i,  n'_i = ||v'_i||
//   a_i <- beta1 a_i + (1 - beta1) s_i,  b_i <- beta2 b_i + (1 - beta2) s_i^2, bias-corrected
//   g'_i = g_i - lr_rho a_i / (sqrt(b_i) + eps_radius)
//   W'_i = g'_i v'_i / n'_i - lr * weight_decay * W_i;  with decay g'_i <- ||W'_i||
//
// Deviations from the authors' code: products may be fp32; fused matrices are split where `splits`
// says so, not where m = 3 n; |g_i| is ||W_i|| as stored (the state keeps the sign), so that rows
// that somebody else has scaled are taken as they are; a row of zeros, which has no direction, is
// held, and a matrix that is zero at construction is the rest's. lr_rho is an option; there it is
// lr, and here it stays 1e-3 where only lr is given. lr is 1e-3 (there 3e-4, set by experiment),
// the rest's weight decay 9e-4 (there 0), and their variant for several processes, which decays g
// too, is not taken over. State: 4 bytes per matrix parameter, 16 bytes per row of the fan-out.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rode/optim/common.h"

namespace rode {

class Rule;

struct MuownOptions {
  double lr = 1e-3;
  // Rate of the lengths; unset: 1e-3, whatever lr is (the authors have one rate for both).
  std::optional<double> lr_rho = {};
  double weight_decay = 0;
  double momentum = 0.95;
  bool nesterov = true;
  Betas betas_radius = {0.9, 0.95};
  double eps_radius = 1e-8;
  std::optional<int> ns_steps = {};  // unset: 5; 4 where coefficients = four
  double eps = 1e-7;
  Coefficients coefficients = Coefficients::jordan;
  NsDType ns_dtype = NsDType::automatic;
  NsForm ns_form = NsForm::automatic;
  std::string splits = {};
  // Unset: lr.
  std::optional<double> lr_rest = {};
  double weight_decay_rest = 9e-4;
  Betas betas_rest = {0.9, 0.95};
  double eps_rest = 1e-8;
  StorageOptions storage = {};

  bool operator==(const MuownOptions&) const = default;
};

std::shared_ptr<const Rule> make_rule(const MuownOptions& options);

}  // namespace rode
