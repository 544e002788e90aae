// SPDX-License-Identifier: Apache-2.0
// The constants of the paper's assumptions, measured on runs, and those of Theorem 1 made of them.
#pragma once

#include <limits>
#include <span>

#include "lab/theory/trace.h"

namespace rode::lab::theory {

struct Constants {
  static constexpr double kMost = std::numeric_limits<double>::infinity();

  double smoothness = 0;  // L, known
  double rho_min = kMost, rho_max = 0;
  double gradient_max = 0;  // G_max: |G^rho|
  double momentum_max = 0;  // M_max: ||M||, M = (1 - beta) P(B)
  double stored_max = 0;    // A_max: |a|
  double q_min = kMost, q_max = 0;
  double theta_max = 0;
  double gamma_min = 1;
  double alignment = 1;  // c_NS: the smallest <M,Q> / ||M||_*, at most 1
  // L_tan: the largest ||P_t+1(G^tan_t) - G^tan_t+1|| / ||W_t+1 - W_t||.
  double regularity = 0;
  double floor_used = 0;  // steps whose radius the floor decided

  // Widens them by one step, or by every step of a run: the runs of a sweep share one set.
  void add(const Trace& trace, std::size_t t, const Parts& parts);
  void add(const Trace& trace);
  // What Assumption 4 holds with on every smooth problem: L + G_max / rho_min.
  double proven_regularity() const { return smoothness + gradient_max / rho_min; }
};
Constants measure(std::span<const Trace> traces);

// The constants of the appendix for given rates. `regularity` takes the place of L wherever the
// proof uses Assumption 4; the paper writes L for both.
struct Neighbourhood {
  double k = 0;  // sin(theta_max) / theta_max
  double alpha_dir = 0;
  double k_leak = 0;
  double c1 = 0, c2 = 0;
  double k_curv = 0, k_noise_tan = 0, k_noise_rho = 0;
  double alpha_rho = 0;  // must be positive: "sufficiently small" lr_rho

  // app:eq:average_bound without its last term.
  double bound(const Trace& trace) const;
};
Neighbourhood neighbourhood(const Constants& c, double momentum, double lr_rho);

}  // namespace rode::lab::theory
