// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz with bf16 operands against the double-precision reference.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/side_by_side.h"

namespace rode {
namespace {

using testing::Extents;
using testing::Judge;
using testing::Problem;

// One step, so that the momentum is the gradient and has the intended spectrum.
Problem problem_of(std::uint64_t seed, const Extents& shape, bool with_harmonic) {
  testing::Gaussian gaussian(seed);
  Problem problem{
      .shape = shape, .weight = gaussian.values(testing::count_of(shape), 0.05), .gradients = {}};
  problem.gradients = {with_harmonic ? testing::harmonic(gaussian, shape, shape[0])
                                     : gaussian.values(testing::count_of(shape), 0.01)};
  return problem;
}

// If the CPU has no bf16 products, the engine rounds the operands and multiplies in fp32.
testing::Values step_in_bf16(const Method& method, const Problem& problem) {
  return testing::run_engine(method, problem).weight;
}

// Smaller matrices stay in fp32 on the CPU: bf16 would save no time.
constexpr std::int64_t kSmallestSide = 64;

class Bf16Products : public ::testing::TestWithParam<std::pair<const char*, Settings>> {};

TEST_P(Bf16Products, StayNearTheReferenceOnGaussianAndHarmonicMomentum) {
  const auto& [name, settings] = GetParam();
  const Method full = Method::by_name(name, settings);
  const Method half = full.with({{"ns_dtype", "bf16"}});
  Judge judge;
  for (const bool with_harmonic : {false, true}) {
    // 300 columns are more than one block of the triangular products.
    for (const Extents& shape : {Extents{33, 17}, {64, 65}, {256, 96}, {96, 256}, {320, 300}}) {
      const Problem problem = problem_of(40, shape, with_harmonic);
      const testing::Values stepped = step_in_bf16(half, problem);
      EXPECT_TRUE(
          judge.agrees(testing::to_string(shape) + (with_harmonic ? " harmonic" : " gaussian"),
                       compare(problem, stepped, testing::run_reference(full, problem).weight,
                               testing::kHalfProducts)));
      // Equal bits where bf16 is expected would mean that the option was ignored.
      const bool due = std::min(shape[0], shape[1]) >= kSmallestSide;
      EXPECT_EQ(stepped != testing::run_engine(full, problem).weight, due);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Bf16Products,
                         ::testing::Values(std::pair{"rode", Settings{}},
                                           std::pair{"rode", Settings{{"reproject", "final"}}},
                                           std::pair{"rode", Settings{{"reproject", "every"}}},
                                           std::pair{"muon", Settings{}},
                                           std::pair{"mars-m", Settings{}}),
                         [](const auto& instance) {
                           std::string label = instance.param.first;
                           for (const auto& [key, value] : instance.param.second)
                             label += "_" + value;
                           std::erase(label, '-');
                           return label;
                         });

}  // namespace
}  // namespace rode
