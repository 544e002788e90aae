// SPDX-License-Identifier: Apache-2.0
// A least-squares problem over matrices whose optimum is known.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "reference/matrix.h"
#include "support/tensors.h"

namespace rode::testing {

// f(W) = ||A (W - W*)||^2 / 2 with a Gaussian A, scaled so that A^T A is near the identity:
// with four times as many rows as columns its eigenvalues lie between 1/4 and 9/4.
class LeastSquares {
 public:
  LeastSquares(std::uint64_t seed, const Extents& shape, double radius_ratio)
      : shape_(shape), hessian_(0, 0) {
    Gaussian gaussian(seed);
    const auto rows = static_cast<std::size_t>(shape[0]);
    reference::Matrix a(4 * rows, rows);
    for (double& x : a.data) x = gaussian() / std::sqrt(static_cast<double>(a.rows));
    hessian_ = reference::multiply(reference::transpose(a), a);
    start_ = gaussian.values(count_of(shape), 0.2);
    const Values direction = unit(gaussian.values(count_of(shape)));
    optimum_ = sum(radius_ratio * norm(start_), direction, 0.0, direction);
  }

  const Extents& shape() const { return shape_; }
  const Values& start() const { return start_; }
  double distance_to_optimum(const Values& w) const { return distance(w, optimum_); }

  // A^T A (W - W*)
  Values gradient(const Values& w) const {
    reference::Matrix offset(static_cast<std::size_t>(shape_[0]),
                             static_cast<std::size_t>(shape_[1]));
    for (std::size_t i = 0; i < w.size(); ++i)
      offset.data[i] = static_cast<double>(w[i]) - static_cast<double>(optimum_[i]);
    const reference::Matrix g = reference::multiply(hessian_, offset);
    return {g.data.begin(), g.data.end()};
  }

 private:
  Extents shape_;
  reference::Matrix hessian_;
  Values start_, optimum_;
};

}  // namespace rode::testing
