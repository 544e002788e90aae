// SPDX-License-Identifier: Apache-2.0
// Deterministic tensors for the tests: the same numbers with every library and compiler.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "rode/tensor_view.h"

namespace rode::testing {

using Extents = std::vector<std::int64_t>;
using Values = std::vector<float>;

inline std::size_t count_of(const Extents& shape) {
  return static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

inline Shape shape_of(const Extents& shape) { return Shape(std::span(shape)); }
std::string to_string(const Extents& shape);  // "33x17"

// Box-Muller rather than std::normal_distribution, whose numbers depend on the library.
class Gaussian {
 public:
  explicit Gaussian(std::uint64_t seed) : engine_(seed) {}
  double operator()();
  double uniform();  // in (0, 1)
  Values values(std::size_t count, double deviation = 1.0);
  // Rank-one with independent Gaussian factors.
  Values outer(std::int64_t rows, std::int64_t cols);

 private:
  std::mt19937_64 engine_;
};

double dot(std::span<const float> a, std::span<const float> b);
double norm(std::span<const float> a);
double distance(std::span<const float> a, std::span<const float> b);
// alpha a + beta b, computed in double.
Values sum(double alpha, std::span<const float> a, double beta, std::span<const float> b);
Values unit(std::span<const float> a);

// Rows of the two-dimensional view (d0, d1 d2 ...); a vector is one row.
std::int64_t rows_of(const Extents& shape);
std::int64_t cols_of(const Extents& shape);

// Singular values value(k) for k = 0, ..., terms - 1, terms at most the short side; zero beyond.
Values decaying(Gaussian& gaussian, const Extents& shape, std::int64_t terms,
                const std::function<double(std::int64_t)>& value);

// Singular values 1/k for k = 1, ..., min(rank, short side), zero beyond: typical of momenta in
// training.
Values harmonic(Gaussian& gaussian, const Extents& shape, std::int64_t rank);

// Weights with a low-rank part plus noise, and gradients correlated with it.
struct Correlated {
  Values weight;
  std::vector<Values> gradients;
};
// `correlation` is the share of the weight's own low-rank part in each gradient, against a harmonic
// part and new noise. The norm of a gradient is sqrt(numel) * gradient_scale.
Correlated correlated(std::uint64_t seed, const Extents& shape, std::size_t steps,
                      double correlation = 0.3, double gradient_scale = 0.05);

}  // namespace rode::testing
