// SPDX-License-Identifier: Apache-2.0
// A radius per row, RODE's and Muown's, against the double-precision reference.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rules/rounding.h"
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

constexpr std::size_t kSteps = 20;

struct Case {
  const char* optimizer;
  Settings settings;
};

const Settings kRows{{"radius_scope", "rows"}, {"reproject", "final"}};

const std::vector<Case> kCases = {
    {"rode", {{"lr", "0.01"}, {"lr_rho", "0.02"}, {"radius", "learned"}}},
    {"rode", {{"lr", "0.01"}, {"radius", "adaptive"}, {"nesterov", "true"}}},
    {"rode", {{"lr", "0.01"}, {"radius", "adaptive"}, {"radius_brake", "0.5"}}},
    {"rode", {{"lr", "0.05"}, {"scale", "angle"}, {"ns_form", "gram"}}},
    {"rode", {{"lr", "0.01"}, {"conditioner", "none"}}},
    {"rode", {{"lr", "0.05"}, {"direction", "retraction"}, {"coefficients", "polar_express"}}},
    {"rode", {{"direction", "fixed"}}},
    {"rode", {{"lr", "0.01"}, {"normalize", "rows"}}},
    {"rode-snr", {}},
    {"rode-fixed", {{"lr", "0.01"}}},
    {"muown", {}},
    {"muown", {{"lr", "0.02"}, {"nesterov", "false"}, {"coefficients", "four"}}},
    {"muown", {{"lr", "0.01"}, {"lr_rho", "0.1"}, {"weight_decay", "0.3"}}},
};

Method method_of(const Case& one, const Settings& more = {}) {
  const Method method = Method::by_name(one.optimizer);
  const bool rode = std::string(one.optimizer).starts_with("rode");
  return (rode ? method.with(kRows) : method).with(one.settings).with(more);
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
  ASSERT_EQ(engine.state.size(), oracle.state.size());
  for (const auto& [key, expected] : oracle.state) {
    if (key == "momentum") continue;
    ASSERT_TRUE(engine.state.contains(key)) << key;
    const std::vector<double>& got = engine.state.at(key).data;
    ASSERT_EQ(got.size(), expected.data.size()) << key;
    double error = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - expected.data[i]) * (got[i] - expected.data[i]);
      size += expected.data[i] * expected.data[i];
    }
    EXPECT_LE(std::sqrt(error), 10 * tol * std::sqrt(size)) << key;
  }
}

TEST(RowRadius, EveryRuleIsTheReferencesOnEveryShapeInBothLayouts) {
  Judge judge;
  for (const Case& one : kCases) {
    for (const Extents& shape :
         {Extents{1, 7}, {7, 1}, {2, 2}, {33, 17}, {17, 33}, {64, 64}, {40, 300}, {300, 40}}) {
      Problem problem = correlated_problem(51, shape, kSteps, 0.1);
      const std::string label = describe(one) + " " + testing::to_string(shape);
      expect_agreement(judge, label, method_of(one), problem);
      problem.layout = Layout::in_out;
      expect_agreement(judge, label + " in_out", method_of(one), problem);
    }
  }
}

TEST(RowRadius, SplitMatricesHaveBlocksOfRowsInBothLayouts) {
  Judge judge;
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}, {"radius", "adaptive"}}}, {"muown", {}}}) {
    const Method method = method_of(one, {{"splits", "w=20+6+10"}});
    for (const Layout layout : {Layout::out_in, Layout::in_out}) {
      Problem problem = correlated_problem(
          53, layout == Layout::out_in ? Extents{36, 14} : Extents{14, 36}, kSteps, 0.1);
      problem.layout = layout;
      problem.blocks = {20, 6, 10};
      expect_agreement(judge, describe(one), method, problem);
    }
  }
}

TEST(RowRadius, LargeMatricesAreTheReferencesInBothLayouts) {
  Judge judge;
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}}}, {"muown", {}}}) {
    for (const Layout layout : {Layout::out_in, Layout::in_out}) {
      Problem problem = correlated_problem(52, {520, 260}, 2, 0.1);
      problem.layout = layout;
      expect_agreement(judge, describe(one), method_of(one), problem);
    }
  }
}

TEST(RowRadius, OneRadiusPerRowIsVisible) {
  const Problem problem = correlated_problem(54, {33, 17}, kSteps, 0.1);
  const Method plain = Method::by_name("rode", {{"lr", "0.01"}, {"reproject", "final"}});
  EXPECT_GT(testing::effect(plain.with(kRows), plain, problem, testing::kTwentySteps),
            testing::kVisible);
  const Method muown = Method::by_name("muown", {{"lr", "0.01"}});
  for (const Settings& change : {Settings{{"lr_rho", "0"}},
                                 {{"nesterov", "false"}},
                                 {{"betas_radius", "0.5,0.5"}},
                                 {{"weight_decay", "0.1"}}}) {
    EXPECT_GT(testing::effect(muown.with(change), muown, problem, testing::kTwentySteps),
              testing::kVisible)
        << change.front().first;
  }
}

// What rows meet: each way in which a radius moves, each shape of the direction, factors of rows.
TEST(RowRadius, EveryOptionOfRodeIsVisibleBesideRadiiOfRows) {
  const Problem problem = correlated_problem(58, {33, 17}, kSteps, 0.1);
  const Method plain = Method::by_name("rode", kRows)
                           .with({{"lr", "0.01"}, {"lr_rho", "0.02"}, {"radius", "learned"}});
  for (const Settings& change : {Settings{{"radius", "adaptive"}},
                                 {{"radius", "fixed"}},
                                 {{"radius_brake", "0"}},
                                 {{"nesterov", "false"}},
                                 {{"scale", "kernel"}},
                                 {{"direction", "fixed"}},
                                 {{"conditioner", "none"}},
                                 {{"snr", "true"}},
                                 {{"normalize", "rows"}}}) {
    EXPECT_GT(testing::effect(plain.with(change), plain, problem, testing::kTwentySteps),
              testing::kVisible)
        << change.front().first;
  }
  const Method rows = plain.with({{"normalize", "rows"}});
  EXPECT_GT(testing::effect(rows.with({{"row_beta", "0.1"}}), rows, problem, testing::kTwentySteps),
            testing::kVisible);
}

TEST(RowRadius, RowsAreThoseOfTheLayout) {
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}}}, {"muown", {{"lr", "0.01"}}}}) {
    for (const Extents& shape : {Extents{33, 17}, {17, 33}}) {
      Problem problem = correlated_problem(59, shape, kSteps, 0.1);
      const std::vector<double> rows = testing::run_reference(method_of(one), problem).weight;
      problem.layout = Layout::in_out;
      EXPECT_GT(compare(problem, testing::run_engine(method_of(one), problem).weight, rows,
                        testing::kTwentySteps)
                    .ratio(),
                testing::kVisible)
          << one.optimizer;
    }
  }
}

// Longer than a slice of the CUDA passes, of 16384 elements, with remainders: rows that begin
// within a slice, end within one, and fill more than one.
TEST(RowRadius, LongRowsAreTheReferencesInBothLayouts) {
  Judge judge;
  for (const Case& one :
       {Case{"rode", {{"lr", "0.01"}}}, {"rode", {{"normalize", "rows"}}}, {"muown", {}}}) {
    for (const Extents& shape : {Extents{1, 16387}, {2, 20004}, {3, 33001}}) {
      expect_agreement(judge, describe(one) + " " + testing::to_string(shape), method_of(one),
                       correlated_problem(60, shape, 2, 0.1));
      Problem turned = correlated_problem(61, {shape[1], shape[0]}, 2, 0.1);
      turned.layout = Layout::in_out;
      expect_agreement(judge, describe(one) + " in_out " + testing::to_string(turned.shape),
                       method_of(one), turned);
    }
  }
}

// Iterates in half precision are summed as they are stored: lengths are those of what is written.
TEST(RowRadius, HalfProductsStayWithinTheirBound) {
  Judge judge;
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}}}, {"muown", {{"lr", "0.01"}}}}) {
    for (const Extents& shape : {Extents{192, 128}, {128, 192}, {200, 72}}) {
      for (const Layout layout : {Layout::out_in, Layout::in_out}) {
        Problem problem = correlated_problem(62, shape, 1, 0.1);
        problem.layout = layout;
        expect_agreement(judge, describe(one) + " " + testing::to_string(shape),
                         method_of(one, {{"ns_dtype", "bf16"}}), problem, testing::kHalfProducts);
      }
    }
  }
}

// First without a direction, then with one, then along a buffer alone.
TEST(RowRadius, GradientsOfZerosAreSteppedAsTheReferenceDoes) {
  Judge judge;
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}}},
                          {"rode", {{"lr", "0.01"}, {"radius", "adaptive"}}},
                          {"rode", {{"lr", "0.01"}, {"normalize", "rows"}}},
                          {"muown", {{"weight_decay", "0.3"}}}}) {
    Problem problem = correlated_problem(63, {33, 17}, 3, 0.1);
    std::fill(problem.gradients[0].begin(), problem.gradients[0].end(), 0.0F);
    std::fill(problem.gradients[2].begin(), problem.gradients[2].end(), 0.0F);
    expect_agreement(judge, describe(one), method_of(one), problem);
  }
}

// Rows without a direction stay where they are, and the others move as if alone.
TEST(RowRadius, RowsOfZerosAreHeld) {
  for (const Case& one : {Case{"rode", {{"lr", "0.01"}}}, {"muown", {}}}) {
    Problem problem = correlated_problem(55, {9, 5}, 3);
    std::fill_n(problem.weight.begin() + 10, 5, 0.0F);
    Judge judge;
    expect_agreement(judge, one.optimizer, method_of(one), problem);
    const EngineRun engine = testing::run_engine(method_of(one), problem);
    for (std::size_t j = 10; j < 15; ++j) EXPECT_EQ(engine.weight[j], 0.0F) << one.optimizer;
  }
}

// A length that Adam takes through zero turns the row round; the state remembers the sign.
TEST(RowRadius, LengthsOfMuownMayChangeTheirSign) {
  Problem problem = correlated_problem(56, {6, 8}, kSteps, 0.9);
  for (float& w : problem.weight) w *= 1e-2F;
  const Method method = Method::by_name("muown", {{"lr_rho", "0.01"}});
  const EngineRun engine = testing::run_engine(method, problem);
  const std::vector<double>& radius = engine.state.at("radius").data;
  EXPECT_TRUE(std::any_of(radius.begin(), radius.end(), [](double g) { return g < 0; }));
  Judge judge;
  expect_agreement(judge, "sign", method, problem, 1e-3);
}

TEST(RowRadius, ANegativeLengthIsSavedAndLoaded) {
  Problem problem = correlated_problem(56, {6, 8}, kSteps, 0.9);
  for (float& w : problem.weight) w *= 1e-2F;
  testing::Values weight = problem.weight;
  const auto make = [&] {
    return test::Optimizer({{.name = "w",
                             .value = view(weight.data(), {6, 8}),
                             .grad = view(std::as_const(problem.gradients[0]).data(), {6, 8})}},
                           Method::by_name("muown", {{"lr_rho", "0.01"}}),
                           {.route = Route::matrix, .overrides = {}});
  };
  test::Optimizer first = make();
  for (int t = 0; t < 8; ++t) first.step();
  const std::string path = ::testing::TempDir() + "muown_sign.safetensors";
  first.save(path);
  test::Optimizer second = make();
  second.load(path);
  bool negative = false;
  const auto saved = first.state(), loaded = second.state();
  for (std::size_t i = 0; i < saved.size(); ++i) {
    ASSERT_EQ(std::memcmp(saved[i].view.data, loaded[i].view.data, saved[i].view.bytes()), 0);
    if (!saved[i].name.ends_with(".radius")) continue;
    const auto* g = static_cast<const float*>(saved[i].view.data);
    negative = std::any_of(g, g + 6, [](float value) { return value < 0; });
  }
  EXPECT_TRUE(negative) << "no length is negative: the test shows nothing";
}

// Random bits go by the place in the whole tensor, as everywhere.
TEST(RowRadius, StochasticRoundingGoesByThePlaceInTheWhole) {
  const Problem problem = correlated_problem(57, {4, 32}, 1, 0.9);
  const auto run = [&](std::int64_t place) {
    std::vector<std::uint16_t> weight(128);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight[i] = rules::bf16_nearest(problem.weight[i]);
    }
    test::Optimizer optimizer(
        {{.name = "w",
          .value = {weight.data(), {4, 32}, DType::bf16},
          .grad = view(std::as_const(problem.gradients[0]).data(), {4, 32}),
          .first_element = place}},
        Method::by_name("rode", {{"radius_scope", "rows"}, {"reproject", "final"}, {"lr", "1e-3"}}),
        {.route = Route::matrix, .overrides = {}});
    for (int t = 0; t < 3; ++t) optimizer.step();
    return weight;
  };
  EXPECT_TRUE(run(0) == run(0));
  EXPECT_FALSE(run(0) == run(128));
}

}  // namespace
}  // namespace rode
