// SPDX-License-Identifier: Apache-2.0
// Problems whose constants are known: quadratics of given eigenvalues, and Gaussian noise.
#pragma once

#include <cstdint>

#include "lab/base/random.h"
#include "lab/theory/matrix.h"

namespace rode::lab::theory {

// Box-Muller over the lab's own sequence: the same numbers with every library.
class Gaussian {
 public:
  explicit Gaussian(std::uint64_t seed) : random_(seed) {}
  double next();
  Values values(std::size_t count, double deviation);

 private:
  Random random_;
};

struct QuadraticOptions {
  Extent extent = {12, 8};
  double lowest = 0.25;  // nonzero eigenvalue of the Hessian: the PL constant
  double highest = 1;    // L
  std::size_t flat = 0;  // directions without curvature: with them PL, not strongly convex
  double start_norm = 2;
  double optimum_norm = 3;
};

// f(W) = <W - W*, H (W - W*)> / 2, smallest value 0. H acts on the rows and has exactly the
// eigenvalues asked for, evenly spaced, in a basis drawn from the seed.
class Quadratic {
 public:
  explicit Quadratic(std::uint64_t seed, const QuadraticOptions& options = {});

  double value(const Values& w) const;
  Values gradient(const Values& w) const;
  const Values& start() const { return start_; }
  Extent extent() const { return options_.extent; }
  double smoothness() const { return options_.highest; }  // L
  double pl_constant() const { return options_.lowest; }  // mu

 private:
  QuadraticOptions options_;
  Values reflection_, eigenvalues_;  // H = (I - 2 v v^T) diag(eigenvalues) (I - 2 v v^T)
  Values start_, optimum_;
};

}  // namespace rode::lab::theory
