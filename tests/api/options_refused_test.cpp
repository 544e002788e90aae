// SPDX-License-Identifier: Apache-2.0
// Options that are refused: values, texts, names and combinations.
#include <map>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "api/options_support.h"
#include "api/support.h"
#include "optim/rule.h"
#include "rode/optimizer.h"

namespace rode {
namespace {

using test::expect_error;
using test::values;

struct Refusal {
  std::string optimizer, key, value, expected;
};

TEST(OptionsRefused, ValuesOutOfRangeAreRefusedWithKeyValueAndRange) {
  const std::vector<Refusal> table{
      {"rode", "lr", "-1", "a number >= 0,"},
      {"rode", "lr", "nan", "a finite number >= 0,"},
      {"rode", "lr_rho", "-0.5", "a number >= 0,"},
      {"rode", "lr_rho", "inf", "a finite number >= 0,"},
      {"rode", "lr_rho", "1e+39", "a number >= 0 of at most 3.4e38, which fp32 can hold"},
      {"muon", "lr_rest", "-1e+39", "a number >= 0,"},
      {"adamw", "eps", "1e-46", "a number > 0 of at least 1.4e-45, which fp32 can hold"},
      {"adafactor", "decay_rate", "-inf", "a finite number < 0,"},
      {"rode", "momentum", "1", "in [0, 1)"},
      {"rode", "ns_steps", "0", "a whole number in [1, 100],"},
      {"rode", "ns_steps", "101", "in [1, 100]"},
      {"rode", "ns_steps", "4294967297", "in [1, 100]"},
      {"rode", "snr_min", "1.5", "in [0, 1]"},
      {"rode", "floor", "1", "in [0, 1)"},
      {"rode", "eps_rest", "0", "a number > 0,"},
      {"muon", "weight_decay", "-1", "a number >= 0,"},
      {"soap", "betas", "0.9,1", "each a number in [0, 1),"},
      {"soap", "precondition_frequency", "0", "in [1, 1000000]"},
      {"soap", "max_precond_dim", "0", "in [1, 1000000]"},
      {"mars-m", "gamma", "-1", "a number >= 0,"},
      {"ademamix", "warmup_steps", "-1", "in [0, 1000000000]"},
      {"adafactor", "clip_threshold", "0", "a number > 0,"},
      {"adafactor", "decay_rate", "0", "a number < 0,"},
      {"sgd", "momentum", "-0.1", "in [0, 1)"},
  };
  for (const Refusal& row : table) {
    SCOPED_TRACE(row.optimizer + " " + row.key + "=" + row.value);
    expect_error([&] { Method::by_name(row.optimizer, {{row.key, row.value}}); },
                 ErrorKind::invalid_argument,
                 {"[" + row.optimizer + "]", "option '" + row.key + "': expected ", row.expected,
                  "got '" + row.value + "'"});
  }
}

TEST(OptionsRefused, TextsOfAnotherKindAreRefusedWithKeyAndValue) {
  const std::vector<Refusal> table{
      {"rode", "lr", "fast", "a number"},
      {"rode", "lr", "", "a number"},
      {"rode", "lr", "1 ", "a number"},
      {"rode", "lr", "0x1", "a number"},
      {"rode", "ns_steps", "5.0", "a whole number"},
      {"rode", "snr", "True", "true or false"},
      {"rode", "radius", "adaptiv", "'adaptive'"},
      {"sgd", "seed", "-1", ">= 0"},
      {"sgd", "seed", "18446744073709551616", "below 2^64"},
      {"adamw", "betas", "0.9", "2 comma-separated numbers"},
      {"adamw", "betas", "0.9,0.9,0.9", "2 comma-separated numbers"},
      {"adamw", "betas", "0.9,", "2 comma-separated numbers"},
      {"adamw", "rounding", "even", "nearest"},
  };
  for (const Refusal& row : table) {
    SCOPED_TRACE(row.optimizer + " " + row.key + "=" + row.value);
    expect_error(
        [&] { Method::by_name(row.optimizer, {{row.key, row.value}}); },
        ErrorKind::invalid_argument,
        {"[" + row.optimizer + "]", "'" + row.key + "'", "got '" + row.value + "'", row.expected});
  }
}

TEST(OptionsRefused, StructsAreCheckedLikeTexts) {
  expect_error([] { Method(MuonOptions{.lr = -1}); }, ErrorKind::invalid_argument,
               {"[muon]", "'lr'", "a number >= 0, got '-1'"});
  expect_error([] { Method(SoapOptions{.betas = {0.9, 1.0}}); }, ErrorKind::invalid_argument,
               {"[soap]", "'betas'", "in [0, 1)"});
  expect_error([] { Method(RodeOptions{.lr_rho = -1.0}); }, ErrorKind::invalid_argument,
               {"[rode]", "'lr_rho'", "got '-1'"});
  expect_error([] { Method(RodeOptions{.ns_steps = 0}); }, ErrorKind::invalid_argument,
               {"'ns_steps'", "in [1, 100], got '0'"});
  expect_error([] { Method(AdafactorOptions{.lr_rest = -1.0}); }, ErrorKind::invalid_argument,
               {"'lr_rest'", "got '-1'"});
}

TEST(OptionsRefused, UnknownNamesAreRefusedWithTheNearest) {
  expect_error([] { Method::by_name("rode", {{"momentun", "0.9"}}); }, ErrorKind::invalid_argument,
               {"[rode]", "'momentun'", "did you mean 'momentum'?"});
  expect_error([] { Method::by_name("adamw", {{"LR", "1"}}); }, ErrorKind::invalid_argument,
               {"'LR'", "did you mean 'lr'?"});
  expect_error([] { Method::by_name("muon-normprj"); }, ErrorKind::invalid_argument,
               {"'muon-normprj'", "did you mean 'muon-normproj'?"});
  expect_error([] { Method::by_name("", {{"", ""}}); }, ErrorKind::invalid_argument, {"''"});
}

TEST(OptionsRefused, CombinationsThatCannotWorkAreRefused) {
  for (const char* set : {"polar_express", "you", "four"}) {
    expect_error([&] { Method::by_name("rode", {{"coefficients", set}, {"reproject", "every"}}); },
                 ErrorKind::invalid_argument,
                 {"[rode]", "'reproject' = 'every'", "diverge", "reproject=guarded",
                  "reproject=final", "coefficients=jordan"});
    for (const char* safe : {"guarded", "final"}) {
      EXPECT_NO_THROW(Method::by_name("rode", {{"coefficients", set}, {"reproject", safe}}));
    }
    EXPECT_NO_THROW(Method::by_name("muon", {{"coefficients", set}}));
  }
  expect_error([] { Method(RodeOptions{.ns_form = NsForm::gram}); }, ErrorKind::invalid_argument,
               {"[rode]", "'ns_form' = 'gram'", "reproject=final"});
  expect_error(
      [] { Method(MuonOptions{.weight_decay = 0.1, .constraint = MuonConstraint::hyperball}); },
      ErrorKind::invalid_argument, {"'weight_decay' = 0.1", "hyperball"});
  expect_error([] { Method(SoapOptions{.storage = {.state_dtype = StateDType::bf16}}); },
               ErrorKind::unsupported, {"[soap]", "'state_dtype' = 'bf16'"});
}

TEST(OptionsRefused, FourTakesFourIterationsAndNoOtherNumber) {
  const std::string remedy = "ns_steps=4";
  for (const char* name : {"rode", "rode-snr", "muon", "muon-rms", "mars-m"}) {
    for (const char* steps : {"3", "5", "8"}) {
      expect_error([&] { Method::by_name(name, {{"coefficients", "four"}, {"ns_steps", steps}}); },
                   ErrorKind::invalid_argument,
                   {std::string("[") + name + "]", std::string("'ns_steps' = ") + steps, remedy});
    }
    const Method given = Method::by_name(name, {{"ns_steps", "6"}});
    expect_error([&] { given.with({{"coefficients", "four"}}); }, ErrorKind::invalid_argument,
                 {"'ns_steps' = 6", remedy});
  }
  expect_error([] { Method(RodeOptions{.ns_steps = 5, .coefficients = Coefficients::four}); },
               ErrorKind::invalid_argument, {"'ns_steps' = 5", remedy});
  expect_error([] { Method(MuonOptions{.ns_steps = 5, .coefficients = Coefficients::four}); },
               ErrorKind::invalid_argument, {"'ns_steps' = 5", remedy});
  expect_error([] { Method(MarsMOptions{.ns_steps = 5, .coefficients = Coefficients::four}); },
               ErrorKind::invalid_argument, {"'ns_steps' = 5", remedy});
}

TEST(OptionsRefused, WhatWouldBeIgnoredIsRefusedInstead) {
  test::Model model;
  for (const char* name : {"rode", "muon", "mars-m"}) {
    const Settings settings{{"ns_form", "gram"}, {"ns_dtype", "bf16"}, {"reproject", "final"}};
    const Settings without(settings.begin(), settings.end() - 1);
    const Method method = Method::by_name(name, name[0] == 'r' ? settings : without);
    // CUDA has it: in half precision.
    if (test::on_cuda()) continue;
    expect_error([&] { Optimizer(model.parameters(), method); }, ErrorKind::invalid_argument,
                 {"'ns_form' = 'gram'", "bf16"});
  }
  for (const char* name : {"rode", "muon", "mars-m"}) {
    Settings settings{{"ns_form", "gram"}};
    if (std::string_view(name) == "rode") settings.emplace_back("reproject", "final");
    const Method method = Method::by_name(name, settings);
    expect_error([&] { Optimizer(model.parameters(), method, {}, {.batched = false}); },
                 ErrorKind::unsupported,
                 {std::string("[") + name + "]", "'ns_form' = 'gram'", "batched = false",
                  "ns_form=standard"});
  }
}

TEST(OptionsRefused, Fp16ProductsAreRefusedWhereTheDeviceIsKnownToBeTheCpu) {
  for (const char* name : {"rode", "muon", "mars-m"}) {
    test::Model model;
    const Method method = Method::by_name(name, {{"ns_dtype", "fp16"}});
    expect_error([&] { Optimizer(model.parameters(), method); }, ErrorKind::unsupported,
                 {std::string("[") + name + "]", "'ns_dtype' = 'fp16'", "CUDA"});
  }
}

TEST(OptionsRefused, E4m3ProductsHaveNoGramForm) {
  for (const char* name : {"rode", "muon", "mars-m"}) {
    test::Model model;
    Settings settings{{"ns_form", "gram"}, {"ns_dtype", "fp8"}};
    if (std::string_view(name) == "rode") settings.emplace_back("reproject", "final");
    const Method method = Method::by_name(name, settings);
    expect_error(
        [&] { Optimizer(model.parameters(), method); }, ErrorKind::unsupported,
        {std::string("[") + name + "]", "'ns_form' = 'gram'", "'fp8'", "ns_form=standard"});
  }
}

TEST(OptionsRefused, ARefusedChangeLeavesTheMethodAsItWas) {
  const Method method = Method::by_name("rode");
  const auto before = values(method);
  EXPECT_THROW(method.with({{"lr", "0.5"}, {"momentum", "2"}}), Error);
  EXPECT_EQ(values(method), before);
}

}  // namespace
}  // namespace rode
