// SPDX-License-Identifier: Apache-2.0
// Identities are compared up to the rounding of fp32 weights and buffers, bounds as they are.
#include "lab/theory/geometry.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <fmt/format.h>

namespace rode::lab::theory {
namespace {

std::string on(const Trace& trace) {
  const auto reproject = trace.options.reproject;
  return std::to_string(trace.extent.rows) + " x " + std::to_string(trace.extent.cols) + ", " +
         (reproject == Reproject::every ? "every" : "guarded");
}

// What r_t+1 is made of, and the momentum it is the rest of.
struct Pair {
  Parts now = {}, next = {};
  Values leak = {};                    // (1 - beta) beta a_t P_t+1(U_t)
  Values left = {};                    // M_t+1 - beta P_t+1(M_t) - (1 - beta) g^tan_t+1
  Values drift = {};                   // P_t+1(G^tan_t) - G^tan_t+1
  Values error = {}, next_error = {};  // M - G^tan
};

Pair pair_of(const Trace& trace, std::size_t t) {
  const double beta = trace.momentum();
  Pair p{.now = parts_of(trace, t), .next = parts_of(trace, t + 1)};
  const Values turned = tangent(p.now.u, p.next.u);
  p.leak = sum((1 - beta) * beta * p.now.stored, turned, 0, turned);
  p.left = sum(1, p.next.momentum, -beta, tangent(p.now.momentum, p.next.u));
  p.left = sum(1, p.left, -(1 - beta), sum(1, p.next.tangent, 1, p.next.noise));
  p.drift = sum(1, tangent(p.now.tangent, p.next.u), -1, p.next.tangent);
  p.error = sum(1, p.now.momentum, -1, p.now.tangent);
  p.next_error = sum(1, p.next.momentum, -1, p.next.tangent);
  return p;
}

double square(double x) { return x * x; }

}  // namespace

Check angle(const std::string& name, std::span<const Turn> turns, const std::string& what) {
  double kept = 0;
  std::size_t outside = 0;
  Turn most;
  for (const Turn& turn : turns) {
    if (turn.inside()) kept = std::max(kept, turn.theta);
    if (!turn.inside()) ++outside;
    if (turn.theta > most.theta) most = turn;
  }
  Check check = make_check(name, "app:assump:angle", "largest angle <= pi/4; " + what, kept,
                           Side::at_most, std::numbers::pi / 4);
  if (outside == 0) return check;
  check.printed = std::numbers::pi / 4;
  check.holds_as_printed = false;
  check.note = fmt::format(
      "{} of {} runs turned farther and are left out: the published iteration can diverge; most in "
      "step {} at lr {:.3g}, sigma {:.3g}, where q was {:.3g}",
      outside, turns.size(), most.step, most.lr, most.noise, most.theta / most.lr);
  return check;
}

Check displacement(const Trace& trace) {
  Worst worst;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const MatrixDiagnostics& seen = trace.steps[t].seen;
    const double moved = norm(sum(1, trace.steps[t + 1].weight, -1, trace.steps[t].weight));
    const double expected = square(seen.rho_next - seen.rho) +
                            2 * seen.rho_next * seen.rho * (1 - std::cos(seen.theta));
    worst.add(std::abs(square(moved) - expected) / expected, 2 * kRounding * seen.rho / moved);
  }
  return make_check(
      "displacement", "app:global_convergence (exact displacement)",
      "||dW||^2 = (rho' - rho)^2 + 2 rho' rho (1 - cos theta), relative error; " + on(trace),
      worst);
}

Check displacement_parts(const Trace& trace) {
  Worst worst;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const MatrixDiagnostics& seen = trace.steps[t].seen;
    const Values u = unit(trace.steps[t].weight);
    const Values moved = sum(1, trace.steps[t + 1].weight, -1, trace.steps[t].weight);
    const double along = dot(moved, u) - (seen.rho_next * std::cos(seen.theta) - seen.rho);
    const double across = norm(tangent(moved, u)) - seen.rho_next * std::sin(seen.theta);
    worst.add(std::hypot(along, across) / seen.rho, kRounding);
  }
  return make_check("displacement_parts", "app:global_convergence (exact displacement)",
                    "dW = (rho' cos theta - rho) U - rho' sin theta D, error per rho; " + on(trace),
                    worst);
}

Check radial_update(const Trace& trace) {
  Worst worst;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const Values& w = trace.steps[t].weight;
    const double rho = norm(w), signal = dot(trace.steps[t].estimate, w) / rho;
    const double next = norm(trace.steps[t + 1].weight);
    worst.add(std::abs(next - (rho - trace.lr_rho() * signal)) / rho, kRounding);
  }
  return make_check("radial_update", "eq:radial_update",
                    "rho' = rho - lr_rho <g,U>, error per rho; " + on(trace), worst);
}

Check stored_radial(const Trace& trace) {
  Worst worst;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const Values u = unit(trace.steps[t].weight);
    const double size = norm(trace.steps[t].buffer);
    const double stored = dot(trace.steps[t].buffer, u), given = dot(trace.steps[t].estimate, u);
    worst.add(std::abs(stored - given) / size, kRounding);
  }
  return make_check(
      "stored_radial", "eq:radial_update",
      "<B_t,U_t> = <g_t,U_t>: old momentum is not radial, error per ||B||; " + on(trace), worst);
}

Check rotation(const Trace& trace) {
  Worst worst;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const Values u = unit(trace.steps[t].weight), next = unit(trace.steps[t + 1].weight);
    const double turned = norm(tangent(u, next));
    worst.add(std::abs(turned - std::sin(trace.steps[t].seen.theta)), kRounding);
  }
  return make_check("rotation", "app:global_convergence (raw-buffer leakage)",
                    "||P_t+1(U_t)|| = sin theta_t, error; " + on(trace), worst);
}

Check leakage(const Trace& trace, const Constants& c) {
  const double beta = trace.momentum();
  const double bound = square((1 - beta) * beta * c.stored_max * c.q_max * trace.lr());
  Worst worst;
  for (std::size_t t = 0; t + 1 < trace.count(); ++t) {
    worst.add(square(norm(pair_of(trace, t).left)), bound);
  }
  return make_check("leakage", "app:eq:leakage_bound",
                    "||r||^2 <= K_leak lr^2, r as left by the stored momenta; " + on(trace), worst);
}

Check tracking_split(const Trace& trace) {
  const double beta = trace.momentum();
  Worst worst;
  for (std::size_t t = 0; t + 1 < trace.count(); ++t) {
    const Pair p = pair_of(trace, t);
    Values parts = sum(beta, tangent(p.error, p.next.u), beta, p.drift);
    parts = sum(1, parts, 1, sum(1 - beta, p.next.noise, 1, p.leak));
    // Both buffers are rounded, and so is the gradient that the optimizer gets.
    const double scale = norm(trace.steps[t + 1].buffer) + norm(trace.steps[t].buffer);
    worst.add(norm(sum(1, p.next_error, -1, parts)) / scale, kRounding);
  }
  return make_check("tracking_split", "app:eq:kinetic (recursion of M - G)",
                    "M' - G' = x + y + z + w, error per ||B||; " + on(trace), worst);
}

Check tracking_step(const Trace& trace) {
  const double beta = trace.momentum(), rest = 1 - beta;
  Worst worst;
  for (std::size_t t = 0; t + 1 < trace.count(); ++t) {
    const Pair p = pair_of(trace, t);
    worst.add(dot(p.next_error, p.next_error),
              beta * dot(p.error, p.error) + 6 * beta * beta / rest * dot(p.drift, p.drift) +
                  6 * rest * dot(p.next.noise, p.next.noise) + 6 / rest * dot(p.leak, p.leak));
  }
  return make_check("tracking_step", "app:eq:kinetic (before expectation)",
                    "||M' - G'||^2 <= beta ||M - G||^2 + drift + noise + leakage; " + on(trace),
                    worst);
}

Check second_order(const Trace& trace, const Constants& c) {
  Worst worst;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const Parts p = parts_of(trace, t);
    worst.add(dot(p.displacement, p.displacement),
              square(trace.lr_rho() * p.estimate) + square(c.rho_max * c.q_max * trace.lr()));
  }
  return make_check("second_order", "app:eq:second_order_bound",
                    "||dW||^2 <= (lr_rho g^rho)^2 + (rho_max q_max lr)^2; " + on(trace), worst);
}

Check smoothness(const Trace& trace) {
  Worst worst;
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const Parts p = parts_of(trace, t);
    const double first = dot(trace.steps[t].gradient, p.displacement);
    worst.add(trace.steps[t + 1].value - trace.steps[t].value - first,
              trace.smoothness / 2 * dot(p.displacement, p.displacement));
  }
  return make_check("smoothness", "app:assump:smooth",
                    "f(W') - f(W) - <G,dW> <= L/2 ||dW||^2, L known; " + on(trace), worst);
}

Check regularity(const Constants& c, const std::string& what) {
  Check check = make_check("regularity", "app:assump:tangent_lip",
                           "||P'(G^tan) - G'^tan|| / ||dW|| <= L + G_max / rho_min; " + what,
                           c.regularity, Side::at_most, c.proven_regularity());
  if (c.regularity > c.smoothness) {
    print_as(check, c.smoothness,
             "the paper asks for L itself; turning the tangent space adds |G^rho| / rho, which L "
             "does not contain");
  }
  return check;
}

Check noise_variance(std::span<const Trace> traces) {
  double radial = 0, across = 0, count = 0;
  for (const Trace& trace : traces) {
    for (std::size_t t = 0; t < trace.count(); ++t) {
      const Parts p = parts_of(trace, t);
      radial += square(p.estimate - p.radial);
      across += dot(p.noise, p.noise);
      ++count;
    }
  }
  const Trace& first = traces.front();
  const double worst =
      std::max(radial / count / first.noise_rho_sq(), across / count / first.noise_tan_sq());
  // A squared Gaussian has relative variance 2: five standard errors.
  return make_check(
      "noise_variance", "app:assump:noise",
      "mean squared noise per its variance, radial and tangent (1 + 5 standard errors)", worst,
      Side::at_most, 1 + 5 * std::sqrt(2 / count));
}

}  // namespace rode::lab::theory
