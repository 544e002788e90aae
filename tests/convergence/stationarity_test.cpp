// SPDX-License-Identifier: Apache-2.0
// On a smooth problem RODE's averaged gradient components fall into a neighbourhood of zero
// that shrinks with the step sizes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <gtest/gtest.h>

#include "convergence/least_squares.h"
#include "rode/rode.h"

namespace rode {
namespace {

struct Components {
  double radial = 0, tangent = 0;
};

Components components(const testing::Values& g, const testing::Values& w) {
  const double s = testing::dot(g, w) / testing::norm(w), total = testing::norm(g);
  return {std::abs(s), std::sqrt(std::max(0.0, total * total - s * s))};
}

// Mean over the second half of a run with constant rates, long enough to cross the same
// distance at every step size.
Components averaged(const testing::LeastSquares& problem, double rate, Reproject reproject) {
  const int steps = static_cast<int>(6.0 / rate);
  testing::Values weight = problem.start();
  const Shape shape = testing::shape_of(problem.shape());
  Optimizer optimizer({{.name = "w", .value = view(weight.data(), shape), .grad = {}}},
                      RodeOptions{.lr = rate,
                                  .lr_rho = 5 * rate,
                                  .scale = RodeScale::kernel,
                                  .radius = Radius::learned,
                                  .reproject = reproject,
                                  .nesterov = false},
                      {.route = Route::matrix, .overrides = {}});
  Components mean;
  for (int t = 0; t < steps; ++t) {
    const testing::Values g = problem.gradient(weight);
    if (2 * t >= steps) {
      const Components now = components(g, weight);
      mean.radial += now.radial / (0.5 * steps);
      mean.tangent += now.tangent / (0.5 * steps);
    }
    optimizer.bind_grad(0, view(g.data(), shape));
    optimizer.step();
  }
  return mean;
}

TEST(RodeStationarity, NeighbourhoodOfZeroShrinksWithTheStepSizes) {
  const std::vector<double> rates = {2.7e-2, 9e-3, 3e-3};
  for (const Reproject reproject : {Reproject::guarded, Reproject::final}) {
    for (const std::uint64_t seed : {1, 2}) {
      const testing::LeastSquares problem(seed, {24, 16}, 1.5);
      const Components start = components(problem.gradient(problem.start()), problem.start());
      Components before{start.radial, start.tangent};
      for (const double rate : rates) {
        const Components mean = averaged(problem, rate, reproject);
        std::printf("    %s, seed %d, rate %.1e: radial %.2e of %.2e, tangent %.2e of %.2e\n",
                    reproject == Reproject::final ? "final" : "guarded", static_cast<int>(seed),
                    rate, mean.radial, start.radial, mean.tangent, start.tangent);
        // A third of the rate must at least halve it, so that noise cannot decide the order.
        EXPECT_LT(mean.radial, 0.5 * before.radial) << rate;
        EXPECT_LT(mean.tangent, 0.5 * before.tangent) << rate;
        before = mean;
      }
    }
  }
}

}  // namespace
}  // namespace rode
