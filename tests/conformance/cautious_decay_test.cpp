// SPDX-License-Identifier: Apache-2.0
// Cautious weight decay: which elements decay, by hand and against the double-precision reference.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/side_by_side.h"

namespace rode {
namespace {

using testing::correlated_problem;
using testing::Extents;
using testing::Judge;
using testing::Problem;
using testing::Values;

// Rounding turns the sign of an element of O whose size it has, and its decay then is or is not
// there: so few steps, and fewer of large matrices, that no such element is among theirs.
constexpr std::size_t kSteps = 8;
std::size_t steps_of(const Extents& shape) { return shape[0] * shape[1] > 2000 ? 2 : kSteps; }

struct Case {
  const char* optimizer;
  Settings settings;
};

// Every rule that has the option, with a decay that shows, and what else takes part in the writing
// of its weights.
const std::vector<Case> kCases = {
    {"adamw", {{"weight_decay", "1"}, {"lr", "0.01"}}},
    {"adamw", {{"weight_decay", "1"}, {"lr", "0.01"}, {"maximize", "true"}}},
    {"lion", {{"weight_decay", "3"}, {"lr", "0.01"}}},
    {"muon", {{"weight_decay", "0.5"}}},
    {"muon", {{"weight_decay", "0.5"}, {"normalize", "rows"}}},
    {"muon-rms", {{"weight_decay", "0.5"}, {"nesterov", "false"}, {"ns_form", "gram"}}},
    {"mars-m", {{"weight_decay", "0.5"}}},
    {"mars-m", {{"weight_decay", "0.5"}, {"normalize", "rows"}}},
};

Method cautious(const Case& one, const Settings& more = {}) {
  return Method::by_name(one.optimizer, one.settings).with({{"cautious_decay", "true"}}).with(more);
}

std::string describe(const Case& one) {
  std::string text = one.optimizer;
  for (const auto& [key, value] : one.settings) text += " " + key + "=" + value;
  return text;
}

TEST(CautiousDecay, EveryRuleIsTheReferencesOnEveryShapeInBothLayouts) {
  Judge judge;
  for (const Case& one : kCases) {
    for (const Extents& shape : {Extents{1, 7}, {2, 2}, {33, 17}, {17, 33}, {40, 300}, {300, 40}}) {
      for (const Layout layout : {Layout::out_in, Layout::in_out}) {
        Problem problem = correlated_problem(51, shape, steps_of(shape));
        problem.layout = layout;
        EXPECT_TRUE(judge.agrees(describe(one) + " " + testing::to_string(shape),
                                 agreement_of(cautious(one), problem, testing::kTwentySteps)));
      }
    }
  }
}

TEST(CautiousDecay, DiffersVisiblyFromDecayOfAllAndFromNone) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(describe(one));
    const Problem problem = correlated_problem(52, {33, 17}, kSteps);
    const Method all = Method::by_name(one.optimizer, one.settings);
    EXPECT_GT(testing::effect(cautious(one), all, problem, testing::kTwentySteps),
              testing::kVisible);
    EXPECT_GT(testing::effect(cautious(one), all.with({{"weight_decay", "0"}}), problem,
                              testing::kTwentySteps),
              testing::kVisible);
  }
}

TEST(CautiousDecay, TheRestOfEveryOptimizerHasItToo) {
  Judge judge;
  for (const char* name : {"rode", "muon", "mars-m", "adamw", "lion"}) {
    SCOPED_TRACE(name);
    const std::string decay = std::string(name) == "lion" ? "30" : "1";
    const Method all = Method::by_name(name, {{"weight_decay_rest", decay}, {"lr_rest", "0.01"}});
    const Method some = all.with({{"cautious_decay", "true"}});
    Problem problem = correlated_problem(53, {37}, kSteps);
    problem.route = Route::rest;
    EXPECT_GT(testing::effect(some, all, problem, testing::kTwentySteps), testing::kVisible);
    EXPECT_TRUE(judge.agrees(name, agreement_of(some, problem, testing::kTwentySteps)));
  }
}

// One step by hand: the update has the gradient's sign, so that the four pairs of signs and the
// three with a zero are known.
TEST(CautiousDecay, DecaysWhereUpdateAndWeightDoNotOppose) {
  const Values weight{2, -2, 2, -2, 2, -2, 0}, gradient{1, -1, -1, 1, 0, 0, 1};
  const std::vector<bool> decays{true, true, false, false, true, true, true};
  const double lr = 0.125, decay = 0.5;
  for (const char* name : {"adamw", "lion"}) {
    SCOPED_TRACE(name);
    Problem problem = correlated_problem(54, {7}, 1);
    problem.weight = weight;
    problem.gradients = {gradient};
    const Method method = Method::by_name(name, {{"lr", "0.125"},
                                                 {"weight_decay", "0.5"},
                                                 {"cautious_decay", "true"},
                                                 {"betas", "0.5,0.5"}});
    const Values moved = testing::run_engine(method, problem).weight;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const double keep = decays[i] ? 1 - lr * decay : 1;
      const double expected =
          keep * static_cast<double>(weight[i]) - lr * static_cast<double>(gradient[i]);
      EXPECT_NEAR(static_cast<double>(moved[i]), expected, 1e-6) << "element " << i;
    }
  }
}

// A matrix whose gradient is zero has no direction: all of it decays, as without the option.
TEST(CautiousDecay, AMatrixWithoutADirectionDecays) {
  Problem problem = correlated_problem(55, {6, 4}, 1);
  for (float& g : problem.gradients[0]) g = 0;
  const Method all = Method::by_name("muon", {{"weight_decay", "0.5"}});
  const Values moved = testing::run_engine(all.with({{"cautious_decay", "true"}}), problem).weight;
  EXPECT_EQ(moved, testing::run_engine(all, problem).weight);
  EXPECT_NE(moved, problem.weight);
}

TEST(CautiousDecay, IsRefusedWhereANormIsRestoredAfterTheDecay) {
  const Method method = Method::by_name("muon-normproj", {{"cautious_decay", "true"}});
  try {
    method.with({{"weight_decay", "0.5"}});
    FAIL() << "accepted";
  } catch (const Error& error) {
    for (const char* part : {"cautious_decay", "normproj", "0.5", "weight_decay=0"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(CautiousDecay, RulesWithoutTheOptionRefuseItsName) {
  for (const char* name : {"sgd", "soap", "ademamix", "adafactor", "muown"}) {
    EXPECT_THROW(Method::by_name(name, {{"cautious_decay", "true"}}), Error) << name;
  }
}

}  // namespace
}  // namespace rode
