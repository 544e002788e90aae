// SPDX-License-Identifier: Apache-2.0
// MARS-M, approximate mode: Muon on a clipped variance-reduced gradient.
#include <algorithm>
#include <cmath>

#include "reference/blocks.h"
#include "reference/newton_schulz.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {

State mars_m_state(const Settings& settings, const Treatment& treatment, const Tensor& parameter) {
  const std::vector<Matrix> blocks = split(parameter, treatment);  // throws if it is not a matrix
  State state{{"momentum", zeros_like(parameter)}, {"previous_grad", zeros_like(parameter)}};
  if (normalizes_rows(settings)) state["row_avg_sq"] = per_row(blocks);
  return state;
}

void mars_m_step(const Settings& settings, const Treatment& treatment, Rates rates,
                 Tensor& parameter, const Tensor& gradient, State& state) {
  const double beta = number(settings, "momentum"), gamma = number(settings, "gamma");
  const double eps = number_or(settings, "eps", 1e-7);
  const std::string set =
      settings.contains("coefficients") ? coefficient_set(settings) : std::string("jordan");
  const std::int64_t steps = iterations(settings, set);
  const double correction = gamma * beta / (1.0 - beta);

  Tensor& momentum = entry(state, "momentum", parameter.data.size());
  Tensor& previous = entry(state, "previous_grad", parameter.data.size());
  std::vector<Matrix> weights = split(parameter, treatment);
  std::vector<Matrix> buffers = split(momentum, treatment);
  const std::vector<Matrix> gradients = split(gradient, treatment);
  const std::vector<Matrix> before = split(previous, treatment);
  std::size_t first_row = 0;
  for (std::size_t k = 0; k < weights.size(); first_row += weights[k++].rows) {
    Matrix &w = weights[k], &m = buffers[k];
    Matrix c = combine(1.0 + correction, gradients[k], -correction, before[k]);
    if (norm(c) > 1.0) c = scale(1.0 / norm(c), c);
    m = combine(beta, m, 1.0 - beta, c);
    const double divisor = margin(set) * (norm(m) + eps);
    Matrix o = newton_schulz(scale(1.0 / divisor, m), set, steps);
    if (normalizes_rows(settings))
      o = normalized_rows(o, number(settings, "row_beta"),
                          state.at("row_avg_sq").data.data() + first_row);
    const double factor = 0.2 * std::sqrt(static_cast<double>(std::max(w.rows, w.cols)));
    decay(w, o, rates, flag_or(settings, "cautious_decay", false));
    w = combine(1.0, w, -rates.lr * factor, o);
  }
  join(weights, treatment, parameter);
  join(buffers, treatment, momentum);
  previous.data = gradient.data;
}

}  // namespace rode::reference
