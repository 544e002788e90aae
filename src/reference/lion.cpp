// SPDX-License-Identifier: Apache-2.0
// Lion: every weight changes by the rate, in the direction of an interpolated average.
#include "reference/blocks.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {

State lion_state(const Tensor& parameter) { return {{"exp_avg", zeros_like(parameter)}}; }

void lion_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
               State& state) {
  const std::vector<double> betas = numbers(settings, "betas", 2);
  const bool cautious = flag_or(settings, "cautious_decay", false);
  std::vector<double>& average = entry(state, "exp_avg", parameter.data.size()).data;
  for (std::size_t i = 0; i < parameter.data.size(); ++i) {
    const double g = gradient.data[i];
    const double mixed = betas[0] * average[i] + (1.0 - betas[0]) * g;
    double direction = 0.0;
    if (mixed > 0.0) direction = 1.0;
    if (mixed < 0.0) direction = -1.0;
    double& w = parameter.data[i];
    w -= rates.lr * (direction + decay_of(cautious, rates.weight_decay, w, direction));
    average[i] = betas[1] * average[i] + (1.0 - betas[1]) * g;
  }
}

}  // namespace rode::reference
