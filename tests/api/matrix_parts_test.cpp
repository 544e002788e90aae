// SPDX-License-Identifier: Apache-2.0
// Which matrices can be stepped in parts, and their scalars against a step of the whole.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "rode/rode.h"

namespace rode {
namespace {

ParameterGroup group_of(std::string_view name, const Settings& settings, Shape shape = {70, 65},
                        DType dtype = DType::f32) {
  return {
      {{"w", {nullptr, shape, dtype}, {}}}, Method::by_name(name, settings), {Route::matrix, {}}};
}

std::size_t parted(std::string_view name, Settings settings, Device device = Device::cpu,
                   Shape shape = {70, 65}, DType dtype = DType::f32) {
  return parted_matrices(group_of(name, settings, shape, dtype), device).size();
}

TEST(MatrixParts, AreThoseWithProductsInBf16) {
  for (const std::string_view name : {"rode", "rode-paper", "rode-snr", "muon", "mars-m"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(parted(name, {{"ns_dtype", "bf16"}}), 1u);
    EXPECT_EQ(parted(name, {{"ns_dtype", "bf16"}}, Device::cpu, {70, 9, 3, 3}), 1u);
    EXPECT_EQ(parted(name, {}), 0u);
    EXPECT_EQ(parted(name, {}, Device::cuda), 1u);
    EXPECT_EQ(parted(name, {{"ns_dtype", "fp32"}}, Device::cuda), 0u);
    EXPECT_EQ(parted(name, {{"ns_dtype", "bf16"}}, Device::cpu, {70, 63}), 0u);
  }
  EXPECT_EQ(parted("soap", {}), 0u);
  EXPECT_EQ(parted("adamw", {}), 0u);
}

TEST(MatrixParts, AreNotThoseThatNeedMoreThanSumsOverAllParts) {
  const auto rode = [](std::string key, std::string value, DType dtype = DType::f32) {
    return parted("rode", {{"ns_dtype", "bf16"}, {std::move(key), std::move(value)}}, Device::cpu,
                  {70, 65}, dtype);
  };
  EXPECT_EQ(rode("splits", "w=2"), 0u);
  EXPECT_EQ(rode("normalize", "rows"), 0u);
  EXPECT_EQ(rode("state_dtype", "int8"), 0u);
  EXPECT_EQ(rode("state_dtype", "bf16"), 1u);
  EXPECT_EQ(rode("rounding", "exact", DType::bf16), 0u);
  EXPECT_EQ(rode("rounding", "stochastic", DType::bf16), 1u);
  EXPECT_EQ(rode("direction", "fixed"), 0u);
  EXPECT_EQ(rode("conditioner", "none"), 0u);
  EXPECT_EQ(parted("muon-normproj", {{"ns_dtype", "bf16"}}), 0u);
  ParameterGroup experts = group_of("muon", {{"ns_dtype", "bf16"}}, {70, 70, 65});
  EXPECT_EQ(parted_matrices(experts, Device::cpu).size(), 1u);
  experts.parameters[0].experts = true;
  EXPECT_EQ(parted_matrices(experts, Device::cpu).size(), 0u);
}

TEST(MatrixParts, ProjectWithTheWeightsAtTheOwnerUnlessTheLastProjectionIsTheOnlyOne) {
  for (const std::string_view reproject : {"every", "guarded", "final"}) {
    const auto found = parted_matrices(
        group_of("rode", {{"ns_dtype", "bf16"}, {"reproject", std::string(reproject)}}),
        Device::cpu);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].weight, reproject != "final");
    EXPECT_NO_THROW(Method::by_name(found[0].conditioner, found[0].settings));
  }
}

// All except Newton-Schulz: the momentum and the scalars that a step of the whole has.
TEST(MatrixParts, HaveTheScalarsOfTheWhole) {
  for (const std::string_view name : {"rode", "muon", "mars-m"}) {
    SCOPED_TRACE(name);
    constexpr std::int64_t rows = 70, cols = 65;
    constexpr std::size_t count = rows * cols;
    std::vector<float> w(count), g(count);
    std::uint32_t draw = 7;
    for (float* array : {w.data(), g.data()}) {
      for (std::size_t i = 0; i < count; ++i) {
        draw = draw * 1664525u + 1013904223u;
        array[i] = static_cast<float>(draw >> 8) / 16777216.0F - 0.5F;
      }
    }
    const std::vector<float> before = w;
    const Settings settings{{"ns_dtype", "bf16"}, {"lr", "0.05"}};
    ParameterGroup whole = group_of(name, settings);
    whole.parameters[0].value.data = w.data();
    whole.parameters[0].grad = {g.data(), {rows, cols}, DType::f32};
    Optimizer engine({whole});
    engine.step();

    PartInput input;
    for (std::size_t i = 0; i < count; ++i) {  // B = 0 at first, and MARS-M's previous gradient
      const auto a = static_cast<double>(before[i]), b = static_cast<double>(g[i]);
      if (name != "mars-m") input.sums.tt += a * a;
      if (name != "mars-m") input.sums.gt += a * b;
      input.sums.gg += b * b;
    }
    const std::vector inputs{input};
    const PartForm form = form_parts(group_of(name, settings), inputs)[0];
    EXPECT_TRUE(form.good_weight && form.direction);
    double momentum_error = 0, start = 0;
    const auto state = engine.state();
    const auto* kept = static_cast<const float*>(state[0].view.data);
    for (std::size_t i = 0; i < count; ++i) {
      const double t = name == "mars-m" ? 0 : static_cast<double>(before[i]);
      const auto own = static_cast<double>(g[i]);
      const double b = form.buffer_g * own + form.buffer_t * t;
      momentum_error = std::max(momentum_error, std::abs(b - static_cast<double>(kept[i])));
      start += std::pow(form.start_b * b + form.start_g * own + form.start_t * t, 2);
    }
    EXPECT_LE(momentum_error, 1e-6);
    EXPECT_NEAR(start, 1, 1e-5);  // MARS-M's eps makes it shorter

    // Any direction will do, such as the move that the engine made.
    DirectionSums sums{-1, 0, 0, 0};
    std::vector<double> y(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto a = static_cast<double>(before[i]);
      y[i] = a - static_cast<double>(w[i]);
      sums.yw += y[i] * a;
      sums.yy += y[i] * y[i];
      sums.ww += a * a;
    }
    const PartWrite write = write_parts(group_of(name, settings), inputs, std::vector{sums})[0];
    EXPECT_TRUE(write.finite);
    if (name != "rode") {
      const double decay = Method::by_name(name, settings).number("weight_decay").value();
      EXPECT_NEAR(write.w, 1 - 0.05 * decay, 1e-12);
      const double scale = name == "muon" ? std::sqrt(70.0 / 65.0) : 0.2 * std::sqrt(70.0);
      EXPECT_NEAR(write.y, 0.05 * scale, 1e-12);
      continue;
    }
    const MatrixDiagnostics told = engine.matrix_diagnostics()[0];
    EXPECT_NEAR(write.diagnostics.rho, told.rho, 1e-9 * told.rho);
    EXPECT_NEAR(write.diagnostics.rho_next, told.rho_next, 1e-9 * told.rho);
    EXPECT_NEAR(write.diagnostics.s, told.s, 1e-9);
    EXPECT_NEAR(write.diagnostics.m_norm, told.m_norm, 1e-9 * told.m_norm);
    double norm = 0, along = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto a = static_cast<double>(before[i]);
      const double next = write.w * a + write.y * y[i];
      norm += next * next;
      along += next * a;
    }
    EXPECT_NEAR(std::sqrt(norm), told.rho_next, 1e-9 * told.rho);
    EXPECT_NEAR(along / (told.rho * told.rho_next), std::cos(write.diagnostics.theta), 1e-9);
    EXPECT_GT(write.diagnostics.theta, 1e-4);
  }
}

TEST(MatrixParts, SayBeforehandThatWeightsWouldNotBeFinite) {
  PartInput input;
  input.sums.gg = 1;
  const std::vector inputs{input};
  for (const double yy : {1.0, std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::quiet_NaN(), 1e84}) {
    const std::vector sums{DirectionSums{-1, 0, yy, 1}};
    EXPECT_EQ(write_parts(group_of("muon", {}), inputs, sums)[0].finite, yy == 1.0);
  }
}

TEST(MatrixParts, AreRefusedWhereSomethingElseStepsThem) {
  const std::vector<PartInput> inputs(1);
  EXPECT_THROW(form_parts(group_of("adamw", {}), inputs), Error);
  EXPECT_THROW(form_parts(group_of("muon", {}), {}), Error);
}

}  // namespace
}  // namespace rode
