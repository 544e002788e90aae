// SPDX-License-Identifier: Apache-2.0
// Muown, after the authors' code: a length and a direction per row, both kept explicitly.
#include <algorithm>
#include <cmath>
#include <string>

#include "reference/blocks.h"
#include "reference/newton_schulz.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

// The state of the rows of one block.
struct Rows {
  double *radius, *direction_norm, *average, *average_sq;
};

double row_inner(const Matrix& a, const Matrix& b, std::size_t i) {
  double sum = 0.0;
  for (std::size_t j = 0; j < a.cols; ++j) sum += a(i, j) * b(i, j);
  return sum;
}

void step_block(const Settings& settings, Rates rates, double lr_rho, double t, Matrix& w,
                const Matrix& grad, Matrix& buffer, const Rows& rows) {
  const double mu = number(settings, "momentum"), eps = number(settings, "eps");
  const std::vector<double> betas = numbers(settings, "betas_radius", 2);
  const std::string set = coefficient_set(settings);

  Matrix u = w, slopes = grad;  // unit rows, and the gradient with respect to v
  std::vector<double> along(w.rows, 0.0);
  for (std::size_t i = 0; i < w.rows; ++i) {
    const double length = std::sqrt(row_inner(w, w, i));
    if (rows.direction_norm[i] == 0.0) rows.direction_norm[i] = length;
    rows.radius[i] = std::copysign(length, rows.radius[i]);
    const double g = rows.radius[i];
    for (std::size_t j = 0; j < w.cols; ++j) u(i, j) = length > 0.0 ? w(i, j) / g : 0.0;
    along[i] = row_inner(grad, u, i);
    for (std::size_t j = 0; j < w.cols; ++j) {
      const double tangent = grad(i, j) - along[i] * u(i, j);
      slopes(i, j) = length > 0.0 ? g / rows.direction_norm[i] * tangent : 0.0;
    }
  }
  buffer = combine(mu, buffer, 1.0, slopes);
  Matrix start = flag(settings, "nesterov") ? combine(1.0, slopes, mu, buffer) : buffer;
  // A row of zeros has no direction to turn.
  for (std::size_t i = 0; i < w.rows; ++i)
    for (std::size_t j = 0; j < w.cols; ++j)
      if (rows.radius[i] == 0.0) start(i, j) = 0.0;
  const Matrix o = newton_schulz(scale(1.0 / (margin(set) * (norm(start) + eps)), start), set,
                                 iterations(settings, set));

  const double step = rates.lr * 0.2 * std::sqrt(static_cast<double>(std::max(w.rows, w.cols)));
  const Matrix before = w;
  for (std::size_t i = 0; i < w.rows; ++i) {
    if (rows.radius[i] == 0.0) continue;
    double& a = rows.average[i];
    double& b = rows.average_sq[i];
    a = betas[0] * a + (1.0 - betas[0]) * along[i];
    b = betas[1] * b + (1.0 - betas[1]) * along[i] * along[i];
    const double a_hat = a / (1.0 - std::pow(betas[0], t));
    const double b_hat = b / (1.0 - std::pow(betas[1], t));
    rows.radius[i] -= lr_rho * a_hat / (std::sqrt(b_hat) + number(settings, "eps_radius"));
    for (std::size_t j = 0; j < w.cols; ++j)
      w(i, j) = rows.direction_norm[i] * u(i, j) - step * o(i, j);
    rows.direction_norm[i] = std::sqrt(row_inner(w, w, i));
    for (std::size_t j = 0; j < w.cols; ++j) {
      w(i, j) *= rows.radius[i] / rows.direction_norm[i];
      w(i, j) -= rates.lr * rates.weight_decay * before(i, j);
    }
    if (rates.weight_decay != 0.0) rows.radius[i] = std::sqrt(row_inner(w, w, i));
  }
}

}  // namespace

State muown_state(const Treatment& treatment, const Tensor& parameter) {
  const std::vector<Matrix> blocks = split(parameter, treatment);
  State state{{"momentum", zeros_like(parameter)},
              {"step", per_block(std::vector<double>(blocks.size(), 0.0))}};
  for (const char* key : {"radius", "direction_norm", "radius_avg", "radius_avg_sq"})
    state[key] = per_row(blocks);
  return state;
}

void muown_step(const Settings& settings, const Treatment& treatment, Rates rates,
                Tensor& parameter, const Tensor& gradient, State& state, double multiplier) {
  std::vector<Matrix> weights = split(parameter, treatment);
  const std::vector<Matrix> gradients = split(gradient, treatment);
  Tensor& momentum = entry(state, "momentum", parameter.data.size());
  std::vector<Matrix> buffers = split(momentum, treatment);
  const double lr_rho = number(settings, "lr_rho") * multiplier;
  std::size_t first = 0;
  for (std::size_t k = 0; k < weights.size(); first += weights[k++].rows) {
    const auto at = [&](const char* key) { return state.at(key).data.data() + first; };
    double& t = entry(state, "step", weights.size()).data[k];
    t += 1.0;
    step_block(settings, rates, lr_rho, t, weights[k], gradients[k], buffers[k],
               {at("radius"), at("direction_norm"), at("radius_avg"), at("radius_avg_sq")});
  }
  join(buffers, treatment, momentum);
  join(weights, treatment, parameter);
}

}  // namespace rode::reference
