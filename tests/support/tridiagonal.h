// SPDX-License-Identifier: Apache-2.0
// The largest singular value of a matrix of a few hundred rows and columns, in milliseconds.
// spectral.h has a shorter way for small ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "support/tensors.h"

namespace rode::testing {

// A symmetric matrix made tridiagonal by reflections.
struct Tridiagonal {
  std::vector<double> diagonal, beside;

  explicit Tridiagonal(std::vector<double> a, std::size_t n) : diagonal(n), beside(n, 0.0) {
    std::vector<double> v(n), w(n);
    for (std::size_t k = 0; k + 2 < n; ++k) {
      double size = 0;
      for (std::size_t i = k + 1; i < n; ++i) size += (v[i] = a[i * n + k]) * v[i];
      size = std::sqrt(size);
      beside[k] = v[k + 1] > 0 ? -size : size;
      if (size == 0) continue;
      v[k + 1] -= beside[k];
      double vv = 0, along = 0;
      for (std::size_t i = k + 1; i < n; ++i) vv += v[i] * v[i];
      for (std::size_t i = k + 1; i < n; ++i) {
        double sum = 0;
        for (std::size_t j = k + 1; j < n; ++j) sum += a[i * n + j] * v[j];
        w[i] = 2 / vv * sum;
        along += w[i] * v[i];
      }
      for (std::size_t i = k + 1; i < n; ++i) w[i] -= along / vv * v[i];
      for (std::size_t i = k + 1; i < n; ++i) {
        for (std::size_t j = k + 1; j < n; ++j) a[i * n + j] -= v[i] * w[j] + w[i] * v[j];
      }
    }
    for (std::size_t i = 0; i < n; ++i) diagonal[i] = a[i * n + i];
    if (n > 1) beside[n - 2] = a[(n - 1) * n + n - 2];
  }

  // By the signs of the leading minors of T - x.
  bool all_below(double x) const {
    double q = 0;
    for (std::size_t i = 0; i < diagonal.size(); ++i) {
      q = diagonal[i] - x - (i > 0 ? beside[i - 1] * beside[i - 1] / q : 0);
      if (!(q < 0)) return false;
    }
    return true;
  }
};

// From above, from the Gram matrix in double. NaN where the matrix has any.
inline double largest_singular_value(const Extents& shape, const std::vector<double>& x) {
  const auto m = static_cast<std::size_t>(shape[0]), n = static_cast<std::size_t>(shape[1]);
  const std::size_t side = std::min(m, n), depth = std::max(m, n);
  std::vector<double> rows(x);  // as many as the short side
  if (m > n) {
    for (std::size_t i = 0; i < m * n; ++i) rows[i % n * m + i / n] = x[i];
  }
  std::vector<double> gram(side * side);
  double above = 0;
  for (std::size_t i = 0; i < side; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < depth; ++k) sum += rows[i * depth + k] * rows[j * depth + k];
      gram[i * side + j] = gram[j * side + i] = sum;
    }
    above += gram[i * side + i];  // the trace
  }
  if (!std::isfinite(above)) return std::nan("");
  const Tridiagonal t(std::move(gram), side);
  double below = 0;
  above *= 1 + 1e-12;
  for (int k = 0; k < 50; ++k) {
    const double middle = (below + above) / 2;
    (t.all_below(middle) ? above : below) = middle;
  }
  return std::sqrt(above);
}

}  // namespace rode::testing
