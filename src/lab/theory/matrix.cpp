// SPDX-License-Identifier: Apache-2.0
// Sums, projections, and singular values from the eigenvalues of the smaller Gram matrix.
#include "lab/theory/matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rode::lab::theory {
namespace {

// A^T A, or A A^T where that is smaller.
Values smaller_gram(const Values& a, Extent extent) {
  const bool tall = extent.rows >= extent.cols;
  const std::size_t n = std::min(extent.rows, extent.cols);
  const std::size_t inner = std::max(extent.rows, extent.cols);
  Values rows = a;  // n rows of length `inner`
  if (tall) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < inner; ++k) rows[i * inner + k] = a[k * n + i];
    }
  }
  Values gram(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double s = 0;
      for (std::size_t k = 0; k < inner; ++k) s += rows[i * inner + k] * rows[j * inner + k];
      gram[i * n + j] = gram[j * n + i] = s;
    }
  }
  return gram;
}

// Householder reflections from the last row up; only the lower triangle of `a` is kept current.
// off[i] couples i - 1 and i.
void tridiagonalize(Values& a, std::size_t n, Values& diagonal, Values& off) {
  Values p(n);
  for (std::size_t i = n; i-- > 1;) {
    double* const v = &a[i * n];  // the row left of the diagonal becomes the reflection's vector
    double tail = 0;
    for (std::size_t k = 0; k + 1 < i; ++k) tail += v[k] * v[k];
    if (tail == 0) {
      off[i] = v[i - 1];
      continue;
    }
    const double length = std::sqrt(tail + v[i - 1] * v[i - 1]);
    off[i] = v[i - 1] > 0 ? -length : length;
    v[i - 1] -= off[i];
    const double half = (tail + v[i - 1] * v[i - 1]) / 2;  // the reflection is I - v v^T / half
    double overlap = 0;
    for (std::size_t j = 0; j < i; ++j) {
      double s = 0;
      for (std::size_t k = 0; k <= j; ++k) s += a[j * n + k] * v[k];
      for (std::size_t k = j + 1; k < i; ++k) s += a[k * n + j] * v[k];
      p[j] = s / half;
      overlap += p[j] * v[j];
    }
    for (std::size_t j = 0; j < i; ++j) p[j] -= overlap / (2 * half) * v[j];
    for (std::size_t j = 0; j < i; ++j) {
      for (std::size_t k = 0; k <= j; ++k) a[j * n + k] -= v[j] * p[k] + p[j] * v[k];
    }
  }
  for (std::size_t i = 0; i < n; ++i) diagonal[i] = a[i * n + i];
}

// How many eigenvalues of the tridiagonal matrix lie below x: sign changes of Sturm's sequence.
std::size_t below(double x, const Values& diagonal, const Values& off) {
  constexpr double kTiny = std::numeric_limits<double>::min();
  std::size_t count = 0;
  double pivot = 1;
  for (std::size_t i = 0; i < diagonal.size(); ++i) {
    const double coupling = i == 0 ? 0 : off[i] * off[i];
    pivot = diagonal[i] - x - coupling / pivot;
    if (std::abs(pivot) < kTiny) pivot = -kTiny;
    if (pivot < 0) ++count;
  }
  return count;
}

// The eigenvalue with `index` others below it, by halving [0, top].
double eigenvalue(std::size_t index, double top, const Values& diagonal, const Values& off) {
  double low = 0, high = top;
  for (int k = 0; k < 44; ++k) {
    const double middle = (low + high) / 2;
    (below(middle, diagonal, off) > index ? high : low) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

double dot(const Values& a, const Values& b) {
  double s = 0;
  for (std::size_t i = 0; i < a.size(); ++i) s += a[i] * b[i];
  return s;
}

double norm(const Values& a) { return std::sqrt(dot(a, a)); }

Values sum(double alpha, const Values& a, double beta, const Values& b) {
  Values out(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = alpha * a[i] + beta * b[i];
  return out;
}

Values tangent(const Values& x, const Values& u) { return sum(1, x, -dot(x, u), u); }

Values unit(const Values& a) { return sum(1 / norm(a), a, 0, a); }

double nuclear_norm(const Values& a, Extent extent) {
  const std::size_t n = std::min(extent.rows, extent.cols);
  Values gram = smaller_gram(a, extent), diagonal(n), off(n);
  tridiagonalize(gram, n, diagonal, off);
  double top = 0;  // the trace bounds the eigenvalues of a matrix that has none below 0
  for (const double d : diagonal) top += std::max(d, 0.0);
  double total = 0;
  for (std::size_t i = 0; i < n; ++i) total += std::sqrt(eigenvalue(i, top, diagonal, off));
  return total;
}

}  // namespace rode::lab::theory
