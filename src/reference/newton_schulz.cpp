// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz in the plain form: a X + X (b A + c A^2), A = X^T X.
#include "reference/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/settings.h"

namespace rode::reference {

Quintic quintic(const std::string& coefficients, std::int64_t k) {
  static const std::vector<Quintic> jordan = {{3.4445, -4.7750, 2.0315}};
  static const std::vector<Quintic> you = {{4.0848, -6.8946, 2.9270},
                                           {3.9505, -6.3029, 2.6377},
                                           {3.7418, -5.5913, 2.3037},
                                           {2.8769, -3.1427, 1.2046},
                                           {2.8366, -3.0525, 1.2012}};
  static const std::vector<Quintic> polar_express = {{8.15655, -22.48329, 15.87877},
                                                     {4.04293, -2.80892, 0.50002},
                                                     {3.89167, -2.77248, 0.50606},
                                                     {3.28575, -2.36813, 0.46449},
                                                     {2.34654, -1.70978, 0.42324}};
  const std::vector<Quintic>& set = coefficients == "jordan" ? jordan
                                    : coefficients == "you"  ? you
                                                             : polar_express;
  return set[std::min(static_cast<std::size_t>(k), set.size() - 1)];
}

double margin(const std::string& coefficients) {
  return coefficients == "polar_express" ? 1.02 : 1.0;
}

std::string coefficient_set(const Settings& settings) {
  return choice(settings, "coefficients", {"jordan", "polar_express", "you"});
}

Matrix newton_schulz_step(const Matrix& x, const Quintic& p) {
  // The polynomial is odd, so it commutes with transposition; the Gram matrix is
  // taken on the short side only because it is smaller.
  if (x.rows < x.cols) return transpose(newton_schulz_step(transpose(x), p));
  const Matrix gram = multiply(transpose(x), x);
  const Matrix inside = combine(p.b, gram, p.c, multiply(gram, gram));
  return combine(p.a, x, 1.0, multiply(x, inside));
}

Matrix newton_schulz(Matrix x, const std::string& coefficients, std::int64_t steps) {
  for (std::int64_t k = 0; k < steps; ++k) x = newton_schulz_step(x, quintic(coefficients, k));
  return x;
}

bool normalizes_rows(const Settings& settings) {
  return settings.contains("normalize") &&
         choice(settings, "normalize", {"none", "rows"}) == "rows";
}

Matrix normalized_rows(const Matrix& o, double beta, double* averages) {
  const double size = norm(o);
  if (size == 0.0) return o;
  Matrix result = o;
  for (std::size_t i = 0; i < o.rows; ++i) {
    double mean = 0.0;
    for (std::size_t j = 0; j < o.cols; ++j) mean += o(i, j) * o(i, j);
    mean /= static_cast<double>(o.cols);
    averages[i] = beta * averages[i] + (1.0 - beta) * mean;
    for (std::size_t j = 0; j < o.cols; ++j) result(i, j) /= std::sqrt(averages[i]) + 1e-8;
  }
  return scale(size / norm(result), result);
}

}  // namespace rode::reference
