// SPDX-License-Identifier: Apache-2.0
// Every optimizer finds the known optimum of a small problem under a cosine schedule.
#include <algorithm>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "convergence/least_squares.h"
#include "rode/rode.h"

namespace rode {
namespace {

constexpr int kSteps = 300;

// The rates suit weights of RMS 0.2 and a Hessian near the identity; decay is off because
// it moves the optimum.
struct Recipe {
  std::string optimizer;
  Settings settings;
  friend std::ostream& operator<<(std::ostream& out, const Recipe& r) { return out << r.optimizer; }
};

double left_of_distance(const Recipe& recipe, const testing::LeastSquares& problem,
                        bool scheduled = true) {
  testing::Values weight = problem.start();
  const Shape shape = testing::shape_of(problem.shape());
  Optimizer optimizer({{.name = "w", .value = view(weight.data(), shape), .grad = {}}},
                      Method::by_name(recipe.optimizer, recipe.settings),
                      {.route = Route::matrix, .overrides = {}});
  const Schedule schedule = scheduled ? Schedule::warmup_cosine(10, kSteps) : Schedule::constant();
  for (int t = 0; t < kSteps; ++t) {
    const testing::Values g = problem.gradient(weight);
    optimizer.bind_grad(0, view(g.data(), shape));
    optimizer.step(schedule.multiplier(t));
  }
  return problem.distance_to_optimum(weight) / problem.distance_to_optimum(problem.start());
}

class Convergence : public ::testing::TestWithParam<Recipe> {};

constexpr double kArrived = 1.0 / 200;  // of the initial distance

TEST_P(Convergence, DistanceToTheOptimumFallsToATwoHundredth) {
  double worst = 0;
  for (const std::uint64_t seed : {1, 2, 3}) {
    for (const testing::Extents& shape : {testing::Extents{24, 16}, {16, 24}}) {
      // The optimum has the norm of the start: a fixed radius can reach it too.
      const testing::LeastSquares problem(seed, shape, 1.0);
      const double left = left_of_distance(GetParam(), problem);
      EXPECT_LT(left, kArrived) << "seed " << seed << ", " << testing::to_string(shape);
      worst = std::max(worst, left);
    }
  }
  std::printf("    at most %.2g of the distance is left\n", worst);
}

const std::vector<Recipe> kRecipes = {
    {"rode-paper", {{"lr", "0.02"}, {"lr_rho", "0.3"}, {"reproject", "guarded"}}},
    {"rode", {{"lr", "0.08"}, {"radius", "learned"}, {"lr_rho", "0.3"}}},
    {"rode", {{"lr", "0.08"}, {"nesterov", "false"}, {"lr_rho", "0.02"}}},
    {"rode-paper", {{"lr", "0.02"}, {"lr_rho", "0.3"}, {"reproject", "final"}}},
    {"rode-snr", {{"lr", "0.03"}, {"lr_rho", "0.3"}}},
    {"rode-fixed", {{"lr", "0.02"}}},
    {"muon", {{"lr", "0.05"}}},
    {"muon-rms", {{"lr", "0.05"}}},
    {"muon-normproj", {{"lr", "0.05"}}},
    {"muon", {{"lr", "0.05"}, {"constraint", "hyperball"}}},
    {"soap", {{"lr", "0.02"}, {"weight_decay", "0"}}},
    {"mars-m", {{"lr", "0.05"}, {"weight_decay", "0"}}},
    {"ademamix", {{"lr", "0.02"}, {"weight_decay", "0"}, {"alpha", "2"}}},
    {"adafactor", {{"lr", "0.02"}}},
    {"adamw", {{"lr", "0.02"}, {"weight_decay", "0"}}},
    {"sgd", {{"lr", "0.1"}, {"weight_decay", "0"}}},
    {"lion", {{"lr", "0.02"}, {"weight_decay", "0"}}},
    {"rode", {{"lr", "0.08"}, {"radius", "learned"}, {"lr_rho", "0.3"}, {"state_dtype", "int8"}}},
    {"muon", {{"lr", "0.05"}, {"state_dtype", "int8"}}},
    {"mars-m", {{"lr", "0.05"}, {"weight_decay", "0"}, {"state_dtype", "int8"}}},
    {"adamw", {{"lr", "0.02"}, {"weight_decay", "0"}, {"state_dtype", "int8"}}},
    {"rode",
     {{"lr", "0.08"},
      {"radius", "learned"},
      {"lr_rho", "0.3"},
      {"state_dtype", "int8"},
      {"state_rounding", "stochastic"}}},
    {"adamw",
     {{"lr", "0.02"},
      {"weight_decay", "0"},
      {"state_dtype", "int8"},
      {"state_rounding", "stochastic"}}},
};

INSTANTIATE_TEST_SUITE_P(Optimizers, Convergence, ::testing::ValuesIn(kRecipes),
                         [](const auto& instance) {
                           std::string name =
                               instance.param.optimizer + "_" + std::to_string(instance.index);
                           std::erase(name, '-');
                           return name;
                         });

// A learned radius also finds an optimum with a different norm, which a fixed one cannot.
TEST(ConvergenceOfTheRadius, LearnedAndAdaptiveReachAnotherNormAndFixedDoesNot) {
  const testing::LeastSquares problem(4, {24, 16}, 1.6);
  EXPECT_LT(left_of_distance(kRecipes[0], problem), kArrived);
  EXPECT_LT(left_of_distance({"rode", {{"lr", "0.08"}, {"radius", "adaptive"}}}, problem),
            kArrived);
  EXPECT_GT(left_of_distance({"rode-fixed", {{"lr", "0.02"}}}, problem), 0.1);
}

// The schedule matters: with a constant rate the run ends farther away.
TEST(ConvergenceOfTheSchedule, CosineEndsNearerThanAConstantRate) {
  const testing::LeastSquares problem(5, {24, 16}, 1.0);
  for (const std::size_t recipe : {0, 6, 14})
    EXPECT_LT(10 * left_of_distance(kRecipes[recipe], problem),
              left_of_distance(kRecipes[recipe], problem, false))
        << kRecipes[recipe];
}

}  // namespace
}  // namespace rode
