// SPDX-License-Identifier: Apache-2.0
// Theorem 2: the recursion of the aligned first-order model on a problem with the PL condition.
#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "lab/theory/alignment.h"

namespace rode::lab::theory {
namespace {

std::string rate(const FirstOrder& run) { return fmt::format("lr = lr_rho = {}", run.lr); }

}  // namespace

FirstOrder first_order(const Trace& trace) {
  FirstOrder out{.smoothness = trace.smoothness, .lr = trace.lr()};
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const Step& now = trace.steps[t];
    const Values moved = sum(1, now.weight, -1, trace.steps[t + 1].weight);
    out.value.push_back(now.value);
    out.slope.push_back(dot(now.gradient, moved) / trace.lr());
    out.gradient.push_back(dot(now.gradient, now.gradient));
    out.direction_max = std::max(out.direction_max, norm(moved) / trace.lr());
  }
  out.value.push_back(trace.steps.back().value);
  return out;
}

double FirstOrder::neighbourhood(double alpha, double mu) const {
  return smoothness / 2 * direction_max * direction_max * lr / (2 * alpha * mu);
}

double FirstOrder::alignment(double mu) const {
  const auto feasible = [&](double alpha) {
    const double near = neighbourhood(alpha, mu);
    for (std::size_t t = 0; t < slope.size(); ++t) {
      if (value[t] > near && slope[t] < alpha * gradient[t]) return false;
    }
    return true;
  };
  // A neighbourhood that holds the start says nothing: alpha begins where the start is outside. A
  // smaller alpha asks less of fewer steps, so the interval is halved, in its logarithm.
  double low = neighbourhood(1, mu) / value.front() * (1 + 1e-6), high = 1e6 * low;
  if (!feasible(low)) return 0;
  for (int k = 0; k < 100; ++k) {
    const double middle = std::sqrt(low * high);
    (feasible(middle) ? low : high) = middle;
  }
  return low;
}

Check pl_condition(const FirstOrder& run, double mu) {
  Worst worst;
  for (std::size_t t = 0; t < run.gradient.size(); ++t) {
    worst.add(mu * run.value[t], run.gradient[t] / 2 * (1 + 1e-9));
  }
  return make_check("pl_condition", "app:assump:pl", "mu (f - f*) <= ||G||^2 / 2, mu known", worst);
}

Check pl_alignment(const FirstOrder& run, double mu) {
  const double alpha = run.alignment(mu);
  double least = alpha;
  std::size_t uphill = 0;
  for (std::size_t t = 0; t < run.slope.size(); ++t) {
    least = std::min(least, run.slope[t] / run.gradient[t]);
    if (run.slope[t] < 0) ++uphill;
  }
  Check check = make_check("pl_alignment", "app:assump:alignment",
                           "alpha at every step outside the neighbourhood; " + rate(run), alpha,
                           Side::at_least, 0);
  check.holds = alpha > 0;
  if (least > 0) return check;
  check.printed = 0;
  check.holds_as_printed = false;
  check.note = fmt::format(
      "inside it {} of {} steps go uphill (least <G,H> / ||G||^2: {:.3g}): the length of a step "
      "does "
      "not shrink with G, so no alpha > 0 holds for all steps",
      uphill, run.slope.size(), least);
  return check;
}

Check pl_step(const FirstOrder& run, double mu) {
  const double alpha = run.alignment(mu), near = run.neighbourhood(alpha, mu);
  const double factor = 1 - 2 * run.lr * alpha * mu;
  const double error = run.smoothness / 2 * std::pow(run.direction_max * run.lr, 2);
  Worst worst;
  for (std::size_t t = 0; t + 1 < run.value.size() && run.value[t] > near; ++t) {
    worst.add(run.value[t + 1], factor * run.value[t] + error);
  }
  return make_check(
      "pl_step", "app:thm:pl (one step)",
      "D' <= (1 - 2 lr alpha mu) D + K_err lr^2 outside the neighbourhood; " + rate(run), worst);
}

Check theorem_2(const FirstOrder& run, double mu) {
  const double alpha = run.alignment(mu), near = run.neighbourhood(alpha, mu);
  Worst worst;
  double power = 1;
  for (const double value : run.value) {
    worst.add(value, power * run.value.front() + near);
    power *= 1 - 2 * run.lr * alpha * mu;
  }
  Check check =
      make_check("theorem_2", "app:thm:pl", "f(W_t) - f* at every step; " + rate(run), worst);
  check.holds = check.holds && alpha > 0 && 2 * run.lr * alpha * mu < 1;
  return check;
}

Check theorem_2_scaling(std::span<const FirstOrder> runs) {
  std::vector<double> x, y;
  for (const FirstOrder& run : runs) {
    double late = 0;
    const std::size_t from = run.value.size() - run.value.size() / 3;
    for (std::size_t t = from; t < run.value.size(); ++t) late = std::max(late, run.value[t]);
    x.push_back(run.lr);
    y.push_back(late);
  }
  return make_check("theorem_2_scaling", "app:thm:pl",
                    "slope of the largest late f - f* in lr: O(lr)", slope(x, y), Side::at_least,
                    1);
}

}  // namespace rode::lab::theory
