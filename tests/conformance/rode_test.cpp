// SPDX-License-Identifier: Apache-2.0
// RODE and each of its variants against the double-precision reference.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/side_by_side.h"

namespace rode {
namespace {

using testing::correlated_problem;
using testing::EngineRun;
using testing::Judge;
using testing::Problem;
using testing::ReferenceRun;

// As published except for the guard; each variant is compared with that.
Method rode_with(const Settings& settings = {}) {
  return Method::by_name("rode",
                         {{"scale", "kernel"}, {"radius", "learned"}, {"nesterov", "false"}})
      .with(settings);
}

// The default rates hardly change a small matrix in twenty steps; these do.
Settings lively(Settings settings = {}) {
  const auto add = [&](const char* key, const char* value) {
    const bool given = std::ranges::any_of(settings, [&](const auto& s) { return s.first == key; });
    if (!given) settings.emplace_back(key, value);
  };
  add("lr", "0.01");
  add("lr_rho", "0.02");
  return settings;
}

std::string describe(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) text += (text.empty() ? "" : " ") + key + "=" + value;
  return text;
}

// Every number of a block: radii to a relative 1e-6, the others to the tolerance of the weights on
// their natural scale (the gradient's norm for s and ||M||, 1 or q for q, and the corresponding
// scale for theta).
void expect_diagnostics(const Method& method, const EngineRun& engine, const ReferenceRun& oracle,
                        const Problem& problem, double tol) {
  constexpr double kRadius = 1e-6;
  const double lr = std::stod(testing::settings_of(method).at("lr"));
  ASSERT_EQ(engine.diagnostics.size(), oracle.diagnostics.size());
  for (std::size_t k = 0; k < oracle.diagnostics.size(); ++k) {
    SCOPED_TRACE("step " + std::to_string(k));
    const double g = testing::norm(problem.gradients[k]);
    ASSERT_EQ(engine.diagnostics[k].size(), oracle.diagnostics[k].size());
    for (std::size_t b = 0; b < oracle.diagnostics[k].size(); ++b) {
      const MatrixDiagnostics& e = engine.diagnostics[k][b];
      const reference::Diagnostics& o = oracle.diagnostics[k][b];
      EXPECT_NEAR(e.rho, o.rho, kRadius * o.rho);
      EXPECT_NEAR(e.rho_next, o.rho_next, kRadius * o.rho_next);
      EXPECT_NEAR(e.s, o.s, tol * std::max(g, o.m_norm));
      EXPECT_NEAR(e.m_norm, o.m_norm, tol * std::max(g, o.m_norm));
      EXPECT_NEAR(e.gamma, o.gamma, tol);
      EXPECT_NEAR(e.q, o.q, tol * std::max(1.0, o.q));
      EXPECT_NEAR(e.theta, o.theta, tol * lr * std::max(1.0, o.q));
    }
  }
}

// Weights, momentum, scalar state and diagnostics of one case.
void expect_agreement(Judge& judge, const std::string& label, const Method& method,
                      const Problem& problem) {
  const double tol = problem.gradients.size() > 1 ? testing::kTwentySteps : testing::one_step();
  const EngineRun engine = testing::run_engine(method, problem);
  const ReferenceRun oracle = testing::run_reference(method, problem);
  EXPECT_TRUE(judge.agrees(label, compare(problem, engine.weight, oracle.weight, tol)));
  SCOPED_TRACE(label);
  expect_diagnostics(method, engine, oracle, problem, tol);
  ASSERT_EQ(engine.state.size(), oracle.state.size());
  for (const auto& [key, expected] : oracle.state) {
    ASSERT_TRUE(engine.state.contains(key)) << key;
    const std::vector<double>& got = engine.state.at(key).data;
    ASSERT_EQ(got.size(), expected.data.size()) << key;
    double error = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - expected.data[i]) * (got[i] - expected.data[i]);
      size += expected.data[i] * expected.data[i];
    }
    EXPECT_LE(std::sqrt(error), tol * std::sqrt(size)) << key;
  }
}

const std::vector<testing::Extents> kShapes = {{1, 1},   {1, 7},   {7, 1},    {2, 2},   {33, 17},
                                               {17, 33}, {64, 64}, {256, 96}, {96, 256}};

TEST(RodeConformance, OneStepIsTheReferencesOnEveryShape) {
  Judge judge;
  for (const testing::Extents& shape : kShapes)
    expect_agreement(judge, testing::to_string(shape), rode_with(),
                     correlated_problem(1, shape, 1));
  expect_agreement(judge, "512x512", rode_with(), correlated_problem(2, {512, 512}, 1));
}

TEST(RodeConformance, OneStepOn2048x768IsTheReferences) {
  Judge judge;
  expect_agreement(judge, "2048x768", rode_with(), correlated_problem(3, {2048, 768}, 1));
}

TEST(RodeConformance, TwentyStepsAreTheReferencesOnEveryShape) {
  Judge judge;
  for (const testing::Extents& shape : kShapes)
    for (const Settings& settings : {Settings{}, lively()})
      expect_agreement(judge, testing::to_string(shape) + " " + describe(settings),
                       rode_with(settings), correlated_problem(4, shape, 20));
}

TEST(RodeConformance, PresetsOfTheFamilyAreTheReferences) {
  Judge judge;
  for (const char* name : {"rode", "rode-snr", "rode-fixed"})
    for (const testing::Extents& shape : kShapes)
      expect_agreement(judge, std::string(name) + " " + testing::to_string(shape),
                       Method::by_name(name), correlated_problem(5, shape, 20));
}

// Correlation between weight and gradient at which the guard acts and the published iteration does
// not yet diverge: once it diverges, no two precisions agree.
constexpr double kMild = 0.1;

// All 216 combinations: a variant may be right alone and wrong together with another.
TEST(RodeConformance, EveryCombinationOfVariantsIsTheReferences) {
  Judge judge;
  const std::vector<Problem> problems = {correlated_problem(6, {33, 17}, 20, kMild),
                                         correlated_problem(7, {17, 33}, 20, kMild)};
  for (const char* radius : {"learned", "adaptive", "fixed"})
    for (const char* direction : {"geodesic", "retraction", "fixed"})
      for (const char* conditioner : {"newton_schulz", "none"})
        for (const char* reproject : {"guarded", "every", "final"})
          for (const char* nesterov : {"false", "true"})
            for (const char* snr : {"false", "true"}) {
              const Settings settings = {{"radius", radius},           {"direction", direction},
                                         {"conditioner", conditioner}, {"reproject", reproject},
                                         {"nesterov", nesterov},       {"snr", snr}};
              for (const Problem& problem : problems)
                expect_agreement(judge, describe(settings) + testing::to_string(problem.shape),
                                 rode_with(lively(settings)), problem);
            }
}

// The effect of one option, on every shape that has a direction.
struct Variant {
  Settings settings, plain;
};

TEST(RodeConformance, EachVariantIsTheReferencesAndDiffersVisiblyFromThePublishedRule) {
  const Settings final_only = {{"reproject", "final"}};
  const std::vector<Variant> variants = {
      {{{"radius", "adaptive"}}, {}},
      {{{"radius", "fixed"}}, {}},
      {{{"direction", "retraction"}, {"lr", "0.05"}}, {{"lr", "0.05"}}},
      {{{"direction", "fixed"}}, {}},
      {{{"conditioner", "none"}}, {}},
      {{{"reproject", "every"}}, {}},
      {{{"reproject", "final"}}, {}},
      {{{"nesterov", "true"}}, {}},
      {{{"snr", "true"}}, {}},
      {{{"snr", "true"}, {"snr_min", "0.95"}}, {{"snr", "true"}}},
      {{{"ns_steps", "1"}}, {}},
      {{{"ns_steps", "3"}}, {}},
      {{{"ns_steps", "7"}}, {}},
      {{{"momentum", "0.5"}}, {}},
      {{{"lr", "0.02"}}, {}},
      {{{"lr_rho", "0.05"}}, {}},
      {{{"floor", "0.999"}, {"lr_rho", "0.5"}}, {{"lr_rho", "0.5"}}},
      {{{"coefficients", "polar_express"}, {"reproject", "final"}}, final_only},
      {{{"coefficients", "you"}, {"reproject", "final"}}, final_only},
  };
  Judge judge;
  for (const testing::Extents& shape : {testing::Extents{33, 17}, {17, 33}, {64, 64}, {96, 40}}) {
    const Problem problem = correlated_problem(8, shape, 20, kMild);
    for (const Variant& variant : variants) {
      const Method method = rode_with(lively(variant.settings));
      const std::string label = describe(variant.settings) + " " + testing::to_string(shape);
      expect_agreement(judge, label, method, problem);
      EXPECT_GT(
          testing::effect(method, rode_with(lively(variant.plain)), problem, testing::kTwentySteps),
          testing::kVisible)
          << label;
    }
  }
}

TEST(RodeConformance, MultiplierScalesBothRates) {
  Judge judge;
  Problem problem = correlated_problem(9, {33, 17}, 20);
  const ReferenceRun whole = testing::run_reference(rode_with(lively()), problem);
  problem.multiplier = 0.3;
  expect_agreement(judge, "multiplier", rode_with(lively()), problem);
  const EngineRun scaled = testing::run_engine(rode_with({{"lr", "0.003"}, {"lr_rho", "0.006"}}),
                                               correlated_problem(9, {33, 17}, 20));
  EXPECT_TRUE(judge.agrees(
      "rates by hand",
      compare(problem, scaled.weight, testing::run_reference(rode_with(lively()), problem).weight,
              testing::kTwentySteps)));
  EXPECT_GT(compare(problem, scaled.weight, whole.weight, testing::kTwentySteps).ratio(),
            testing::kVisible);
}

// The Gram form reorders the products, so it rounds differently, but within the bound. Equal bits
// would mean that the option is ignored.
TEST(RodeConformance, GramAndStandardFormAreTheReferencesByDifferentProducts) {
  Judge judge;
  for (const testing::Extents& shape : {testing::Extents{64, 64}, {256, 96}, {96, 256}}) {
    const Problem problem = correlated_problem(10, shape, 20);
    for (const char* set : {"jordan", "polar_express", "you"}) {
      const auto form = [&](const char* name) {
        return rode_with(
            lively({{"reproject", "final"}, {"coefficients", set}, {"ns_form", name}}));
      };
      for (const char* name : {"gram", "standard"})
        expect_agreement(judge, std::string(name) + " " + set + " " + testing::to_string(shape),
                         form(name), problem);
      EXPECT_TRUE(testing::run_engine(form("gram"), problem).weight !=
                  testing::run_engine(form("standard"), problem).weight);
    }
  }
}

TEST(RodeConformance, SplitMatricesStepBlockByBlockInBothLayouts) {
  Judge judge;
  const Method equal = rode_with(lively({{"splits", "w=3"}, {"snr", "true"}}));
  const Method sizes = rode_with(lively({{"splits", "w=20+6+10"}, {"radius", "adaptive"}}));
  const Method fixed = rode_with(lively({{"splits", "w=20+6+10"}, {"radius", "fixed"}}));
  for (const Layout layout : {Layout::out_in, Layout::in_out}) {
    const bool out_in = layout == Layout::out_in;
    Problem problem =
        correlated_problem(11, out_in ? testing::Extents{36, 14} : testing::Extents{14, 36}, 20);
    problem.layout = layout;
    const std::string where = out_in ? " out_in" : " in_out";
    problem.blocks = {12, 12, 12};
    expect_agreement(judge, "w=3" + where, equal, problem);
    problem.blocks = {20, 6, 10};
    expect_agreement(judge, "w=20+6+10" + where, sizes, problem);
    expect_agreement(judge, "fixed w=20+6+10" + where, fixed, problem);

    const std::vector<double> split = testing::run_reference(fixed, problem).weight;
    problem.blocks.clear();
    const EngineRun whole = testing::run_engine(rode_with(lively({{"radius", "fixed"}})), problem);
    EXPECT_GT(compare(problem, whole.weight, split, testing::kTwentySteps).ratio(),
              testing::kVisible);
  }
}

TEST(RodeConformance, ConvolutionIsSteppedAsOutTimesRest) {
  Judge judge;
  Problem problem = correlated_problem(12, {12, 5, 3, 3}, 20);
  expect_agreement(judge, "12x5x3x3", rode_with(lively()), problem);
  const EngineRun tensor = testing::run_engine(rode_with(lively()), problem);
  problem.shape = {12, 45};
  EXPECT_TRUE(tensor.weight == testing::run_engine(rode_with(lively()), problem).weight);
}

// A gradient along W asks for a larger decrease than the floor allows in one step.
TEST(RodeConformance, FloorStopsTheRadiusAtItsFraction) {
  Judge judge;
  Problem problem = correlated_problem(13, {33, 17}, 1);
  problem.gradients[0] = testing::sum(1.0, problem.gradients[0], 3.0, problem.weight);
  for (const char* radius : {"learned", "adaptive"}) {
    const Method method = rode_with({{"radius", radius}, {"lr_rho", "5"}, {"floor", "0.25"}});
    expect_agreement(judge, radius, method, problem);
    const ReferenceRun oracle = testing::run_reference(method, problem);
    EXPECT_DOUBLE_EQ(oracle.diagnostics[0][0].rho_next, 0.25 * oracle.diagnostics[0][0].rho);
  }
}

TEST(RodeConformance, ZeroMatrixIsHeldWhileItsBufferGathers) {
  Problem problem = correlated_problem(14, {9, 5}, 3);
  std::fill(problem.weight.begin(), problem.weight.end(), 0.0F);
  const Method method = rode_with(lively()).with({{"on_zero", "hold"}});
  const EngineRun engine = testing::run_engine(method, problem);
  const ReferenceRun oracle = testing::run_reference(method, problem);
  EXPECT_EQ(engine.weight, problem.weight);
  for (std::size_t i = 0; i < problem.weight.size(); ++i)
    EXPECT_NEAR(engine.state.at("momentum").data[i], oracle.state.at("momentum").data[i],
                3 * testing::kUnitRounding * std::abs(oracle.state.at("momentum").data[i]) +
                    testing::kUnitRounding * testing::norm(problem.gradients[0]));
}

TEST(RodeConformance, ZeroGradientMovesNothingAtTheFirstStepAndCoastsLater) {
  Judge judge;
  Problem still = correlated_problem(15, {33, 17}, 2);
  for (testing::Values& g : still.gradients) std::fill(g.begin(), g.end(), 0.0F);
  EXPECT_EQ(testing::run_engine(rode_with(lively()), still).weight, still.weight);

  Problem coasting = correlated_problem(16, {33, 17}, 5);
  for (std::size_t k = 1; k < 5; ++k)
    std::fill(coasting.gradients[k].begin(), coasting.gradients[k].end(), 0.0F);
  expect_agreement(judge, "coasting", rode_with(lively()), coasting);
}

// Powers of two make the gradient exactly radial: its tangent part is zero, not just small.
TEST(RodeConformance, GradientAlongTheWeightTurnsNothing) {
  Judge judge;
  for (const testing::Extents& shape : {testing::Extents{1, 1}, {7, 5}, {33, 17}, {96, 64}}) {
    Problem problem = correlated_problem(17, shape, 1);
    problem.gradients[0] = testing::sum(0.5, problem.weight, 0.0, problem.weight);
    expect_agreement(judge, testing::to_string(shape), rode_with(lively()), problem);
  }
}

// Only the tangent part rotates W: it must survive a radial part 10^5 times as large.
TEST(RodeConformance, NearlyRadialGradientKeepsItsDirection) {
  Judge judge;
  for (const double tangent : {1e-2, 1e-3, 1e-4, 1e-5}) {
    Problem problem = correlated_problem(19, {96, 64}, 1);
    problem.gradients[0] = testing::sum(1.0, problem.weight, tangent, problem.gradients[0]);
    expect_agreement(judge, fmt::format("tangent part {}", tangent), rode_with(lively()), problem);
  }
}

}  // namespace
}  // namespace rode
