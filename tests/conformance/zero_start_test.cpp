// SPDX-License-Identifier: Apache-2.0
// on_zero = start: matrices that begin at zero, against the double-precision reference.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/side_by_side.h"
#include "support/tested_optimizer.h"

namespace rode {
namespace {

using testing::correlated_problem;
using testing::EngineRun;
using testing::Extents;
using testing::Judge;
using testing::Problem;
using testing::ReferenceRun;
using testing::Values;

Method starting(const Settings& settings, const char* name = "rode") {
  return Method::by_name(name, {{"on_zero", "start"}}).with(settings);
}

std::string describe(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) text += (text.empty() ? "" : " ") + key + "=" + value;
  return text;
}

Problem zero_problem(std::uint64_t seed, const Extents& shape, std::size_t steps = 8) {
  Problem problem = correlated_problem(seed, shape, steps);
  std::fill(problem.weight.begin(), problem.weight.end(), 0.0F);
  return problem;
}

// Weights, state and the numbers of every step.
void expect_agreement(Judge& judge, const std::string& label, const Method& method,
                      const Problem& problem, double tol = testing::kTwentySteps) {
  SCOPED_TRACE(label);
  const EngineRun engine = testing::run_engine(method, problem);
  const ReferenceRun oracle = testing::run_reference(method, problem);
  EXPECT_TRUE(judge.agrees(label, compare(problem, engine.weight, oracle.weight, tol)));
  for (const char* key : {"start_norm", "step"}) {
    if (!oracle.state.contains(key)) continue;
    ASSERT_TRUE(engine.state.contains(key)) << key;
    const auto &got = engine.state.at(key).data, &expected = oracle.state.at(key).data;
    ASSERT_EQ(got.size(), expected.size()) << key;
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6 * got[i]);
  }
  for (std::size_t k = 0; k < oracle.diagnostics.size(); ++k) {
    for (std::size_t b = 0; b < oracle.diagnostics[k].size(); ++b) {
      const MatrixDiagnostics& e = engine.diagnostics[k][b];
      const reference::Diagnostics& o = oracle.diagnostics[k][b];
      EXPECT_NEAR(e.rho, o.rho, tol * o.rho);
      EXPECT_NEAR(e.rho_next, o.rho_next, tol * o.rho_next);
      EXPECT_NEAR(e.theta, o.theta, tol * o.theta);
      EXPECT_NEAR(e.gamma, o.gamma, tol);
      EXPECT_NEAR(e.m_norm, o.m_norm, tol * o.m_norm);
    }
  }
}

const std::vector<Settings> kVariants = {
    {},
    {{"scale", "kernel"}, {"lr", "0.01"}},
    {{"radius", "learned"}, {"nesterov", "false"}},
    {{"radius", "fixed"}},
    {{"snr", "true"}},
    {{"normalize", "rows"}},
    {{"normalize", "rows"}, {"conditioner", "none"}},
    {{"conditioner", "none"}, {"direction", "retraction"}},
    {{"reproject", "final"}, {"ns_form", "gram"}},
    {{"coefficients", "four"}},
    {{"coefficients", "polar_express"}},
    {{"momentum", "0.5"}},
};

TEST(ZeroStartConformance, EveryVariantIsTheReferencesAndNeitherHeldNorTheRests) {
  Judge judge;
  for (const Settings& settings : kVariants) {
    for (const Extents& shape : {Extents{33, 17}, {17, 33}, {64, 64}, {1, 7}}) {
      const Problem problem = zero_problem(71, shape);
      const Method method = starting(settings);
      const std::string label = describe(settings) + " " + testing::to_string(shape);
      expect_agreement(judge, label, method, problem);
      const std::vector<double> oracle = testing::run_reference(method, problem).weight;
      for (const char* other : {"hold", "rest"}) {
        const EngineRun run = testing::run_engine(method.with({{"on_zero", other}}), problem);
        EXPECT_GT(compare(problem, run.weight, oracle, testing::kTwentySteps).ratio(),
                  testing::kVisible)
            << label << " " << other;
      }
    }
  }
}

TEST(ZeroStartConformance, PresetsOfTheFamilyAreTheReferences) {
  Judge judge;
  for (const char* name : {"rode", "rode-snr", "rode-fixed"})
    expect_agreement(judge, name, starting({}, name), zero_problem(72, {33, 17}));
}

TEST(ZeroStartConformance, ItWaitsForTheFirstGradientThatIsNotZero) {
  Judge judge;
  Problem problem = zero_problem(73, {33, 17});
  for (std::size_t k = 0; k < 3; ++k)
    std::fill(problem.gradients[k].begin(), problem.gradients[k].end(), 0.0F);
  for (const Settings& settings : {Settings{}, {{"snr", "true"}}})
    expect_agreement(judge, describe(settings), starting(settings), problem);
  const EngineRun run = testing::run_engine(starting({}), problem);
  EXPECT_EQ(run.diagnostics[2][0].rho_next, 0);
  EXPECT_GT(run.diagnostics[3][0].rho_next, 0);
  EXPECT_EQ(run.state.at("step").data[0], 4);  // of eight: three waited, one started
}

// Of one step: where the guard would act in later ones, no two precisions agree without it.
TEST(ZeroStartConformance, TheStartOfThePublishedIterationIsTheReferences) {
  Judge judge;
  const Method method = Method::by_name("rode-paper", {{"on_zero", "start"}});
  expect_agreement(judge, "rode-paper", method, zero_problem(78, {33, 17}, 1));
}

// R = theta N; all of its factors by hand, in both scales.
TEST(ZeroStartConformance, TheStartIsAsLongAsTheAngleOfAStepTimesTheNormOfSuchAMatrix) {
  Problem problem = zero_problem(74, {40, 16}, 1);
  problem.multiplier = 0.3;
  for (const char* scale : {"angle", "kernel"}) {
    const Method method = starting({{"scale", scale}, {"lr", "0.02"}});
    const EngineRun run = testing::run_engine(method, problem);
    const MatrixDiagnostics& d = run.diagnostics[0][0];
    const double side = std::string(scale) == "angle" ? std::sqrt(16.0) : 1.0;
    EXPECT_NEAR(d.theta, 0.3 * 0.02 * d.q / side, 1e-9);
    EXPECT_NEAR(d.rho_next, d.theta * std::sqrt(40.0), 1e-6 * d.rho_next);  // 1/sqrt(16) each
    EXPECT_NEAR(testing::norm(run.weight), d.rho_next, 1e-6 * d.rho_next);
    // Newton-Schulz brings the singular values near 1, so q is near sqrt(min).
    EXPECT_NEAR(d.q, std::sqrt(16.0), 0.2 * std::sqrt(16.0));
  }
}

TEST(ZeroStartConformance, BlocksAndExpertsStartEachByItselfAtTheMedianOfTheOthers) {
  Judge judge;
  for (const Layout layout : {Layout::out_in, Layout::in_out}) {
    const bool out_in = layout == Layout::out_in;
    const std::string where = out_in ? "" : " in_out";
    Problem fused = correlated_problem(75, out_in ? Extents{36, 14} : Extents{14, 36}, 8);
    fused.layout = layout;
    fused.blocks = {20, 6, 10};
    for (std::size_t i = 0; i < fused.weight.size(); ++i) {
      const std::size_t row = out_in ? i / 14 : i % 36;
      if (row >= 20 && row < 26) fused.weight[i] = 0.0F;
      if (row >= 26) fused.weight[i] *= 3.0F;
    }
    expect_agreement(judge, "splits" + where, starting({{"splits", "w=20+6+10"}}), fused);

    Problem batch = correlated_problem(76, out_in ? Extents{4, 36, 14} : Extents{4, 14, 36}, 8);
    batch.layout = layout;
    batch.experts = true;
    const std::size_t size = batch.weight.size() / 4;
    std::fill_n(batch.weight.begin(), size, 0.0F);
    std::fill_n(batch.weight.begin() + static_cast<std::ptrdiff_t>(2 * size), size, 0.0F);
    expect_agreement(judge, "experts" + where, starting({}), batch);
    const auto norms = testing::run_engine(starting({}), batch).state.at("start_norm").data;
    EXPECT_GT(norms[0], 0);
    EXPECT_EQ(norms[0], norms[2]);
    EXPECT_EQ(norms[1] + norms[3], 0);
  }
}

// Several parameters in two groups: the median is that of all matrices, whichever their number.
TEST(ZeroStartConformance, TheMedianIsThatOfAllMatricesOfTheOptimizer) {
  for (const std::size_t count : {1U, 2U, 3U}) {
    Values zero(24 * 10, 0.0F);
    std::vector<Problem> others;
    const Method method = starting({});
    std::vector<ParameterGroup> groups(2, {{}, method, {Route::matrix, {}}, {}});
    groups[0].parameters.push_back(
        {.name = "zero", .value = view(zero.data(), {24, 10}), .grad = {}});
    std::vector<reference::Tensor> tensors{{{24, 10}, std::vector<double>(240, 0.0)}};
    for (std::size_t i = 0; i < count; ++i) {
      others.push_back(correlated_problem(80 + i, {12, 9}, 1));
      for (float& w : others[i].weight) w *= static_cast<float>(1 + 2 * i);
      tensors.push_back({{12, 9}, {others[i].weight.begin(), others[i].weight.end()}});
    }
    for (std::size_t i = 0; i < count; ++i) {
      groups[i % 2].parameters.push_back({.name = "w" + std::to_string(i),
                                          .value = view(others[i].weight.data(), {12, 9}),
                                          .grad = {}});
    }
    const test::Optimizer optimizer(groups);
    std::vector<reference::State> states(tensors.size(), {{"start_norm", {{1}, {0}}}});
    std::vector<reference::Started> all;
    for (std::size_t i = 0; i < tensors.size(); ++i) all.push_back({&tensors[i], {}, &states[i]});
    reference::set_starts(testing::settings_of(method), all);
    const double expected = states[0].at("start_norm").data[0];
    EXPECT_NEAR(testing::state_of(optimizer, "zero").at("start_norm").data[0], expected,
                1e-6 * expected);
    EXPECT_EQ(testing::state_of(optimizer, "w0").at("start_norm").data[0], 0);
  }
}

TEST(ZeroStartConformance, StorageInFewerBitsStartsTheSameMatrix) {
  const Problem problem = zero_problem(77, {64, 48}, 1);
  const std::vector<double> oracle = testing::run_reference(starting({}), problem).weight;
  Values int8 = problem.weight;
  test::Optimizer optimizer({{.name = "w", .value = view(int8.data(), {64, 48}), .grad = {}}},
                            test::in_fp32(starting({{"state_dtype", "int8"}})),
                            {Route::matrix, {}});
  optimizer.bind_grad(0, view(problem.gradients[0].data(), {64, 48}));
  optimizer.step();
  EXPECT_LE(compare(problem, int8, oracle, testing::kTwentySteps).ratio(), 1);
  const EngineRun bf16 = testing::run_engine(starting({{"ns_dtype", "bf16"}}), problem);
  EXPECT_LE(compare(problem, bf16.weight, oracle, testing::kHalfProducts).ratio(), 1);
}

}  // namespace
}  // namespace rode
