// SPDX-License-Identifier: Apache-2.0
// FLOPs of Newton-Schulz, from which plans choose its form and benchmarks compute rates, and of
// SOAP, by which plans deal matrices to processes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rode/optim/common.h"
#include "rode/optim/rode.h"
#include "rules/newton_schulz_rule.h"

namespace rode::rules {

// Of one iteration on an m x n matrix, m >= n. With symmetric products one triangle of what is
// symmetric is computed: X^T X and (X^T X)^2 take half of a full product, X P takes a whole one.
inline double symmetric_iteration_flops(double m, double n) { return 3 * m * n * n + n * n * n; }
inline double full_iteration_flops(double m, double n) { return 4 * m * n * n + 2 * n * n * n; }

// Of all iterations in the standard form on a matrix that lies either way.
struct NsFlops {
  double symmetric, full;
};
inline NsFlops newton_schulz_flops(std::int64_t rows, std::int64_t cols, int iterations) {
  const auto m = static_cast<double>(std::max(rows, cols));
  const auto n = static_cast<double>(std::min(rows, cols));
  return {iterations * symmetric_iteration_flops(m, n), iterations * full_iteration_flops(m, n)};
}

// All iterations in the standard form and in the Gram form, in units of n^3 for r = m / n. A
// segment of the Gram form builds G = X^T X and applies Q once; each of its iterations squares G,
// and all but one of them multiply three pairs of matrices that commute (Q T, T G, T G T).
// `commuting`: what such a product takes, 1 where exactly one triangle is computed.
inline double standard_form_cost(double r, int steps) {
  return steps * symmetric_iteration_flops(r, 1);
}

inline double gram_form_cost(double r, Coefficients set, int steps, double commuting) {
  double cost = 0;
  for (int k = 0, end = 0; k < steps; k = end) {
    end = gram_segment_end(set, k, steps);
    cost += 3 * r + (end - k) + 3 * commuting * (end - k - 1);
  }
  return cost;
}

// The form that runs. The Gram form needs an iteration, none that is reprojected on its way, and
// symmetric products; `pays` is what the backend makes of the costs above.
inline bool takes_gram_form(NsForm asked, int steps, Reproject reproject, bool symmetric,
                            bool pays) {
  if (steps == 0 || reproject != Reproject::final || !symmetric) return false;
  return asked == NsForm::gram || (asked == NsForm::automatic && pays);
}

// SOAP on one side, of `extent`, of a tensor of `count` elements: its Gram matrix and two
// rotations, and a share of the steps that change its basis (a product and a QR factorization, with
// Q formed).
inline double soap_flops(double count, double extent, double frequency) {
  return 6 * count * extent + (2 + 8.0 / 3) * extent * extent * extent / frequency;
}

}  // namespace rode::rules
