// SPDX-License-Identifier: Apache-2.0
// Comparing figures with bounds.
#include "lab/theory/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace rode::lab::theory {

bool meets(double measured, Side side, double bound) {
  return side == Side::at_most ? measured <= bound : measured >= bound;
}

Check make_check(std::string name, std::string label, std::string what, double measured, Side side,
                 double bound) {
  return {.name = std::move(name),
          .label = std::move(label),
          .what = std::move(what),
          .measured = measured,
          .side = side,
          .bound = bound,
          .holds = meets(measured, side, bound)};
}

void print_as(Check& check, double printed, std::string note) {
  check.printed = printed;
  check.holds_as_printed = meets(check.measured, check.side, printed);
  check.note = std::move(note);
}

void Worst::add(double measured, double bound) {
  const double scale = std::max(std::abs(measured), std::abs(bound));
  double slack = scale > 0 ? (bound - measured) / scale : 0;
  if (std::isnan(slack)) slack = -std::numeric_limits<double>::infinity();
  if (any_ && slack >= slack_) return;
  any_ = true;
  slack_ = slack;
  measured_ = measured;
  bound_ = bound;
}

Check make_check(std::string name, std::string label, std::string what, const Worst& worst) {
  Check check = make_check(std::move(name), std::move(label), std::move(what), worst.measured(),
                           Side::at_most, worst.bound());
  check.holds = worst.holds();
  return check;
}

double slope(const std::vector<double>& x, const std::vector<double>& y) {
  double mx = 0, my = 0, xx = 0, xy = 0;
  const auto count = static_cast<double>(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    mx += std::log(x[i]) / count;
    my += std::log(y[i]) / count;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (std::log(x[i]) - mx) * (std::log(x[i]) - mx);
    xy += (std::log(x[i]) - mx) * (std::log(y[i]) - my);
  }
  return xy / xx;
}

}  // namespace rode::lab::theory
