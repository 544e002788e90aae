// SPDX-License-Identifier: Apache-2.0
// bf16 weights, gradients and state: rounding, seeds and what exactness means.
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include "api/support.h"

namespace rode {
namespace {

using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;

class Storage : public test::EveryVariant {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Storage, testing::ValuesIn(test::variants()),
                         test::variant_name);

// Plain descent W <- W - g on one vector of ones.
struct Descent {
  explicit Descent(const StorageOptions& storage, std::string name = "w", std::int64_t n = 4096)
      : model({{std::move(name), {n}}}, DType::bf16) {
    set_all(1.0F, -0x1p-12F);  // a step is 1/32 of the spacing of bf16 at 1
    optimizer.emplace(
        model.parameters(),
        SgdOptions{.momentum = 0, .lr_rest = 1, .weight_decay_rest = 0, .storage = storage});
  }
  void set_all(float w, float g) {
    for (std::size_t i = 0; i < model.value(0).count(); ++i) {
      model.value(0).set(i, w);
      model.grad(0).set(i, g);
    }
  }
  double mean() {
    double sum = 0;
    for (const float x : model.value(0).floats()) sum += static_cast<double>(x);
    return sum / static_cast<double>(model.value(0).count());
  }

  Model model;
  std::optional<Optimizer> optimizer;
};

TEST(Rounding, NearestLosesUpdatesBelowHalfTheSpacing) {
  Descent descent({.rounding = Rounding::nearest});
  for (int t = 0; t < 64; ++t) descent.optimizer->step();
  EXPECT_EQ(descent.mean(), 1.0);
}

TEST(Rounding, NearestTiesGoToTheEvenNeighbour) {
  Descent descent({.rounding = Rounding::nearest});
  descent.set_all(1.0F, -0x1p-8F);  // half a spacing: 1 is even
  descent.optimizer->step();
  EXPECT_EQ(descent.mean(), 1.0);
  descent.set_all(1.0F + 0x1p-7F, -0x1p-8F);  // 1 + 2^-7 is odd
  descent.optimizer->step();
  EXPECT_EQ(descent.mean(), 1.0 + 0x1p-6);
}

TEST(Rounding, StochasticKeepsTheMeanOfManyTinyUpdates) {
  Descent descent({.rounding = Rounding::stochastic});
  constexpr int kSteps = 64;
  for (int t = 0; t < kSteps; ++t) descent.optimizer->step();
  const double p = 0x1p-5, spacing = 0x1p-7, elements = 4096;
  const double deviation = spacing * std::sqrt(kSteps * p * (1 - p) / elements);
  EXPECT_NEAR(descent.mean() - 1, kSteps * 0x1p-12, 5 * deviation);
}

TEST(Rounding, StochasticIsReproducibleAndDiffersBySeedStepAndName) {
  const auto after = [](std::uint64_t seed, const std::string& name, int steps) {
    Descent descent({.rounding = Rounding::stochastic, .seed = seed}, name);
    for (int t = 0; t < steps; ++t) {
      descent.set_all(1.0F, -0x1p-8F);  // up or down with equal probability
      descent.optimizer->step();
    }
    return descent.model.value(0).bytes();
  };
  EXPECT_EQ(after(3, "w", 1), after(3, "w", 1));
  EXPECT_NE(after(3, "w", 1), after(4, "w", 1));
  EXPECT_NE(after(3, "w", 1), after(3, "w", 2));
  EXPECT_NE(after(3, "w", 1), after(3, "v", 1));
}

TEST(Rounding, StochasticBitsDoNotRepeatAlongAParameter) {
  Descent descent({.rounding = Rounding::stochastic});
  descent.set_all(1.0F, -0x1p-8F);
  descent.optimizer->step();
  const std::vector<float> w = descent.model.value(0).floats();
  // Half round up; neighbours, and elements one block apart, agree half of the time.
  const auto share = [&](std::size_t lag) {
    int equal = 0;
    for (std::size_t i = 0; i + lag < w.size(); ++i) equal += w[i] == w[i + lag] ? 1 : 0;
    return equal / static_cast<double>(w.size() - lag);
  };
  const double deviation = 0.5 / std::sqrt(3000.0);
  EXPECT_NEAR((descent.mean() - 1) / 0x1p-7, 0.5, 5 * deviation);
  for (const std::size_t lag : {1, 2, 8, 64, 1024}) EXPECT_NEAR(share(lag), 0.5, 5 * deviation);
}

TEST_P(Storage, ExactRoundingIsTheFp32RunBitForBit) {
  const Method method = GetParam().method.with({{"rounding", "exact"}});
  Model wide, narrow(test::small_model(), DType::bf16);
  Optimizer a(wide.parameters(), method), b(narrow.parameters(), method);
  wide.run(a, 6);
  narrow.run(b, 6);
  const test::Bytes state = test::state_of(b);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const std::string name = test::small_model()[i].name;
    const auto& low_bytes = state.at("state." + name + ".low_bits");
    for (std::size_t j = 0; j < wide.value(i).count(); ++j) {
      std::uint16_t high = 0, low = 0;
      std::memcpy(&high, narrow.value(i).bytes().data() + 2 * j, 2);
      std::memcpy(&low, low_bytes.data() + 2 * j, 2);
      const float expected = wide.value(i).get(j);
      ASSERT_EQ(rules::float_bits(rules::join_halves(high, low)), rules::float_bits(expected))
          << name << " element " << j;
    }
  }
  for (const auto& [key, bytes] : test::state_of(a)) EXPECT_EQ(state.at(key), bytes) << key;
  EXPECT_EQ(b.state_bytes() - a.state_bytes(), 2U * (96 + 160 + 9 + 80));
}

TEST_P(Storage, Bf16GradientsAreTheFp32OnesOfTheSameValues) {
  for (const DType weights : {DType::f32, DType::bf16}) {
    Model wide(test::small_model(), weights, DType::f32);
    Model narrow(test::small_model(), weights, DType::bf16);
    Optimizer a(wide.parameters(), GetParam().method), b(narrow.parameters(), GetParam().method);
    wide.run(a, 4);
    narrow.run(b, 4);
    expect_same(Snapshot(narrow, b), Snapshot(wide, a));
  }
}

TEST_P(Storage, NearestRoundingOfBf16WeightsStaysWithinOneSpacingAStep) {
  Model wide, narrow(test::small_model(), DType::bf16);
  const Method method = GetParam().method.with({{"rounding", "nearest"}});
  Optimizer a(wide.parameters(), method), b(narrow.parameters(), method);
  wide.run(a, 2);
  narrow.run(b, 2);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    for (std::size_t j = 0; j < wide.value(i).count(); ++j) {
      // Weights lie below 1, where the spacing is at most 2^-8.
      EXPECT_NEAR(narrow.value(i).get(j), wide.value(i).get(j), 2 * 0x1p-8);
    }
  }
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i] - b[i]), 2);
  return std::sqrt(sum);
}

TEST_P(Storage, Bf16StateHalvesTheBytesAndStaysCloseToFp32) {
  if (GetParam().method.name() == "soap") return;  // refuses it: options_refused_test.cpp
  // Averages too slow for bf16 are refused: options_refused_test.cpp.
  const bool slow = GetParam().method.name() == "ademamix";
  const Method full =
      slow ? GetParam().method.with({{"betas", "0.9,0.95,0.99"}}) : GetParam().method;
  const Method method = full.with({{"state_dtype", "bf16"}});
  Model start, wide, narrow;
  Optimizer a(wide.parameters(), full), b(narrow.parameters(), method);
  // Parameter-sized entries take half the memory; one-element entries, factors and row averages
  // stay.
  std::size_t expected = 0;
  const bool factored = GetParam().method.name() == "adafactor";
  for (const TensorEntry& entry : a.state()) {
    const bool sized = entry.view.dtype == DType::f32 && entry.view.numel() > 3;
    const bool of_rows = GetParam().method.name() == "muown" && entry.name.starts_with("state.h") &&
                         !entry.name.ends_with("momentum") && !entry.name.ends_with("exp_avg") &&
                         !entry.name.ends_with("exp_avg_sq");
    const bool factor = (factored && !entry.name.ends_with("exp_avg_sq")) ||
                        entry.name.ends_with("row_avg_sq") || of_rows;
    expected += sized && !factor ? entry.view.bytes() / 2 : entry.view.bytes();
  }
  EXPECT_EQ(b.state_bytes(), expected);
  wide.run(a, 10);
  narrow.run(b, 10);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const double moved = distance(wide.value(i).floats(), start.value(i).floats());
    const double apart = distance(wide.value(i).floats(), narrow.value(i).floats());
    // Ten roundings of 2^-9 each, with room for their amplification by Newton-Schulz.
    EXPECT_LT(apart, 20 * 10 * 0x1p-9 * moved) << i;
    // Lion uses signs, which rounding of its average rarely changes.
    const bool keeps_none = (factored && i != 2) || GetParam().method.name() == "lion";
    if (!keeps_none && GetParam().label != "rode_still") {
      EXPECT_GT(apart, 0.0) << "bf16 state has no effect on parameter " << i;
    }
  }
}

TEST(StorageEffect, EachStorageOptionChangesTheResult) {
  const auto after = [](const Settings& settings) {
    Model model(test::small_model(), DType::bf16);
    Optimizer optimizer(model.parameters(), Method::by_name("rode", settings));
    model.run(optimizer, 3);
    return model.weights();
  };
  const auto nearest = after({{"rounding", "nearest"}});
  EXPECT_NE(after({{"rounding", "exact"}}), nearest);
  EXPECT_NE(after({{"rounding", "stochastic"}}), nearest);
  EXPECT_EQ(after({{"rounding", "stochastic"}}), after({})) << "the default";
  EXPECT_NE(after({{"seed", "1"}}), after({}));
  EXPECT_EQ(after({{"rounding", "nearest"}, {"seed", "1"}}), nearest)
      << "a seed without stochastic rounding";
  EXPECT_NE(after({{"rounding", "exact"}, {"state_dtype", "bf16"}}),
            after({{"rounding", "exact"}}));
}

TEST(StorageEffect, AFixedRadiusDoesNotDriftUnderBf16Weights) {
  for (const char* name : {"rode-fixed", "muon-normproj"}) {
    Model model({{"w", {16, 16}}}, DType::bf16);
    Optimizer optimizer(model.parameters(), Method::by_name(name));
    const auto norm = [&] {
      return distance(model.value(0).floats(), std::vector<float>(256, 0.0F));
    };
    const double first = norm();
    model.run(optimizer, 200);
    EXPECT_NEAR(norm() / first, 1.0, 0x1p-9) << name;
  }
}

}  // namespace
}  // namespace rode
