// SPDX-License-Identifier: Apache-2.0
// AdEMAMix: AdamW's fast average plus a slow one without bias correction.
#include <cmath>

#include "reference/blocks.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

// The warm-up of beta3 is linear in the averages' half-lives, not in beta.
double half_life(double beta) { return std::log(0.5) / std::log(beta + 1e-8) - 1.0; }
double beta_of(double life) { return std::pow(0.5, 1.0 / (life + 1.0)); }

}  // namespace

State ademamix_state(const Tensor& parameter) {
  return {{"exp_avg_fast", zeros_like(parameter)},
          {"exp_avg_slow", zeros_like(parameter)},
          {"exp_avg_sq", zeros_like(parameter)},
          {"step", per_block({0.0})}};
}

void ademamix_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
                   State& state) {
  const std::vector<double> betas = numbers(settings, "betas", 3);
  const double beta1 = betas[0], beta2 = betas[1], eps = number(settings, "eps");
  const auto warmup = static_cast<double>(integer(settings, "warmup_steps", 0));
  const std::size_t size = parameter.data.size();
  std::vector<double>& fast = entry(state, "exp_avg_fast", size).data;
  std::vector<double>& slow = entry(state, "exp_avg_slow", size).data;
  std::vector<double>& v = entry(state, "exp_avg_sq", size).data;
  const double t = scalar(state, "step") += 1.0;

  double alpha = number(settings, "alpha"), beta3 = betas[2];
  if (t < warmup) {
    const double part = t / warmup;
    alpha *= part;
    beta3 = beta_of((1.0 - part) * half_life(beta1) + part * half_life(beta3));
  }
  for (std::size_t i = 0; i < size; ++i) {
    const double g = gradient.data[i];
    fast[i] = beta1 * fast[i] + (1.0 - beta1) * g;
    slow[i] = beta3 * slow[i] + (1.0 - beta3) * g;
    v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
    const double numerator = fast[i] / (1.0 - std::pow(beta1, t)) + alpha * slow[i];
    const double denominator = std::sqrt(v[i]) / std::sqrt(1.0 - std::pow(beta2, t)) + eps;
    double& w = parameter.data[i];
    w -= rates.lr * (numerator / denominator + rates.weight_decay * w);
  }
}

}  // namespace rode::reference
