// SPDX-License-Identifier: Apache-2.0
// Which jobs a step may touch, and whether it has left finite weights.
//
// All of it is told from sums that a step makes anyway. A NaN or Inf among the weights before the
// step makes ||W||^2 not finite, one among those that were stored ||W' - W||^2, also where bf16
// rounded to Inf. Finite fp32 weights cannot: squares of at most 2^130 are far inside double's
// range, however many are added.
#pragma once

#include <cfloat>

#include "rules/host_device.h"
#include "rules/matrix_step.h"

namespace rode::rules {

// Largest squared norms of a gradient. A momentum of 0.99 sums a hundred gradients; an element of
// 1e36 still fits fp32 then.
inline constexpr double kMomentumLimit = 1e72;
// Largest squared norm of a momentum: with such a gradient added, every element still fits fp32, so
// that nothing but finite numbers is stored.
inline constexpr double kBufferLimit = 2.8e76;  // (FLT_MAX / 2)^2
// Of rules that average squares in fp32.
inline constexpr double kSquaresLimit = 3.4e38;
// Largest bound of new weights, where they are judged before they are written.
inline constexpr double kWeightLimit = static_cast<double>(FLT_MAX);

// What measuring tells of one job.
struct Verdict {
  bool finite = true;         // the gradient is, and its squared norm within the rule's limit
  bool weight_finite = true;  // weights and momentum are, and the momentum within its limit, where
                              // they were measured
};

// Whether a gradient with this squared norm is finite and within the rule's limit. A comparison
// that is false for NaN and for infinity.
RODE_HOST_DEVICE inline bool finite_gradient(double gg, double most) { return gg <= most; }

// Arrays that were not measured have the sum 0.
RODE_HOST_DEVICE inline Verdict judge(const MatrixProducts& sums, double most_gg) {
  return {finite_gradient(sums.gg, most_gg), sums.bb <= kBufferLimit && sums.tt <= DBL_MAX};
}

// Whether one job's verdict refuses the whole step. `refuse_all`: a bad gradient leaves every job
// alone, not only those of its parameter.
RODE_HOST_DEVICE inline bool refuses_step(const Verdict& verdict, bool refuse_all) {
  return !verdict.weight_finite || (refuse_all && !verdict.finite);
}

// Whether a job is stepped. `bad_parameter`: one of its parameter's jobs has a bad gradient.
RODE_HOST_DEVICE inline bool lives(bool active, bool refused, bool bad_parameter) {
  return active && !refused && !bad_parameter;
}

// After the step, from ||W||^2 before it and ||W' - W||^2.
RODE_HOST_DEVICE inline bool ended_finite(double ww, double dd) {
  return ww + dd <= DBL_MAX;  // false for NaN
}

}  // namespace rode::rules
