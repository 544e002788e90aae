// SPDX-License-Identifier: Apache-2.0
// int8 momentum: what is stored, saved, converted and refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "api/support.h"
#include "unit/safetensors_support.h"

namespace rode {
namespace {

using test::expect_error;
using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;
using test::TemporaryDirectory;

// Rows of more than one block, the last one short; a split; a vector; another rank.
std::vector<test::Spec> wide_model() {
  return {{"h.0.weight", {6, 600}},
          {"h.1.weight", {8, 256}},
          {"h.2.weight", {4, 3, 100}},
          {"norm.weight", {300}},
          {"wte.weight", {10, 8}}};
}

class Int8 : public test::EveryVariant {};

std::vector<test::Variant> int8_variants() {
  std::vector<test::Variant> out;
  const auto add = [&](std::string label, std::string_view name, Settings settings) {
    settings.emplace_back("state_dtype", "int8");
    out.push_back({label, Method::by_name(name, settings)});
    settings.emplace_back("state_rounding", "stochastic");
    settings.emplace_back("seed", "5");
    out.push_back({label + "_stochastic", Method::by_name(name, settings)});
  };
  add("rode", "rode", {});
  add("rode_snr_split", "rode-snr", {{"splits", "h.0.*=2,h.1.*=3+5"}, {"nesterov", "true"}});
  add("rode_adaptive", "rode", {{"radius", "adaptive"}, {"direction", "fixed"}});
  add("rode_radii", "rode", {{"radius_scope", "rows"}, {"reproject", "final"}});
  add("muon", "muon", {});
  add("muon_normproj_rows", "muon-normproj", {{"normalize", "rows"}});
  add("muown", "muown", {});
  add("mars", "mars-m", {});
  add("adamw", "adamw", {});
  add("adamw_cautious", "adamw", {{"cautious_decay", "true"}, {"weight_decay", "0.5"}});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Optimizers, Int8, testing::ValuesIn(int8_variants()), test::variant_name);

// Every state entry that is I8, with its scales.
struct Quantized {
  std::string name;
  ConstTensorView values, scales;

  double value(std::int64_t i) const {
    const std::int64_t rows = scales.shape[0], cols = values.numel() / rows;
    const std::int64_t at = i / cols * scales.shape[1] + i % cols / 256;
    return static_cast<double>(static_cast<const std::int8_t*>(values.data)[i]) *
           static_cast<double>(static_cast<const float*>(scales.data)[at]);
  }
};

std::vector<Quantized> quantized(const std::vector<TensorEntry>& state) {
  std::vector<Quantized> out;
  for (const TensorEntry& entry : state) {
    if (entry.view.dtype != DType::i8) continue;
    const auto scales =
        std::ranges::find(state, scale_key(entry.name), [](const auto& e) { return e.name; });
    out.push_back({entry.name, entry.view, scales->view});
  }
  return out;
}

TEST_P(Int8, KeepsOneMomentumPerParameterInAQuarterOfTheBytes) {
  Model model(wide_model());
  Optimizer narrow(model.parameters(), GetParam().method);
  Optimizer wide(model.parameters(), GetParam().method.with({{"state_dtype", "fp32"}}));
  std::size_t elements = 0, scales = 0;
  const std::vector<TensorEntry> state = narrow.state();
  const auto found = quantized(state);
  EXPECT_EQ(found.size(), model.size());
  for (const Quantized& entry : found) {
    EXPECT_TRUE(entry.name.ends_with(".momentum") || entry.name.ends_with(".exp_avg"));
    elements += static_cast<std::size_t>(entry.values.numel());
    scales += static_cast<std::size_t>(entry.scales.numel());
  }
  EXPECT_EQ(scales, 6U * 3 + 8 + 4 * 2 + 2 + 10);
  EXPECT_EQ(wide.state_bytes() - narrow.state_bytes(), 3 * elements - 4 * scales);
  EXPECT_EQ(planned_state_bytes(model.parameters(), GetParam().method), narrow.state_bytes());
}

TEST_P(Int8, LargestElementOfEveryBlockIs127) {
  Model model(wide_model());
  Optimizer optimizer(model.parameters(), GetParam().method);
  model.run(optimizer, 3);
  const std::vector<TensorEntry> state = optimizer.state();
  for (const Quantized& entry : quantized(state)) {
    const auto* q = static_cast<const std::int8_t*>(entry.values.data);
    const std::int64_t rows = entry.scales.shape[0], cols = entry.values.numel() / rows;
    for (std::int64_t first = 0; first < cols; first += 256) {
      const auto [least, most] = std::minmax_element(q + first, q + std::min(first + 256, cols));
      EXPECT_EQ(std::max(-*least, +*most), 127) << entry.name;
    }
  }
}

TEST_P(Int8, ContinuesBitForBit) {
  const TemporaryDirectory directory;
  Model whole(wide_model()), resumed(wide_model());
  Optimizer first(whole.parameters(), GetParam().method);
  whole.run(first, 4);
  first.save(directory / "s");
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::memcpy(resumed.value(i).view().data, whole.value(i).bytes().data(),
                whole.value(i).bytes().size());
  }
  Optimizer second(resumed.parameters(), GetParam().method);
  second.load(directory / "s");
  whole.run(first, 3);
  resumed.run(second, 3);
  expect_same(Snapshot(resumed, second), Snapshot(whole, first));
}

TEST_P(Int8, AGradientThatIsNotFiniteChangesNothing) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e38F}) {
    for (const std::size_t parameter : {std::size_t{0}, std::size_t{3}}) {
      Model model(wide_model());
      Optimizer optimizer(model.parameters(), GetParam().method);
      model.run(optimizer, 2);
      const Snapshot before(model, optimizer);
      model.grad(parameter).set(model.grad(parameter).count() - 1, bad);
      expect_error([&] { optimizer.step(); }, ErrorKind::non_finite,
                   {wide_model()[parameter].name});
      expect_same(Snapshot(model, optimizer), before);
    }
  }
}

TEST_P(Int8, LoadsFullStateAndFullStateLoadsIt) {
  for (const char* other : {"fp32", "bf16"}) {
    const TemporaryDirectory directory;
    const Method full = GetParam().method.with({{"state_dtype", other}});
    Model model(wide_model());
    Optimizer wide(model.parameters(), full), narrow(model.parameters(), GetParam().method);
    Optimizer again(model.parameters(), full);
    model.run(wide, 3);
    wide.save(directory / "wide");
    narrow.load(directory / "wide");
    EXPECT_EQ(narrow.steps_done(), 3);
    narrow.save(directory / "narrow");
    again.load(directory / "narrow");
    const std::vector<TensorEntry> before = wide.state(), after = again.state();
    const std::vector<TensorEntry> stored = narrow.state();
    ASSERT_EQ(before.size(), after.size());
    const auto found = quantized(stored);
    ASSERT_EQ(found.size(), model.size());
    for (std::size_t e = 0; e < before.size(); ++e) {
      EXPECT_EQ(before[e].name, after[e].name);
      const auto own = std::ranges::find(found, before[e].name, &Quantized::name);
      const auto at = [&](const ConstTensorView& view, std::int64_t i) {
        return static_cast<double>(
            view.dtype == DType::f32
                ? static_cast<const float*>(view.data)[i]
                : rules::bf16_to_float(static_cast<const std::uint16_t*>(view.data)[i]));
      };
      if (own == found.end()) {
        const std::size_t bytes = before[e].view.bytes();
        EXPECT_EQ(std::memcmp(before[e].view.data, after[e].view.data, bytes), 0) << before[e].name;
        continue;
      }
      double most = 0;
      for (std::int64_t i = 0; i < own->values.numel(); ++i) {
        most = std::max(most, std::fabs(at(before[e].view, i)));
      }
      const double spacing = before[e].view.dtype == DType::f32 ? 0x1p-23 : 0x1p-8;
      for (std::int64_t i = 0; i < own->values.numel(); ++i) {
        ASSERT_NEAR(own->value(i), at(before[e].view, i), 0.5001 * most / 127);
        ASSERT_NEAR(at(after[e].view, i), own->value(i), spacing * std::fabs(own->value(i)));
      }
    }
  }
}

// ---- Files that do not belong -----------------------------------------------------------------

struct Tampered {
  Model model{wide_model()};
  Optimizer optimizer{model.parameters(), Method::by_name("rode", {{"state_dtype", "int8"}})};
  std::vector<TensorEntry> entries;
  std::vector<std::vector<std::byte>> copies;

  Tampered() {
    model.run(optimizer, 2);
    for (TensorEntry entry : optimizer.state()) {
      const auto* data = static_cast<const std::byte*>(entry.view.data);
      copies.emplace_back(data, data + entry.view.bytes());
      entry.view.data = copies.back().data();
      entries.push_back(entry);
    }
  }
  std::byte* data(std::string_view name) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].name == name) return copies[i].data();
    }
    return nullptr;
  }
  void refused(std::initializer_list<std::string_view> parts) {
    const Snapshot before(model, optimizer);
    const auto bytes = serialize_safetensors(entries);
    const auto file = SafetensorsFile::parse(bytes, "made");
    for (const bool complete : {true, false}) {
      expect_error([&] { optimizer.load_state(file, complete); }, ErrorKind::state_mismatch, parts);
    }
    expect_same(Snapshot(model, optimizer), before);
  }
  void remove(std::string_view name) {
    std::erase_if(entries, [&](const TensorEntry& entry) { return entry.name == name; });
  }
};

TEST(Int8Refusal, IntegersWithoutScalesOrScalesWithoutIntegers) {
  Tampered scales, values;
  scales.remove("state.h.0.weight.momentum_scale");
  scales.refused({"'state.h.0.weight.momentum'", "momentum_scale"});
  values.remove("state.h.0.weight.momentum");
  values.refused({"'state.h.0.weight.momentum_scale'"});
}

TEST(Int8Refusal, ValuesThatNoRunCouldHaveSaved) {
  const auto scale = [](float bad) {
    Tampered file;
    std::memcpy(file.data("state.norm.weight.exp_avg_scale"), &bad, sizeof(bad));
    file.refused({"'state.norm.weight.exp_avg_scale'"});
  };
  scale(std::numeric_limits<float>::quiet_NaN());
  scale(std::numeric_limits<float>::infinity());
  scale(-1.0F);
  Tampered file;
  *file.data("state.h.1.weight.momentum") = std::byte{0x80};
  file.refused({"'state.h.1.weight.momentum'", "-128"});
}

TEST(Int8Refusal, AMomentumThatWouldOverflowIsRefusedBeforeItIsStored) {
  Tampered file;
  const float large = 3e36F;  // times 127: beyond half of what fp32 holds
  std::memcpy(file.data("state.h.0.weight.momentum_scale"), &large, sizeof(large));
  const auto bytes = serialize_safetensors(file.entries);
  file.optimizer.load_state(SafetensorsFile::parse(bytes, "made"));
  const Snapshot before(file.model, file.optimizer);
  expect_error([&] { file.optimizer.step(); }, ErrorKind::non_finite, {"'h.0.weight'"});
  expect_same(Snapshot(file.model, file.optimizer), before);
}

TEST(Int8Refusal, OptimizersWithoutIt) {
  const StorageOptions storage{.state_dtype = StateDType::int8};
  const auto refused = [](auto make) {
    expect_error(make, ErrorKind::invalid_argument, {"'state_dtype'", "fp32 or bf16", "int8"});
  };
  refused([&] { Method(LionOptions{.storage = storage}); });
  refused([&] { Method(SgdOptions{.storage = storage}); });
  refused([&] { Method(AdEMAMixOptions{.storage = storage}); });
  refused([&] { Method(AdafactorOptions{.storage = storage}); });
  refused([&] { Method(SoapOptions{.storage = storage}); });
}

TEST(Int8Advice, WarnsOfAnAverageThatWouldStall) {
  int heard = 0;
  const EngineOptions engine{.notify = [&](std::string_view) { ++heard; }};
  Model model;
  const auto make = [&](const Settings& more) {
    Settings settings{{"state_dtype", "int8"}};
    settings.insert(settings.end(), more.begin(), more.end());
    Optimizer(model.parameters(), Method::by_name("adamw", settings), {}, engine);
    return heard;
  };
  EXPECT_EQ(make({}), 0);
  EXPECT_EQ(make({{"betas", "0.9,0.99999"}}), 0) << "the second moment is fp32";
  EXPECT_EQ(make({{"betas", "0.9999,0.99"}}), 1);
  EXPECT_EQ(make({{"betas", "0.9999,0.99"}, {"state_rounding", "stochastic"}}), 1);
}

// ---- Rounding ---------------------------------------------------------------------------------

// The mean of what one element is stored as, beside a larger one that fixes the scale.
double mean_stored(StateRounding rounding, float value) {
  constexpr std::int64_t kRows = 4096;
  Model model({{"w", {kRows, 2}}});
  for (std::int64_t i = 0; i < kRows; ++i) {
    model.grad(0).set(static_cast<std::size_t>(2 * i), 127.0F);
    model.grad(0).set(static_cast<std::size_t>(2 * i + 1), value);
  }
  const StorageOptions storage{.state_dtype = StateDType::int8, .state_rounding = rounding};
  Optimizer optimizer(model.parameters(), AdamWOptions{.betas = {0, 0.9}, .storage = storage});
  optimizer.step();
  const std::vector<TensorEntry> state = optimizer.state();
  const Quantized stored = quantized(state).front();
  double sum = 0;
  for (std::int64_t i = 0; i < kRows; ++i) sum += stored.value(2 * i + 1);
  return sum / static_cast<double>(kRows);
}

TEST(Int8Rounding, StochasticKeepsTheMeanAndNearestDoesNot) {
  for (const float value : {0.2F, -0.2F, 3.4F, -100.6F}) {
    EXPECT_EQ(mean_stored(StateRounding::nearest, value), std::nearbyint(value));
    // One draw per row: a deviation of at most 1/2 / sqrt(rows).
    EXPECT_NEAR(mean_stored(StateRounding::stochastic, value), value, 5 * 0.5 / 64);
  }
  EXPECT_EQ(mean_stored(StateRounding::stochastic, 127.0F), 127.0);
  EXPECT_EQ(mean_stored(StateRounding::stochastic, -127.0F), -127.0);
  EXPECT_EQ(mean_stored(StateRounding::stochastic, 0.0F), 0.0);
}

TEST(Int8Rounding, SeedNameAndStepSelectTheBits) {
  const auto after = [](const char* seed, const char* name, int steps) {
    Model model({{name, {4, 300}}});
    Optimizer optimizer(model.parameters(),
                        Method::by_name("adamw", {{"state_dtype", "int8"},
                                                  {"state_rounding", "stochastic"},
                                                  {"betas", "0,0.9"},
                                                  {"seed", seed}}));
    const auto fixed = test::values_of("any", 1200, 1, 0.1);
    for (std::size_t i = 0; i < fixed.size(); ++i) model.grad(0).set(i, fixed[i]);
    for (int t = 0; t < steps; ++t) optimizer.step();
    return test::state_of(optimizer).at(std::string("state.") + name + ".exp_avg");
  };
  EXPECT_EQ(after("3", "w", 1), after("3", "w", 1));
  EXPECT_NE(after("3", "w", 1), after("4", "w", 1));
  EXPECT_NE(after("3", "w", 1), after("3", "w", 2));
  EXPECT_NE(after("3", "w", 1), after("3", "v", 1));
}

// ---- Conversion -------------------------------------------------------------------------------

TEST(ConvertState, ScalesBesideFloatsBringTheIntegersBackUnlessTheyAreStale) {
  constexpr std::int64_t kCount = 300;
  std::vector<std::int8_t> q(kCount), back(kCount);
  std::vector<float> scales{0.3F, 1e-5F}, wide(kCount), fresh(2);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<std::int8_t>(i % 100);
  const Shape shape{1, kCount}, grid{1, 2};
  const TensorView integers{q.data(), shape, DType::i8}, floats{wide.data(), shape, DType::f32};
  const TensorView known{scales.data(), grid, DType::f32};
  const StoredState target{{back.data(), shape, DType::i8}, {fresh.data(), grid, DType::f32}};
  convert_state("w", {integers, known}, {floats, {}});
  convert_state("w", {floats, known}, target);
  EXPECT_EQ(back, q);
  EXPECT_EQ(fresh, scales);
  wide[7] *= 1.5F;
  convert_state("w", {floats, known}, target);
  EXPECT_NE(fresh[0], scales[0]);
  EXPECT_EQ(*std::max_element(back.begin(), back.begin() + 256), 127);
  wide[299] = std::numeric_limits<float>::infinity();
  expect_error([&] { convert_state("w.momentum", {floats, {}}, target); },
               ErrorKind::state_mismatch, {"'w.momentum'", "inf"});
}

}  // namespace
}  // namespace rode
