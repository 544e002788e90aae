// SPDX-License-Identifier: Apache-2.0
// Means, sample deviations and differences over seeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace rode::lab {

struct Spread {
  double mean = 0;
  std::optional<double> deviation = {};  // of the sample; unset for fewer than two values
  std::size_t count = 0;
};
std::optional<Spread> spread_of(const std::vector<double>& values);  // nothing for no values

// Of two means whose variances need not be equal (Welch).
struct Difference {
  double value = 0;                    // of the first less the second
  std::optional<double> error = {};    // standard error; unset where either has one value
  std::optional<double> freedom = {};  // degrees of freedom, after Welch and Satterthwaite
};
Difference welch(const Spread& first, const Spread& second);

// Over the seeds that both have, since seeds differ by more than optimizers may: of two means over
// different seeds even the sign can be wrong. Nothing where there are none; no error for fewer than
// three, of which a deviation says little.
using BySeed = std::map<std::uint64_t, double>;
struct MatchedDifference {
  Difference difference = {};
  std::size_t seeds = 0;  // that both have
};
std::optional<MatchedDifference> difference_over_seeds(const BySeed& first, const BySeed& second);

}  // namespace rode::lab
