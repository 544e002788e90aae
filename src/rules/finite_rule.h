// SPDX-License-Identifier: Apache-2.0
// Whether a step has left finite weights, told from the sums that it makes anyway.
//
// A NaN or Inf among the weights before the step makes ||W||^2 not finite, one among those that
// were stored ||W' - W||^2, also where bf16 rounded to Inf. Finite fp32 weights cannot: squares
// of at most 2^130 are far inside of double's range, however many are added.
#pragma once

#include <cfloat>

#include "rules/host_device.h"

namespace rode::rules {

RODE_HOST_DEVICE inline bool ended_finite(double ww, double dd) {
  return ww + dd <= DBL_MAX;  // false for NaN
}

}  // namespace rode::rules
