// SPDX-License-Identifier: Apache-2.0
// Weights and momenta that drive an unguarded reprojection out of the range of its polynomials.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "rules/matrix_step.h"
#include "support/tensors.h"

namespace rode::testing {

// W = strength * low rank + noise, and a momentum opposite to W's noise and along its low-rank
// part: the projection then removes what the iteration has just built up.
struct Case {
  Extents shape;
  Values weight, momentum;
};

inline Case adversarial(Gaussian& gaussian, const Extents& shape, int rank, double strength,
                        double against, double fresh) {
  const std::size_t count = count_of(shape);
  Values low(count, 0.0F);
  for (int k = 0; k < rank; ++k) low = sum(1.0, low, 1.0, gaussian.outer(shape[0], shape[1]));
  const Values noise = gaussian.values(count);
  Case made{shape, sum(strength, low, 1.0, noise), {}};
  made.momentum = sum(1.0, unit(low), -against, unit(noise));
  made.momentum = sum(1.0, made.momentum, fresh, unit(gaussian.values(count)));
  return made;
}

// What Newton-Schulz starts from: the tangent momentum, of the norm that the set wants.
inline Values start_of(const Case& given, Coefficients set) {
  const double rho = norm(given.weight);
  const double along = dot(given.momentum, given.weight) / (rho * rho);
  const Values start = unit(sum(1.0, given.momentum, -along, given.weight));
  return sum(rules::start_target(set, true), start, 0.0, start);
}

// The weight's low-rank part, varied from round to round.
struct LowRank {
  int rank;
  double strength;
};
inline LowRank low_rank_of(int round) { return {1 + round % 3, 0.5 * std::pow(1.6, round % 8)}; }

inline const std::vector<Extents> kSmall = {{8, 8},   {16, 8},  {8, 16},  {12, 12}, {24, 16},
                                            {16, 24}, {32, 32}, {48, 20}, {64, 32}, {32, 64}};

}  // namespace rode::testing
