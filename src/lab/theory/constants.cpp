// SPDX-License-Identifier: Apache-2.0
// Largest and smallest values over runs, and the appendix's arithmetic on them.
#include "lab/theory/constants.h"

#include <algorithm>
#include <cmath>

namespace rode::lab::theory {

void Constants::add(const Trace& trace, std::size_t t, const Parts& p) {
  const MatrixDiagnostics& seen = trace.steps[t].seen;
  const double next_rho = norm(trace.steps[t + 1].weight);
  smoothness = std::max(smoothness, trace.smoothness);
  rho_min = std::min({rho_min, p.rho, next_rho});
  rho_max = std::max({rho_max, p.rho, next_rho});
  gradient_max = std::max(gradient_max, std::abs(p.radial));
  momentum_max = std::max(momentum_max, norm(p.momentum));
  stored_max = std::max(stored_max, std::abs(p.stored));
  q_min = std::min(q_min, seen.q);
  q_max = std::max(q_max, seen.q);
  theta_max = std::max(theta_max, seen.theta);
  gamma_min = std::min(gamma_min, seen.gamma);
  alignment =
      std::min(alignment, dot(p.momentum, p.iterate) / nuclear_norm(p.momentum, trace.extent));
  const Values drift =
      sum(1, tangent(p.tangent, p.next_u), -1, tangent(trace.steps[t + 1].gradient, p.next_u));
  regularity = std::max(regularity, norm(drift) / norm(p.displacement));
  if (seen.rho_next <= trace.options.floor * seen.rho) ++floor_used;
}

void Constants::add(const Trace& trace) {
  for (std::size_t t = 0; t < trace.count(); ++t) add(trace, t, parts_of(trace, t));
}

Constants measure(std::span<const Trace> traces) {
  Constants c;
  for (const Trace& trace : traces) c.add(trace);
  return c;
}

Neighbourhood neighbourhood(const Constants& c, double momentum, double lr_rho) {
  const double beta = momentum, rest = 1 - beta;
  const double reach = c.rho_max * c.q_max, reach_sq = reach * reach;
  const double drift = 6 * beta * beta * c.regularity * c.regularity / rest;
  Neighbourhood n;
  n.k = std::sin(c.theta_max) / c.theta_max;
  n.alpha_dir = n.k * c.alignment * c.rho_min * c.gamma_min / c.momentum_max;
  n.k_leak = std::pow(rest * beta * c.stored_max * c.q_max, 2);
  n.c1 = (reach_sq + c.smoothness * reach_sq + c.gradient_max * c.rho_max * c.q_max * c.q_max) / 2;
  n.c2 = drift * reach_sq + 6 * n.k_leak / rest;
  n.k_curv = n.c1 + n.c2 / rest;
  n.k_noise_tan = 6;
  n.k_noise_rho = c.smoothness / 2 + drift / rest;
  n.alpha_rho = 1 - n.k_noise_rho * lr_rho;
  return n;
}

double Neighbourhood::bound(const Trace& trace) const {
  return k_curv * trace.lr() * trace.lr() + k_noise_tan * trace.noise_tan_sq() +
         k_noise_rho * trace.noise_rho_sq() * trace.lr_rho() * trace.lr_rho();
}

}  // namespace rode::lab::theory
