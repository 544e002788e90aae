// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz in the plain form: a X + X (b A + c A^2), A = X^T X.
#include "reference/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <map>
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
  static const std::vector<Quintic> four = {{8.05794, -22.05219, 15.54071},
                                            {3.92635, -2.75379, 0.49735},
                                            {3.45447, -2.48755, 0.47751},
                                            {2.51153, -1.85245, 0.43883}};
  const std::vector<Quintic>& set = coefficients == "jordan" ? jordan
                                    : coefficients == "you"  ? you
                                    : coefficients == "four" ? four
                                                             : polar_express;
  return set[std::min(static_cast<std::size_t>(k), set.size() - 1)];
}

Range range(const std::string& coefficients, std::int64_t k) {
  static const std::map<std::string, std::vector<Range>> table = {
      {"jordan", {{1.25, 1.2024}}},
      {"you",
       {{1.3207, 1.2732}, {1.3182, 1.2700}, {1.3130, 1.2473}, {1.2543, 1.1468}, {1.2121, 1.1451}}},
      {"polar_express",
       {{1.02, 1.9917}, {2.0316, 1.9664}, {2.0063, 1.8693}, {1.9092, 1.5756}, {1.5836, 1.1412}}},
      {"four", {{1.02, 1.9754}, {2.0148, 1.9013}, {1.9393, 1.6548}, {1.6547, 1.2070}}}};
  const std::vector<Range>& set = table.at(coefficients);
  return set[std::min(static_cast<std::size_t>(k), set.size() - 1)];
}

double margin(const std::string& coefficients) {
  return coefficients == "polar_express" ? 1.02 : 1.0;
}

std::string coefficient_set(const Settings& settings) {
  return choice(settings, "coefficients", {"jordan", "polar_express", "you", "four"});
}

std::int64_t iterations(const Settings& settings, const std::string& coefficients) {
  const std::int64_t steps = integer(settings, "ns_steps", 0);
  if (coefficients == "four" && steps != 4)
    refuse("ns_steps", std::to_string(steps), "4 where coefficients is four");
  return steps;
}

Matrix scaled_start(const Matrix& x, const std::string& coefficients) {
  if (coefficients != "four") return x;
  const Matrix gram = x.rows < x.cols ? multiply(x, transpose(x)) : multiply(transpose(x), x);
  const double least = std::pow(static_cast<double>(gram.rows), -0.25);
  return scale(1.0 / std::max(std::sqrt(norm(gram)), least), x);
}

Matrix newton_schulz_step(const Matrix& x, const Quintic& p) {
  // The polynomial is odd, so it commutes with transposition; the short side is used only because
  // its Gram matrix is smaller.
  if (x.rows < x.cols) return transpose(newton_schulz_step(transpose(x), p));
  const Matrix gram = multiply(transpose(x), x);
  const Matrix inside = combine(p.b, gram, p.c, multiply(gram, gram));
  return combine(p.a, x, 1.0, multiply(x, inside));
}

Matrix newton_schulz(Matrix x, const std::string& coefficients, std::int64_t steps) {
  x = scaled_start(x, coefficients);
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
