// SPDX-License-Identifier: Apache-2.0
// Means, sample deviations and differences over seeds.
#pragma once

#include <cstddef>
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

}  // namespace rode::lab
