// SPDX-License-Identifier: Apache-2.0
// What the library's optimizer did on a problem, step by step, in the symbols of the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "lab/theory/matrix.h"
#include "lab/theory/problem.h"
#include "rode/diagnostics.h"
#include "rode/optim/rode.h"

namespace rode::lab::theory {

// Weights and buffers are stored in fp32, and a step combines three such arrays: eight roundings
// are more than it makes. Identities hold up to this.
inline constexpr double kRounding = 8 * 0x1.0p-24;

struct Step {
  Values weight = {};    // W_t
  Values gradient = {};  // G_t, of f
  Values estimate = {};  // g_t, as the optimizer gets it
  Values buffer = {};    // B_t, as it stores it
  double value = 0;      // f(W_t)
  MatrixDiagnostics seen = {};
};

struct Trace {
  Extent extent = {};
  RodeOptions options = {};  // those the checks take the rates from
  double noise = 0;          // standard deviation of every element of g - G
  double smoothness = 0;     // L
  // One more than there were steps: the last has neither estimate nor buffer.
  std::vector<Step> steps = {};
  bool overflowed = false;  // the step after the last one left weights that are not finite

  std::size_t count() const { return steps.size() - 1; }
  double lr() const { return options.lr.value_or(0); }  // as given: the theory has no default
  double lr_rho() const;                                // 0 where the radius is fixed
  double momentum() const { return options.momentum; }
  double noise_rho_sq() const { return noise * noise; }  // E (g^rho - G^rho)^2
  double noise_tan_sq() const;                           // E ||g^tan - G^tan||^2
};

// The largest angle of a run. Assumption 6 asks for at most pi/4: the theory says nothing about a
// run beyond it.
struct Turn {
  double theta = 0;
  std::size_t step = 0;
  double lr = 0, noise = 0;  // of the run
  bool inside() const { return theta <= std::numbers::pi / 4; }
};
Turn largest_turn(const Trace& trace);  // infinite where the run overflowed

struct FollowOptions {
  RodeOptions rode = {};
  std::size_t steps = 100;
  double noise = 0;
  std::uint64_t seed = 0;  // of the noise
  double multiplier = 1;   // what breaks a check in the tests: steps are this much longer
  double bias = 0;         // likewise: added to every element of g
};
Trace follow(const Quadratic& problem, const FollowOptions& options);

// One step taken apart. The iterate comes from the weights before and after it, not from a second
// implementation: Q = q (U_t cos(theta) - U_t+1) / sin(theta).
struct Parts {
  double rho = 0;              // rho_t
  Values u = {}, next_u = {};  // U_t, U_t+1
  double radial = 0;           // G^rho
  Values tangent = {};         // G^tan
  double estimate = 0;         // g^rho
  Values noise = {};           // g^tan - G^tan
  Values momentum = {};        // M_t = (1 - beta) P_t(B_t)
  double stored = 0;           // a_t = <B_t, U_t>
  Values iterate = {};         // Q_t
  Values displacement = {};    // W_t+1 - W_t
};
Parts parts_of(const Trace& trace, std::size_t t);

// The iterate that a fresh optimizer at `weight` makes of this gradient: Q of P(gradient), by one
// step of it. The rate is chosen for accuracy; learned options (SNR, rows) start afresh too.
Values iterate_of(const Values& weight, const Values& gradient, Extent extent, RodeOptions options);

}  // namespace rode::lab::theory
