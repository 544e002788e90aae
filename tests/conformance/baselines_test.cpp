// SPDX-License-Identifier: Apache-2.0
// Every optimizer except RODE against the double-precision reference, over twenty steps.
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

constexpr std::size_t kSteps = 20;

const std::vector<std::string> kMuonFamily = {"muon", "muon-rms", "muon-normproj", "mars-m"};
const std::vector<std::string> kElementwise = {"adamw", "ademamix", "adafactor", "lion", "sgd"};
const std::vector<Extents> kMatrices = {{1, 1},   {1, 7},   {7, 1},    {2, 2},
                                        {33, 17}, {17, 33}, {128, 48}, {8, 4, 3, 3}};

void expect_agreement(Judge& judge, const Method& method, const Problem& problem,
                      const std::string& note = {}) {
  EXPECT_TRUE(judge.agrees(std::string(method.name()) + " " + testing::to_string(problem.shape) +
                               (note.empty() ? "" : " " + note),
                           agreement_of(method, problem, testing::kTwentySteps)));
}

TEST(BaselineConformance, MuonFamilyIsTheReferencesOnEveryShape) {
  Judge judge;
  for (const std::string& name : kMuonFamily)
    for (const Extents& shape : kMatrices)
      expect_agreement(judge, Method::by_name(name), correlated_problem(21, shape, kSteps));
}

TEST(BaselineConformance, ElementwiseRulesAreTheReferencesOnEveryShape) {
  Judge judge;
  for (const std::string& name : kElementwise)
    for (const Extents& shape : kMatrices)
      expect_agreement(judge, Method::by_name(name), correlated_problem(22, shape, kSteps));
}

TEST(BaselineConformance, VectorsAndRestTakeTheRestsRuleAndRates) {
  Judge judge;
  for (const OptimizerInfo& info : list_optimizers()) {
    const Method method = Method::by_name(info.name);
    for (const Extents& shape : {Extents{37}, {1}, {3, 5, 7}, {33, 17}}) {
      Problem problem = correlated_problem(23, shape, kSteps);
      problem.route = Route::rest;
      expect_agreement(judge, method, problem, "rest");
      if (shape.size() > 1) continue;
      // A vector is routed there anyway.
      problem.route = Route::matrix;
      expect_agreement(judge, method, problem, "vector");
    }
    Problem vector = correlated_problem(23, {37}, kSteps);
    EXPECT_GT(
        testing::effect(method.with({{"lr_rest", "0.01"}}), method, vector, testing::kTwentySteps),
        testing::kVisible)
        << info.name;
  }
}

// Each option has an effect larger than the bound, and the engine has the same effect.
struct Change {
  const char* optimizer;
  Settings settings, plain;
};

TEST(BaselineConformance, EachOptionIsTheReferencesAndDiffersVisiblyFromTheDefault) {
  const std::vector<Change> changes = {
      {"muon", {{"nesterov", "false"}}, {}},
      {"muon", {{"momentum", "0.8"}}, {}},
      {"muon", {{"weight_decay", "0.1"}}, {}},
      {"muon", {{"ns_steps", "3"}}, {}},
      {"muon", {{"eps", "100"}}, {}},
      {"muon", {{"scale", "rms"}}, {}},
      {"muon", {{"constraint", "normproj"}}, {}},
      {"muon", {{"constraint", "hyperball"}}, {}},
      {"muon", {{"coefficients", "polar_express"}}, {}},
      {"muon", {{"coefficients", "you"}}, {}},
      {"muon-normproj", {{"weight_decay", "0.5"}}, {}},
      {"mars-m", {{"gamma", "0.2"}}, {}},
      {"mars-m", {{"momentum", "0.8"}}, {}},
      {"mars-m", {{"weight_decay", "0.5"}}, {}},
      {"mars-m", {{"eps", "0.1"}}, {}},
      {"mars-m", {{"coefficients", "you"}}, {}},
      {"adamw", {{"weight_decay", "1"}, {"lr", "1e-2"}}, {{"lr", "1e-2"}}},
      {"adamw", {{"betas", "0.8,0.95"}}, {}},
      {"adamw", {{"betas", "0.9,0.8"}}, {}},
      {"adamw", {{"eps", "1e-2"}}, {}},
      {"adamw", {{"maximize", "true"}}, {}},
      {"ademamix", {{"alpha", "8"}}, {}},
      {"ademamix", {{"betas", "0.9,0.999,0.99"}}, {}},
      {"ademamix", {{"warmup_steps", "15"}}, {}},
      {"ademamix", {{"weight_decay", "1"}, {"lr", "1e-2"}}, {{"lr", "1e-2"}}},
      {"ademamix", {{"eps", "1e-2"}}, {}},
      {"adafactor", {{"decay_rate", "-0.5"}}, {}},
      {"adafactor", {{"clip_threshold", "0.5"}}, {}},
      {"adafactor", {{"weight_decay", "1"}}, {}},
      {"adafactor", {{"eps", "1e-2"}}, {}},
      {"lion", {{"betas", "0.3,0.99"}}, {}},
      {"lion", {{"betas", "0.9,0.8"}}, {}},
      {"lion", {{"weight_decay", "3"}, {"lr", "1e-2"}}, {{"lr", "1e-2"}}},
      {"sgd", {{"momentum", "0.5"}}, {}},
      {"sgd", {{"weight_decay", "0.1"}}, {}},
      {"sgd", {{"nesterov", "true"}}, {}},
      {"sgd", {{"maximize", "true"}}, {}},
  };
  Judge judge;
  for (const Extents& shape : {Extents{48, 20}, {20, 48}}) {
    const Problem problem = correlated_problem(24, shape, kSteps);
    for (const Change& change : changes) {
      const Method method = Method::by_name(change.optimizer, change.settings);
      const std::string note = change.settings[0].first + "=" + change.settings[0].second;
      expect_agreement(judge, method, problem, note);
      EXPECT_GT(testing::effect(method, Method::by_name(change.optimizer, change.plain), problem,
                                testing::kTwentySteps),
                testing::kVisible)
          << change.optimizer << " " << note;
    }
  }
}

TEST(BaselineConformance, MultiplierScalesTheRateOfEveryOptimizer) {
  Judge judge;
  for (const OptimizerInfo& info : list_optimizers()) {
    if (info.name == "soap") continue;  // below, from a well-defined state
    Problem problem = correlated_problem(25, {20, 12}, kSteps);
    const Method method = Method::by_name(info.name);
    const std::vector<double> whole = testing::run_reference(method, problem).weight;
    problem.multiplier = 0.5;
    const EngineRun half = testing::run_engine(method, problem);
    EXPECT_TRUE(judge.agrees(
        info.name, compare(problem, half.weight, testing::run_reference(method, problem).weight,
                           testing::kTwentySteps)));
    EXPECT_GT(compare(problem, half.weight, whole, testing::kTwentySteps).ratio(),
              testing::kVisible)
        << info.name;
  }
}

// The original scale depends on which side is the fan-out.
TEST(BaselineConformance, MuonsScaleFollowsTheLayout) {
  Judge judge;
  const Method muon = Method::by_name("muon");
  for (const Extents& shape : {Extents{48, 20}, {20, 48}}) {
    Problem problem = correlated_problem(26, shape, kSteps);
    const std::vector<double> stored = testing::run_reference(muon, problem).weight;
    problem.layout = Layout::in_out;
    expect_agreement(judge, muon, problem, "in_out");
    EXPECT_GT(
        compare(problem, testing::run_engine(muon, problem).weight, stored, testing::kTwentySteps)
            .ratio(),
        testing::kVisible);
  }
}

TEST(BaselineConformance, MuonsSplitsStepBlockByBlock) {
  Judge judge;
  for (const char* constraint : {"none", "normproj", "hyperball"}) {
    const Method method =
        Method::by_name("muon", {{"splits", "w=20+6+10"}, {"constraint", constraint}});
    for (const Layout layout : {Layout::out_in, Layout::in_out}) {
      Problem problem = correlated_problem(
          27, layout == Layout::out_in ? Extents{36, 14} : Extents{14, 36}, kSteps);
      problem.layout = layout;
      problem.blocks = {20, 6, 10};
      expect_agreement(judge, method, problem, constraint);
      problem.blocks.clear();
      EXPECT_GT(
          testing::compare(problem, testing::run_engine(method, problem).weight,
                           testing::run_reference(method, problem).weight, testing::kTwentySteps)
              .ratio(),
          testing::kVisible);
    }
  }
}

TEST(BaselineConformance, GramFormOfMuonAndMarsIsTheReferencesByDifferentProducts) {
  Judge judge;
  for (const char* name : {"muon", "mars-m"}) {
    const Problem problem = correlated_problem(28, {160, 40}, kSteps);
    const Method gram = Method::by_name(name, {{"ns_form", "gram"}});
    const Method standard = Method::by_name(name, {{"ns_form", "standard"}});
    expect_agreement(judge, gram, problem, "gram");
    expect_agreement(judge, standard, problem, "standard");
    EXPECT_TRUE(testing::run_engine(gram, problem).weight !=
                testing::run_engine(standard, problem).weight);
  }
}

TEST(BaselineConformance, SoapIsTheReferencesFromScratchOnSquareMatrices) {
  Judge judge;
  for (const Extents& shape : {Extents{2, 2}, {12, 12}, {20, 20}})
    expect_agreement(judge, Method::by_name("soap"), correlated_problem(29, shape, kSteps));
}

// With a gradient that is not square, one of the first Gram matrices is rank-deficient: any basis
// of its null space is right, so the reference continues from the one that the engine chose.
testing::Agreement soap_after_first(const Method& method, const Problem& problem) {
  Problem first = problem;
  first.gradients.resize(1);
  const EngineRun start = testing::run_engine(method, first);
  EXPECT_EQ(start.weight, problem.weight) << "the first gradient must not change the weight";
  const auto oracle = testing::continue_reference(method, problem, start.weight, start.state, 1);
  return compare(problem, testing::run_engine(method, problem).weight, oracle.weight,
                 testing::kTwentySteps);
}

TEST(BaselineConformance, SoapIsTheReferencesAfterItsFirstGradientOnEveryShape) {
  Judge judge;
  for (const Extents& shape : {Extents{1, 7}, {7, 1}, {33, 17}, {17, 33}, {6, 5, 4}, {8, 4, 3, 3}})
    EXPECT_TRUE(judge.agrees(
        testing::to_string(shape),
        soap_after_first(Method::by_name("soap"), correlated_problem(30, shape, kSteps))));
}

TEST(BaselineConformance, EachOptionOfSoapIsTheReferencesAndDiffersVisiblyFromTheDefault) {
  Judge judge;
  const Method plain = Method::by_name("soap");
  for (const Settings& settings : {Settings{{"precondition_frequency", "3"}},
                                   {{"max_precond_dim", "15"}},
                                   {{"max_precond_dim", "1"}},
                                   {{"weight_decay", "0.5"}},
                                   {{"betas", "0.8,0.95"}},
                                   {{"betas", "0.95,0.8"}},
                                   {{"eps", "1e-3"}},
                                   {{"lr", "1e-3"}}}) {
    const Method method = plain.with(settings);
    const Problem problem = correlated_problem(31, {20, 12}, kSteps);
    const std::string note = settings[0].first + "=" + settings[0].second;
    EXPECT_TRUE(judge.agrees(note, soap_after_first(method, problem)));
    const testing::Values one = testing::run_engine(method, problem).weight;
    const testing::Values two = testing::run_engine(plain, problem).weight;
    EXPECT_GT(compare(problem, one, {two.begin(), two.end()}, testing::kTwentySteps).ratio(),
              testing::kVisible)
        << note;
  }
  Problem half = correlated_problem(31, {20, 12}, kSteps);
  half.multiplier = 0.5;
  EXPECT_TRUE(judge.agrees("multiplier", soap_after_first(plain, half)));
}

}  // namespace
}  // namespace rode
