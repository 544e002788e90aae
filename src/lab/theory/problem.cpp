// SPDX-License-Identifier: Apache-2.0
// The quadratic's Hessian is a reflected diagonal, so its eigenvalues are exact.
#include "lab/theory/problem.h"

#include <cmath>
#include <numbers>

namespace rode::lab::theory {
namespace {

// (I - 2 v v^T) x, column by column.
void reflect(Values& x, const Values& v, Extent extent) {
  for (std::size_t j = 0; j < extent.cols; ++j) {
    double along = 0;
    for (std::size_t i = 0; i < extent.rows; ++i) along += v[i] * x[i * extent.cols + j];
    for (std::size_t i = 0; i < extent.rows; ++i) x[i * extent.cols + j] -= 2 * along * v[i];
  }
}

}  // namespace

double Gaussian::next() {
  const double radius = std::sqrt(-2 * std::log(1 - random_.uniform()));
  return radius * std::cos(2 * std::numbers::pi * random_.uniform());
}

Values Gaussian::values(std::size_t count, double deviation) {
  Values out(count);
  for (double& x : out) x = deviation * next();
  return out;
}

Quadratic::Quadratic(std::uint64_t seed, const QuadraticOptions& options) : options_(options) {
  Gaussian gaussian(derive_seed(seed, {1}));
  const std::size_t rows = options.extent.rows, curved = rows - options.flat;
  reflection_ = unit(gaussian.values(rows, 1));
  eigenvalues_.assign(rows, 0);
  for (std::size_t i = 0; i < curved; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(curved - 1);
    eigenvalues_[i] = options.lowest + share * (options.highest - options.lowest);
  }
  const auto direction = [&] { return unit(gaussian.values(options.extent.count(), 1)); };
  const Values from = direction(), to = direction();
  start_ = sum(options.start_norm, from, 0, from);
  optimum_ = sum(options.optimum_norm, to, 0, to);
}

Values Quadratic::gradient(const Values& w) const {
  const Extent extent = options_.extent;
  Values x = sum(1, w, -1, optimum_);
  reflect(x, reflection_, extent);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= eigenvalues_[i / extent.cols];
  reflect(x, reflection_, extent);
  return x;
}

double Quadratic::value(const Values& w) const {
  return dot(sum(1, w, -1, optimum_), gradient(w)) / 2;
}

}  // namespace rode::lab::theory
