// SPDX-License-Identifier: Apache-2.0
// The largest singular value of a small matrix, from above.
#pragma once

#include <cmath>

#include "reference/matrix.h"

namespace rode::testing {

// sigma_1 <= tr((X^T X)^p)^(1/2p) <= n^(1/2p) sigma_1: with p = 2^20 the right side is within
// 2e-6 of sigma_1 for n <= 64. Power iteration would give a lower bound, which a test of an upper
// bound cannot use.
inline double largest_singular_value(const reference::Matrix& x) {
  constexpr int kSquarings = 20;
  const bool tall = x.rows >= x.cols;
  reference::Matrix a = tall ? reference::multiply(reference::transpose(x), x)
                             : reference::multiply(x, reference::transpose(x));
  double log_scale = 0, weight = 1;  // (X^T X)^p = a exp(p log_scale), p = 1 / weight
  for (int k = 0;; ++k) {
    double trace = 0;
    for (std::size_t i = 0; i < a.rows; ++i) trace += a(i, i);
    if (!(trace > 0)) return trace == 0 ? 0 : trace;  // NaN passes
    log_scale += weight * std::log(trace);
    if (k == kSquarings) return std::exp(0.5 * log_scale);
    a = reference::scale(1 / trace, a);
    a = reference::multiply(a, a);
    weight /= 2;
  }
}

}  // namespace rode::testing
