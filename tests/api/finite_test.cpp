// SPDX-License-Identifier: Apache-2.0
// Every step reports weights that are not finite, wherever the NaN or Inf came from.
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/support.h"

namespace rode {
namespace {

using test::expect_error;
using test::expect_same;
using test::GuardedArray;
using test::Model;
using test::Optimizer;
using test::Snapshot;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

bool finite(Model& model) {
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (const float x : model.value(i).floats()) {
      if (!std::isfinite(x)) return false;
    }
  }
  return true;
}

// Rules whose measuring reads the weights, so that nothing has changed when they are refused.
bool measures_weights(const Method& method) {
  return method.name().starts_with("rode") || method.name() == "muon-normproj" ||
         method.name() == "muown" ||
         (method.name() == "muon" &&
          method.get_if<MuonOptions>()->constraint != MuonConstraint::none);
}

// Rules that end on a sphere of a given radius, whatever their rate.
bool is_bounded(const Method& method) {
  if (const auto* rode = method.get_if<RodeOptions>()) return rode->radius == Radius::fixed;
  return measures_weights(method) && method.name() != "muown";  // whose lengths Adam moves
}

class Finite : public test::EveryVariant {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Finite, ::testing::ValuesIn(test::variants()),
                         test::variant_name);

TEST_P(Finite, WeightsThatAreNotAreAnErrorThatNamesThemWhateverIsSkipped) {
  const std::vector<test::Spec> specs = test::small_model();
  for (const float bad : {kNaN, kInf, -kInf}) {
    for (std::size_t p = 0; p < specs.size(); ++p) {
      SCOPED_TRACE(specs[p].name + " " + std::to_string(bad));
      Model model;
      Optimizer optimizer(
          model.parameters(), GetParam().method, {},
          {.on_non_finite = p % 2 == 0 ? OnBadGradient::refuse : OnBadGradient::skip});
      model.run(optimizer, 2);
      model.value(p).set(model.value(p).count() - 1, bad);
      const Snapshot before(model, optimizer);
      try {
        optimizer.step();
        FAIL() << "nothing was thrown";
      } catch (const Error& error) {
        const std::string_view text = error.what();
        EXPECT_EQ(error.kind(), ErrorKind::non_finite) << text;
        EXPECT_NE(text.find("'" + specs[p].name + "'"), std::string_view::npos) << text;
        EXPECT_NE(text.find("restore a checkpoint"), std::string_view::npos) << text;
        const bool matrix = p < 2;  // the others belong to the rest
        EXPECT_EQ(error.changed(), !(matrix && measures_weights(GetParam().method))) << text;
        EXPECT_EQ(text.find("nothing was changed") == std::string_view::npos, error.changed())
            << text;
        EXPECT_EQ(text.find("has changed") != std::string_view::npos, error.changed()) << text;
        EXPECT_EQ(optimizer.steps_done(), before.steps + (error.changed() ? 1 : 0));
        EXPECT_EQ(optimizer.refused_steps(), error.changed() ? 0 : 1);
        if (!error.changed()) expect_same(Snapshot(model, optimizer), before);
      }
      EXPECT_NO_THROW(optimizer.check());  // reported once
      EXPECT_THROW(optimizer.step(), Error) << "and again at every step";
    }
  }
}

// Gradients opposite to the weights, which grow as far as the rule lets them.
TEST_P(Finite, AStepThatOverflowsIsAnErrorThatNamesTheParameter) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Model model({{"h.0.weight", {12, 8}}, {"h.1.weight", {8, 20}}}, dtype);
    Method method = GetParam().method.with({{"lr", "1e30"}});
    if (method.number("lr_rho")) method = method.with({{"lr_rho", "1e30"}});
    Optimizer optimizer(model.parameters(), method);
    for (std::size_t p = 0; p < model.size(); ++p) {
      for (std::size_t i = 0; i < model.value(p).count(); ++i) {
        model.grad(p).set(i, -model.value(p).get(i));
      }
    }
    const auto two_steps = [&] {
      for (int t = 0; t < 2; ++t) optimizer.step(1e30);  // SOAP's first step changes no weight
    };
    if (is_bounded(method)) {
      EXPECT_NO_THROW(two_steps());
      EXPECT_TRUE(finite(model));
      continue;
    }
    try {
      two_steps();
      FAIL() << "nothing was thrown; weights are finite: " << finite(model);
    } catch (const Error& error) {
      const std::string_view text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::non_finite) << text;
      EXPECT_TRUE(error.changed()) << text;
      for (const char* part : {"'h.0.weight'", "has changed", "lower the rate"}) {
        EXPECT_NE(text.find(part), std::string_view::npos) << text;
      }
    }
  }
}

// The result fits fp32 but not bf16.
TEST(FiniteWeights, OverflowInRoundingToBf16IsNoticed) {
  for (const char* rounding : {"nearest", "stochastic", "exact"}) {
    SCOPED_TRACE(rounding);
    const std::string_view mode = rounding;
    const float largest = rules::bf16_to_float(0x7f7f);
    test::Tensor w({1, 64}, DType::bf16, std::vector<float>(64, largest));
    test::Tensor g({1, 64}, DType::f32, std::vector<float>(64, -6e34F));
    Optimizer optimizer(
        {{.name = "w", .value = w.view(), .grad = g.view()}},
        Method::by_name(
            "sgd",
            {{"lr", "20"}, {"momentum", "0"}, {"weight_decay", "0"}, {"rounding", rounding}}));
    if (mode == "exact") {  // which keeps the lower half, and does not round
      EXPECT_NO_THROW(optimizer.step());
    } else {
      expect_error([&] { optimizer.step(); }, ErrorKind::non_finite, {"'w'", "has changed"});
    }
  }
}

// State that came through `state_memory` was never checked.
TEST(FiniteWeights, NoStateHoweverDamagedSpoilsThemInSilence) {
  for (const test::Variant& variant : test::variants()) {
    Model probe;
    std::vector<std::string> keys;
    for (const TensorEntry& entry : Optimizer(probe.parameters(), variant.method).state()) {
      if (entry.view.dtype == DType::f32) keys.push_back(entry.name);
    }
    for (const std::string& target : keys) {
      SCOPED_TRACE(variant.label + " " + target);
      Model model;
      std::map<std::string, std::vector<std::byte>> host;
      std::map<std::string, std::unique_ptr<GuardedArray>> memory;
      EngineOptions engine;
      engine.state_memory = [&](std::string_view parameter, std::string_view key,
                                const Shape& shape, DType dtype) {
        const std::string name = "state." + std::string(parameter) + "." + std::string(key);
        std::vector<std::byte>& bytes = host[name];
        bytes.resize(static_cast<std::size_t>(shape.numel()) * size_of(dtype));
        if (name == target) std::memcpy(bytes.data(), &kNaN, sizeof(kNaN));
        std::unique_ptr<GuardedArray>& array = memory[name];
        array = std::make_unique<GuardedArray>(bytes.data(), bytes.size());
        return StateMemory{array->data(), name == target};
      };
      Optimizer optimizer(model.parameters(), variant.method, {}, engine);
      bool error = false;
      for (int t = 0; t < 3 && !error; ++t) {
        try {
          model.run(optimizer, 1);
        } catch (const Error& thrown) {
          EXPECT_EQ(thrown.kind(), ErrorKind::non_finite) << thrown.what();
          error = true;
        }
      }
      EXPECT_TRUE(error || finite(model));
      // The sign of a non-finite number is finite: that must not hide bad state.
      if (variant.method.name() == "lion") {
        EXPECT_TRUE(error);
      }
    }
  }
}

TEST(FiniteWeights, AMultiplierBeyondFp32IsRefused) {
  Model model;
  Optimizer optimizer(model.parameters(), AdamWOptions{});
  const Snapshot before(model, optimizer);
  expect_error([&] { optimizer.step(1e39); }, ErrorKind::invalid_argument,
               {"multiplier", "'1e+39'", "3.4e38"});
  expect_same(Snapshot(model, optimizer), before);
}

}  // namespace
}  // namespace rode
