// SPDX-License-Identifier: Apache-2.0
// The set of four from its Schatten-4 start, and other coefficients under RODE's guard, against the
// double-precision reference and against the exact polar factor.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/matrix.h"
#include "support/side_by_side.h"

namespace rode {
namespace {

using testing::correlated_problem;
using testing::Extents;
using testing::Judge;
using testing::Problem;
using testing::Values;

struct Variant {
  const char* optimizer;
  Settings settings;
};

std::string describe(const Variant& variant) {
  std::string text = variant.optimizer;
  for (const auto& [key, value] : variant.settings) {
    text.append(" ").append(key).append("=").append(value);
  }
  return text;
}

Settings join(const Settings& a, const Settings& b) {
  Settings both = a;
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

// The default rates of RODE hardly change a small matrix in twenty steps; these do.
Method method_of(const Variant& variant) {
  const bool rode = std::string(variant.optimizer) == "rode";
  const Settings lively = {{"lr", "0.01"}, {"lr_rho", "0.02"}};
  return Method::by_name(variant.optimizer,
                         rode ? join(lively, variant.settings) : variant.settings);
}

void expect_agreement(Judge& judge, const Variant& variant, const Problem& problem) {
  EXPECT_TRUE(judge.agrees(describe(variant) + " " + testing::to_string(problem.shape),
                           agreement_of(method_of(variant), problem, testing::kTwentySteps)));
}

TEST(CoefficientSets, EachIsTheReferencesAndDiffersVisiblyFromTheDefault) {
  const Settings last = {{"reproject", "final"}};
  struct Change {
    Variant variant;
    Settings plain;
  };
  const std::vector<Change> changes = {
      {{"rode", {{"coefficients", "four"}}}, {}},
      {{"rode", {{"coefficients", "four"}}}, {{"coefficients", "polar_express"}}},
      {{"rode", {{"coefficients", "four"}, {"nesterov", "true"}, {"snr", "true"}}},
       {{"nesterov", "true"}, {"snr", "true"}}},
      {{"rode", {{"coefficients", "polar_express"}}}, {}},
      {{"rode", {{"coefficients", "you"}}}, {}},
      {{"rode", join(last, {{"coefficients", "four"}})}, last},
      // The guard matters, and so does projecting on the way.
      {{"rode", {{"coefficients", "four"}}}, join(last, {{"coefficients", "four"}})},
      {{"rode", {{"coefficients", "polar_express"}}},
       join(last, {{"coefficients", "polar_express"}})},
      {{"rode", {{"coefficients", "you"}}}, join(last, {{"coefficients", "you"}})},
      {{"muon", {{"coefficients", "four"}}}, {}},
      {{"muon", {{"coefficients", "four"}}}, {{"coefficients", "polar_express"}}},
      {{"muon-normproj", {{"coefficients", "four"}}}, {}},
      {{"muon", {{"coefficients", "four"}, {"constraint", "hyperball"}}},
       {{"constraint", "hyperball"}}},
      {{"mars-m", {{"coefficients", "four"}}}, {}},
      // A start that eps keeps short stays short.
      {{"muon", {{"coefficients", "four"}, {"eps", "100"}}}, {{"coefficients", "four"}}},
      {{"mars-m", {{"coefficients", "four"}, {"eps", "0.5"}}}, {{"coefficients", "four"}}},
  };
  Judge judge;
  for (const Extents& shape : {Extents{33, 17}, {17, 33}, {64, 64}, {96, 40}}) {
    const Problem problem = correlated_problem(50, shape, 20, 0.1);
    for (const auto& [variant, plain] : changes) {
      expect_agreement(judge, variant, problem);
      EXPECT_GT(testing::effect(method_of(variant), method_of({variant.optimizer, plain}), problem,
                                testing::kTwentySteps),
                testing::kVisible)
          << describe(variant) << " " << testing::to_string(shape);
    }
  }
}

TEST(CoefficientSets, AwkwardShapesAreTheReferences) {
  Judge judge;
  for (const Extents& shape : {Extents{1, 1}, {1, 7}, {7, 1}, {2, 2}, {8, 4, 3, 3}, {300, 3}}) {
    const Problem problem = correlated_problem(51, shape, 20);
    for (const char* optimizer : {"rode", "muon", "mars-m"})
      expect_agreement(judge, {optimizer, {{"coefficients", "four"}}}, problem);
    for (const char* set : {"polar_express", "you"})
      expect_agreement(judge, {"rode", {{"coefficients", set}}}, problem);
  }
}

TEST(CoefficientSets, BothFormsOfFourAreTheReferencesByDifferentProducts) {
  Judge judge;
  for (const Extents& shape : {Extents{64, 64}, {256, 96}, {96, 256}}) {
    const Problem problem = correlated_problem(52, shape, 20);
    for (const char* optimizer : {"rode", "muon", "mars-m"}) {
      const auto form = [&](const char* name) {
        Settings settings = {{"coefficients", "four"}, {"ns_form", name}};
        if (optimizer[0] == 'r') settings.emplace_back("reproject", "final");
        return Variant{optimizer, settings};
      };
      for (const char* name : {"gram", "standard"}) expect_agreement(judge, form(name), problem);
      EXPECT_TRUE(testing::run_engine(method_of(form("gram")), problem).weight !=
                  testing::run_engine(method_of(form("standard")), problem).weight);
    }
  }
}

// Gradients along the weight's own low-rank part: |t| is large in every iteration.
TEST(CoefficientSets, AreTheReferencesWhereTheGuardActs) {
  Judge judge;
  for (const Extents& shape : {Extents{48, 16}, {16, 48}, {40, 40}}) {
    const Problem problem = correlated_problem(53, shape, 5, 0.9);
    for (const char* set : {"polar_express", "you", "four"}) {
      const Variant guarded{"rode", {{"coefficients", set}}};
      expect_agreement(judge, guarded, problem);
    }
  }
}

// One step, so that the momentum is the gradient and has the intended spectrum.
Problem spectral(const Extents& shape, const std::string& spectrum) {
  testing::Gaussian gaussian(60);
  Problem problem{
      .shape = shape, .weight = gaussian.values(testing::count_of(shape), 0.05), .gradients = {}};
  const std::int64_t n = std::min(shape[0], shape[1]);
  if (spectrum == "gaussian") {
    problem.gradients = {gaussian.values(testing::count_of(shape), 0.01)};
  } else {
    // harmonic() has values 1/k; exponential ones fall by six e-folds.
    problem.gradients = {spectrum == "harmonic"
                             ? testing::harmonic(gaussian, shape, n)
                             : testing::decaying(gaussian, shape, n, [&](std::int64_t k) {
                                 return std::exp(-6.0 * static_cast<double>(k) /
                                                 static_cast<double>(n));
                               })};
  }
  return problem;
}

// A Gaussian momentum's singular values come out of the first polynomial of four near 1.9, where
// the second one is steep (slope 8 to 11): it amplifies rounding more than the other sets do.
constexpr double kFourInHalf = 2 * testing::kHalfProducts;

// Where half-precision products exist, by each of the kernels that make them.
struct HalfProducts {
  const char* dtype;
  CudaProducts products;
};
std::vector<HalfProducts> half_products() {
  if (!test::on_cuda()) return {{"bf16", CudaProducts::automatic}};
  std::vector<HalfProducts> all;
  for (const CudaProducts products :
       {CudaProducts::automatic, CudaProducts::tensor_cores, CudaProducts::plain}) {
    for (const char* dtype : {"bf16", "fp16"}) all.push_back({dtype, products});
  }
  return all;
}

TEST(CoefficientSets, StayNearTheReferenceWithOperandsInHalfPrecision) {
  const std::vector<Variant> variants = {
      {"rode", {{"coefficients", "four"}}},
      {"rode", {{"coefficients", "four"}, {"reproject", "final"}}},
      {"rode", {{"coefficients", "polar_express"}}},
      {"rode", {{"coefficients", "you"}}},
      {"muon", {{"coefficients", "four"}}},
      {"mars-m", {{"coefficients", "four"}}},
      {"muon", {{"coefficients", "you"}}},
      {"mars-m", {{"coefficients", "polar_express"}}},
  };
  Judge judge;
  for (const Variant& variant : variants) {
    const Method full = method_of(variant);
    const bool four = variant.settings[0].second == "four";
    const double tol = four ? kFourInHalf : testing::kHalfProducts;
    for (const char* spectrum : {"gaussian", "harmonic"}) {
      for (const Extents& shape : {Extents{64, 65}, {256, 96}, {96, 256}, {320, 300}}) {
        const Problem problem = spectral(shape, spectrum);
        const std::vector<double> expected = testing::run_reference(full, problem).weight;
        const Values exact = testing::run_engine(full, problem).weight;
        for (const auto& [dtype, products] : half_products()) {
          const Values half = testing::run_engine(full.with({{"ns_dtype", dtype}}), problem,
                                                  {.cuda_products = products})
                                  .weight;
          EXPECT_TRUE(judge.agrees(describe(variant) + " " + testing::to_string(shape) + " " +
                                       spectrum + " " + dtype + " by kernels " +
                                       std::to_string(static_cast<int>(products)),
                                   compare(problem, half, expected, tol)));
          EXPECT_NE(half, exact) << "ns_dtype was ignored";
        }
      }
    }
  }
}

reference::Matrix matrix_of(const Extents& shape, const Values& values) {
  reference::Matrix out(static_cast<std::size_t>(shape[0]), static_cast<std::size_t>(shape[1]));
  out.data.assign(values.begin(), values.end());
  return out;
}

// Without its part along u.
reference::Matrix tangent(const reference::Matrix& x, const reference::Matrix& u) {
  return combine(1.0, x, -inner(x, u) / inner(u, u), u);
}

// The cubic iteration, which converges to the polar factor from any start of norm 1.
reference::Matrix polar(reference::Matrix x) {
  const bool wide = x.rows < x.cols;
  if (wide) x = transpose(x);
  x = scale(1 / norm(x), x);
  for (int k = 0; k < 40; ++k) {
    x = combine(1.5, x, -0.5, multiply(x, multiply(transpose(x), x)));
  }
  return wide ? transpose(x) : x;
}

double cosine(const reference::Matrix& a, const reference::Matrix& b) {
  return inner(a, b) / (norm(a) * norm(b));
}

TEST(CoefficientSets, FourStepsAreAsNearTheProjectedPolarFactorAsFivePublishedOnes) {
  for (const Extents& shape : {Extents{96, 96}, {192, 64}, {64, 192}}) {
    for (const char* spectrum : {"gaussian", "harmonic", "exponential"}) {
      const Problem problem = spectral(shape, spectrum);
      const reference::Matrix w = matrix_of(shape, problem.weight);
      const reference::Matrix exact =
          tangent(polar(tangent(matrix_of(shape, problem.gradients[0]), w)), w);
      // RODE turns W away from its direction, so that is what W' has besides W.
      const auto reached = [&](const Settings& settings) {
        const Values stepped = testing::run_engine(method_of({"rode", settings}), problem).weight;
        return -cosine(tangent(matrix_of(shape, stepped), w), exact);
      };
      for (const char* reproject : {"guarded", "final"}) {
        const double five = reached({{"reproject", reproject}});
        const double four = reached({{"reproject", reproject}, {"coefficients", "four"}});
        const double half =
            reached({{"reproject", reproject}, {"coefficients", "four"}, {"ns_dtype", "bf16"}});
        std::printf("    %-8s %-11s %-7s five %.4f four %.4f, in bf16 %.4f\n",
                    testing::to_string(shape).c_str(), spectrum, reproject, five, four, half);
        EXPECT_GT(four, five - 0.002) << testing::to_string(shape) << " " << spectrum;
        EXPECT_GT(half, five - 0.005) << testing::to_string(shape) << " " << spectrum;
        EXPECT_GT(four, 0.95) << testing::to_string(shape) << " " << spectrum;
      }
    }
  }
}

}  // namespace
}  // namespace rode
