// SPDX-License-Identifier: Apache-2.0
// Construction, parameter groups and memory that moves between steps.
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "api/support.h"

namespace rode {
namespace {

using test::expect_error;
using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;
using test::Spec;

// ---- Construction ---------------------------------------------------------------------

TEST(Construction, RefusesWeightsWithoutMemoryOrOfAnotherType) {
  Model model;
  auto parameters = model.parameters();
  parameters[1].value.data = nullptr;
  expect_error([&] { Optimizer(parameters, RodeOptions{}); }, ErrorKind::invalid_argument,
               {"'h.1.weight'", "null"});
  for (const DType dtype : {DType::f16, DType::f64, DType::i32}) {
    parameters = model.parameters();
    parameters[0].value.dtype = dtype;
    std::vector<std::byte> memory(parameters[0].value.bytes());
    parameters[0].value.data = memory.data();
    expect_error([&] { Optimizer(parameters, RodeOptions{}); }, ErrorKind::dtype,
                 {"'h.0.weight'", to_string(dtype)});
  }
}

TEST(Construction, RefusesGradientsOfAnotherShapeOrType) {
  Model model;
  auto parameters = model.parameters();
  parameters[0].grad.shape = {8, 12};
  expect_error([&] { Optimizer(parameters, RodeOptions{}); }, ErrorKind::shape,
               {"'h.0.weight'", "(8, 12)", "(12, 8)"});
  parameters = model.parameters();
  parameters[0].grad.dtype = DType::f16;
  expect_error([&] { Optimizer(parameters, RodeOptions{}); }, ErrorKind::dtype,
               {"'h.0.weight'", "F16"});
}

TEST(Construction, RefusesNegativeThreads) {
  Model model;
  expect_error([&] { Optimizer(model.parameters(), RodeOptions{}, {}, {.threads = -1}); },
               ErrorKind::invalid_argument, {"threads = -1"});
}

TEST(Construction, RefusesADeviceThatIsNotThere) {
  try {
    make_cuda_backend({});
    GTEST_SKIP() << "the device exists";
  } catch (const Error&) {
    // The intended case.
  }
  Model model;
  expect_error(
      [&] { rode::Optimizer(model.parameters(), RodeOptions{}, {}, {.device = Device::cuda}); },
      ErrorKind::unsupported, {"CUDA"});
}

TEST(Construction, AnOptimizerWithoutParametersStepsNothing) {
  Optimizer optimizer(std::vector<Parameter>{}, RodeOptions{});
  optimizer.step();
  EXPECT_EQ(optimizer.steps_done(), 1);
  EXPECT_TRUE(optimizer.state().empty());
  EXPECT_EQ(optimizer.state_bytes(), 0U);
}

TEST(Construction, FrozenParametersHaveNoStateAndStayWithoutAGradient) {
  Model model;
  auto parameters = model.parameters();
  parameters[0].grad = {};
  Optimizer optimizer(parameters, RodeOptions{}, {Route::language, {{"h.0.*", Treatment::frozen}}});
  const auto before = model.weights();
  optimizer.step();
  EXPECT_EQ(model.weights().at("h.0.weight"), before.at("h.0.weight"));
  EXPECT_NE(model.weights().at("h.1.weight"), before.at("h.1.weight"));
  for (const TensorEntry& entry : optimizer.state()) {
    EXPECT_EQ(entry.name.find("h.0."), std::string::npos) << entry.name;
  }
}

TEST(Construction, PlannedBytesAreThoseOfTheOptimizer) {
  for (const test::Variant& variant : test::variants()) {
    Model model;
    const auto parameters = model.parameters();
    Optimizer optimizer(parameters, variant.method);
    std::size_t sum = 0;
    for (const TensorEntry& entry : optimizer.state()) sum += entry.view.bytes();
    EXPECT_EQ(optimizer.state_bytes(), sum) << variant.label;
    EXPECT_EQ(planned_state_bytes(parameters, variant.method), sum) << variant.label;
  }
}

TEST(Construction, TiedWeightsAreSteppedOnceThroughEitherIndex) {
  Model model, single;
  auto parameters = model.parameters();
  parameters.push_back(parameters[3]);
  parameters.back().name = "lm_head.weight";
  Optimizer tied(parameters, RodeOptions{});
  Optimizer plain(single.parameters(), RodeOptions{});
  tied.step();
  plain.step();
  expect_same(Snapshot(model, tied), Snapshot(single, plain));
  std::vector<float> zeros(80, 0.0F);
  tied.bind_grad(4, view(zeros.data(), {10, 8}));
  for (std::size_t i = 0; i < zeros.size(); ++i) single.grad(3).set(i, 0);
  tied.step();
  plain.step();
  expect_same(Snapshot(model, tied), Snapshot(single, plain));
}

// ---- Groups ---------------------------------------------------------------------------

TEST(Groups, EachIsSteppedByItsOwnMethodAsIfItWereAlone) {
  const std::vector<Spec> first{{"a.weight", {6, 4}}, {"a.norm", {5}}};
  const std::vector<Spec> second{{"b.weight", {4, 7}}, {"b.norm", {3}}};
  const std::vector<Spec> third{{"c.weight", {5, 5}}};
  Model a(first), b(second), c(third), a_alone(first), b_alone(second), c_alone(third);
  const Method slow = Method::by_name("rode", {{"lr", "0.01"}}), fast = AdamWOptions{.lr = 0.1};
  const Routing rest{Route::rest, {}};
  Optimizer together(
      {{a.parameters(), slow}, {b.parameters(), fast}, {c.parameters(), slow, rest}});
  Optimizer one(a_alone.parameters(), slow), two(b_alone.parameters(), fast),
      three(c_alone.parameters(), slow, rest);
  EXPECT_EQ(together.group_count(), 3U);
  EXPECT_EQ(together.method(1).name(), "adamw");
  for (int t = 0; t < 4; ++t) {
    for (Model* model : {&a, &b, &c, &a_alone, &b_alone, &c_alone}) model->draw(t);
    for (Optimizer* optimizer : {&together, &one, &two, &three}) optimizer->step(0.5);
  }
  EXPECT_EQ(a.weights(), a_alone.weights());
  EXPECT_EQ(b.weights(), b_alone.weights());
  EXPECT_EQ(c.weights(), c_alone.weights());
  EXPECT_NE(together.routing_table().find("group: adamw"), std::string::npos);
}

TEST(Groups, TheSameMemoryOrNameInTwoOfThemIsRefused) {
  Model model, other;
  auto renamed = model.parameters();
  for (Parameter& p : renamed) p.name = "other." + p.name;
  expect_error([&] { Optimizer({{model.parameters(), RodeOptions{}}, {renamed, AdamWOptions{}}}); },
               ErrorKind::invalid_argument,
               {"'h.0.weight'", "'other.h.0.weight'", "two parameter groups"});
  expect_error(
      [&] {
        Optimizer({{model.parameters(), RodeOptions{}}, {other.parameters(), AdamWOptions{}}});
      },
      ErrorKind::invalid_argument, {"'h.0.weight'", "two parameters"});
}

TEST(Groups, OptionsOfOneLeaveTheOthersAlone) {
  Model a({{"a", {4, 4}}}), b({{"b", {4, 4}}});
  Optimizer optimizer({{a.parameters(), SgdOptions{}}, {b.parameters(), SgdOptions{}}});
  optimizer.set_option(1, "lr", 0.0);
  const auto first = a.weights(), second = b.weights();
  optimizer.step();
  EXPECT_NE(a.weights(), first);
  EXPECT_EQ(b.weights(), second);
  expect_error([&] { optimizer.set_option(2, "lr", 0.1); }, ErrorKind::invalid_argument,
               {"group index 2; expected 0 to 1"});
}

// ---- Memory that moves ----------------------------------------------------------------

TEST(Binding, MovedWeightsAndGradientsGiveTheSameStep) {
  for (const test::Variant& variant : test::variants()) {
    SCOPED_TRACE(variant.label);
    Model still, first, second;
    Optimizer a(still.parameters(), variant.method), b(first.parameters(), variant.method);
    still.run(a, 2);
    first.run(b, 2);
    for (std::size_t i = 0; i < second.size(); ++i) {
      for (std::size_t j = 0; j < second.value(i).count(); ++j) {
        second.value(i).set(j, first.value(i).get(j));
      }
      b.bind_value(i, second.value(i).view());
      b.bind_grad(i, second.grad(i).view());
    }
    const auto left_behind = first.weights();
    still.run(a, 2);
    second.run(b, 2);
    expect_same(Snapshot(second, b), Snapshot(still, a));
    EXPECT_EQ(first.weights(), left_behind);
  }
}

TEST(Binding, RefusesWhatDoesNotFitAndKeepsWhatWasBound) {
  Model model, plain;
  Optimizer optimizer(model.parameters(), RodeOptions{}), other(plain.parameters(), RodeOptions{});
  std::vector<float> memory(200);
  expect_error([&] { optimizer.bind_grad(0, view(memory.data(), {8, 12})); }, ErrorKind::shape,
               {"'h.0.weight'", "(8, 12)", "(12, 8)"});
  expect_error([&] { optimizer.bind_grad(0, {memory.data(), {12, 8}, DType::f16}); },
               ErrorKind::dtype, {"'h.0.weight'", "F16"});
  expect_error([&] { optimizer.bind_value(0, view(memory.data(), {8, 12})); }, ErrorKind::shape,
               {"'h.0.weight'"});
  expect_error([&] { optimizer.bind_value(0, {memory.data(), {12, 8}, DType::bf16}); },
               ErrorKind::shape, {"'h.0.weight'", "BF16"});
  expect_error([&] { optimizer.bind_value(0, {nullptr, {12, 8}, DType::f32}); }, ErrorKind::shape,
               {"'h.0.weight'", "null"});
  expect_error([&] { optimizer.bind_grad(4, view(memory.data(), {8, 12})); },
               ErrorKind::invalid_argument, {"index 4"});
  optimizer.step();
  other.step();
  expect_same(Snapshot(model, optimizer), Snapshot(plain, other));
}

TEST(Binding, AnOptimizerThatWasMovedStepsOn) {
  Model a, b;
  Optimizer first(a.parameters(), RodeOptions{}), plain(b.parameters(), RodeOptions{});
  a.run(first, 1);
  Optimizer second(std::move(first));
  a.run(second, 1);
  b.run(plain, 2);
  expect_same(Snapshot(a, second), Snapshot(b, plain));
}

}  // namespace
}  // namespace rode
