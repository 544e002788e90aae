// SPDX-License-Identifier: Apache-2.0
// on_zero = start: what a checkpoint keeps of it, what is told, and what is refused.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/support.h"
#include "rode/matrix_parts.h"
#include "rode/shard_plan.h"
#include "unit/safetensors_support.h"

namespace rode {
namespace {

using test::expect_error;
using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;
using test::TemporaryDirectory;

constexpr std::size_t kZero = 0;  // "h.0.weight", a matrix of every route

void clear(Model& model) {
  const TensorView view = model.value(kZero).view();
  std::memset(view.data, 0, view.bytes());
}

void copy_weights(Model& from, Model& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to.value(i).view().data, from.value(i).bytes().data(),
                from.value(i).bytes().size());
  }
}

// The zero matrix has no gradient in the first `silent` steps.
void run(Model& model, Optimizer& optimizer, int steps, int silent = 0) {
  for (int i = 0; i < steps; ++i) {
    const auto t = optimizer.steps_done();
    model.draw(t);
    const std::size_t count = t < silent ? model.grad(kZero).count() : 0;
    for (std::size_t j = 0; j < count; ++j) model.grad(kZero).set(j, 0);
    optimizer.step();
  }
}

Method starting(const char* name, const Settings& settings = {}) {
  return Method::by_name(name, {{"on_zero", "start"}}).with(settings);
}

TEST(Start, ACheckpointBeforeOrAfterItGoesOnBitForBit) {
  for (const char* name : {"rode", "rode-snr", "rode-fixed"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const char* state : {"fp32", "int8"}) {
        for (const int silent : {0, 7}) {
          SCOPED_TRACE(std::string(name) + " " + std::string(to_string(dtype)) + " " + state + " " +
                       std::to_string(silent));
          const TemporaryDirectory directory;
          Model whole(test::small_model(), dtype), resumed(test::small_model(), dtype);
          clear(whole);
          const Method method = starting(name, {{"state_dtype", state}});
          Optimizer first(whole.parameters(), method);
          run(whole, first, 5, silent);
          first.save(directory / "s");
          copy_weights(whole, resumed);
          Optimizer second(resumed.parameters(), method);
          second.load(directory / "s");
          expect_same(test::state_of(second), test::state_of(first));
          EXPECT_EQ(second.routing_table(), first.routing_table());
          run(whole, first, 5, silent);
          run(resumed, second, 5, silent);
          expect_same(Snapshot(resumed, second), Snapshot(whole, first));
          EXPECT_FALSE(whole.weights().at("h.0.weight") == Model().weights().at("h.0.weight"));
          EXPECT_GT(first.matrix_diagnostics()[0].rho_next, 0);
        }
      }
    }
  }
}

TEST(Start, IsToldInTheRoutingTableAndByNoWarning) {
  Model model, plain;
  clear(model);
  std::string heard;
  EngineOptions engine;
  engine.notify = [&](std::string_view text) { heard += text; };
  Optimizer optimizer(model.parameters(), starting("rode"), {}, engine);
  EXPECT_NE(optimizer.routing_table().find(", zero start"), std::string::npos);
  run(model, optimizer, 3, 2);
  EXPECT_EQ(heard, "");
  Optimizer other(plain.parameters(), starting("rode"));
  EXPECT_EQ(other.routing_table().find("zero start"), std::string::npos);
}

// With a rate of zero there is no start yet; the momentum gathers, and the next step has it.
TEST(Start, AStepOfMultiplierZeroLeavesItForTheNext) {
  Model model;
  clear(model);
  Optimizer optimizer(model.parameters(), starting("rode"));
  model.draw(0);
  optimizer.step(0.0);
  EXPECT_EQ(optimizer.matrix_diagnostics()[0].rho_next, 0);
  model.draw(1);
  optimizer.step(0.5);
  const double half = optimizer.matrix_diagnostics()[0].rho_next;
  EXPECT_GT(half, 0);
  EXPECT_NEAR(optimizer.matrix_diagnostics()[0].theta, 0.5 * 0.05, 0.2 * 0.5 * 0.05);
}

TEST(Start, InPhasesIsTheWholeStepBitForBit) {
  for (const char* rows : {"none", "rows"}) {
    Model whole, phased;
    clear(whole);
    clear(phased);
    EngineOptions engine;
    engine.phases = true;
    const Method method = starting("rode", {{"normalize", rows}});
    Optimizer first(whole.parameters(), method), second(phased.parameters(), method, {}, engine);
    for (int t = 0; t < 3; ++t) {
      whole.draw(t);
      phased.draw(t);
      first.step();
      second.step_in_phases();
    }
    expect_same(Snapshot(phased, second), Snapshot(whole, first));
  }
}

// The first write is rounded once: by less than a unit of bf16 for every element.
TEST(Start, RoundsTheFirstWriteOfBf16WeightsOnce) {
  for (const char* rounding : {"nearest", "stochastic", "exact"}) {
    Model wide, narrow(test::small_model(), DType::bf16);
    clear(wide);
    clear(narrow);
    const Method method = starting("rode", {{"rounding", rounding}});
    Optimizer full(wide.parameters(), method), half(narrow.parameters(), method);
    run(wide, full, 1);
    run(narrow, half, 1);
    for (std::size_t i = 0; i < wide.value(kZero).count(); ++i) {
      const float expected = wide.value(kZero).get(i);
      EXPECT_NEAR(narrow.value(kZero).get(i), expected, 0x1p-7 * std::abs(expected)) << rounding;
    }
  }
}

TEST(Start, IsRefusedWhereItCannotBeHad) {
  for (const char* name : {"rode", "rode-snr", "rode-fixed", "rode-paper"}) {
    const std::string operation = "[" + std::string(name) + "]";
    expect_error([&] { starting(name, {{"direction", "fixed"}}); }, ErrorKind::invalid_argument,
                 {"option 'on_zero' = 'start'", "'direction' is 'fixed'", "on_zero=rest"});
    expect_error([&] { starting(name, {{"reproject", "final"}, {"radius_scope", "rows"}}); },
                 ErrorKind::invalid_argument,
                 {"option 'on_zero' = 'start'", "'radius_scope' is 'rows'", "radius_scope=matrix"});
    Model model;
    EngineOptions engine;
    engine.share = true;
    expect_error([&] { Optimizer(model.parameters(), starting(name), {}, engine); },
                 ErrorKind::unsupported, {"'on_zero' = 'start'", "processes", "on_zero=rest"});
    const ParameterGroup group{model.parameters(), starting(name), {}, {}};
    expect_error([&] { parted_matrices(group, Device::cpu); }, ErrorKind::unsupported,
                 {"'on_zero' = 'start'", "processes", "on_zero=rest"});
    expect_error([&] { shard_items(model.parameters(), starting(name), {}); },
                 ErrorKind::unsupported, {"'on_zero' = 'start'", "processes", "on_zero=rest"});
  }
}

TEST(Start, StateOfAnotherTreatmentIsRefused) {
  const TemporaryDirectory directory;
  Model model;
  clear(model);
  Optimizer rest(model.parameters(), Method::by_name("rode"));
  run(model, rest, 1);
  rest.save(directory / "s");
  Model other;
  clear(other);
  Optimizer start(other.parameters(), starting("rode"));
  expect_error([&] { start.load(directory / "s"); }, ErrorKind::state_mismatch, {"h.0.weight"});
}

}  // namespace
}  // namespace rode
