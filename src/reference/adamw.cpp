// SPDX-License-Identifier: Apache-2.0
// AdamW with decoupled decay, and the rule of everything that is not a matrix.
#include <cmath>

#include "reference/blocks.h"
#include "reference/rules.h"

namespace rode::reference {

State adamw_state(const Tensor& parameter) {
  return {{"exp_avg", zeros_like(parameter)},
          {"exp_avg_sq", zeros_like(parameter)},
          {"step", per_block({0.0})}};
}

void adamw_step(const AdamConstants& constants, Rates rates, Tensor& parameter,
                const Tensor& gradient, State& state) {
  const auto [beta1, beta2, eps, maximize] = constants;
  const std::size_t size = parameter.data.size();
  std::vector<double>& m = entry(state, "exp_avg", size).data;
  std::vector<double>& v = entry(state, "exp_avg_sq", size).data;
  const double t = scalar(state, "step") += 1.0;
  for (std::size_t i = 0; i < size; ++i) {
    const double g = maximize ? -gradient.data[i] : gradient.data[i];
    m[i] = beta1 * m[i] + (1.0 - beta1) * g;
    v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
    const double m_hat = m[i] / (1.0 - std::pow(beta1, t));
    const double v_hat = v[i] / (1.0 - std::pow(beta2, t));
    double& w = parameter.data[i];
    w = (1.0 - rates.lr * rates.weight_decay) * w - rates.lr * m_hat / (std::sqrt(v_hat) + eps);
  }
}

}  // namespace rode::reference
