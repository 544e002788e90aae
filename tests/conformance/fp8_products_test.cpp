// SPDX-License-Identifier: Apache-2.0
// e4m3 products in the split form: RODE's direction against fp32 products of the same set, by
// spectrum of the momentum. On the CPU they are emulated; on CUDA a Hopper multiplies.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rode/error.h"
#include "support/backend_under_test.h"
#include "support/side_by_side.h"

namespace rode {
namespace {

using testing::Extents;
using testing::Gaussian;
using testing::Problem;
using testing::Values;

struct Spectrum {
  const char* name;
  std::function<double(double k, double n)> value;  // k from 1; empty: Gaussian
  double five, four;                                // bounds on the relative error of the iterate
};
const std::vector<Spectrum> kSpectra = {
    {"Gaussian", {}, 0.092, 0.13},
    {"exponential", [](double k, double n) { return std::exp(-6 * (k - 1) / (n - 1)); }, 0.094,
     0.16},
    {"1/k", [](double k, double) { return 1 / k; }, 0.039, 0.04},
    {"1/k^2", [](double k, double) { return 1 / (k * k); }, 0.07, 0.07},
    {"rank 8", [](double k, double) { return k <= 8 ? 1.0 : 0.0; }, 0.26, 0.12},
};

// Columns of an orthonormal matrix, one after the other; each is orthogonalised twice.
std::vector<float> orthonormal(Gaussian& gaussian, std::int64_t extent, std::int64_t count) {
  std::vector<float> basis;
  for (std::int64_t k = 0; k < count; ++k) {
    Values v = gaussian.values(static_cast<std::size_t>(extent));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t b = 0; b < k; ++b) {
        const float* other = basis.data() + b * extent;
        float along = 0;
        for (std::int64_t i = 0; i < extent; ++i)
          along += v[static_cast<std::size_t>(i)] * other[i];
        for (std::int64_t i = 0; i < extent; ++i)
          v[static_cast<std::size_t>(i)] -= along * other[i];
      }
    }
    const Values one = testing::unit(v);
    basis.insert(basis.end(), one.begin(), one.end());
  }
  return basis;
}

Values momentum_of(const Spectrum& spectrum, const Extents& shape, Gaussian& gaussian,
                   const std::vector<float>& left, const std::vector<float>& right) {
  const std::int64_t rows = shape[0], cols = shape[1], n = std::min(rows, cols);
  if (!spectrum.value) return gaussian.values(testing::count_of(shape));
  Values made(testing::count_of(shape), 0.0F);
  for (std::int64_t k = 0; k < n; ++k) {
    const auto value =
        static_cast<float>(spectrum.value(static_cast<double>(k + 1), static_cast<double>(n)));
    if (value == 0) continue;
    for (std::int64_t i = 0; i < rows; ++i) {
      const float factor = value * left[static_cast<std::size_t>(k * rows + i)];
      for (std::int64_t j = 0; j < cols; ++j) {
        made[static_cast<std::size_t>(i * cols + j)] +=
            factor * right[static_cast<std::size_t>(k * cols + j)];
      }
    }
  }
  return made;
}

// One small step moves W by lr times the iterate, to first order.
Values move_of(const Method& method, const Problem& problem) {
  const Values stepped = testing::run_engine(method, problem).weight;
  return testing::sum(1.0, stepped, -1.0, problem.weight);
}

double relative_error(const Values& got, const Values& expected) {
  return testing::norm(testing::sum(1.0, got, -1.0, expected)) / testing::norm(expected);
}

// Where the device has no such products, why it says so.
bool has_fp8(std::string& reason) {
  try {
    Gaussian gaussian(1);
    const Extents shape{64, 64};
    const Problem problem{.shape = shape,
                          .weight = gaussian.values(64 * 64),
                          .gradients = {gaussian.values(64 * 64)}};
    testing::run_engine(Method::by_name("rode", {{"ns_dtype", "fp8"}}), problem);
  } catch (const Error& error) {
    reason = error.what();
    return error.kind() != ErrorKind::unsupported;
  }
  return true;
}

TEST(Fp8Products, StayWithinTheirBoundsOnEverySpectrum) {
  std::string reason;
  if (!has_fp8(reason)) GTEST_SKIP() << reason;
  if (test::kSanitized) GTEST_SKIP() << "too long under a sanitizer";
  std::vector<Extents> shapes{{768, 768}};
  if (test::on_cuda()) {
    shapes.push_back({2048, 768});
    shapes.push_back({768, 1100});
    shapes.push_back({8960, 1536});
  }
  for (const Extents& shape : shapes) {
    Gaussian gaussian(70);
    const std::int64_t n = std::min(shape[0], shape[1]);
    const bool large = n > 1000;  // orthonormal vectors would take minutes
    const std::vector<float> left =
        large ? std::vector<float>{} : orthonormal(gaussian, shape[0], n);
    const std::vector<float> right = large ? left : orthonormal(gaussian, shape[1], n);
    const Values weight = gaussian.values(testing::count_of(shape), 0.05);
    for (const Spectrum& spectrum : kSpectra) {
      if (large && spectrum.value) continue;
      const Problem problem{.shape = shape,
                            .weight = weight,
                            .gradients = {momentum_of(spectrum, shape, gaussian, left, right)}};
      for (const bool four : {false, true}) {
        const Method full = Method::by_name(
            "rode",
            {{"scale", "kernel"},  // moves by the iterate, which a radius would otherwise hide
             {"lr", "1e-3"},
             {"coefficients", four ? "four" : "jordan"},
             {"ns_dtype", "fp32"}});
        const Values expected = move_of(full, problem);
        const double error =
            relative_error(move_of(full.with({{"ns_dtype", "fp8"}}), problem), expected);
        const double bound = four ? spectrum.four : spectrum.five;
        std::printf("    %s %-11s %s: %.4f, bound %.3f\n", testing::to_string(shape).c_str(),
                    spectrum.name, four ? "four" : "five", error, bound);
        EXPECT_LT(error, bound) << testing::to_string(shape) << " " << spectrum.name;
        EXPECT_GT(error, bound / 40) << "the option had no effect";
      }
    }
  }
}

// Shapes whose sides are no multiples of a tile or of 16 bytes, both ways round, and every way to
// project. Bounds are twice those of Gaussian matrices: short sides average less.
TEST(Fp8Products, AreRightOnOddShapesAndInEveryWayToProject) {
  std::string reason;
  if (!has_fp8(reason)) GTEST_SKIP() << reason;
  const std::vector<std::pair<const char*, Settings>> methods = {
      {"rode", {{"scale", "kernel"}, {"lr", "1e-3"}}},
      {"rode", {{"scale", "kernel"}, {"lr", "1e-3"}, {"reproject", "every"}}},
      {"rode", {{"scale", "kernel"}, {"lr", "1e-3"}, {"reproject", "final"}}},
      {"rode", {{"scale", "kernel"}, {"lr", "1e-3"}, {"coefficients", "four"}}},
      {"muon", {}},
      {"mars-m", {{"coefficients", "four"}}}};
  for (const Extents& shape :
       {Extents{65, 64}, {129, 257}, {257, 129}, {300, 300}, {77, 640}, {515, 131}}) {
    Gaussian gaussian(71);
    const Problem problem{.shape = shape,
                          .weight = gaussian.values(testing::count_of(shape), 0.05),
                          .gradients = {gaussian.values(testing::count_of(shape))}};
    for (const auto& [name, settings] : methods) {
      const Method full = Method::by_name(name, settings).with({{"ns_dtype", "fp32"}});
      const Values expected = move_of(full, problem);
      const double error =
          relative_error(move_of(full.with({{"ns_dtype", "fp8"}}), problem), expected);
      EXPECT_LT(error, 0.25) << name << " " << testing::to_string(shape);
      EXPECT_GT(error, 1e-3) << "the option had no effect";
    }
  }
  // A short side below 64 takes fp32.
  Gaussian gaussian(72);
  const Problem problem{.shape = {96, 60},
                        .weight = gaussian.values(96 * 60, 0.05),
                        .gradients = {gaussian.values(96 * 60)}};
  const Method full = Method::by_name("rode", {{"ns_dtype", "fp32"}});
  EXPECT_EQ(testing::run_engine(full, problem).weight,
            testing::run_engine(full.with({{"ns_dtype", "fp8"}}), problem).weight);
}

}  // namespace
}  // namespace rode
