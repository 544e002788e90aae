// SPDX-License-Identifier: Apache-2.0
// SGD with heavy-ball momentum and coupled decay.
#include "reference/blocks.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {

State sgd_state(const Tensor& parameter) { return {{"momentum", zeros_like(parameter)}}; }

void sgd_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
              State& state) {
  const double mu = number(settings, "momentum");
  const bool nesterov = flag_or(settings, "nesterov", false);
  const double uphill = flag_or(settings, "maximize", false) ? -1.0 : 1.0;
  std::vector<double>& b = entry(state, "momentum", parameter.data.size()).data;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double g = uphill * gradient.data[i] + rates.weight_decay * parameter.data[i];
    if (mu == 0.0) {  // no momentum: the buffer is left unchanged
      parameter.data[i] -= rates.lr * g;
      continue;
    }
    b[i] = mu * b[i] + g;  // from zero: the first step stores the gradient itself
    parameter.data[i] -= rates.lr * (nesterov ? g + mu * b[i] : b[i]);
  }
}

}  // namespace rode::reference
