// SPDX-License-Identifier: Apache-2.0
// Rows that are normalised (NorMuon) against the double-precision reference.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/side_by_side.h"

namespace rode {
namespace {

using testing::correlated_problem;
using testing::EngineRun;
using testing::Extents;
using testing::Judge;
using testing::Problem;
using testing::ReferenceRun;

constexpr std::size_t kSteps = 20;

struct Case {
  const char* optimizer;
  Settings settings;
};

// What the factors of the rows meet: the projection of RODE, the norms of constrained Muon, a start
// that is the iterate, the Gram form.
const std::vector<Case> kCases = {
    {"rode", {{"lr", "0.01"}, {"lr_rho", "0.02"}}},
    {"rode", {{"lr", "0.01"}, {"reproject", "final"}, {"nesterov", "true"}}},
    {"rode", {{"lr", "0.01"}, {"conditioner", "none"}}},
    {"rode", {{"lr", "0.05"}, {"direction", "retraction"}}},
    {"rode", {{"direction", "fixed"}}},
    {"rode-snr", {{"row_beta", "0.5"}}},
    {"rode-fixed", {{"lr", "0.01"}}},
    {"muon", {}},
    {"muon", {{"constraint", "hyperball"}}},
    {"muon-rms", {{"weight_decay", "0.1"}, {"row_beta", "0.5"}}},
    {"muon-normproj", {{"ns_form", "gram"}}},
    {"mars-m", {}},
};

Method with_rows(const Case& one, const Settings& more = {}) {
  return Method::by_name(one.optimizer, one.settings).with({{"normalize", "rows"}}).with(more);
}

std::string describe(const Case& one) {
  std::string text = one.optimizer;
  for (const auto& [key, value] : one.settings) text += " " + key + "=" + value;
  return text;
}

void expect_agreement(Judge& judge, const std::string& label, const Method& method,
                      const Problem& problem, double tol = testing::kTwentySteps) {
  SCOPED_TRACE(label);
  const EngineRun engine = testing::run_engine(method, problem);
  const ReferenceRun oracle = testing::run_reference(method, problem);
  EXPECT_TRUE(judge.agrees(label, compare(problem, engine.weight, oracle.weight, tol)));
  ASSERT_TRUE(engine.state.contains("row_avg_sq"));
  const std::vector<double>& got = engine.state.at("row_avg_sq").data;
  const std::vector<double>& expected = oracle.state.at("row_avg_sq").data;
  ASSERT_EQ(got.size(), expected.size());
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  EXPECT_LE(std::sqrt(error), tol * std::sqrt(size));
}

TEST(RowConformance, EveryRuleIsTheReferencesOnEveryShapeInBothLayouts) {
  Judge judge;
  for (const Case& one : kCases) {
    for (const Extents& shape :
         {Extents{1, 7}, {2, 2}, {33, 17}, {17, 33}, {64, 64}, {40, 300}, {300, 40}}) {
      Problem problem = correlated_problem(41, shape, kSteps, 0.1);
      const std::string label = describe(one) + " " + testing::to_string(shape);
      expect_agreement(judge, label, with_rows(one), problem);
      problem.layout = Layout::in_out;
      expect_agreement(judge, label + " in_out", with_rows(one), problem);
    }
  }
}

TEST(RowConformance, LargeMatricesAreTheReferencesInBothLayouts) {
  Judge judge;
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}}}, {"muon-normproj", {}}}) {
    for (const Layout layout : {Layout::out_in, Layout::in_out}) {
      Problem problem = correlated_problem(42, {520, 260}, 2, 0.1);
      problem.layout = layout;
      expect_agreement(judge, describe(one), with_rows(one), problem);
    }
  }
}

TEST(RowConformance, SplitMatricesAreNormalisedBlockByBlockInBothLayouts) {
  Judge judge;
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}}}, {"muon", {{"constraint", "normproj"}}}}) {
    const Method method = with_rows(one, {{"splits", "w=20+6+10"}});
    for (const Layout layout : {Layout::out_in, Layout::in_out}) {
      Problem problem = correlated_problem(
          43, layout == Layout::out_in ? Extents{36, 14} : Extents{14, 36}, kSteps, 0.1);
      problem.layout = layout;
      problem.blocks = {20, 6, 10};
      expect_agreement(judge, describe(one), method, problem);
    }
  }
}

TEST(RowConformance, NormalisingIsVisibleAndFollowsTheLayout) {
  for (const Case& one : kCases) {
    const Method plain = Method::by_name(one.optimizer, one.settings);
    if (one.settings == Settings{{"direction", "fixed"}}) continue;  // turns nothing
    for (const Extents& shape : {Extents{33, 17}, {17, 33}}) {
      Problem problem = correlated_problem(44, shape, kSteps, 0.1);
      SCOPED_TRACE(describe(one) + " " + testing::to_string(shape));
      EXPECT_GT(testing::effect(with_rows(one), plain, problem, testing::kTwentySteps),
                testing::kVisible);
      EXPECT_GT(testing::effect(with_rows(one, {{"row_beta", "0.1"}}), with_rows(one), problem,
                                testing::kTwentySteps),
                testing::kVisible);
      const std::vector<double> rows = testing::run_reference(with_rows(one), problem).weight;
      problem.layout = Layout::in_out;
      EXPECT_GT(compare(problem, testing::run_engine(with_rows(one), problem).weight, rows,
                        testing::kTwentySteps)
                    .ratio(),
                testing::kVisible);
    }
  }
}

// Half-precision iterates are summed as they are stored: the norms of the rows are those of what is
// written.
TEST(RowConformance, HalfProductsStayWithinTheirBound) {
  Judge judge;
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}}}, {"muon", {}}}) {
    for (const Extents& shape : {Extents{192, 128}, {128, 192}, {200, 72}}) {
      for (const Layout layout : {Layout::out_in, Layout::in_out}) {
        Problem problem = correlated_problem(45, shape, 1, 0.1);
        problem.layout = layout;
        expect_agreement(judge, describe(one) + " " + testing::to_string(shape),
                         with_rows(one, {{"ns_dtype", "bf16"}}), problem, testing::kHalfProducts);
      }
    }
  }
}

TEST(RowConformance, ZeroGradientLeavesTheAveragesAlone) {
  for (const char* name : {"rode", "muon", "mars-m"}) {
    Problem problem = correlated_problem(46, {33, 17}, 1);
    std::fill(problem.gradients[0].begin(), problem.gradients[0].end(), 0.0F);
    const EngineRun engine = testing::run_engine(with_rows({name, {}}), problem);
    for (const double v : engine.state.at("row_avg_sq").data) EXPECT_EQ(v, 0) << name;
  }
}

}  // namespace
}  // namespace rode
