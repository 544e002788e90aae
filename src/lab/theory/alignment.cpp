// SPDX-License-Identifier: Apache-2.0
// Lemmas 1 to 3: how far the momentum lags, and how well the step is aligned with the gradient.
#include "lab/theory/alignment.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <string>

#include "rode/optimizer.h"

namespace rode::lab::theory {
namespace {

// The momentum as an average of past gradients: weights (1 - beta) beta^(t-i) / (1 - beta^(t+1)),
// which sum to one. The paper's weights do so by another start (docs/theory.md).
Values averaged_momentum(const Trace& trace, const Parts& p, std::size_t t) {
  const double weight = 1 - std::pow(trace.momentum(), static_cast<double>(t + 1));
  return sum(1 / weight, p.momentum, 0, p.momentum);
}

// What Lemma 2 is made of, along a run without noise.
struct Lag {
  double regularity = 0;     // L_tan of Assumption 9
  double direction_max = 0;  // G: the largest ||dW|| / lr
  double polar = 0;          // C_pol: ||Q(M) - Q(G)|| / ||M - G||
  double iterate = 0;        // c: the smallest <G,Q(G)> / ||G||, Q(G) by the optimizer
  std::vector<double> error = {}, aligned = {}, gradient = {};  // ||E_t||, <G^tan,Q_t>, ||G^tan||
};

constexpr std::size_t kWindow = 60;  // beta^60 is 2e-3 at 0.9: what is older hardly counts

Lag lag_of(const Trace& trace) {
  Lag lag{.iterate = std::numeric_limits<double>::infinity()};
  struct Past {
    Values reprojected;
    std::size_t step;
  };
  std::deque<Past> window;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const Parts p = parts_of(trace, t);
    for (Past& past : window) {
      past.reprojected = tangent(past.reprojected, p.u);
      const double moved = norm(sum(1, trace.steps[past.step].weight, -1, trace.steps[t].weight));
      lag.regularity =
          std::max(lag.regularity, norm(sum(1, past.reprojected, -1, p.tangent)) / moved);
    }
    window.push_back({trace.steps[t].gradient, t});
    if (window.size() > kWindow) window.pop_front();
    const Values error = sum(1, averaged_momentum(trace, p, t), -1, p.tangent);
    const Values alone =
        iterate_of(trace.steps[t].weight, trace.steps[t].gradient, trace.extent, trace.options);
    const double size = norm(p.tangent);
    lag.direction_max = std::max(lag.direction_max, norm(p.displacement) / trace.lr());
    lag.iterate = std::min(lag.iterate, dot(p.tangent, alone) / size);
    if (t > 0) {
      lag.polar = std::max(lag.polar, norm(sum(1, p.iterate, -1, alone)) / norm(error));
    }
    lag.error.push_back(norm(error));
    lag.aligned.push_back(dot(p.tangent, p.iterate));
    lag.gradient.push_back(size);
  }
  return lag;
}

double lag_bound(const Trace& trace, const Lag& lag) {
  const double beta = trace.momentum();
  return lag.regularity * lag.direction_max * trace.lr() * beta / (1 - beta);
}

}  // namespace

double lag_sum(double beta, int t) {
  double s = t * std::pow(beta, t);
  for (int k = 1; k < t; ++k) s += (1 - beta) * k * std::pow(beta, k);
  return s;
}

double lag_closed_form(double beta, int t) { return (beta - std::pow(beta, t + 1)) / (1 - beta); }

Check lag(const std::function<double(double, int)>& closed_form) {
  constexpr double kDouble = 1e-12;  // a thousand terms in double
  double worst = 0;
  bool below = true;
  for (const double beta : {0.1, 0.5, 0.9, 0.95, 0.99}) {
    for (const int t : {1, 2, 5, 20, 100, 1000}) {
      const double s = lag_sum(beta, t), limit = beta / (1 - beta);
      worst = std::max(worst, std::abs(s - closed_form(beta, t)) / limit);
      below = below && s <= limit * (1 + kDouble);
    }
  }
  Check check =
      make_check("lag", "app:lem:tangent_alignment (closed form of S)",
                 "S = (beta - beta^(t+1)) / (1 - beta) <= beta / (1 - beta), relative error", worst,
                 Side::at_most, kDouble);
  check.holds = check.holds && below;
  return check;
}

Check momentum_weights(double beta, int t, double used) {
  // With a direction that is held fast, gradients across W stay as they are in the buffer: after
  // t + 1 equal ones it is the sum of their weights, divided by 1 - beta.
  const Shape shape = {2, 2};
  std::vector<float> weight = {1, 0, 0, 0};
  const std::vector<float> gradient = {0, 1, 0, 0};
  Optimizer optimizer(
      {{.name = "w", .value = view(weight.data(), shape), .grad = view(gradient.data(), shape)}},
      RodeOptions{.momentum = used, .direction = Direction::fixed},
      {.route = Route::matrix, .overrides = {}}, {.threads = 1});
  for (int k = 0; k <= t; ++k) optimizer.step();
  const double total = (1 - beta) * optimizer.matrix_diagnostics().front().m_norm;
  const double expected = 1 - std::pow(beta, t + 1);
  Check check =
      make_check("momentum_weights", "app:lem:tangent_alignment (weights w_i)",
                 "sum of w_i of the stored momentum, t = " + std::to_string(t) + ": 1 - beta^(t+1)",
                 total, Side::at_most, expected * (1 + kRounding));
  check.holds = std::abs(total - expected) <= kRounding * expected;
  check.printed = 1;
  check.holds_as_printed = std::abs(total - 1) <= kRounding;
  check.note =
      "the paper's weights sum to one because its average starts at g_0; the buffer of Algorithm 1 "
      "starts at zero";
  return check;
}

Check radial_alignment(const Trace& trace) {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const Parts p = parts_of(trace, t);
    // The rounding of rho', divided by what is divided here.
    if (std::abs(p.radial) * trace.lr_rho() < 1e3 * kRounding * p.rho) continue;
    const double moved = p.rho - norm(trace.steps[t + 1].weight);
    least = std::min(least, moved / trace.lr_rho() / p.radial);
  }
  Check check = make_check("lemma_1", "app:lem:radial_alignment",
                           "<G_rad,H_rad> / ||G_rad||^2 >= 1, H_rad = (rho - rho') / lr_rho U, "
                           "up to rounding",
                           least, Side::at_least, 1 - 1e-3);
  check.holds = check.holds && std::isfinite(least);  // of some step at all
  return check;
}

Check tracking_lag(const Trace& trace) {
  const Lag lag = lag_of(trace);
  Worst worst;
  for (const double error : lag.error) worst.add(error, lag_bound(trace, lag));
  return make_check("lemma_2_lag", "app:lem:tangent_alignment (E_t)",
                    "||E_t|| <= L_tan G lr beta / (1 - beta)", worst);
}

Check tangent_alignment(const Trace& trace) {
  const Lag lag = lag_of(trace);
  const double room = lag.iterate - lag.polar * lag_bound(trace, lag);
  Worst worst;  // asked with the sign turned: the least alignment
  for (std::size_t t = 0; t < lag.aligned.size(); ++t) {
    worst.add(-lag.aligned[t] / lag.gradient[t], -room);
  }
  Check check = make_check("lemma_2", "app:lem:tangent_alignment",
                           "<G_tan,Q_t> / ||G_tan|| >= c - C_1 C_pol lr", -worst.measured(),
                           Side::at_least, room);
  check.holds = check.holds && room > 0;
  print_as(check, 1 - lag.polar * lag_bound(trace, lag),
           "c = <G,Q(G)> / ||G|| is 1 or more in the paper, which takes the exact polar factor");
  return check;
}

Check alignment_synthesis(const Trace& trace) {
  Worst worst;
  double least = 1;  // K = min(K_rad, K_tan), K_rad = 1
  std::vector<Parts> all;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    all.push_back(parts_of(trace, t));
    const Parts& p = all.back();
    least = std::min(least, dot(p.tangent, p.iterate) / dot(p.tangent, p.tangent));
  }
  for (const Parts& p : all) {
    const Values direction = sum(p.estimate, p.u, 1, p.iterate);
    const Values gradient = sum(p.radial, p.u, 1, p.tangent);
    const double size = dot(gradient, gradient);
    worst.add(-dot(gradient, direction), -least * size + 1e-4 * size);
  }
  Check check = make_check("lemma_3", "app:lem:global_alignment",
                           "<G,H> >= min(K_rad,K_tan) ||G||^2, H = g^rho U + Q", -worst.measured(),
                           Side::at_least, -worst.bound());
  check.holds = worst.holds() && least > 0;
  return check;
}

}  // namespace rode::lab::theory
