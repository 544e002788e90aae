// SPDX-License-Identifier: Apache-2.0
// Options that change between steps.
#include <cstddef>
#include <set>
#include <string>
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

TEST(LiveOptions, TakeEffectAtTheNextStepAsInANewOptimizerWithThisState) {
  const test::TemporaryDirectory directory;
  // Bounds that are not reached here; the radius of this model shortens.
  const std::set<std::string> silent{"snr_min", "floor", "eps_ns", "radius_brake"};
  for (const OptimizerInfo& info : list_optimizers()) {
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
  for (const OptimizerInfo& info : list_optimizers()) {
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
  for (const OptimizerInfo& info : list_optimizers()) {
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
  for (const OptimizerInfo& info : list_optimizers()) {
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
  for (const OptimizerInfo& info : list_optimizers()) {
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

}  // namespace
}  // namespace rode
