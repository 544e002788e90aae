// SPDX-License-Identifier: Apache-2.0
// A small training problem whose optimum is known: a two-layer linear network learns a map.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rode/parameter.h"

namespace rode::cli {

// Row-major.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<float> data;

  Matrix(std::int64_t r, std::int64_t c)
      : rows(r), columns(c), data(static_cast<std::size_t>(r * c)) {}
};

// y = W2 W1 x + b against y = T x + c, with x Gaussian of an ill-conditioned diagonal
// covariance; batches are drawn anew every step from a seed. The least loss is 0, at
// W2 W1 = T, b = c, so gradients vanish there in every batch.
class DemoProblem {
 public:
  explicit DemoProblem(std::uint64_t seed);

  // The weights and the gradients of the last batch, as the engine takes them. The problem
  // must neither move nor be copied while they are in use.
  std::vector<Parameter> parameters();

  void draw_batch_gradient();  // of the next batch, at the current weights

  double loss() const;      // expected over all x, exactly
  double distance() const;  // ||W2 W1 - T|| / ||T||
  double weight_norm() const;

 private:
  Matrix product() const;

  Matrix w1_, w2_, bias_;
  Matrix grad_w1_, grad_w2_, grad_bias_;
  Matrix target_, target_bias_;
  std::vector<double> deviation_;  // of each input
  std::uint64_t seed_;
  std::uint64_t batches_ = 0;
};

}  // namespace rode::cli
