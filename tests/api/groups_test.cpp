// SPDX-License-Identifier: Apache-2.0
// Construction, parameter groups, live options and memory that moves between steps.
#include <cstddef>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api/options_support.h"
#include "api/support.h"
#include "unit/safetensors_support.h"

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
  for (const test::Variant& variant : test::tested_variants()) {
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

// ---- Live options ---------------------------------------------------------------------

TEST(LiveOptions, TakeEffectAtTheNextStepAsInANewOptimizerWithThisState) {
  const test::TemporaryDirectory directory;
  // Bounds that are not reached here; the radius of this model shortens.
  const std::set<std::string> silent{"snr_min", "floor", "eps_ns", "radius_brake"};
  for (const OptimizerInfo& info : test::tested_optimizers()) {
    for (const OptionInfo& option : info.options) {
      if (!option.live) continue;
      SCOPED_TRACE(info.name + " " + option.key);
      const std::string value = test::alternative(info.name, option).value;
      Method method = Method::by_name(info.name);
      if (option.key == "row_beta") method = method.with({{"normalize", "rows"}});
      if (option.key == "radius_pull") {
        // The published variants have none: it acts on an adaptive radius.
        method = method.with(
            {{"radius", "adaptive"}, {"lr_rho", "0.03"}, {"scale", "angle"}, {"lr", "0.05"}});
      }
      Model changed, unchanged, fresh;
      Optimizer a(changed.parameters(), method), b(unchanged.parameters(), method);
      changed.run(a, 3);
      unchanged.run(b, 3);
      const auto path = directory / "state.safetensors";
      a.save(path);
      for (std::size_t i = 0; i < fresh.size(); ++i) {
        for (std::size_t j = 0; j < fresh.value(i).count(); ++j) {
          fresh.value(i).set(j, changed.value(i).get(j));
        }
      }
      Optimizer c(fresh.parameters(), method.with({{option.key, value}}));
      c.load(path);
      a.set_option(0, option.key, value);
      changed.run(a, 1);
      unchanged.run(b, 1);
      fresh.run(c, 1);
      expect_same(Snapshot(changed, a), Snapshot(fresh, c));
      const bool unused =
          silent.contains(option.key) ||
          (option.key == "eps" && (info.name == "rode-paper" || info.name == "rode-fixed")) ||
          (option.key == "lr_rho" && info.name == "rode-fixed");
      if (!unused) {
        EXPECT_FALSE(changed.weights() == unchanged.weights()) << "no effect";
      }
    }
  }
}

TEST(LiveOptions, DoubledRatesAreADoubledMultiplierBitForBit) {
  for (const OptimizerInfo& info : test::tested_optimizers()) {
    Model a, b;
    const Method method = Method::by_name(info.name);
    Optimizer rates(a.parameters(), method), multiplied(b.parameters(), method);
    for (const OptionInfo& option : info.options) {
      if (option.key == "lr" || option.key == "lr_rho" || option.key == "lr_rest") {
        rates.set_option(0, option.key, 2 * std::stod(option.value));
      }
    }
    for (int t = 0; t < 3; ++t) {
      for (Model* model : {&a, &b}) model->draw(t);
      rates.step();
      multiplied.step(2);
    }
    SCOPED_TRACE(info.name);
    expect_same(Snapshot(a, rates), Snapshot(b, multiplied));
  }
}

TEST(LiveOptions, CoupledRatesFollowLrAsUnderAMultiplierBitForBit) {
  for (const OptimizerInfo& info : test::tested_optimizers()) {
    SCOPED_TRACE(info.name);
    const Method method = Method::by_name(info.name);
    const double lr = method.number("lr").value();
    const auto group = [&](Model& model, const RateCoupling& coupling) {
      return std::vector<ParameterGroup>{{model.parameters(), method, {}, coupling}};
    };
    Model a, b, c;
    Optimizer coupled(group(a, {.from = lr})), multiplied(b.parameters(), method);
    Optimizer radius_alone(group(c, {.from = lr, .lr_rho = false}));
    for (int t = 0; t < 3; ++t) {
      const double multiplier = t == 0 ? 1 : 0.25;  // a power of two: no rounding
      coupled.set_option(0, "lr", lr * multiplier);
      radius_alone.set_option(0, "lr", lr * multiplier);
      for (Model* model : {&a, &b, &c}) model->draw(t);
      coupled.step();
      multiplied.step(multiplier);
      radius_alone.step();
    }
    expect_same(Snapshot(a, coupled), Snapshot(b, multiplied));
    EXPECT_EQ(coupled.method().number("lr_rho"), method.number("lr_rho"));  // as it was set
    EXPECT_EQ(*coupled.method().number("lr_rest"), 0.25 * *method.number("lr_rest"));
    EXPECT_EQ(a.weights() == c.weights(), method.number("lr_rho").value_or(0) == 0);
    // From a rate that was zero nothing can follow.
    coupled.set_coupling(0, {.from = 0.0});
    multiplied.set_option(0, "lr", lr * 0.25);
    coupled.step();
    multiplied.step();
    expect_same(Snapshot(a, coupled), Snapshot(b, multiplied));
    // A rate that was given follows in the same way, where it is coupled.
    const double rest = 2 * method.number("lr_rest").value();
    const Method given = method.with({{"lr_rest", fmt::format("{}", rest)}});
    Model d, e;
    Optimizer own(std::vector<ParameterGroup>{{d.parameters(), given, {}, {.from = lr}}});
    Optimizer scaled(e.parameters(), given);
    own.set_option(0, "lr", lr * 0.25);
    d.draw(0);
    e.draw(0);
    own.step();
    scaled.step(0.25);
    expect_same(Snapshot(d, own), Snapshot(e, scaled));
    EXPECT_EQ(own.method().number("lr_rest"), rest);  // as it was set
    expect_error([&] { own.set_coupling(0, {.from = 1e-300, .lr_rho = false}); },
                 ErrorKind::invalid_argument, {"'lr_rest'"});
  }
}

TEST(LiveOptions, StructuralOnesAndBadValuesAreRefusedAndChangeNothing) {
  for (const OptimizerInfo& info : test::tested_optimizers()) {
    Model model;
    Optimizer optimizer(model.parameters(), Method::by_name(info.name));
    for (const OptionInfo& option : info.options) {
      // Those that need another option besides.
      if (option.live || option.key == "ns_form" || option.key == "coefficients") continue;
      if (option.key == "radius_scope") continue;
      if (info.name == "soap" && option.key == "state_dtype") continue;
      expect_error(
          [&] { optimizer.set_option(0, option.key, test::alternative(info.name, option).value); },
          ErrorKind::invalid_argument,
          {"[" + info.name + "]", "'" + option.key + "'", "fixed at construction"});
    }
    expect_error([&] { optimizer.set_option(0, "lr", -1.0); }, ErrorKind::invalid_argument,
                 {"'lr'", "got '-1'"});
    expect_error([&] { optimizer.set_option(0, "learning_rate", 1.0); },
                 ErrorKind::invalid_argument, {"'learning_rate'"});
    for (std::size_t i = 0; i < info.options.size(); ++i) {
      EXPECT_EQ(optimizer.method().options()[i].value, info.options[i].value);
    }
  }
}

TEST(LiveOptions, OfAMethodAreTakenTogetherUnlessAFixedOneDiffers) {
  for (const OptimizerInfo& info : test::tested_optimizers()) {
    SCOPED_TRACE(info.name);
    Model a, b;
    const Method method = Method::by_name(info.name);
    const Method faster =
        Method::by_name(info.name, {{"lr", "0.5"}, {"weight_decay_rest", "0.25"}});
    Optimizer one(a.parameters(), method), two(b.parameters(), method);
    EXPECT_TRUE(one.set_method(0, faster));
    two.set_option(0, "lr", 0.5);
    two.set_option(0, "weight_decay_rest", 0.25);
    EXPECT_TRUE(one.set_method(0, faster));  // again: nothing to do
    for (const OptionInfo& option : info.options) {
      if (option.live || option.key == "ns_form" || option.key == "coefficients") continue;
      if (option.key == "radius_scope") continue;
      if (info.name == "soap" && option.key == "state_dtype") continue;
      if (option.help.starts_with("only false")) continue;
      const std::string other = test::alternative(info.name, option).value;
      EXPECT_FALSE(
          one.set_method(0, Method::by_name(info.name, {{option.key, other}, {"lr", "9"}})))
          << option.key;
    }
    EXPECT_FALSE(one.set_method(0, Method::by_name(info.name == "sgd" ? "adamw" : "sgd")));
    for (int t = 0; t < 2; ++t) {
      a.draw(t);
      b.draw(t);
      one.step();
      two.step();
    }
    expect_same(Snapshot(a, one), Snapshot(b, two));
    EXPECT_EQ(one.method().number("lr"), 0.5);
  }
}

// ---- Memory that moves ----------------------------------------------------------------

TEST(Binding, MovedWeightsAndGradientsGiveTheSameStep) {
  for (const test::Variant& variant : test::tested_variants()) {
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
