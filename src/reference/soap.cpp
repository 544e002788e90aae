// SPDX-License-Identifier: Apache-2.0
// SOAP: Adam in the eigenbases of one Gram matrix per tensor mode.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "reference/blocks.h"
#include "reference/matrix.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

std::string mode_key(const char* name, std::size_t mode) {
  return std::string(name) + "." + std::to_string(mode);
}

std::size_t extent(const Tensor& tensor, std::size_t mode) {
  return static_cast<std::size_t>(tensor.shape[mode]);
}

// The tensor with `mode` moved to the front, the others after it in order.
Matrix unfold(const Tensor& tensor, std::size_t mode) {
  std::size_t before = 1, after = 1;
  for (std::size_t d = 0; d < mode; ++d) before *= extent(tensor, d);
  for (std::size_t d = mode + 1; d < tensor.shape.size(); ++d) after *= extent(tensor, d);
  const std::size_t size = extent(tensor, mode);
  Matrix result(size, before * after);
  for (std::size_t b = 0; b < before; ++b)
    for (std::size_t i = 0; i < size; ++i)
      for (std::size_t a = 0; a < after; ++a)
        result(i, b * after + a) = tensor.data[(b * size + i) * after + a];
  return result;
}

void fold(const Matrix& matrix, std::size_t mode, Tensor& tensor) {
  std::size_t before = 1, after = 1;
  for (std::size_t d = 0; d < mode; ++d) before *= extent(tensor, d);
  for (std::size_t d = mode + 1; d < tensor.shape.size(); ++d) after *= extent(tensor, d);
  const std::size_t size = extent(tensor, mode);
  for (std::size_t b = 0; b < before; ++b)
    for (std::size_t i = 0; i < size; ++i)
      for (std::size_t a = 0; a < after; ++a)
        tensor.data[(b * size + i) * after + a] = matrix(i, b * after + a);
}

Matrix load(State& state, const std::string& key, std::size_t n) {
  Matrix matrix(n, n);
  matrix.data = entry(state, key.c_str(), n * n).data;
  return matrix;
}

std::vector<std::size_t> preconditioned_modes(const Settings& settings, const Tensor& tensor) {
  if (tensor.shape.size() < 2)
    throw Error(ErrorKind::shape, "reference soap",
                "a tensor of rank " + std::to_string(tensor.shape.size()) +
                    " is routed to the matrix rule; expected rank 2 or more; route it to the rest");
  const std::int64_t most = integer(settings, "max_precond_dim", 0);
  std::vector<std::size_t> modes;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d)
    if (tensor.shape[d] <= most) modes.push_back(d);
  return modes;
}

// Multiplies every preconditioned mode by its basis, transposed to enter it.
Tensor rotate(Tensor tensor, const std::vector<std::size_t>& modes, State& state, bool into) {
  for (std::size_t mode : modes) {
    const Matrix q = load(state, mode_key("basis", mode), extent(tensor, mode));
    fold(multiply(into ? transpose(q) : q, unfold(tensor, mode)), mode, tensor);
  }
  return tensor;
}

void update_grams(double beta, const Tensor& gradient, const std::vector<std::size_t>& modes,
                  State& state) {
  for (std::size_t mode : modes) {
    const Matrix g = unfold(gradient, mode);
    const std::string key = mode_key("gram", mode);
    const Matrix gram = load(state, key, g.rows);
    state[key].data = combine(beta, gram, 1.0 - beta, multiply(g, transpose(g))).data;
  }
}

// One power iteration per mode: columns by estimated eigenvalue, then qr(gram Q).
// The second moment follows the order of the columns; the first is rotated from the old basis into
// the new one.
void refresh_bases(const std::vector<std::size_t>& modes, State& state) {
  Tensor& exp_avg = state["exp_avg"];
  Tensor& exp_avg_sq = state["exp_avg_sq"];
  exp_avg = rotate(exp_avg, modes, state, false);
  for (std::size_t mode : modes) {
    const std::size_t n = extent(exp_avg, mode);
    const Matrix gram = load(state, mode_key("gram", mode), n);
    const Matrix q = load(state, mode_key("basis", mode), n);
    const Matrix estimate = multiply(transpose(q), multiply(gram, q));
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t i, std::size_t j) { return estimate(i, i) > estimate(j, j); });
    Matrix sorted(n, n);
    const Matrix v = unfold(exp_avg_sq, mode);
    Matrix v_sorted(v.rows, v.cols);
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t i = 0; i < n; ++i) sorted(i, j) = q(i, order[j]);
      for (std::size_t i = 0; i < v.cols; ++i) v_sorted(j, i) = v(order[j], i);
    }
    fold(v_sorted, mode, exp_avg_sq);
    state[mode_key("basis", mode)].data = orthogonal_factor(multiply(gram, sorted)).data;
  }
  exp_avg = rotate(exp_avg, modes, state, true);
}

}  // namespace

State soap_state(const Settings& settings, const Tensor& parameter) {
  State state = adamw_state(parameter);  // the same three entries
  for (std::size_t mode : preconditioned_modes(settings, parameter)) {
    const std::int64_t n = parameter.shape[mode];
    const Tensor zero{{n, n}, std::vector<double>(static_cast<std::size_t>(n * n), 0.0)};
    state[mode_key("gram", mode)] = state[mode_key("basis", mode)] = zero;
  }
  return state;
}

void soap_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
               State& state) {
  const std::vector<std::size_t> modes = preconditioned_modes(settings, parameter);
  const std::vector<double> betas = numbers(settings, "betas", 2);
  const double beta1 = betas[0], beta2 = betas[1], eps = number(settings, "eps");
  const std::int64_t frequency = integer(settings, "precondition_frequency", 1);

  // The first gradient only gives the bases; `k` counts the updates after it.
  const double k = scalar(state, "step");
  scalar(state, "step") += 1.0;
  if (k == 0.0) {
    update_grams(beta2, gradient, modes, state);
    for (std::size_t mode : modes)
      state[mode_key("basis", mode)].data =
          eigenvectors(load(state, mode_key("gram", mode), extent(parameter, mode))).data;
    return;
  }

  const std::size_t size = parameter.data.size();
  std::vector<double>& m = entry(state, "exp_avg", size).data;
  std::vector<double>& v = entry(state, "exp_avg_sq", size).data;
  const Tensor rotated = rotate(gradient, modes, state, true);
  Tensor update = zeros_like(parameter);
  for (std::size_t i = 0; i < size; ++i) {
    const double g = rotated.data[i];
    m[i] = beta1 * m[i] + (1.0 - beta1) * g;
    v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
    update.data[i] = m[i] / (std::sqrt(v[i]) + eps);
  }
  update = rotate(update, modes, state, false);
  const double rate = rates.lr * std::sqrt(1.0 - std::pow(beta2, k)) / (1.0 - std::pow(beta1, k));
  for (std::size_t i = 0; i < size; ++i) {
    double& w = parameter.data[i];
    w -= rate * update.data[i];
    w -= rates.lr * rates.weight_decay * w;
  }
  update_grams(beta2, gradient, modes, state);
  if (static_cast<std::int64_t>(k) % frequency == 0) refresh_bases(modes, state);
}

}  // namespace rode::reference
