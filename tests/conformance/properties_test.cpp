// SPDX-License-Identifier: Apache-2.0
// What the paper proves about RODE, measured on the engine.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rules/rounding.h"
#include "support/side_by_side.h"
#include "support/tested_optimizer.h"

namespace rode {
namespace {

using testing::correlated_problem;
using testing::Extents;
using testing::Problem;
using testing::Values;

// Sums of a few products of fp32 numbers, each rounded once or twice.
constexpr double kRounding = 16 * testing::kUnitRounding;

const std::vector<Extents> kShapes = {{1, 7}, {7, 1}, {33, 17}, {17, 33}, {64, 64}, {128, 96}};

Settings lively(Settings settings = {}) {
  settings.emplace_back("lr", "0.02");
  settings.emplace_back("lr_rho", "0.05");
  return settings;
}

Method rode_with(const Settings& settings = {}) {
  return Method::by_name("rode",
                         {{"scale", "kernel"}, {"radius", "learned"}, {"nesterov", "false"}})
      .with(lively(settings));
}

// One parameter under an optimizer, step by step.
struct Walk {
  Extents shape;
  Values weight;
  test::Optimizer optimizer;

  Walk(const Method& method, const Problem& problem)
      : shape(problem.shape),
        weight(problem.weight),
        optimizer(
            {{.name = "w", .value = view(weight.data(), testing::shape_of(shape)), .grad = {}}},
            test::in_fp32(method), {.route = Route::matrix, .overrides = {}}) {}

  MatrixDiagnostics step(const Values& g) {
    optimizer.bind_grad(0, view(g.data(), testing::shape_of(shape)));
    optimizer.step();
    const auto all = optimizer.matrix_diagnostics();
    return all.empty() ? MatrixDiagnostics{} : all[0];
  }
  Values momentum() const {
    const auto state = testing::state_of(optimizer, "w");
    const std::vector<double>& b = state.at("momentum").data;
    return {b.begin(), b.end()};
  }
};

TEST(RodeProperties, NormAfterAStepIsTheRadiusReported) {
  for (const char* radius : {"learned", "adaptive", "fixed"}) {
    for (const char* direction : {"geodesic", "retraction"}) {
      for (const Extents& shape : kShapes) {
        const Problem problem = correlated_problem(51, shape, 20);
        Walk walk(rode_with({{"radius", radius}, {"direction", direction}}), problem);
        for (const Values& g : problem.gradients) {
          const MatrixDiagnostics d = walk.step(g);
          EXPECT_NEAR(testing::norm(walk.weight), d.rho_next, kRounding * d.rho_next)
              << radius << " " << direction << " " << testing::to_string(shape);
        }
      }
    }
  }
}

TEST(RodeProperties, DisplacementIsTheOneOfRadiiAndAngle) {
  for (const Extents& shape : kShapes) {
    SCOPED_TRACE(testing::to_string(shape));
    const Problem problem = correlated_problem(52, shape, 10);
    Walk walk(rode_with(), problem);
    for (const Values& g : problem.gradients) {
      const Values before = walk.weight;
      const MatrixDiagnostics d = walk.step(g);
      const double change = d.rho_next - d.rho;
      const double expected =
          std::sqrt(change * change + 2 * d.rho * d.rho_next * (1 - std::cos(d.theta)));
      // The weights themselves are rounded at the scale of rho.
      const double tolerance = kRounding * d.rho;
      EXPECT_NEAR(testing::distance(walk.weight, before), expected, tolerance);
      EXPECT_NEAR(walk.optimizer.global_diagnostics().update_norm, expected, tolerance);
      EXPECT_GT(expected, 100 * tolerance);  // the test is sensitive enough
    }
  }
}

TEST(RodeProperties, RadialSignalIsTheGradientsAloneWhateverTheMomentum) {
  for (const Extents& shape : kShapes) {
    const Problem problem = correlated_problem(53, shape, 10);
    Walk walk(rode_with(), problem);
    for (const Values& g : problem.gradients) {
      const double expected = testing::dot(g, walk.weight) / testing::norm(walk.weight);
      EXPECT_NEAR(walk.step(g).s, expected, kRounding * testing::norm(g));
    }
  }
}

TEST(RodeProperties, DirectionMovesInTheTangentSpaceByTheAngleReported) {
  for (const Extents& shape : kShapes) {
    const Problem problem = correlated_problem(54, shape, 10);
    Walk walk(rode_with(), problem);
    for (const Values& g : problem.gradients) {
      const Values u = testing::unit(walk.weight);
      const MatrixDiagnostics d = walk.step(g);
      // U' = U cos - D sin with <D,U> = 0 and ||D|| = 1.
      const Values next = testing::unit(walk.weight);
      EXPECT_NEAR(testing::dot(u, next), std::cos(d.theta), kRounding);
      EXPECT_NEAR(testing::norm(testing::sum(1.0, next, -testing::dot(u, next), u)),
                  std::sin(d.theta), kRounding);
    }
  }
}

// The buffer after a step with a zero gradient: beta P(B) at that weight.
Values carried_on(const Extents& shape, const Values& weight, const Values& buffer) {
  const Values zero(weight.size(), 0.0F);
  Walk walk(rode_with(), {.shape = shape, .weight = weight, .gradients = {}});
  const std::vector<TensorEntry> entries = {
      {"state.w.momentum", view(buffer.data(), testing::shape_of(shape))}};
  walk.optimizer.load_state(
      SafetensorsFile::parse(serialize_safetensors(entries), "the buffer of the test"));
  walk.step(zero);
  return walk.momentum();
}

// The radial part a_t U_t that stays in the raw buffer is partly tangent at the next point: the
// engine carries exactly |beta a_t sin theta_t| more than without it.
TEST(RodeProperties, RadialPartOfTheBufferLeaksByBetaTimesItsSine) {
  constexpr double kBeta = 0.9;  // the default
  for (const Extents& shape : kShapes) {
    SCOPED_TRACE(testing::to_string(shape));
    const Problem problem = correlated_problem(55, shape, 6);
    Walk walk(rode_with(), problem);
    for (const Values& g : problem.gradients) {
      const Values u = testing::unit(walk.weight);
      const MatrixDiagnostics d = walk.step(g);
      const Values buffer = walk.momentum();
      const double a = testing::dot(buffer, u);
      const double rounding = kRounding * testing::norm(buffer);
      EXPECT_NEAR(a, d.s, rounding);
      const Values tangent = testing::sum(1.0, buffer, -a, u);
      const double leak = testing::distance(carried_on(shape, walk.weight, buffer),
                                            carried_on(shape, walk.weight, tangent));
      EXPECT_NEAR(leak, std::abs(kBeta * a * std::sin(d.theta)), rounding);
    }
  }
}

TEST(RodeProperties, AngleDependsNeitherOnTheScaleOfTheGradientNorOnThatOfTheWeight) {
  for (const Extents& shape : kShapes) {
    SCOPED_TRACE(testing::to_string(shape));
    const Problem problem = correlated_problem(56, shape, 1);
    const double theta = Walk(rode_with(), problem).step(problem.gradients[0]).theta;
    ASSERT_GT(theta, 0.0);
    for (const double scale : {1e-6, 0.3, 7.0, 1e6}) {
      Problem louder = problem, heavier = problem;
      louder.gradients[0] = testing::sum(scale, problem.gradients[0], 0.0, problem.weight);
      heavier.weight = testing::sum(scale, problem.weight, 0.0, problem.weight);
      // fp32 rounding of the scaled inputs, amplified by the iteration: the oracle's tolerance.
      EXPECT_NEAR(Walk(rode_with(), louder).step(louder.gradients[0]).theta, theta,
                  testing::one_step() * theta);
      EXPECT_NEAR(Walk(rode_with(), heavier).step(problem.gradients[0]).theta, theta,
                  testing::one_step() * theta);
    }
  }
}

TEST(RodeProperties, PathOfTheDirectionDoesNotDependOnTheScaleOfTheGradient) {
  testing::Judge judge;
  for (const char* snr : {"false", "true"}) {
    for (const Extents& shape : kShapes) {
      Problem problem = correlated_problem(57, shape, 20);
      const Method method = Method::by_name("rode-fixed", {{"lr", "0.02"}, {"snr", snr}});
      const Values plain = testing::run_engine(method, problem).weight;
      for (Values& g : problem.gradients) g = testing::sum(37.0, g, 0.0, g);
      const Values scaled = testing::run_engine(method, problem).weight;
      EXPECT_TRUE(judge.agrees(
          testing::to_string(shape),
          compare(problem, scaled, {plain.begin(), plain.end()}, testing::kTwentySteps)));
    }
  }
}

// The largest deviation of the norm of bf16 weights from its initial value in 200 steps.
double farthest_norm(const Method& method, const Problem& problem) {
  std::vector<std::uint16_t> weight;
  for (const float w : problem.weight) weight.push_back(rules::bf16_nearest(w));
  const auto norm_of = [&] {
    Values wide;
    for (const std::uint16_t w : weight) wide.push_back(rules::bf16_to_float(w));
    return testing::norm(wide);
  };
  const double initial = norm_of();
  const Shape shape = testing::shape_of(problem.shape);
  test::Optimizer optimizer(
      {{.name = "w", .value = {weight.data(), shape, DType::bf16}, .grad = {}}},
      test::in_fp32(method), {.route = Route::matrix, .overrides = {}});
  testing::Gaussian gaussian(59);
  double farthest = 0;
  for (int k = 0; k < 200; ++k) {
    const Values g = gaussian.values(weight.size(), 0.05);
    optimizer.bind_grad(0, view(g.data(), shape));
    optimizer.step();
    farthest = std::max(farthest, std::abs(norm_of() / initial - 1));
  }
  return farthest;
}

// Plain rounding changes the norm of bf16 weights a little in every step; the radius kept in the
// state pulls it back. A radius that is measured again in every step, as with lr_rho = 0, lets the
// changes add up.
TEST(RodeProperties, FixedRadiusAndNormProjectionDoNotDriftInBf16) {
  const Problem problem = correlated_problem(58, {64, 48}, 1);
  const auto farthest = [&](const char* name, Settings settings) {
    settings.emplace_back("lr", "0.01");
    settings.emplace_back("rounding", "nearest");
    return farthest_norm(Method::by_name(name, settings), problem);
  };
  // Rounding 3072 numbers to 8 bits, to nearest, changes the norm by about 2^-9 / sqrt(3072); of
  // 200 such changes the largest is three or four times that, their sum fourteen times.
  const double once = 0x1.0p-9 / std::sqrt(3072.0);
  EXPECT_LT(farthest("rode-fixed", {}), 6 * once);
  EXPECT_LT(farthest("muon-normproj", {}), 6 * once);
  EXPECT_GT(farthest("rode", {{"scale", "kernel"}, {"lr_rho", "0"}}), 6 * once);
}

TEST(RodeProperties, NormProjectionKeepsTheInitialNorm) {
  for (const Extents& shape : kShapes) {
    const Problem problem = correlated_problem(60, shape, 20);
    for (const char* constraint : {"normproj", "hyperball"}) {
      const Method method = Method::by_name("muon-normproj", {{"constraint", constraint}});
      const double initial = testing::norm(problem.weight);
      EXPECT_NEAR(testing::norm(testing::run_engine(method, problem).weight), initial,
                  kRounding * initial)
          << constraint << " " << testing::to_string(shape);
    }
  }
}

}  // namespace
}  // namespace rode
