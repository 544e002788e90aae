// SPDX-License-Identifier: Apache-2.0
// Adafactor with an explicit rate: no relative step, no parameter scaling.
#include <algorithm>
#include <cmath>

#include "reference/blocks.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

// A tensor of rank two and more as `count` matrices over its last two dimensions.
struct Stack {
  std::size_t count = 1, rows = 1, cols = 1;
};

Stack stack_of(const Tensor& tensor) {
  Stack stack;
  const std::size_t rank = tensor.shape.size();
  for (std::size_t d = 0; d + 2 < rank; ++d)
    stack.count *= static_cast<std::size_t>(tensor.shape[d]);
  stack.rows = static_cast<std::size_t>(tensor.shape[rank - 2]);
  stack.cols = static_cast<std::size_t>(tensor.shape[rank - 1]);
  return stack;
}

// g / sqrt(v) with the full v, for vectors.
std::vector<double> plain_update(double decay, double eps, const Tensor& gradient, State& state) {
  std::vector<double>& v = entry(state, "exp_avg_sq", gradient.data.size()).data;
  std::vector<double> u(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double g = gradient.data[i];
    v[i] = decay * v[i] + (1.0 - decay) * (g * g + eps);
    u[i] = g / std::sqrt(v[i]);
  }
  return u;
}

// g / sqrt(row col / mean(row)): the rank-one estimate of v.
std::vector<double> factored_update(double decay, double eps, const Tensor& gradient,
                                    State& state) {
  const auto [count, rows, cols] = stack_of(gradient);
  std::vector<double>& row = entry(state, "row", count * rows).data;
  std::vector<double>& col = entry(state, "col", count * cols).data;
  std::vector<double> u(gradient.data.size());
  for (std::size_t k = 0; k < count; ++k) {
    const double* g = gradient.data.data() + k * rows * cols;
    double* r = row.data() + k * rows;
    double* c = col.data() + k * cols;
    for (std::size_t i = 0; i < rows; ++i) {
      double mean = 0.0;
      for (std::size_t j = 0; j < cols; ++j) mean += g[i * cols + j] * g[i * cols + j] + eps;
      r[i] = decay * r[i] + (1.0 - decay) * mean / static_cast<double>(cols);
    }
    for (std::size_t j = 0; j < cols; ++j) {
      double mean = 0.0;
      for (std::size_t i = 0; i < rows; ++i) mean += g[i * cols + j] * g[i * cols + j] + eps;
      c[j] = decay * c[j] + (1.0 - decay) * mean / static_cast<double>(rows);
    }
    double mean_row = 0.0;
    for (std::size_t i = 0; i < rows; ++i) mean_row += r[i] / static_cast<double>(rows);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < cols; ++j)
        u[(k * rows + i) * cols + j] =
            g[i * cols + j] / std::sqrt(r[i] / mean_row) / std::sqrt(c[j]);
  }
  return u;
}

}  // namespace

State adafactor_state(const Tensor& parameter) {
  State state{{"step", per_block({0.0})}};
  const std::size_t rank = parameter.shape.size();
  if (rank < 2) {
    state["exp_avg_sq"] = zeros_like(parameter);
    return state;
  }
  const Stack stack = stack_of(parameter);
  std::vector<std::int64_t> row_shape = parameter.shape, col_shape = parameter.shape;
  row_shape.pop_back();
  col_shape.erase(col_shape.end() - 2);
  state["row"] = {row_shape, std::vector<double>(stack.count * stack.rows, 0.0)};
  state["col"] = {col_shape, std::vector<double>(stack.count * stack.cols, 0.0)};
  return state;
}

void adafactor_step(const Settings& settings, Rates rates, Tensor& parameter,
                    const Tensor& gradient, State& state) {
  const double eps = number(settings, "eps");
  const double threshold = number(settings, "clip_threshold");
  const double t = scalar(state, "step") += 1.0;
  const double decay = 1.0 - std::pow(t, number(settings, "decay_rate"));
  const std::vector<double> u = parameter.shape.size() < 2
                                    ? plain_update(decay, eps, gradient, state)
                                    : factored_update(decay, eps, gradient, state);
  double mean_square = 0.0;
  for (double x : u) mean_square += x * x / static_cast<double>(u.size());
  const double clip = std::max(1.0, std::sqrt(mean_square) / threshold);
  for (std::size_t i = 0; i < u.size(); ++i) {
    double& w = parameter.data[i];
    w = (1.0 - rates.lr * rates.weight_decay) * w - rates.lr * u[i] / clip;
  }
}

}  // namespace rode::reference
