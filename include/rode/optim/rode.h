// SPDX-License-Identifier: Apache-2.0
// RODE: the radius and the direction of every matrix follow separate rules.
//
// Xu, Qu, Sun, Zhuo: "RODE: A Radial-Orthogonal Decoupled Engine for Optimization", 2026,
// Algorithm 1. For a matrix W with gradient g and raw buffer B:
//
//   rho = ||W||,  U = W / rho,  P(X) = X - <X,U> U                 held if rho <= eps
//   B'  = momentum * P(B) + g
//   s   = <B',U> = <g,U>
//   M   = P(B') = B' - s U
//   v   = momentum * v + ||P(g)|| + eps,  gamma = clip(||M||/v, snr_min, 1)    (snr)
//   X_0 = M / ||M||                                                no direction if <= eps_ns
//   X_k+1 = P[a X + X (b A + c A^2)],  A = X^T X                   ns_steps times
//   Q = X_K,  q = ||Q||,  D = Q / q,  theta = lr * gamma * q
//   rho' = max(rho - lr_rho * s, floor * rho)                      radius = learned
//   U'  = U cos(theta) - D sin(theta)                              direction = geodesic
//   W'  = rho' U',  B <- B'
//
// Variants:
//   nesterov               X_0 from momentum * M + P(g)
//   reproject = guarded    after each reprojection except the last, X is multiplied by
//                          min(1, 1.25 / (1.2024 + |t|)), t = <X,U>: the published
//                          iteration can diverge; this one is bounded in exact arithmetic
//                          (tested in fp32, bf16 and fp16). While |t| <= 0.0476 they are
//                          equal bit for bit.
//                          Other coefficients have numbers of their own (docs/numerics.md)
//   reproject = every      exactly Algorithm 1
//   reproject = final      one reprojection, after the last iteration
//   coefficients = four    X_0 is divided by sqrt(||X_0^T X_0||_F) as well; four iterations
//   radius = adaptive      a <- 0.9 a + 0.1 s,  b <- 0.95 b + 0.05 s^2, bias-corrected;
//                          rho' = max(rho exp(-lr_rho a / (sqrt(b) + eps)), floor * rho)
//   radius = fixed         rho' = the norm at construction
//   radius_brake           an outward step of rho (learned: -lr_rho s > 0; adaptive: the exponent)
//                          is multiplied by it
//   radius_pull            the exponent of an adaptive radius below N = sqrt(fan-out) gains min(1,
//                          radius_pull * phi) log(N / rho); phi = lr * gamma, with scale = kernel
//                          times sqrt(min(fan-out, fan-in)). Not without a direction, with
//                          lr_rho = 0, or of a matrix that began at zero
//   radius_scope = rows    every row W_i has rho_i, U_i, s_i and rho'_i of its own, and P projects
//                          row by row; N = 1. Newton-Schulz sees the whole matrix, without a
//                          projection inside (needs reproject = final). With m rows, m = fan-out,
//                          Q_i = P(X_K)_i, q_i = ||Q_i||, theta_i = lr * gamma * sqrt(m) * q_i:
//                          of equal rows the same turn as with one radius. v and gamma stay one
//                          per matrix; rows of norm <= eps are held
//   scale = angle          theta = lr * gamma * q / sqrt(min(fan-out, fan-in)), so that the angle
//                          does not grow with the width
//   direction = retraction U' = (U - theta D) / ||U - theta D||
//   direction = fixed      U' = U
//   conditioner = none     Q = X_0, q = 1
//   normalize = rows       the rows of Q as Muon's (rode/optim/muon.h; row_eps = 1e-8), then
//                          Q <- P(Q); without a direction, v stays
//   on_zero = rest         a matrix with rho <= eps at construction (LoRA's B) has no direction: it
//                          is updated by AdamW from then on; the state records it for resumed runs
//   on_zero = start        its first start that is not zero gives it one, W' = -theta L D, with
//                          L = sqrt(m n) times the median root mean square of RODE's matrices that
//                          are not zero, else 1 / sqrt(fan-in); L is state (docs/numerics.md)
//   on_zero = hold         it is held, as in Algorithm 1
//
// cautious_decay is the rest's (rode/optim/adamw.h): matrices have no decay.
// Deviations from the paper: the defaults are not the published ones (scale = angle, adaptive
// radius, radius_pull, Nesterov, `guarded`, on_zero = rest); preset "paper" (RodeOptions::paper())
// is Algorithm 1. A start below 2^-23 of its terms (a gradient along W, to rounding) has no
// direction (docs/numerics.md). State: 4 bytes per matrix parameter (momentum), a few scalars per
// matrix or, with radius_scope = rows, per row of the fan-out; with normalize = rows 4 bytes per
// row.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rode/optim/common.h"

namespace rode {

class Rule;

enum class Radius { learned, adaptive, fixed };
enum class Direction { geodesic, retraction, fixed };
enum class Conditioner { newton_schulz, none };
enum class Reproject { guarded, every, final };
enum class RodeScale { kernel, angle };  // kernel: as published
enum class RadiusScope { matrix, rows };
// What becomes of a matrix that is zero when the optimizer is constructed.
enum class OnZero {
  rest,   // it is stepped by the rest's rule, from then on
  start,  // its first direction is that of its momentum
  hold,   // it stays zero: Algorithm 1
};

struct RodeOptions {
  // Directional rate; unset: with scale = angle 5e-2 (about the angle of a step, in radians), with
  // snr 0.2; with scale = kernel the paper's 1.206e-3, with snr 4.544e-3.
  std::optional<double> lr = {};
  // Radial rate; unset: 3e-2 (relative) for an adaptive radius; for a learned one the paper's
  // 2.438e-3, with snr 3.698e-5.
  std::optional<double> lr_rho = {};
  RodeScale scale = RodeScale::angle;  // kernel: theta = lr * gamma * q
  double momentum = 0.9;
  std::optional<int> ns_steps = {};  // unset: 5; 4 where coefficients = four
  Radius radius = Radius::adaptive;
  double radius_brake = 1;                         // factor on steps that lengthen the radius
  double radius_pull = 0.6;                        // of a short adaptive radius; 0: none
  RadiusScope radius_scope = RadiusScope::matrix;  // rows: needs reproject = final
  Direction direction = Direction::geodesic;
  Conditioner conditioner = Conditioner::newton_schulz;
  Reproject reproject = Reproject::guarded;
  Coefficients coefficients = Coefficients::jordan;  // others: not with reproject = every
  NsDType ns_dtype = NsDType::automatic;             // fp32 on the CPU, bf16 on CUDA
  NsForm ns_form = NsForm::automatic;                // gram needs reproject = final
  Normalize normalize = Normalize::none;
  double row_beta = 0.95;  // of the rows' mean squares
  bool nesterov = true;
  bool snr = false;
  double snr_min = 0.01;
  double floor = 1e-6;
  double eps = 1e-12;
  double eps_ns = 1e-12;
  OnZero on_zero = OnZero::rest;
  std::string splits = {};  // "PATTERN=3,PATTERN=768+256+256": blocks along fan-out
  // The rest: AdamW.
  // Unset: 2.915e-3 (with snr 2.974e-3) times lr / default lr.
  std::optional<double> lr_rest = {};
  double weight_decay_rest = 9e-4;
  Betas betas_rest = {0.9, 0.95};
  double eps_rest = 1e-8;
  bool cautious_decay = false;  // of the rest
  StorageOptions storage = {};

  bool operator==(const RodeOptions&) const = default;

  // Algorithm 1 with the rates selected for the paper's Qwen2-style model; by name "rode-paper".
  static RodeOptions paper();
};

std::shared_ptr<const Rule> make_rule(const RodeOptions& options);

}  // namespace rode
