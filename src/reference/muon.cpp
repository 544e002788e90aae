// SPDX-License-Identifier: Apache-2.0
// Muon (averaged buffer), its two rate scales, NormProj and Hyperball.
#include <algorithm>
#include <cmath>

#include "reference/blocks.h"
#include "reference/newton_schulz.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

std::string constraint_of(const Settings& settings) {
  return choice(settings, "constraint", {"none", "normproj", "hyperball"});
}

// A zero matrix has no direction and stays zero.
Matrix unit(const Matrix& a) {
  const double length = norm(a);
  return length > 0.0 ? scale(1.0 / length, a) : a;
}

double rate_scale(const std::string& name, const Matrix& w) {
  const auto fan_out = static_cast<double>(w.rows), fan_in = static_cast<double>(w.cols);
  if (name == "original") return std::sqrt(std::max(1.0, fan_out / fan_in));
  return 0.2 * std::sqrt(std::max(fan_out, fan_in));
}

}  // namespace

State muon_state(const Settings& settings, const Treatment& treatment, const Tensor& parameter) {
  State state{{"momentum", zeros_like(parameter)}};
  std::vector<double> norms;
  for (const Matrix& w : split(parameter, treatment)) norms.push_back(norm(w));
  if (constraint_of(settings) != "none") state["radius"] = per_block(norms);
  if (normalizes_rows(settings)) state["row_avg_sq"] = per_row(split(parameter, treatment));
  return state;
}

void muon_step(const Settings& settings, const Treatment& treatment, Rates rates, Tensor& parameter,
               const Tensor& gradient, State& state) {
  const double mu = number(settings, "momentum"), eps = number(settings, "eps");
  const bool nesterov = flag(settings, "nesterov");
  const std::string set = coefficient_set(settings), constraint = constraint_of(settings);
  const std::int64_t steps = iterations(settings, set);
  const std::string scale_name = choice(settings, "scale", {"original", "rms"});

  std::vector<Matrix> weights = split(parameter, treatment);
  const std::vector<Matrix> gradients = split(gradient, treatment);
  Tensor& momentum = entry(state, "momentum", parameter.data.size());
  std::vector<Matrix> buffers = split(momentum, treatment);
  std::size_t first_row = 0;
  for (std::size_t k = 0; k < weights.size(); first_row += weights[k++].rows) {
    Matrix &w = weights[k], &b = buffers[k];
    const Matrix& g = gradients[k];
    b = combine(mu, b, 1.0 - mu, g);
    const Matrix start = nesterov ? combine(1.0 - mu, g, mu, b) : b;
    const double divisor = margin(set) * std::max(norm(start), eps);
    Matrix o = newton_schulz(scale(1.0 / divisor, start), set, steps);
    if (normalizes_rows(settings))
      o = normalized_rows(o, number(settings, "row_beta"),
                          state.at("row_avg_sq").data.data() + first_row);

    double radius = 0.0;
    if (constraint != "none") {
      radius = entry(state, "radius", weights.size()).data[k];
      if (radius == 0.0) continue;  // a sphere of radius zero: nothing can change
    }
    if (constraint == "hyperball") {
      w = scale(radius, unit(combine(1.0, w, -rates.lr * radius, unit(o))));
      continue;
    }
    decay(w, o, rates, flag_or(settings, "cautious_decay", false));
    w = combine(1.0, w, -rates.lr * rate_scale(scale_name, w), o);
    if (constraint == "normproj") w = scale(radius, unit(w));
  }
  join(buffers, treatment, momentum);
  join(weights, treatment, parameter);
}

}  // namespace rode::reference
