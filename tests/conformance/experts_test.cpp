// SPDX-License-Identifier: Apache-2.0
// Tensors whose first dimension counts matrices, and parts of tensors.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/side_by_side.h"
#include "support/tested_optimizer.h"

namespace rode {
namespace {

using testing::correlated_problem;
using testing::Extents;
using testing::Judge;
using testing::Problem;

constexpr std::int64_t kExperts = 3;

struct Case {
  const char* optimizer;
  Settings settings;
};

// Every kind of state that a matrix has: of its size, one number, one for each row, square ones.
const std::vector<Case> kCases = {
    {"rode", {{"lr", "0.01"}, {"lr_rho", "0.02"}}},
    {"rode-snr", {{"normalize", "rows"}}},
    {"rode", {{"lr", "0.01"}, {"radius", "adaptive"}}},
    {"rode-fixed", {{"lr", "0.01"}}},
    {"muon-normproj", {{"normalize", "rows"}}},
    {"mars-m", {{"normalize", "rows"}}},
    {"soap", {{"precondition_frequency", "2"}}},
    {"muown", {}},
    {"rode-snr", {{"radius_scope", "rows"}, {"reproject", "final"}, {"radius", "adaptive"}}},
};

Problem experts_problem(Layout layout, std::size_t steps = 20) {
  const bool out_in = layout == Layout::out_in;
  Problem problem = correlated_problem(
      61, out_in ? Extents{kExperts, 36, 14} : Extents{kExperts, 14, 36}, steps, 0.1);
  problem.layout = layout;
  problem.experts = true;
  return problem;
}

TEST(Experts, ABatchIsTheReferencesMatrixByMatrixInBothLayouts) {
  Judge judge;
  for (const Case& one : kCases) {
    const Method method = Method::by_name(one.optimizer, one.settings);
    for (const Layout layout : {Layout::out_in, Layout::in_out}) {
      Problem problem = experts_problem(layout);
      // From scratch it has well-defined bases of square matrices alone.
      if (std::string(one.optimizer) == "soap") {
        problem = correlated_problem(29, {kExperts, 17, 17}, 20);
        problem.layout = layout;
        problem.experts = true;
      }
      const std::string label =
          std::string(one.optimizer) + (layout == Layout::out_in ? "" : " in_out");
      const auto engine = testing::run_engine(method, problem);
      const auto oracle = testing::run_reference(method, problem);
      EXPECT_TRUE(judge.agrees(
          label, compare(problem, engine.weight, oracle.weight, testing::kTwentySteps)));
      for (const auto& [key, tensor] : oracle.state) {
        ASSERT_TRUE(engine.state.contains(key)) << label << " " << key;
        EXPECT_EQ(engine.state.at(key).shape, tensor.shape) << label << " " << key;
      }
      // As one matrix it would be stepped otherwise.
      problem.experts = false;
      EXPECT_GT(compare(problem, testing::run_engine(method, problem).weight, oracle.weight,
                        testing::kTwentySteps)
                    .ratio(),
                testing::kVisible)
          << label;
    }
  }
}

TEST(Experts, SplitsDivideEveryMatrixOfABatch) {
  Judge judge;
  for (const Case& one : {Case{"rode-snr", {{"normalize", "rows"}}}, {"muon-normproj", {}}}) {
    for (const Layout layout : {Layout::out_in, Layout::in_out}) {
      Problem problem = experts_problem(layout);
      problem.blocks = {20, 16};
      const Method method =
          Method::by_name(one.optimizer, one.settings).with({{"splits", "w=20+16"}});
      const auto engine = testing::run_engine(method, problem);
      EXPECT_TRUE(judge.agrees(
          one.optimizer,
          compare(problem, engine.weight, testing::run_reference(method, problem).weight,
                  testing::kTwentySteps)));
      if (!std::string(one.optimizer).starts_with("rode")) continue;
      ASSERT_EQ(engine.diagnostics.back().size(), 2 * kExperts);
      EXPECT_EQ(engine.diagnostics.back().back().name, "w[5]");
    }
  }
}

// The same jobs, so the same bits, with the state of each where its part of the batch has it.
TEST(Experts, ABatchHasTheBitsOfItsMatricesSteppedAlone) {
  for (const Case& one : kCases) {
    const Problem problem = experts_problem(Layout::out_in, 4);
    const Method method = Method::by_name(one.optimizer, one.settings);
    const auto batch = testing::run_engine(method, problem);
    const std::size_t size = problem.weight.size() / kExperts;
    testing::Values alone = problem.weight;
    std::vector<Parameter> parameters;
    for (std::size_t e = 0; e < kExperts; ++e) {
      parameters.push_back({.name = "w" + std::to_string(e),
                            .value = view(alone.data() + e * size, {36, 14}),
                            .grad = {}});
    }
    test::Optimizer optimizer(parameters, test::in_fp32(method), {Route::matrix, {}});
    for (const testing::Values& g : problem.gradients) {
      for (std::size_t e = 0; e < kExperts; ++e) {
        optimizer.bind_grad(e, view(g.data() + e * size, {36, 14}));
      }
      optimizer.step();
    }
    EXPECT_TRUE(batch.weight == alone) << one.optimizer;
    for (const auto& [key, whole] : batch.state) {
      std::vector<double> joined;
      for (std::size_t e = 0; e < kExperts; ++e) {
        const auto part = testing::state_of(optimizer, "w" + std::to_string(e)).at(key).data;
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(whole.data == joined) << one.optimizer << " " << key;
    }
  }
}

TEST(Experts, ABatchIsPlannedAsItsMatricesAndMayBeDividedByExpert) {
  std::vector<Parameter> parameters{{"h.experts.down", {nullptr, {4, 6, 8}, DType::bf16}, {}}};
  const Method method = MuonOptions{};
  const std::vector<PlannedMatrix> matrices = planned_matrices(parameters, method);
  ASSERT_EQ(matrices.size(), 4U);
  EXPECT_EQ(matrices[3].rows, 6);
  EXPECT_EQ(matrices[3].columns, 8);
  const std::vector<ShardItem> items = shard_items(parameters, method);
  EXPECT_EQ(items.at(0).unit_bytes, 6 * 8 * 2);
  EXPECT_DOUBLE_EQ(items[0].cost, 4 * newton_schulz_cost(6, 8, 5));
}

// A part with its place in the whole draws as the whole does; without it, it does not.
TEST(Parts, StochasticRoundingGoesByThePlaceInTheWhole) {
  constexpr std::size_t kCount = 600, kFirst = 200;
  const auto run = [](bool cut, bool placed) {
    std::vector<std::uint16_t> weight(kCount, 0x3f80);  // 1 in bf16
    testing::Values gradient(kCount, 0.5F);
    std::vector<Parameter> parameters;
    const std::size_t first = cut ? kFirst : 0;
    const auto count = static_cast<std::int64_t>(kCount - first);
    // The sequence is the name's.
    parameters.push_back({.name = "w",
                          .value = {weight.data() + first, {count}, DType::bf16},
                          .grad = view(std::as_const(gradient).data() + first, {count}),
                          .first_element = placed ? static_cast<std::int64_t>(first) : 0});
    test::Optimizer optimizer(parameters, AdamWOptions{.lr = 1e-3});
    for (int step = 0; step < 3; ++step) optimizer.step();
    return std::vector<std::uint16_t>(weight.begin() + kFirst, weight.end());
  };
  const auto whole = run(false, true);
  EXPECT_TRUE(run(true, true) == whole);
  EXPECT_FALSE(run(true, false) == whole);
}

}  // namespace
}  // namespace rode
