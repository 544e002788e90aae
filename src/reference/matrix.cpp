// SPDX-License-Identifier: Apache-2.0
// Matrix products, Householder QR and Jacobi eigenvectors in double precision.
#include "reference/matrix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rode/error.h"

namespace rode::reference {
namespace {

void require(bool condition, const char* what) {
  if (!condition) throw Error(ErrorKind::shape, "reference matrix", what);
}

// One two-sided rotation in the plane (p, q) that makes a(p, q) zero; the same rotation is
// accumulated in the columns of v.
void rotate(Matrix& a, Matrix& v, std::size_t p, std::size_t q) {
  const double ratio = (a(q, q) - a(p, p)) / (2.0 * a(p, q));
  // The smaller root of t^2 + 2 ratio t - 1 = 0: an angle of at most 45 degrees.
  const double t = (ratio >= 0.0 ? 1.0 : -1.0) / (std::abs(ratio) + std::hypot(ratio, 1.0));
  const double c = 1.0 / std::hypot(t, 1.0);
  const double s = t * c;
  for (std::size_t k = 0; k < a.rows; ++k) {
    const double kp = a(k, p), kq = a(k, q);
    a(k, p) = c * kp - s * kq;
    a(k, q) = s * kp + c * kq;
  }
  for (std::size_t k = 0; k < a.rows; ++k) {
    const double pk = a(p, k), qk = a(q, k);
    a(p, k) = c * pk - s * qk;
    a(q, k) = s * pk + c * qk;
  }
  a(p, q) = a(q, p) = 0.0;
  for (std::size_t k = 0; k < v.rows; ++k) {
    const double kp = v(k, p), kq = v(k, q);
    v(k, p) = c * kp - s * kq;
    v(k, q) = s * kp + c * kq;
  }
}

}  // namespace

Matrix identity(std::size_t n) {
  Matrix result(n, n);
  for (std::size_t i = 0; i < n; ++i) result(i, i) = 1.0;
  return result;
}

Matrix transpose(const Matrix& a) {
  Matrix result(a.cols, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.cols; ++j) result(j, i) = a(i, j);
  return result;
}

// The order i-k-j walks rows of b and of the result, so that a 2048 x 768
// Newton-Schulz takes seconds rather than minutes.
Matrix multiply(const Matrix& a, const Matrix& b) {
  require(a.cols == b.rows, "the inner extents of a product differ");
  Matrix result(a.rows, b.cols);
  for (std::size_t i = 0; i < a.rows; ++i) {
    double* out = result.data.data() + i * b.cols;
    for (std::size_t k = 0; k < a.cols; ++k) {
      const double factor = a(i, k);
      const double* row = b.data.data() + k * b.cols;
      for (std::size_t j = 0; j < b.cols; ++j) out[j] += factor * row[j];
    }
  }
  return result;
}

Matrix combine(double alpha, const Matrix& a, double beta, const Matrix& b) {
  require(a.rows == b.rows && a.cols == b.cols, "the shapes of a sum differ");
  Matrix result(a.rows, a.cols);
  for (std::size_t i = 0; i < a.data.size(); ++i)
    result.data[i] = alpha * a.data[i] + beta * b.data[i];
  return result;
}

Matrix scale(double alpha, const Matrix& a) {
  Matrix result = a;
  for (double& x : result.data) x *= alpha;
  return result;
}

double inner(const Matrix& a, const Matrix& b) {
  require(a.rows == b.rows && a.cols == b.cols, "the shapes of an inner product differ");
  return std::inner_product(a.data.begin(), a.data.end(), b.data.begin(), 0.0);
}

double norm(const Matrix& a) { return std::sqrt(inner(a, a)); }

Matrix orthogonal_factor(const Matrix& a) {
  require(a.rows == a.cols, "the orthogonal factor needs a square matrix");
  const std::size_t n = a.rows;
  Matrix r = a;
  std::vector<std::vector<double>> reflectors;  // unit vectors; empty: no reflection
  for (std::size_t k = 0; k < n; ++k) {
    double length = 0.0;
    for (std::size_t i = k; i < n; ++i) length = std::hypot(length, r(i, k));
    std::vector<double> v;
    if (length > 0.0) {
      v.assign(n, 0.0);
      for (std::size_t i = k; i < n; ++i) v[i] = r(i, k) / length;
      v[k] += v[k] >= 0.0 ? 1.0 : -1.0;  // away from cancellation
      const double size = std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
      for (double& x : v) x /= size;
      for (std::size_t j = k; j < n; ++j) {
        double projection = 0.0;
        for (std::size_t i = k; i < n; ++i) projection += v[i] * r(i, j);
        for (std::size_t i = k; i < n; ++i) r(i, j) -= 2.0 * projection * v[i];
      }
    }
    reflectors.push_back(v);
  }
  Matrix q = identity(n);
  for (std::size_t k = n; k-- > 0;) {
    const std::vector<double>& v = reflectors[k];
    if (v.empty()) continue;
    for (std::size_t j = 0; j < n; ++j) {
      double projection = 0.0;
      for (std::size_t i = k; i < n; ++i) projection += v[i] * q(i, j);
      for (std::size_t i = k; i < n; ++i) q(i, j) -= 2.0 * projection * v[i];
    }
  }
  return q;
}

Matrix eigenvectors(const Matrix& symmetric) {
  require(symmetric.rows == symmetric.cols, "eigenvectors need a square matrix");
  const std::size_t n = symmetric.rows;
  Matrix a = symmetric, v = identity(n);
  const double negligible = 1e-20 * norm(a);
  constexpr int kMostSweeps = 60;  // convergence is quadratic: ten are typical
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double largest = 0.0;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        largest = std::max(largest, std::abs(a(p, q)));
        if (std::abs(a(p, q)) > negligible) rotate(a, v, p, q);
      }
    }
    if (largest <= negligible) break;
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return a(i, i) > a(j, j); });
  Matrix result(n, n);
  for (std::size_t j = 0; j < n; ++j)
    for (std::size_t i = 0; i < n; ++i) result(i, j) = v(i, order[j]);
  return result;
}

}  // namespace rode::reference
