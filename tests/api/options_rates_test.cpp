// SPDX-License-Identifier: Apache-2.0
// Defaults that follow other options: rates of matrices and of the rest, numbers of iterations.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api/options_support.h"
#include "api/support.h"

namespace rode {
namespace {

using test::settings_of;
using test::values;

TEST(Options, AnAdaptiveRadiusStartsFromItsOwnRateUnlessOneIsGiven) {
  for (const char* name : {"rode", "rode-snr", "rode-fixed"}) {
    EXPECT_EQ(values(Method::by_name(name, {{"radius", "adaptive"}})).at("lr_rho"), "0.03");
    const Settings both{{"lr_rho", "0.5"}, {"radius", "adaptive"}};
    EXPECT_EQ(values(Method::by_name(name, both)).at("lr_rho"), "0.5");
  }
  EXPECT_EQ(values(Method::by_name("rode-fixed", {{"radius", "learned"}})).at("lr_rho"),
            "0.002438");
  EXPECT_EQ(values(Method::by_name("rode-snr", {{"radius", "fixed"}})).at("lr_rho"), "0");
}

TEST(Options, RatesFollowTheOtherOptionsAlsoOfAStruct) {
  const auto rates = [](const Method& method) {
    return std::vector{method.number("lr").value(), method.number("lr_rho").value_or(-1),
                       method.number("lr_rest").value()};
  };
  using Rates = std::vector<double>;
  EXPECT_EQ(rates(RodeOptions{.snr = true}), (Rates{0.2, 0.03, 2.974e-3}));
  EXPECT_EQ(rates(RodeOptions{.radius = Radius::fixed}), (Rates{0.05, 0, 2.915e-3}));
  EXPECT_EQ(rates(RodeOptions{.scale = RodeScale::kernel}), (Rates{1.206e-3, 0.03, 2.915e-3}));
  EXPECT_EQ(rates(RodeOptions{.scale = RodeScale::kernel, .radius = Radius::learned, .snr = true}),
            (Rates{4.544e-3, 3.698e-5, 2.974e-3}));
  EXPECT_EQ(rates(MuonOptions{.scale = MuonScale::rms}), (Rates{5.160e-3, -1, 2.913e-3}));
  // A name with all of a struct's options has its rates.
  for (const OptimizerInfo& info : list_optimizers()) {
    if (info.family != "rode" && info.family != "muon") continue;
    const Method method = Method::by_name(info.name);
    Settings words;
    for (const OptionInfo& option : info.options) {
      if (!option.live) words.emplace_back(option.key, option.value);
    }
    EXPECT_EQ(rates(Method::by_name(info.family, words)), rates(method)) << info.name;
  }
}

TEST(Options, ARateThatWasGivenIsForgottenWithTheScaleItWasGivenFor) {
  const Method given = Method::by_name("rode", {{"lr", "0.25"}});
  EXPECT_EQ(given.with({{"snr", "true"}}).number("lr"), 0.25);
  EXPECT_EQ(given.with({{"scale", "angle"}}).number("lr"), 0.25);
  EXPECT_EQ(given.with({{"scale", "kernel"}}).number("lr"), 1.206e-3);
  EXPECT_EQ(given.with({{"scale", "kernel"}, {"lr", "0.25"}}).number("lr"), 0.25);
  const Method muon = Method::by_name("muon", {{"lr", "0.25"}});
  EXPECT_EQ(muon.with({{"nesterov", "false"}}).number("lr"), 0.25);
  EXPECT_EQ(muon.with({{"scale", "rms"}}).number("lr"), 5.160e-3);
}

TEST(Options, IterationsFollowTheCoefficientsUnlessTheyAreGiven) {
  const auto steps = [](const Method& method) { return values(method).at("ns_steps"); };
  for (const char* name : {"rode", "muon", "mars-m"}) {
    const Method four = Method::by_name(name, {{"coefficients", "four"}});
    EXPECT_EQ(steps(four), "4");
    EXPECT_EQ(steps(four.with({{"ns_steps", "4"}})), "4");
    // What it prints reads back, and the number still follows the set.
    const Method read = Method::by_name(name, settings_of(four));
    EXPECT_EQ(steps(read), "4");
    EXPECT_EQ(steps(read.with({{"coefficients", "jordan"}})), "5");
    const Method plain = Method::by_name(name, settings_of(Method::by_name(name)));
    EXPECT_EQ(steps(plain.with({{"coefficients", "four"}})), "4");
    EXPECT_EQ(steps(Method::by_name(name, {{"ns_steps", "4"}, {"coefficients", "you"}})), "4");
  }
  EXPECT_EQ(steps(RodeOptions{.coefficients = Coefficients::four}), "4");
  EXPECT_EQ(steps(MuonOptions{.coefficients = Coefficients::four}), "4");
  EXPECT_EQ(steps(MarsMOptions{.coefficients = Coefficients::four}), "4");
  EXPECT_EQ(steps(RodeOptions{.ns_steps = 7}), "7");
}

TEST(Options, NamingThePresetsOwnRadiusLeavesItsRateAlone) {
  EXPECT_EQ(values(Method::by_name("rode-snr", {{"radius", "learned"}})).at("lr_rho"), "3.698e-05");
}

TEST(Options, OneRuleHasOneRateAndOneDecayUntilTheRestHasItsOwn) {
  for (const char* name : {"ademamix", "adafactor", "adamw", "lion", "sgd"}) {
    SCOPED_TRACE(name);
    const Method faster = Method::by_name(name, {{"lr", "0.25"}, {"weight_decay", "0.0625"}});
    EXPECT_EQ(values(faster).at("lr_rest"), "0.25");
    EXPECT_EQ(values(faster).at("weight_decay_rest"), "0.0625");
    const Method own = faster.with({{"lr_rest", "0.5"}, {"weight_decay_rest", "0.75"}});
    const Method changed = own.with({{"lr", "0.125"}, {"weight_decay", "0"}});
    EXPECT_EQ(values(changed).at("lr_rest"), "0.5");
    EXPECT_EQ(values(changed).at("weight_decay_rest"), "0.75");
  }
}

TEST(Options, MatrixOptimizersScaleTheRatesOfTheirRestWithTheirOwn) {
  const std::vector<std::pair<std::string, double>> defaults{
      {"rode", 2.915e-3},          {"rode-snr", 2.974e-3},
      {"rode-fixed", 2.915e-3},    {"rode-paper", 2.915e-3},
      {"muon", 2.897e-3},          {"muon-rms", 2.913e-3},
      {"muon-normproj", 2.913e-3}, {"soap", 2.591e-3},
      {"mars-m", 2.693e-3},        {"muown", 1e-3}};
  for (const auto& [name, rest] : defaults) {
    SCOPED_TRACE(name);
    const Method method = Method::by_name(name);
    EXPECT_EQ(method.number("lr_rest"), rest);
    const double lr = method.number("lr").value();
    const Method scaled = method.with({{"lr", fmt::format("{}", lr / 8)}});
    EXPECT_EQ(scaled.number("lr_rest"), rest / 8);
    EXPECT_EQ(scaled.number("weight_decay_rest"), 9e-4);
    EXPECT_EQ(scaled.number("lr_rho"), method.number("lr_rho"));
  }
  EXPECT_DOUBLE_EQ(Method(RodeOptions{.lr = 1e-5}).number("lr_rest").value(),
                   2.915e-3 * 1e-5 / 5e-2);
  EXPECT_EQ(Method(RodeOptions{.lr = 1e-5, .lr_rest = 0.5}).number("lr_rest"), 0.5);
  // What follows stays within fp32's range.
  EXPECT_EQ(Method(RodeOptions{.lr = 3e38, .scale = RodeScale::kernel}).number("lr_rest"),
            std::numeric_limits<float>::max());
}
}  // namespace
}  // namespace rode
