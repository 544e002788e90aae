// SPDX-License-Identifier: Apache-2.0
// Many matrices of different shapes, rules and addresses in one optimizer: each matches its own
// reference.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/side_by_side.h"
#include "support/tested_optimizer.h"

namespace rode {
namespace {

using testing::Extents;
using testing::Judge;
using testing::Problem;
using testing::Values;

const std::vector<Extents> kShapes = {{1, 1},    {1, 7},    {7, 1},     {3, 5},     {8, 8},
                                      {16, 24},  {17, 33},  {33, 17},   {64, 64},   {64, 65},
                                      {64, 147}, {96, 40},  {129, 257}, {128, 128}, {200, 8},
                                      {8, 200},  {256, 96}, {48, 320},  {100, 100}, {12, 5, 3, 3}};
constexpr std::size_t kSteps = 3;

// One problem per shape, all in one optimizer; returns the weights afterwards.
std::vector<Values> run_together(const Method& method, const std::vector<Problem>& problems,
                                 CudaProducts products) {
  std::vector<Values> weights;
  for (const Problem& problem : problems) weights.push_back(problem.weight);
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    parameters.push_back({.name = "w" + std::to_string(i),
                          .value = view(weights[i].data(), testing::shape_of(problems[i].shape)),
                          .grad = {}});
  }
  test::Optimizer optimizer(parameters, test::in_fp32(method),
                            {.route = Route::matrix, .overrides = {}}, {.cuda_products = products});
  for (std::size_t k = 0; k < kSteps; ++k) {
    for (std::size_t i = 0; i < problems.size(); ++i) {
      optimizer.bind_grad(
          i, view(problems[i].gradients[k].data(), testing::shape_of(problems[i].shape)));
    }
    optimizer.step();
  }
  return weights;
}

void expect_each_is_its_references(const Method& method, const std::vector<Problem>& problems,
                                   const Method& full, double tol,
                                   CudaProducts products = CudaProducts::automatic) {
  Judge judge;
  const std::vector<Values> weights = run_together(method, problems, products);
  for (std::size_t i = 0; i < problems.size(); ++i) {
    EXPECT_TRUE(judge.agrees(
        std::string(method.name()) + " " + testing::to_string(problems[i].shape),
        compare(problems[i], weights[i], testing::run_reference(full, problems[i]).weight, tol)));
  }
}

class MixedShapes : public ::testing::TestWithParam<std::pair<const char*, Settings>> {};

TEST_P(MixedShapes, StepTogetherAsEachReferenceDoesAlone) {
  const Method method = Method::by_name(GetParam().first, GetParam().second);
  std::vector<Problem> problems;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    problems.push_back(testing::correlated_problem(70 + i, kShapes[i], kSteps, 0.1));
  }
  expect_each_is_its_references(method, problems, method, testing::kTwentySteps);
}

// One gradient for all steps: the momentum stays Gaussian, as the tolerance assumes.
TEST_P(MixedShapes, StepTogetherInHalfPrecisionNearEachReference) {
  RODE_CUDA_ONLY("bf16_products_test.cpp tests the CPU");
  const Method method = Method::by_name(GetParam().first, GetParam().second);
  std::vector<Problem> problems;
  testing::Gaussian gaussian(71);
  for (const Extents& shape : kShapes) {
    if (std::min(testing::rows_of(shape), testing::cols_of(shape)) < 8) continue;
    const std::size_t count = testing::count_of(shape);
    problems.push_back({.shape = shape, .weight = gaussian.values(count, 0.05), .gradients = {}});
    problems.back().gradients.assign(kSteps, gaussian.values(count, 0.01));
  }
  // Chips without the Hopper kernels take the other two.
  for (const CudaProducts products :
       {CudaProducts::automatic, CudaProducts::tensor_cores, CudaProducts::plain}) {
    for (const char* dtype : {"bf16", "fp16"}) {
      expect_each_is_its_references(method.with({{"ns_dtype", dtype}}), problems, method,
                                    testing::kHalfProducts, products);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, MixedShapes,
    ::testing::Values(std::pair{"rode", Settings{}},
                      std::pair{"rode", Settings{{"reproject", "final"}}},
                      std::pair{"rode-snr", Settings{{"nesterov", "true"}}},
                      std::pair{"rode", Settings{{"conditioner", "none"}}},
                      std::pair{"rode", Settings{{"reproject", "final"}, {"radius_scope", "rows"}}},
                      std::pair{"muown", Settings{}}, std::pair{"muon", Settings{}},
                      std::pair{"muon-normproj", Settings{}},
                      std::pair{"muon", Settings{{"constraint", "hyperball"}}},
                      std::pair{"mars-m", Settings{}}),
    [](const auto& instance) {
      std::string label = instance.param.first;
      for (const auto& [key, value] : instance.param.second) label += "_" + value;
      std::erase(label, '-');
      return label;
    });

// All rules as parameter groups of one optimizer: bit for bit what each does alone.
TEST(MixedRules, StepInOneOptimizerAsEachDoesAlone) {
  const std::vector<Extents> shapes = {{40, 24}, {24, 56}, {17}};
  struct Member {
    Method method;
    std::vector<Values> weights, gradients;
    std::vector<Parameter> parameters;
  };
  const auto make = [&] {
    std::vector<Member> members;
    for (const OptimizerInfo& info : list_optimizers()) {
      members.push_back({test::in_fp32(Method::by_name(info.name)), {}, {}, {}});
      Member& member = members.back();
      testing::Gaussian gaussian(72 + members.size());
      for (const Extents& shape : shapes) {
        member.weights.push_back(gaussian.values(testing::count_of(shape), 0.05));
        member.gradients.push_back(gaussian.values(testing::count_of(shape), 0.02));
      }
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const Shape shape = testing::shape_of(shapes[i]);
        member.parameters.push_back({.name = info.name + std::to_string(i),
                                     .value = view(member.weights[i].data(), shape),
                                     .grad = view(member.gradients[i].data(), shape)});
      }
    }
    return members;
  };
  std::vector<Member> together = make(), alone = make();
  std::vector<ParameterGroup> groups;
  const Routing routing{.route = Route::matrix, .overrides = {}};
  for (Member& member : together) groups.push_back({member.parameters, member.method, routing});
  test::Optimizer all(groups);
  for (std::size_t k = 0; k < 2 * kSteps; ++k) all.step();
  for (std::size_t i = 0; i < alone.size(); ++i) {
    test::Optimizer one(alone[i].parameters, alone[i].method, routing);
    for (std::size_t k = 0; k < 2 * kSteps; ++k) one.step();
    EXPECT_TRUE(alone[i].weights == together[i].weights) << alone[i].method.name();
  }
}

// Arrays at any address: the code must avoid vector loads, and nothing else may change.
TEST(MixedShapesMemory, UnalignedArraysStepAsAlignedOnesDo) {
  Judge judge;
  for (const OptimizerInfo& info : list_optimizers()) {
    const Method method = Method::by_name(info.name);
    for (const Extents& shape : {Extents{64, 48}, {33, 17}, {24, 24}, {130}}) {
      // Any basis of a rank-deficient Gram matrix is right, so rounding may select a different one.
      if (info.name == "soap" && shape.size() == 2 && shape[0] != shape[1]) continue;
      const Problem problem = testing::correlated_problem(73, shape, kSteps);
      const Values aligned = testing::run_engine(method, problem).weight;
      for (const std::size_t bytes : {4U, 8U, 12U}) {
        const test::Misaligned off(bytes);
        const Values moved = testing::run_engine(method, problem).weight;
        EXPECT_TRUE(judge.agrees(
            info.name + " " + testing::to_string(shape) + " by " + std::to_string(bytes),
            compare(problem, moved, {aligned.begin(), aligned.end()}, testing::one_step())));
      }
    }
  }
}

}  // namespace
}  // namespace rode
