// SPDX-License-Identifier: Apache-2.0
// Gaussian, harmonic and correlated tensors from a seed.
#include "support/tensors.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rode::testing {
namespace {

// `count` orthonormal vectors by Gram-Schmidt; Gaussian ones are far from dependent unless they
// span the whole space, so each is orthogonalised twice.
std::vector<std::vector<double>> orthonormal(Gaussian& gaussian, std::int64_t extent,
                                             std::int64_t count) {
  std::vector<std::vector<double>> basis;
  for (std::int64_t k = 0; k < count; ++k) {
    const Values drawn = gaussian.values(static_cast<std::size_t>(extent));
    std::vector<double> v(drawn.begin(), drawn.end());
    for (int pass = 0; pass < 2; ++pass) {
      for (const std::vector<double>& b : basis) {
        const double along = std::inner_product(v.begin(), v.end(), b.begin(), 0.0);
        for (std::size_t i = 0; i < v.size(); ++i) v[i] -= along * b[i];
      }
    }
    const double length = std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
    for (double& x : v) x /= length;
    basis.push_back(std::move(v));
  }
  return basis;
}

}  // namespace

std::string to_string(const Extents& shape) {
  std::string text;
  for (const std::int64_t extent : shape)
    text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

double Gaussian::uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1.0p-53; }

double Gaussian::operator()() {
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

Values Gaussian::values(std::size_t count, double deviation) {
  Values result(count);
  for (float& x : result) x = static_cast<float>(deviation * (*this)());
  return result;
}

Values Gaussian::outer(std::int64_t rows, std::int64_t cols) {
  const Values u = values(static_cast<std::size_t>(rows)),
               v = values(static_cast<std::size_t>(cols));
  Values result;
  result.reserve(u.size() * v.size());
  for (const float x : u)
    for (const float y : v) result.push_back(x * y);
  return result;
}

double dot(std::span<const float> a, std::span<const float> b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    total += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return total;
}

double norm(std::span<const float> a) { return std::sqrt(dot(a, a)); }

double distance(std::span<const float> a, std::span<const float> b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    total += d * d;
  }
  return std::sqrt(total);
}

Values sum(double alpha, std::span<const float> a, double beta, std::span<const float> b) {
  Values result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    result[i] =
        static_cast<float>(alpha * static_cast<double>(a[i]) + beta * static_cast<double>(b[i]));
  return result;
}

Values unit(std::span<const float> a) { return sum(1.0 / norm(a), a, 0.0, a); }

std::int64_t rows_of(const Extents& shape) { return shape.size() < 2 ? 1 : shape[0]; }

std::int64_t cols_of(const Extents& shape) {
  return static_cast<std::int64_t>(count_of(shape)) / rows_of(shape);
}

Values decaying(Gaussian& gaussian, const Extents& shape, std::int64_t terms,
                const std::function<double(std::int64_t)>& value) {
  const std::int64_t rows = rows_of(shape), cols = cols_of(shape);
  const auto left = orthonormal(gaussian, rows, terms), right = orthonormal(gaussian, cols, terms);
  std::vector<double> total(count_of(shape), 0.0);
  for (std::size_t k = 0; k < left.size(); ++k) {
    const double size = value(static_cast<std::int64_t>(k));
    auto out = total.begin();
    for (const double u : left[k])
      for (const double v : right[k]) *out++ += size * u * v;
  }
  return {total.begin(), total.end()};
}

Values harmonic(Gaussian& gaussian, const Extents& shape, std::int64_t rank) {
  return decaying(gaussian, shape, std::min({rows_of(shape), cols_of(shape), rank}),
                  [](std::int64_t k) { return 1.0 / static_cast<double>(k + 1); });
}

Correlated correlated(std::uint64_t seed, const Extents& shape, std::size_t steps,
                      double correlation, double gradient_scale) {
  Gaussian gaussian(seed);
  const std::size_t count = count_of(shape);
  const double size = std::sqrt(static_cast<double>(count));
  const Values low = unit(sum(1.0, gaussian.outer(rows_of(shape), cols_of(shape)), 0.5,
                              gaussian.outer(rows_of(shape), cols_of(shape))));
  const Values noise = unit(gaussian.values(count));
  // Two directions that persist over the steps, as in a training run, and a new one.
  constexpr std::int64_t kRank = 32;  // more costs only time
  const Values steady = unit(harmonic(gaussian, shape, kRank));
  Correlated result;
  // RMS 0.05: between a transformer's 0.02 and fan-in initialisation.
  result.weight = sum(0.03 * size, low, 0.04 * size, noise);
  for (std::size_t k = 0; k < steps; ++k) {
    Values g = sum(correlation, low, 0.5, steady);
    g = sum(1.0, g, 0.6, unit(harmonic(gaussian, shape, kRank)));
    g = sum(1.0, g, 0.6, unit(gaussian.values(count)));
    result.gradients.push_back(sum(gradient_scale * size / norm(g), g, 0.0, g));
  }
  return result;
}

}  // namespace rode::testing
