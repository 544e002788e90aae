// SPDX-License-Identifier: Apache-2.0
// A GPU compared with the CPU on bf16 weights, gradients and state, which the reference does not
// support.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/support.h"
#include "support/side_by_side.h"

namespace rode {
namespace {

// Sizes with remainders, and enough elements for fractions of them to be meaningful.
std::vector<test::Spec> specs() {
  return {{"h.0.weight", {96, 80}},
          {"h.1.weight", {48, 131}},
          {"h.2.weight", {40, 600}},  // more than one block of int8 state in a row, the last short
          {"norm.weight", {1003}}};
}

const Settings kRadii = {{"radius_scope", "rows"}, {"reproject", "final"}, {"radius", "adaptive"}};

// Every optimizer, and RODE with radii of rows.
std::vector<Method> methods(const Settings& settings) {
  std::vector<Method> out;
  for (const OptimizerInfo& info : list_optimizers()) {
    if (info.name == "soap") continue;  // a rank-deficient Gram matrix has many bases
    out.push_back(test::in_fp32(Method::by_name(info.name, settings)));
  }
  out.push_back(test::in_fp32(Method::by_name("rode", kRadii).with(settings)));
  return out;
}

struct Outcome {
  std::vector<std::vector<float>> weights;  // with the low bits if they are kept
  test::Bytes state;
};

// The same model on the tested device, or on the CPU.
template <class Engine>
Outcome run(const Method& method, DType weights, DType grads, int steps) {
  test::Model model(specs(), weights, grads);
  Engine optimizer(model.parameters(), method);
  for (int t = 0; t < steps; ++t) {
    model.draw(t);
    optimizer.step();
  }
  Outcome outcome{{}, test::state_of(optimizer)};
  for (std::size_t i = 0; i < model.size(); ++i) {
    std::vector<float> values = model.value(i).floats();
    const auto low = outcome.state.find("state." + specs()[i].name + ".low_bits");
    if (low != outcome.state.end()) {
      for (std::size_t j = 0; j < values.size(); ++j) {
        std::uint16_t high = 0, bits = 0;
        std::memcpy(&high, model.value(i).bytes().data() + 2 * j, sizeof(high));
        std::memcpy(&bits, low->second.data() + 2 * j, sizeof(bits));
        values[j] = rules::join_halves(high, bits);
      }
    }
    outcome.weights.push_back(std::move(values));
  }
  return outcome;
}

Method in_fp32(std::string_view name, const Settings& settings) {
  return test::in_fp32(Method::by_name(name, settings));
}

void expect_close(const std::string& label, const Method& method, DType weights, DType grads,
                  double tol) {
  constexpr int kSteps = 4;
  const Outcome gpu = run<test::Optimizer>(method, weights, grads, kSteps);
  const Outcome cpu = run<rode::Optimizer>(method, weights, grads, kSteps);
  test::Model start(specs(), weights, grads);
  for (std::size_t i = 0; i < start.size(); ++i) {
    const std::vector<float> before = start.value(i).floats();
    const double moved = testing::distance(cpu.weights[i], before);
    EXPECT_GT(moved, 0.0) << label << " " << i;
    EXPECT_LE(testing::distance(gpu.weights[i], cpu.weights[i]),
              tol * moved + kSteps * testing::kUnitRounding * testing::norm(before))
        << label << " " << specs()[i].name;
  }
}

TEST(Devices, KeepExactBf16WeightsAlikeFromEitherTypeOfGradient) {
  RODE_CUDA_ONLY("compares a GPU with the CPU");
  for (const Method& method : methods({{"rounding", "exact"}})) {
    const std::string name(method.name());
    for (const DType grads : {DType::f32, DType::bf16}) {
      expect_close(name, method, DType::bf16, grads, testing::kTwentySteps);
      expect_close(name, method, DType::f32, grads, testing::kTwentySteps);
    }
  }
}

// A number halfway between two bf16 numbers may round either way: a few elements differ by 2^-9 of
// their value.
TEST(Devices, KeepBf16StateAlike) {
  RODE_CUDA_ONLY("compares a GPU with the CPU");
  for (const Method& method : methods({{"rounding", "exact"}, {"state_dtype", "bf16"}})) {
    expect_close(std::string(method.name()), method, DType::bf16, DType::bf16, 0x1p-8);
  }
}

// The same whole numbers, up to a few that lie at a tie, from the same draws: with others, half of
// them would differ by one.
TEST(Devices, KeepInt8MomentumAlike) {
  RODE_CUDA_ONLY("compares a GPU with the CPU");
  for (const auto& [name, settings] : {std::pair{"rode", Settings{}},
                                       {"rode-snr", {}},
                                       {"muon", {}},
                                       {"muon-normproj", {}},
                                       {"mars-m", {}},
                                       {"muown", {}},
                                       {"adamw", {}},
                                       {"rode", kRadii}}) {
    for (const char* rounding : {"nearest", "stochastic"}) {
      SCOPED_TRACE(std::string(name) + " " + rounding);
      const Method method =
          in_fp32(name, settings)
              .with({{"state_dtype", "int8"}, {"state_rounding", rounding}, {"seed", "5"}});
      for (const DType grads : {DType::f32, DType::bf16}) {
        expect_close(name, method, DType::f32, grads, 0x1p-8);
      }
      const Outcome gpu = run<test::Optimizer>(method, DType::f32, DType::f32, 3);
      const Outcome cpu = run<rode::Optimizer>(method, DType::f32, DType::f32, 3);
      std::size_t found = 0;
      for (const auto& [key, there] : cpu.state) {
        if (!key.ends_with(".momentum") && !key.ends_with(".exp_avg")) continue;
        ++found;
        const std::vector<std::byte>& here = gpu.state.at(key);
        ASSERT_EQ(here.size(), there.size());
        std::size_t differing = 0;
        for (std::size_t j = 0; j < here.size(); ++j) {
          const int apart = static_cast<std::int8_t>(here[j]) - static_cast<std::int8_t>(there[j]);
          EXPECT_LE(std::abs(apart), 1) << key << " " << j;
          differing += apart != 0 ? 1 : 0;
        }
        EXPECT_LE(differing, 2 + here.size() / 200) << key;
      }
      EXPECT_EQ(found, specs().size());
    }
  }
}

// Both devices draw the same random bits: with different ones, a third of the weights would differ.
TEST(Devices, RoundBf16WeightsAlikeNearestAndAtRandom) {
  RODE_CUDA_ONLY("compares a GPU with the CPU");
  for (const char* rounding : {"nearest", "stochastic"}) {
    for (const Method& method : methods({{"rounding", rounding}, {"seed", "5"}})) {
      const Outcome gpu = run<test::Optimizer>(method, DType::bf16, DType::f32, 2);
      const Outcome cpu = run<rode::Optimizer>(method, DType::bf16, DType::f32, 2);
      for (std::size_t i = 0; i < cpu.weights.size(); ++i) {
        std::size_t differing = 0;
        for (std::size_t j = 0; j < cpu.weights[i].size(); ++j) {
          differing += gpu.weights[i][j] != cpu.weights[i][j] ? 1 : 0;
        }
        EXPECT_LE(differing, cpu.weights[i].size() / 50)
            << method.name() << " " << rounding << " " << specs()[i].name;
      }
    }
  }
}

TEST(Devices, ExchangeTheirState) {
  RODE_CUDA_ONLY("compares a GPU with the CPU");
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    const Method method = in_fp32(info.name, {{"rounding", "stochastic"}});
    test::Model there(specs(), DType::bf16), here(specs(), DType::bf16);
    test::Optimizer gpu(there.parameters(), method);
    there.run(gpu, 3);
    const auto file =
        SafetensorsFile::parse(serialize_safetensors(gpu.state(), gpu.metadata()), "the device's");
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::size_t j = 0; j < here.value(i).count(); ++j) {
        here.value(i).set(j, there.value(i).get(j));
      }
    }
    rode::Optimizer cpu(here.parameters(), method);
    EXPECT_TRUE(cpu.load_state(file).empty());
    EXPECT_EQ(cpu.steps_done(), 3);
    test::expect_same(test::state_of(cpu), test::state_of(gpu));
  }
}

}  // namespace
}  // namespace rode
