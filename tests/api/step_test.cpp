// SPDX-License-Identifier: Apache-2.0
// Input that a step must refuse or skip: nothing may have changed when it throws.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "api/support.h"

namespace rode {
namespace {

using test::EveryVariant;
using test::expect_error;
using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

INSTANTIATE_TEST_SUITE_P(Optimizers, EveryVariant, testing::ValuesIn(test::variants()),
                         test::variant_name);

// ---- Gradients that hold NaN or Inf ---------------------------------------------------

TEST_P(EveryVariant, RefusesABadLastElementAndHasChangedNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (std::size_t last = 0; last < test::small_model().size(); ++last) {
      for (const float bad : {kNaN, kInf, -kInf}) {
        Model model(test::small_model(), DType::f32, dtype);
        Optimizer optimizer(model.parameters(), GetParam().method);
        model.run(optimizer, 2);
        model.draw(2);
        model.grad(last).set(model.grad(last).count() - 1, bad);
        const Snapshot before(model, optimizer);
        expect_error([&] { optimizer.step(); }, ErrorKind::non_finite,
                     {"[step]", "'" + test::small_model()[last].name + "'", "NaN or Inf"});
        expect_same(Snapshot(model, optimizer), before);
      }
    }
  }
}

TEST_P(EveryVariant, StepsOnAfterARefusalAsIfItHadNotBeen) {
  Model plain, refused;
  Optimizer a(plain.parameters(), GetParam().method);
  Optimizer b(refused.parameters(), GetParam().method);
  plain.run(a, 4);
  refused.run(b, 2);
  refused.draw(2);
  refused.grad(1).set(0, kNaN);
  EXPECT_THROW(b.step(), Error);
  refused.run(b, 2);
  expect_same(Snapshot(refused, b), Snapshot(plain, a));
}

TEST_P(EveryVariant, SkipsABadParameterAndStepsTheOthersAsIfItWereAbsent) {
  for (std::size_t bad = 0; bad < test::small_model().size(); ++bad) {
    if (GetParam().label.find("split") != std::string::npos && bad < 2) continue;  // needs the name
    std::vector<test::Spec> others = test::small_model();
    const std::string name = others[bad].name;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(bad));
    Model whole, rest(others);
    Optimizer a(whole.parameters(), GetParam().method, {}, {.on_non_finite = OnBadGradient::skip});
    Optimizer b(rest.parameters(), GetParam().method);
    const Snapshot before(whole, a);
    for (int t = 0; t < 3; ++t) {
      whole.draw(t);
      rest.draw(t);
      whole.grad(bad).set(whole.grad(bad).count() - 1, kInf);
      a.step();
      b.step();
    }
    Snapshot after(whole, a), expected(rest, b);
    EXPECT_EQ(after.weights.at(name), before.weights.at(name));
    expected.weights[name] = before.weights.at(name);
    for (const auto& [key, bytes] : before.state) {
      if (key.starts_with("state." + name + ".")) expected.state[key] = bytes;
    }
    expect_same(after, expected);
    EXPECT_EQ(a.global_diagnostics().update_norm, b.global_diagnostics().update_norm);
    EXPECT_EQ(a.global_diagnostics().gradient_norm, b.global_diagnostics().gradient_norm);
  }
}

TEST_P(EveryVariant, AGradientAtTheEndOfFp32sRangeIsSteppedOrRefusedWhole) {
  for (std::size_t large = 0; large < test::small_model().size(); ++large) {
    Model model;
    Optimizer optimizer(model.parameters(), GetParam().method);
    model.run(optimizer, 2);
    model.draw(2);
    model.grad(large).set(3, 3e38F);  // its square exceeds fp32
    const Snapshot before(model, optimizer);
    try {
      optimizer.step();
      for (std::size_t i = 0; i < model.size(); ++i) {
        for (const float x : model.value(i).floats()) ASSERT_TRUE(std::isfinite(x)) << large;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::non_finite);
      EXPECT_NE(std::string_view(error.what()).find(test::small_model()[large].name),
                std::string_view::npos)
          << error.what();
      expect_same(Snapshot(model, optimizer), before);
    }
  }
}

// ---- Missing gradients ----------------------------------------------------------------

TEST_P(EveryVariant, RefusesAMissingGradientAndHasChangedNothing) {
  Model model;
  Optimizer optimizer(model.parameters(), GetParam().method);
  model.run(optimizer, 1);
  optimizer.bind_grad(3, {});
  const Snapshot before(model, optimizer);
  expect_error([&] { optimizer.step(); }, ErrorKind::missing_gradient, {"'wte.weight'"});
  expect_same(Snapshot(model, optimizer), before);
}

TEST_P(EveryVariant, SkipsAMissingGradientWithoutCountingTheStepForIt) {
  Model model;
  Optimizer optimizer(model.parameters(), GetParam().method, {},
                      {.on_missing = OnBadGradient::skip});
  model.run(optimizer, 2);
  const Snapshot before(model, optimizer);
  optimizer.bind_grad(0, {});
  model.run(optimizer, 1);
  const Snapshot after(model, optimizer);
  EXPECT_EQ(after.steps, 3);
  EXPECT_EQ(after.weights.at("h.0.weight"), before.weights.at("h.0.weight"));
  EXPECT_NE(after.weights.at("h.1.weight"), before.weights.at("h.1.weight"));
  for (const auto& [key, bytes] : before.state) {
    if (key.starts_with("state.h.0.weight.")) {
      EXPECT_EQ(after.state.at(key), bytes) << key;
    }
  }
}

// ---- Multipliers ----------------------------------------------------------------------

TEST(Step, RefusesAMultiplierThatIsNegativeOrNotANumber) {
  Model model;
  Optimizer optimizer(model.parameters(), RodeOptions{});
  const Snapshot before(model, optimizer);
  for (const double bad : {-1.0, -1e-300, std::nan(""), static_cast<double>(kInf)}) {
    expect_error([&] { optimizer.step(bad); }, ErrorKind::invalid_argument, {"multiplier"});
    expect_same(Snapshot(model, optimizer), before);
  }
}

TEST_P(EveryVariant, AZeroMultiplierMovesStateButNoWeight) {
  Model model, start;
  Optimizer optimizer(model.parameters(), GetParam().method);
  const Snapshot before(model, optimizer);
  optimizer.step(0);
  EXPECT_FALSE(test::state_of(optimizer) == before.state);
  // A radius in the state restores the norm, and that rounds.
  const bool constrained = before.state.contains("state.h.0.weight.radius");
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (std::size_t j = 0; j < model.value(i).count(); ++j) {
      const float w = start.value(i).get(j);
      EXPECT_NEAR(model.value(i).get(j), w, constrained ? 4 * 0x1p-24 * std::abs(w) : 0.0);
    }
  }
}

// ---- Matrices without a norm, gradients without a direction ---------------------------

TEST(Step, AZeroMatrixIsHeldWhileItsMomentumGrowsAndTheUserHearsOfItOnce) {
  for (const char* name : {"rode", "rode-snr", "rode-fixed"}) {
    Model model({{"zero.weight", {4, 6}}, {"h.weight", {5, 3}}});
    for (std::size_t i = 0; i < model.value(0).count(); ++i) model.value(0).set(i, 0);
    std::vector<std::string> heard;
    Optimizer optimizer(model.parameters(), Method::by_name(name, {{"on_zero", "hold"}}), {},
                        {.notify = [&](std::string_view text) { heard.emplace_back(text); }});
    std::vector<double> expected(model.value(0).count(), 0);
    for (int t = 0; t < 3; ++t) {
      model.draw(t);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] = 0.9 * expected[i] + static_cast<double>(model.grad(0).get(i));
      }
      optimizer.step();
    }
    for (const float x : model.value(0).floats()) EXPECT_EQ(x, 0.0F);
    for (const TensorEntry& entry : optimizer.state()) {
      const auto* data = static_cast<const float*>(entry.view.data);
      if (entry.name == "state.zero.weight.momentum") {
        for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(data[i], expected[i], 1e-6);
      }
      if (entry.name == "state.zero.weight.snr_norm") {
        EXPECT_EQ(*data, 0.0F);
      }
    }
    ASSERT_EQ(heard.size(), 1U);
    EXPECT_NE(heard[0].find("'zero.weight'"), std::string::npos);
  }
}

TEST(Step, AHeldMatrixMovesAsSoonAsItHasANorm) {
  Model model({{"zero.weight", {4, 6}}});
  for (std::size_t i = 0; i < model.value(0).count(); ++i) model.value(0).set(i, 0);
  Optimizer optimizer(model.parameters(),
                      RodeOptions{.radius = Radius::fixed, .on_zero = OnZero::hold});
  model.run(optimizer, 1);
  for (std::size_t i = 0; i < model.value(0).count(); ++i) model.value(0).set(i, 0.5F);
  const Snapshot before(model, optimizer);
  model.run(optimizer, 1);
  EXPECT_FALSE(model.weights() == before.weights);
  EXPECT_NEAR(optimizer.matrix_diagnostics()[0].rho_next, 0.5 * std::sqrt(24.0), 1e-5);
}

TEST_P(EveryVariant, AZeroGradientLeavesNumbersAndNoDecayLeavesTheWeights) {
  Model model;
  Optimizer optimizer(model.parameters(), GetParam().method);
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (std::size_t j = 0; j < model.grad(i).count(); ++j) model.grad(i).set(j, 0);
  }
  const Snapshot before(model, optimizer);
  for (int t = 0; t < 4; ++t) optimizer.step();
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (const float x : model.value(i).floats()) ASSERT_TRUE(std::isfinite(x));
  }
  if (GetParam().label == "rode" || GetParam().label == "muon" || GetParam().label == "rode-snr") {
    EXPECT_EQ(model.weights().at("h.0.weight"), before.weights.at("h.0.weight"));
  }
  for (const TensorEntry& entry : optimizer.state()) {
    if (entry.view.dtype != DType::f32) continue;
    const auto* data = static_cast<const float*>(entry.view.data);
    for (std::int64_t i = 0; i < entry.view.numel(); ++i) {
      ASSERT_TRUE(std::isfinite(data[i])) << entry.name;
    }
  }
}

// ---- Awkward shapes -------------------------------------------------------------------

// Splits name parameters that these models do not have.
Method without_splits(const Method& method) {
  for (const OptionInfo& option : method.options()) {
    if (option.key == "splits") return method.with({{"splits", ""}});
  }
  return method;
}

TEST_P(EveryVariant, StepsEmptyTensorsScalarsAndSingleRowsWithoutHarm) {
  const Method method = without_splits(GetParam().method);
  Model model({{"none.weight", {0, 5}},
               {"no_columns.weight", {5, 0}},
               {"row.weight", {1, 7}},
               {"column.weight", {7, 1}},
               {"one.weight", {1, 1}},
               {"scalar", {}},
               {"empty", {0}},
               {"h.weight", {4, 4}}});
  Optimizer optimizer(model.parameters(), method);
  model.run(optimizer, 4);
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (const float x : model.value(i).floats()) EXPECT_TRUE(std::isfinite(x));
  }
  Model alone({{"h.weight", {4, 4}}});
  Optimizer other(alone.parameters(), method);
  alone.run(other, 4);
  EXPECT_EQ(model.weights().at("h.weight"), alone.weights().at("h.weight"));
}

TEST_P(EveryVariant, StepsFourDimensionalFiltersAsMatrices) {
  const Method method = without_splits(GetParam().method);
  Model model({{"conv.weight", {6, 3, 2, 2}}, {"deep.weight", {2, 3, 2, 2, 2}}});
  Optimizer optimizer(model.parameters(), method, {Route::vision, {}});
  model.run(optimizer, 4);
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (const float x : model.value(i).floats()) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(Step, AVectorForcedToTheMatrixRuleIsRefusedWhereTheRuleNeedsAMatrix) {
  for (const OptimizerInfo& info : list_optimizers()) {
    Model model;
    const Routing routing{Route::language, {{"norm.*", Treatment::matrix}}};
    const auto make = [&] { Optimizer(model.parameters(), Method::by_name(info.name), routing); };
    // Optimizers that leave the rest to AdamW have a rule for matrices.
    const bool any_rank = std::ranges::none_of(
        info.options, [](const OptionInfo& option) { return option.key == "betas_rest"; });
    if (any_rank) {
      EXPECT_NO_THROW(make()) << info.name;
    } else {
      expect_error(make, ErrorKind::shape,
                   {"[" + info.name + "]", "'norm.weight'", "(9)", "rank >= 2"});
    }
  }
}

}  // namespace
}  // namespace rode
