// SPDX-License-Identifier: Apache-2.0
// The potential, the tracking error and their sum, step by step.
#include "lab/theory/descent.h"

#include <vector>

#include <fmt/format.h>

namespace rode::lab::theory {
namespace {

// Means over the runs, at step t.
struct Mean {
  double value = 0;              // f
  double radial = 0;             // (G^rho)^2
  double momentum = 0;           // ||M||^2
  double error = 0;              // E = ||M - G^tan||^2
  double along = 0, across = 0;  // I_rho and I_tan: <G,dW>, in two parts
};

std::vector<Mean> means(std::span<const Trace> traces) {
  std::vector<Mean> out(traces.front().count());
  const double share = 1 / static_cast<double>(traces.size());
  for (const Trace& trace : traces) {
    for (std::size_t t = 0; t < out.size(); ++t) {
      const Parts p = parts_of(trace, t);
      const Values error = sum(1, p.momentum, -1, p.tangent);
      out[t].value += share * trace.steps[t].value;
      out[t].radial += share * p.radial * p.radial;
      out[t].momentum += share * dot(p.momentum, p.momentum);
      out[t].error += share * dot(error, error);
      out[t].along += share * p.radial * dot(p.displacement, p.u);
      out[t].across += share * dot(p.tangent, p.displacement);
    }
  }
  return out;
}

// What a step may add to f, and to E.
struct Growth {
  const Trace& trace;
  Neighbourhood n;
  Constants c;

  Growth(const Trace& first, const Constants& constants)
      : trace(first), n(neighbourhood(constants, first.momentum(), first.lr_rho())), c(constants) {}

  double of_potential(const Mean& m) const {
    const double lr = trace.lr(), rho = trace.lr_rho(), half = c.smoothness / 2;
    return -(rho - half * rho * rho) * m.radial - n.alpha_dir * lr * m.momentum + m.error / 2 +
           n.c1 * lr * lr + half * trace.noise_rho_sq() * rho * rho;
  }
  double of_error(const Mean& m) const {
    const double beta = trace.momentum(), lr = trace.lr(), rho = trace.lr_rho();
    const double drift = 6 * beta * beta * c.regularity * c.regularity / (1 - beta) * rho * rho;
    return -(1 - beta) * m.error + drift * (m.radial + trace.noise_rho_sq()) + n.c2 * lr * lr +
           6 * (1 - beta) * trace.noise_tan_sq();
  }
};

}  // namespace

Check radial_descent(std::span<const Trace> traces, const Constants& c, const std::string& what) {
  const double lr = traces.front().lr(), reach = c.q_max * c.q_max * lr * lr;
  Worst worst;
  for (const Mean& m : means(traces)) {
    worst.add(m.along,
              -traces.front().lr_rho() * m.radial + c.gradient_max * c.rho_max * reach / 2);
  }
  return make_check("radial_descent", "app:eq:radial_descent", "E I_rho; " + what, worst);
}

Check tangent_descent(std::span<const Trace> traces, const Constants& c, const std::string& what) {
  const Trace& first = traces.front();
  const Neighbourhood n = neighbourhood(c, first.momentum(), first.lr_rho());
  const double reach = c.rho_max * c.q_max * first.lr();
  Worst worst;
  for (const Mean& m : means(traces)) {
    worst.add(m.across, -n.alpha_dir * first.lr() * m.momentum + m.error / 2 + reach * reach / 2);
  }
  return make_check("tangent_descent", "app:eq:tangent_descent", "E I_tan; " + what, worst);
}

Check potential(std::span<const Trace> traces, const Constants& c, const std::string& what) {
  const std::vector<Mean> m = means(traces);
  const Growth growth(traces.front(), c);
  Worst worst;
  for (std::size_t t = 0; t + 1 < m.size(); ++t) {
    worst.add(m[t + 1].value - m[t].value, growth.of_potential(m[t]));
  }
  return make_check("potential", "app:eq:potential", "growth of E f per step; " + what, worst);
}

Check kinetic(std::span<const Trace> traces, const Constants& c, const std::string& what) {
  const std::vector<Mean> m = means(traces);
  const Growth growth(traces.front(), c);
  Constants as_printed = c;
  as_printed.regularity = c.smoothness;
  const Growth printed_growth(traces.front(), as_printed);
  Worst worst, printed;
  for (std::size_t t = 0; t + 1 < m.size(); ++t) {
    worst.add(m[t + 1].error - m[t].error, growth.of_error(m[t]));
    printed.add(m[t + 1].error - m[t].error, printed_growth.of_error(m[t]));
  }
  Check check = make_check("kinetic", "app:eq:kinetic",
                           "growth of E ||M - G^tan||^2 per step; " + what, worst);
  if (printed.holds()) return check;
  check.printed = printed.bound();
  check.holds_as_printed = false;
  check.note = fmt::format(
      "with L of app:assump:smooth, as printed, the growth at the worst step is {:.3g} and its "
      "bound "
      "{:.3g}; the bound here has L_tan = {:.3g} (check 'regularity') where L = {:.3g} is not "
      "enough",
      printed.measured(), printed.bound(), c.regularity, c.smoothness);
  return check;
}

Check lyapunov(std::span<const Trace> traces, const Constants& c, const std::string& what) {
  const std::vector<Mean> m = means(traces);
  const Trace& first = traces.front();
  const Neighbourhood n = neighbourhood(c, first.momentum(), first.lr_rho());
  const double weight = 1 / (1 - first.momentum());
  Worst worst;
  for (std::size_t t = 0; t + 1 < m.size(); ++t) {
    worst.add(m[t + 1].value - m[t].value + weight * (m[t + 1].error - m[t].error),
              n.bound(first) - n.alpha_rho * first.lr_rho() * m[t].radial -
                  n.alpha_dir * first.lr() * m[t].momentum - m[t].error / 2);
  }
  return make_check("lyapunov", "app:eq:lyapunov_step",
                    "growth of E f + E ||M - G^tan||^2 / (1 - beta) per step; " + what, worst);
}

}  // namespace rode::lab::theory
