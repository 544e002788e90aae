// SPDX-License-Identifier: Apache-2.0
// Values that no normal run produces: damaged state, tied gradients, overflow.
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/support.h"
#include "rode/rode.h"

namespace rode {
namespace {

using test::expect_error;
using test::Optimizer;

// Saves the state of a fresh optimizer with one entry replaced, and loads it.
void load_with(const Method& method, const std::string& key, double value) {
  test::Model model;
  Optimizer optimizer(model.parameters(), method);
  model.run(optimizer, 1);
  const std::string target = "state.h.0.weight." + key;
  std::vector<std::vector<std::byte>> copies;
  std::vector<TensorEntry> entries = optimizer.state();
  for (TensorEntry& entry : entries) {
    const auto* bytes = static_cast<const std::byte*>(entry.view.data);
    copies.emplace_back(bytes, bytes + entry.view.bytes());
    if (entry.name == target && entry.view.dtype == DType::i64) {
      const auto step = static_cast<std::int64_t>(value);
      std::memcpy(copies.back().data(), &step, sizeof(step));
    } else if (entry.name == target) {
      const auto x = static_cast<float>(value);
      std::memcpy(copies.back().data(), &x, sizeof(x));
    }
    entry.view.data = copies.back().data();
  }
  const std::vector<std::byte> file = serialize_safetensors(entries, optimizer.metadata());
  const test::Snapshot before(model, optimizer);
  expect_error([&] { optimizer.load_state(SafetensorsFile::parse(file, "damaged")); },
               ErrorKind::state_mismatch, {target});
  test::expect_same(test::Snapshot(model, optimizer), before);
}

TEST(DamagedState, IsRefusedByNameAndChangesNothing) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  load_with(AdamWOptions{}, "step", -1);
  load_with(AdamWOptions{}, "step", 0x1.0p62 * 1.5);
  load_with(AdamWOptions{}, "exp_avg", nan);
  load_with(AdamWOptions{}, "exp_avg_sq", -1e-3);
  load_with(SgdOptions{}, "momentum", inf);
  load_with(RodeOptions{.snr = true}, "snr_norm", nan);
  load_with(RodeOptions{.radius = Radius::fixed}, "radius", -1);
  load_with(RodeOptions{.radius = Radius::adaptive}, "radius_avg_sq", -1);
  load_with(SoapOptions{}, "gram.0", inf);
  load_with(AdafactorOptions{}, "row", -1);
}

TEST(DamagedState, AStepCountThatWouldOverflowIsRefused) {
  test::Model model;
  Optimizer optimizer(model.parameters(), RodeOptions{});
  const auto file =
      serialize_safetensors(optimizer.state(), {{"rode.step", "9223372036854775807"}});
  expect_error([&] { optimizer.load_state(SafetensorsFile::parse(file, "damaged")); },
               ErrorKind::file, {"rode.step", "9223372036854775807"});
  EXPECT_EQ(optimizer.steps_done(), 0);
}

TEST(DamagedState, OneGroupsStateIsNotTakenForAnothers) {
  test::Model a, b;
  const auto groups = [](test::Model& model, const Method& first, const Method& second) {
    auto all = model.parameters();
    return std::vector<ParameterGroup>{{{all[0]}, first}, {{all[1]}, second}};
  };
  Optimizer saver(groups(a, RodeOptions{}, MuonOptions{}));
  Optimizer other(groups(b, MuonOptions{}, RodeOptions{}));
  const auto file = serialize_safetensors(saver.state(), saver.metadata());
  expect_error([&] { other.load_state(SafetensorsFile::parse(file, "swapped")); },
               ErrorKind::state_mismatch, {"'rode,muon'", "'muon,rode'"});
}

// A weight with two names: the gradient is used whichever entry it comes with.
TEST(TiedWeights, TakeTheGradientOfEitherEntryAndRefuseTwo) {
  std::vector<float> w(6, 1.0F), g(6, 1.0F), other(6, 2.0F);
  const TensorView weight = view(w.data(), {2, 3});
  const ConstTensorView none{nullptr, {2, 3}, DType::f32};
  const ConstTensorView first = view(g.data(), {2, 3}), second = view(other.data(), {2, 3});
  Optimizer optimizer({{"wte", weight, none}, {"lm_head", weight, first}}, SgdOptions{});
  optimizer.step();
  EXPECT_NE(w[0], 1.0F);
  expect_error(
      [&] { Optimizer({{"wte", weight, second}, {"lm_head", weight, first}}, SgdOptions{}); },
      ErrorKind::invalid_argument, {"'wte'", "'lm_head'", "two gradients"});
}

TEST(LargeGradients, WhoseSquaresLeaveFp32AreRefusedAsSuchAndNotCalledNaN) {
  const std::vector<Method> squares{AdamWOptions{}, AdEMAMixOptions{}, AdafactorOptions{},
                                    SoapOptions{}, RodeOptions{.radius = Radius::adaptive}};
  for (const Method& method : squares) {
    std::vector<float> w(12, 0.5F), g(12, 1e20F);
    Optimizer optimizer({{"w", view(w.data(), {4, 3}), view(g.data(), {4, 3})}}, method);
    expect_error([&] { optimizer.step(); }, ErrorKind::non_finite, {"'w'", "too large", "scale"});
    EXPECT_EQ(w, std::vector<float>(12, 0.5F));
  }
  // The direction does not depend on the scale, so other rules update it.
  for (const Method& method :
       std::vector<Method>{RodeOptions{.radius = Radius::learned}, MuonOptions{}}) {
    std::vector<float> w{1, 2, 3, 4}, g{1e20F, -1e20F, 3e20F, 1e19F};
    Optimizer optimizer({{"w", view(w.data(), {2, 2}), view(g.data(), {2, 2})}},
                        method.name() == "rode" ? method.with({{"lr_rho", "0"}}) : method);
    optimizer.step();
    for (const float x : w) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(Skipping, IsReportedAndItsWeightsStillCountInTheGlobalNorm) {
  std::vector<float> a{3, 0, 0, 4}, b{0, 5, 12, 0}, g(4, 1.0F), bad(4, std::nanf(""));
  std::vector<std::string> heard;
  Optimizer optimizer({{"a", view(a.data(), {2, 2}), view(g.data(), {2, 2})},
                       {"b", view(b.data(), {2, 2}), view(bad.data(), {2, 2})}},
                      RodeOptions{}, {},
                      {.on_non_finite = OnBadGradient::skip,
                       .notify = [&](std::string_view text) { heard.emplace_back(text); }});
  optimizer.step();
  optimizer.step();
  EXPECT_EQ(optimizer.skipped(), std::vector<std::string>{"b"});
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_NE(heard[0].find("'b'"), std::string::npos);
  const double norm_a = optimizer.matrix_diagnostics()[0].rho;
  EXPECT_NEAR(optimizer.global_diagnostics().weight_norm, std::hypot(norm_a, 13.0), 1e-6);
  EXPECT_EQ(optimizer.matrix_diagnostics()[1].rho, 0);
}

TEST(Advice, SaysAtConstructionThatABf16AverageWouldStall) {
  std::vector<std::string> heard;
  const EngineOptions engine{.notify = [&](std::string_view text) { heard.emplace_back(text); }};
  test::Model model;
  Optimizer(model.parameters(), Method::by_name("adamw", {{"state_dtype", "bf16"}}), {}, engine);
  EXPECT_TRUE(heard.empty());  // 0.9 and 0.95 still change
  Optimizer(model.parameters(), Method::by_name("ademamix", {{"state_dtype", "bf16"}}), {}, engine);
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_NE(heard[0].find("0.999"), std::string::npos);
}

TEST(Workspace, IsOneMatrixWhereAllThreadsShareIt) {
  RODE_CPU_ONLY("tests the engine's threads");
  const auto bytes = [](int threads) {
    std::vector<float> w(256 * 256, 0.1F), g(256 * 256, 0.1F);
    Optimizer optimizer({{"w", view(w.data(), {256, 256}), view(g.data(), {256, 256})}},
                        RodeOptions{}, {}, {.threads = threads});
    return optimizer.workspace_bytes();
  };
  EXPECT_EQ(bytes(1), bytes(16));
}

}  // namespace
}  // namespace rode
