// SPDX-License-Identifier: Apache-2.0
// AdamW with decoupled decay, and the rule of everything that is not a matrix.
#include <cmath>

#include "reference/blocks.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {

State adamw_state(const Tensor& parameter) {
  return {{"exp_avg", zeros_like(parameter)},
          {"exp_avg_sq", zeros_like(parameter)},
          {"step", per_block({0.0})}};
}

namespace {

void step_with(const std::vector<double>& betas, double eps, bool maximize, bool cautious,
               Rates rates, Tensor& parameter, const Tensor& gradient, State& state) {
  const double beta1 = betas[0], beta2 = betas[1];
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
    const double update = m_hat / (std::sqrt(v_hat) + eps);
    w -= rates.lr * (update + decay_of(cautious, rates.weight_decay, w, update));
  }
}

}  // namespace

void adamw_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
                State& state) {
  step_with(numbers(settings, "betas", 2), number(settings, "eps"),
            flag_or(settings, "maximize", false), flag_or(settings, "cautious_decay", false), rates,
            parameter, gradient, state);
}

void adamw_rest_step(const Settings& settings, Rates rates, Tensor& parameter,
                     const Tensor& gradient, State& state) {
  step_with(numbers(settings, "betas_rest", 2), number(settings, "eps_rest"), false,
            flag_or(settings, "cautious_decay", false), rates, parameter, gradient, state);
}

}  // namespace rode::reference
