// SPDX-License-Identifier: Apache-2.0
// A small training problem whose optimum is known: a two-layer linear network learns a map.
#include "demo_problem.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace rode::cli {
namespace {

constexpr std::int64_t kInputs = 64;
constexpr std::int64_t kHidden = 96;
constexpr std::int64_t kOutputs = 48;
constexpr std::int64_t kBatch = 64;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// std::normal_distribution differs between standard libraries; this does not.
class Gaussian {
 public:
  explicit Gaussian(std::uint64_t seed) : bits_(seed) {}
  double next() {
    constexpr double unit = 0x1p-53;
    const double u = 1 - static_cast<double>(bits_() >> 11) * unit;
    const double angle = 6.283185307179586 * static_cast<double>(bits_() >> 11) * unit;
    return std::sqrt(-2 * std::log(u)) * std::cos(angle);
  }

 private:
  std::mt19937_64 bits_;
};

void fill(Matrix& matrix, double deviation, Gaussian& source) {
  for (float& value : matrix.data) value = static_cast<float>(deviation * source.next());
}

Matrix transpose(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.columns; ++j) {
      t.data[index(j * a.rows + i)] = a.data[index(i * a.columns + j)];
    }
  }
  return t;
}

// a b, with the inner loop along rows of b so that it vectorises.
Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.columns);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    float* row = out.data.data() + i * b.columns;
    for (std::int64_t k = 0; k < a.columns; ++k) {
      const float factor = a.data[index(i * a.columns + k)];
      const float* other = b.data.data() + k * b.columns;
      for (std::int64_t j = 0; j < b.columns; ++j) row[j] += factor * other[j];
    }
  }
  return out;
}

double squared_norm(const Matrix& matrix) {
  double sum = 0;
  for (const float v : matrix.data) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum;
}

}  // namespace

DemoProblem::DemoProblem(std::uint64_t seed)
    : w1_(kHidden, kInputs),
      w2_(kOutputs, kHidden),
      bias_(kOutputs, 1),
      grad_w1_(kHidden, kInputs),
      grad_w2_(kOutputs, kHidden),
      grad_bias_(kOutputs, 1),
      target_(kOutputs, kInputs),
      target_bias_(kOutputs, 1),
      seed_(seed) {
  Gaussian source(seed);
  fill(target_, 1 / std::sqrt(static_cast<double>(kInputs)), source);
  fill(target_bias_, 0.5, source);
  fill(w1_, 1 / std::sqrt(static_cast<double>(kInputs)), source);
  fill(w2_, 1 / std::sqrt(static_cast<double>(kHidden)), source);
  for (std::int64_t k = 0; k < kInputs; ++k) {
    deviation_.push_back(1 / (1 + static_cast<double>(k) / 4));
  }
}

std::vector<Parameter> DemoProblem::parameters() {
  const auto entry = [](const char* name, Matrix& value, Matrix& grad, const Shape& shape) {
    Parameter parameter;
    parameter.name = name;
    parameter.value = view(value.data.data(), shape);
    parameter.grad = view(grad.data.data(), shape);
    return parameter;
  };
  return {entry("layer1.weight", w1_, grad_w1_, {kHidden, kInputs}),
          entry("layer2.weight", w2_, grad_w2_, {kOutputs, kHidden}),
          entry("layer2.bias", bias_, grad_bias_, {kOutputs})};
}

void DemoProblem::draw_batch_gradient() {
  // Seeded by the batch's number: every optimizer sees the same batches.
  Gaussian source(seed_ + 1000003 * ++batches_);
  Matrix x(kInputs, kBatch);
  for (std::int64_t k = 0; k < kInputs; ++k) {
    for (std::int64_t j = 0; j < kBatch; ++j) {
      x.data[index(k * kBatch + j)] = static_cast<float>(deviation_[index(k)] * source.next());
    }
  }
  const Matrix hidden = multiply(w1_, x);
  Matrix error = multiply(w2_, hidden);
  const Matrix wanted = multiply(target_, x);
  for (std::int64_t i = 0; i < kOutputs; ++i) {
    const float shift = bias_.data[index(i)] - target_bias_.data[index(i)];
    float sum = 0;
    for (std::int64_t j = 0; j < kBatch; ++j) {
      float& e = error.data[index(i * kBatch + j)];
      e = (e - wanted.data[index(i * kBatch + j)] + shift) / kBatch;
      sum += e;
    }
    grad_bias_.data[index(i)] = sum;
  }
  // Copied, not assigned: the engine holds the addresses.
  std::ranges::copy(multiply(error, transpose(hidden)).data, grad_w2_.data.begin());
  std::ranges::copy(multiply(multiply(transpose(w2_), error), transpose(x)).data,
                    grad_w1_.data.begin());
}

Matrix DemoProblem::product() const { return multiply(w2_, w1_); }

double DemoProblem::loss() const {
  const Matrix map = product();
  double sum = 0;
  for (std::int64_t i = 0; i < kOutputs; ++i) {
    for (std::int64_t k = 0; k < kInputs; ++k) {
      const std::size_t at = index(i * kInputs + k);
      const double e =
          deviation_[index(k)] * (static_cast<double>(map.data[at]) - target_.data[at]);
      sum += e * e;
    }
    const double shift = static_cast<double>(bias_.data[index(i)]) - target_bias_.data[index(i)];
    sum += shift * shift;
  }
  return sum / 2;
}

double DemoProblem::distance() const {
  Matrix difference = product();
  for (std::size_t i = 0; i < difference.data.size(); ++i) difference.data[i] -= target_.data[i];
  return std::sqrt(squared_norm(difference) / squared_norm(target_));
}

double DemoProblem::weight_norm() const {
  return std::sqrt(squared_norm(w1_) + squared_norm(w2_) + squared_norm(bias_));
}

}  // namespace rode::cli
