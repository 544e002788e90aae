// SPDX-License-Identifier: Apache-2.0
// Sums over the seeds of a run.
#include "lab/report/statistics.h"

#include <cmath>

namespace rode::lab {
namespace {

constexpr std::size_t kFewestForAnError = 3;

}  // namespace

std::optional<Spread> spread_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto count = static_cast<double>(values.size());
  Spread spread{.count = values.size()};
  for (const double value : values) spread.mean += value / count;
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (count - 1));
  return spread;
}

Difference welch(const Spread& first, const Spread& second) {
  Difference difference{.value = first.mean - second.mean};
  if (!first.deviation || !second.deviation) return difference;
  const auto n1 = static_cast<double>(first.count);
  const auto n2 = static_cast<double>(second.count);
  const double a = *first.deviation * *first.deviation / n1;
  const double b = *second.deviation * *second.deviation / n2;
  difference.error = std::sqrt(a + b);
  if (a + b > 0) {
    difference.freedom = (a + b) * (a + b) / (a * a / (n1 - 1) + b * b / (n2 - 1));
  }
  return difference;
}

std::optional<MatchedDifference> difference_over_seeds(const BySeed& first, const BySeed& second) {
  std::vector<double> here;
  std::vector<double> there;
  for (const auto& [seed, value] : first) {
    const auto other = second.find(seed);
    if (other == second.end()) continue;
    here.push_back(value);
    there.push_back(other->second);
  }
  const auto ours = spread_of(here);
  const auto theirs = spread_of(there);
  if (!ours || !theirs) return {};
  MatchedDifference found{.difference = welch(*ours, *theirs), .seeds = here.size()};
  if (found.seeds < kFewestForAnError) {
    found.difference.error.reset();
    found.difference.freedom.reset();
  }
  return found;
}

}  // namespace rode::lab
