// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz with bf16 and fp16 operands on a GPU, on the shapes of real models.
//
// Large steps are compared with the CPU's engine in fp32, which the other tests of this folder
// require to be within 1e-5 of the double-precision reference; small ones with the reference
// itself.
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/blas.h"
#include "support/side_by_side.h"
#include "support/tested_optimizer.h"

namespace rode {
namespace {

using testing::Extents;
using testing::Gaussian;
using testing::Problem;
using testing::Values;

// Columns are orthonormal: cosines whose rows have random signs, optionally scaled by 1/k.
Values cosines(Gaussian& gaussian, std::int64_t rows, std::int64_t terms, bool over_k) {
  Values out(static_cast<std::size_t>(rows * terms));
  for (std::int64_t i = 0; i < rows; ++i) {
    const double sign = gaussian.uniform() < 0.5 ? -1 : 1;
    for (std::int64_t k = 0; k < terms; ++k) {
      const auto order = static_cast<double>(k), size = static_cast<double>(rows);
      const double phase = std::numbers::pi * (static_cast<double>(i) + 0.5) * order / size;
      const double value = sign * std::sqrt((k == 0 ? 1 : 2) / size) * std::cos(phase);
      out[static_cast<std::size_t>(i * terms + k)] =
          static_cast<float>(over_k ? value / (order + 1) : value);
    }
  }
  return out;
}

// Singular values 1/k, all of them; or all the same.
Values spectrum(Gaussian& gaussian, std::int64_t rows, std::int64_t cols, bool over_k) {
  const std::int64_t terms = std::min(rows, cols);
  const Values left = cosines(gaussian, rows, terms, over_k);
  const Values right = cosines(gaussian, cols, terms, false);
  Values out(static_cast<std::size_t>(rows * cols));
  const cpu::SingleThreadedBlas single;
  cpu::gemm(false, true, rows, cols, terms, 1, left.data(), terms, right.data(), terms, 0,
            out.data(), cols);
  return out;
}

Values harmonic(Gaussian& gaussian, std::int64_t rows, std::int64_t cols) {
  return spectrum(gaussian, rows, cols, true);
}

// One step, so that the momentum is the gradient and has the intended spectrum.
Problem problem_of(const Extents& shape, bool with_harmonic) {
  Gaussian gaussian(90);
  Problem problem{
      .shape = shape, .weight = gaussian.values(testing::count_of(shape), 0.05), .gradients = {}};
  problem.gradients = {with_harmonic ? harmonic(gaussian, shape[0], shape[1])
                                     : gaussian.values(testing::count_of(shape), 0.01)};
  return problem;
}

struct Expected {
  std::vector<double> weight;
  std::vector<double> radii;  // rho' of every matrix
};

Expected expected_of(const Method& method, const Problem& problem) {
  const auto m = static_cast<double>(std::max(problem.shape[0], problem.shape[1]));
  const auto n = static_cast<double>(std::min(problem.shape[0], problem.shape[1]));
  constexpr double kQuick = 1e9;  // FLOPs per second of the reference's plain loops
  Expected expected;
  if (5 * (4 * m * n * n + 2 * n * n * n) < kQuick) {
    testing::ReferenceRun run = testing::run_reference(method, problem);
    expected.weight = std::move(run.weight);
    for (const auto& d : run.diagnostics[0]) expected.radii.push_back(d.rho_next);
    return expected;
  }
  Values weight = problem.weight;
  const Shape shape = testing::shape_of(problem.shape);
  rode::Optimizer cpu({{.name = "w",
                        .value = view(weight.data(), shape),
                        .grad = view(problem.gradients[0].data(), shape)}},
                      method.with({{"ns_dtype", "fp32"}}),
                      {.route = Route::matrix, .overrides = {}}, {.threads = 1});
  cpu.step();
  expected.weight.assign(weight.begin(), weight.end());
  for (const MatrixDiagnostics& d : cpu.matrix_diagnostics()) {
    expected.radii.push_back(d.rho_next);
  }
  return expected;
}

void expect_near(testing::Judge& judge, const Method& method, const Problem& problem,
                 const std::string& label, const Expected& expected,
                 double tol = testing::kHalfProducts) {
  constexpr double kRadius = 1e-6;
  for (const char* dtype : {"bf16", "fp16"}) {
    SCOPED_TRACE(label + " " + dtype);
    const testing::EngineRun run = testing::run_engine(method.with({{"ns_dtype", dtype}}), problem);
    EXPECT_TRUE(
        judge.agrees(label + " " + dtype, compare(problem, run.weight, expected.weight, tol)));
    // Only the iterate is in half precision: radii are computed from fp32 numbers in double.
    ASSERT_EQ(run.diagnostics[0].size(), expected.radii.size());
    for (std::size_t i = 0; i < expected.radii.size(); ++i) {
      EXPECT_NEAR(run.diagnostics[0][i].rho_next, expected.radii[i], kRadius * expected.radii[i]);
      EXPECT_NEAR(testing::norm(run.weight), expected.radii[i], kRadius * expected.radii[i]);
    }
  }
}

void expect_near(testing::Judge& judge, const Method& method, const Problem& problem,
                 const std::string& label) {
  expect_near(judge, method, problem, label, expected_of(method, problem));
}

const std::vector<std::pair<const char*, Settings>> kMethods = {
    {"rode", {}},
    {"rode", {{"reproject", "every"}}},
    {"rode", {{"reproject", "final"}}},
    // The larger the angle, the more an error of <X, U> shows in the norm of the new weights.
    {"rode", {{"lr", "0.02"}}},
    {"rode", {{"nesterov", "true"}, {"snr", "true"}, {"radius", "adaptive"}}},
    {"muon", {}},
    {"mars-m", {}},
    {"muon-normproj", {}},
};

std::string label_of(const std::pair<const char*, Settings>& method, const Extents& shape,
                     bool with_harmonic) {
  std::string label = method.first;
  for (const auto& [key, value] : method.second) label += " " + key + "=" + value;
  return label + " " + testing::to_string(shape) + (with_harmonic ? " harmonic" : " gaussian");
}

TEST(HalfProducts, StayNearOnEveryMethodAndShapesWithAndWithoutTails) {
  RODE_CUDA_ONLY("bf16_products_test.cpp tests the CPU");
  testing::Judge judge;
  for (const Extents& shape :
       {Extents{768, 256}, {256, 768}, {64, 147}, {129, 257}, {200, 8}, {320, 320}}) {
    for (const bool with_harmonic : {false, true}) {
      const Problem problem = problem_of(shape, with_harmonic);
      for (const auto& method : kMethods) {
        expect_near(judge, Method::by_name(method.first, method.second), problem,
                    label_of(method, shape, with_harmonic));
      }
    }
  }
}

TEST(HalfProducts, StayNearOnTheLargeMatricesOfModels) {
  RODE_CUDA_ONLY("bf16_products_test.cpp tests the CPU");
  testing::Judge judge;
  const std::vector<Extents> shapes = {{768, 768},   {2048, 768}, {768, 2048},
                                       {1536, 1536}, {512, 4608}, {1000, 2048}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (const bool with_harmonic : {false, true}) {
      const Problem problem = problem_of(shapes[i], with_harmonic);
      // The default, then each of the others.
      for (const std::size_t which : {std::size_t{0}, 1 + i % (kMethods.size() - 1)}) {
        const auto& method = kMethods[which];
        expect_near(judge, Method::by_name(method.first, method.second), problem,
                    label_of(method, shapes[i], with_harmonic));
      }
    }
  }
}

// Like the bound of agreement, applied to the worst tile of 128 x 128: among a thousand, one wrong
// tile would go unnoticed. A tile that moves less than the others is judged by the distance that
// those move.
double worst_tile(const Problem& problem, const Values& found,
                  const std::vector<double>& expected) {
  struct Tile {
    double error = 0, moved = 0, count = 0;
  };
  constexpr std::int64_t kSide = 128;
  const std::int64_t cols = problem.shape[1], across = (cols + kSide - 1) / kSide;
  std::map<std::int64_t, Tile> tiles;
  Tile all;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double e = static_cast<double>(found[i]) - expected[i];
    const double d = expected[i] - static_cast<double>(problem.weight[i]);
    for (Tile* tile : {&tiles[at / cols / kSide * across + at % cols / kSide], &all}) {
      tile->error += e * e;
      tile->moved += d * d;
      tile->count += 1;
    }
  }
  double worst = 0;
  for (const auto& [index, tile] : tiles) {
    const double moved = std::max(tile.moved, all.moved * tile.count / all.count);
    worst = std::max(worst, std::sqrt(tile.error / moved) / testing::kHalfProducts);
  }
  return worst;
}
// In units of the bound: the CPU's worst tile is at 1.8, and without the reprojections all are at
// 14.
constexpr double kWorstTile = 3, kVisible = 10;

// More tiles than the device can hold until the sum of their matrix is known: they are reprojected
// in device memory. Weights and gradient have the same singular vectors, so that every iteration
// leaves the tangent space.
TEST(HalfProducts, StayNearWhereTilesAreReprojectedBehindTheProducts) {
  RODE_CUDA_ONLY("bf16_products_test.cpp tests the CPU");
  testing::Judge judge;
  for (const Extents& shape : {Extents{70000, 130}, {130, 70001}}) {
    Gaussian for_weight(91), for_gradient(91);
    const Problem problem{.shape = shape,
                          .weight = spectrum(for_weight, shape[0], shape[1], false),
                          .gradients = {spectrum(for_gradient, shape[0], shape[1], true)}};
    // An adaptive radius would lengthen these short weights so much that the turn hardly shows.
    const Method method = Method::by_name("rode", {{"lr", "0.02"}, {"radius", "fixed"}});
    const Expected expected = expected_of(method, problem);
    expect_near(judge, method, problem, "rode lr=0.02 " + testing::to_string(shape) + " aligned",
                expected);
    const Method in_bf16 = method.with({{"ns_dtype", "bf16"}});
    const Values found = testing::run_engine(in_bf16, problem).weight;
    EXPECT_LT(worst_tile(problem, found, expected.weight), kWorstTile);
    // The same with another set's start and guard, whose polynomials amplify rounding more.
    const Method four = method.with({{"coefficients", "four"}});
    expect_near(judge, four, problem, "rode four " + testing::to_string(shape) + " aligned",
                expected_of(four, problem), 2 * testing::kHalfProducts);
    // Without the reprojections the weights end elsewhere.
    const Values without =
        testing::run_engine(in_bf16.with({{"reproject", "final"}}), problem).weight;
    EXPECT_GT(compare(problem, without, expected.weight, testing::kHalfProducts).ratio(), kVisible);
  }
}

// The default type is bf16 here; equal bits with fp32 would mean that the option is ignored.
TEST(HalfProducts, AreInBf16WhereTheTypeIsLeftOpen) {
  RODE_CUDA_ONLY("the CPU's default is fp32");
  const Problem problem = problem_of({256, 192}, false);
  for (const char* name : {"rode", "muon", "mars-m"}) {
    const auto stepped = [&](const char* dtype) {
      Values weight = problem.weight;
      const Shape shape = testing::shape_of(problem.shape);
      test::Optimizer optimizer({{.name = "w",
                                  .value = view(weight.data(), shape),
                                  .grad = view(problem.gradients[0].data(), shape)}},
                                Method::by_name(name, {{"ns_dtype", dtype}}),
                                {.route = Route::matrix, .overrides = {}});
      optimizer.step();
      return weight;
    };
    const Values open = stepped("auto");
    EXPECT_TRUE(open == stepped("bf16")) << name;
    EXPECT_FALSE(open == stepped("fp16")) << name;
    EXPECT_FALSE(open == stepped("fp32")) << name;
  }
}

}  // namespace
}  // namespace rode
