// SPDX-License-Identifier: Apache-2.0
// Options of every optimizer: defaults, names and texts that parse back.
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api/options_support.h"
#include "api/support.h"

namespace rode {
namespace {

using test::settings_of;
using test::values;

// ---- Defaults -------------------------------------------------------------------------

struct Row {
  std::string name;
  std::map<std::string, std::string> expected;
};

const std::map<std::string, std::string> kRest{
    {"betas_rest", "0.9,0.95"}, {"eps_rest", "1e-08"}, {"weight_decay_rest", "0.0009"}};
const std::map<std::string, std::string> kStorage{
    {"rounding", "stochastic"}, {"state_dtype", "fp32"}, {"seed", "0"}};
// Of rules whose momentum may be int8.
const std::map<std::string, std::string> kInt8{{"state_rounding", "nearest"}};
const std::map<std::string, std::string> kCautious{{"cautious_decay", "false"}};
const std::map<std::string, std::string> kProducts{
    {"ns_steps", "5"},   {"coefficients", "jordan"}, {"ns_dtype", "auto"},
    {"ns_form", "auto"}, {"normalize", "none"},      {"row_beta", "0.95"}};
const std::map<std::string, std::string> kRode{
    {"momentum", "0.9"},        {"floor", "1e-06"},
    {"eps", "1e-12"},           {"eps_ns", "1e-12"},
    {"snr_min", "0.01"},        {"scale", "kernel"},
    {"radius_brake", "1"},      {"radius_pull", "0"},
    {"radius_scope", "matrix"}, {"reproject", "guarded"},
    {"direction", "geodesic"},  {"conditioner", "newton_schulz"},
    {"on_zero", "rest"},        {"splits", ""}};
const std::map<std::string, std::string> kMuon{{"weight_decay", "0"},
                                               {"momentum", "0.95"},
                                               {"nesterov", "true"},
                                               {"eps", "1e-07"},
                                               {"splits", ""}};

std::map<std::string, std::string> join(
    std::initializer_list<std::map<std::string, std::string>> parts) {
  std::map<std::string, std::string> out;
  for (const auto& part : parts) out.insert(part.begin(), part.end());
  return out;
}

std::map<std::string, std::string> of_rode(const std::map<std::string, std::string>& own) {
  return join({own, kRode, kProducts, kRest, kCautious, kStorage, kInt8});
}

const std::vector<Row>& defaults() {
  static const std::vector<Row> rows{
      {"rode", of_rode({{"lr", "0.05"},
                        {"scale", "angle"},
                        {"radius_pull", "0.6"},
                        {"lr_rho", "0.03"},
                        {"lr_rest", "0.002915"},
                        {"snr", "false"},
                        {"nesterov", "true"},
                        {"radius", "adaptive"}})},
      {"rode-snr", of_rode({{"lr", "0.004544"},
                            {"lr_rho", "3.698e-05"},
                            {"lr_rest", "0.002974"},
                            {"snr", "true"},
                            {"nesterov", "false"},
                            {"radius", "learned"}})},
      {"rode-fixed", of_rode({{"lr", "0.001206"},
                              {"lr_rho", "0"},
                              {"lr_rest", "0.002915"},
                              {"snr", "false"},
                              {"nesterov", "false"},
                              {"radius", "fixed"}})},
      {"rode-paper", of_rode({{"lr", "0.001206"},
                              {"lr_rho", "0.002438"},
                              {"lr_rest", "0.002915"},
                              {"snr", "false"},
                              {"nesterov", "false"},
                              {"radius", "learned"},
                              {"reproject", "every"},
                              {"on_zero", "hold"}})},
      {"muon", join({{{"lr", "0.02257"},
                      {"lr_rest", "0.002897"},
                      {"scale", "original"},
                      {"constraint", "none"}},
                     kMuon,
                     kProducts,
                     kRest,
                     kStorage,
                     kCautious,
                     kInt8})},
      {"muon-rms",
       join({{{"lr", "0.00516"}, {"lr_rest", "0.002913"}, {"scale", "rms"}, {"constraint", "none"}},
             kMuon,
             kProducts,
             kRest,
             kStorage,
             kCautious,
             kInt8})},
      {"muon-normproj", join({{{"lr", "0.00516"},
                               {"lr_rest", "0.002913"},
                               {"scale", "rms"},
                               {"constraint", "normproj"}},
                              kMuon,
                              kProducts,
                              kRest,
                              kStorage,
                              kCautious,
                              kInt8})},
      {"muown", join({{{"lr", "0.001"},
                       {"lr_rho", "0.001"},
                       {"lr_rest", "0.001"},
                       {"weight_decay", "0"},
                       {"momentum", "0.95"},
                       {"nesterov", "true"},
                       {"betas_radius", "0.9,0.95"},
                       {"eps_radius", "1e-08"},
                       {"eps", "1e-07"},
                       {"ns_steps", "5"},
                       {"coefficients", "jordan"},
                       {"ns_dtype", "auto"},
                       {"ns_form", "auto"},
                       {"splits", ""}},
                      kRest,
                      kStorage,
                      kInt8})},
      {"soap", join({{{"lr", "0.0029"},
                      {"lr_rest", "0.002591"},
                      {"weight_decay", "0.01"},
                      {"betas", "0.95,0.95"},
                      {"eps", "1e-08"},
                      {"precondition_frequency", "10"},
                      {"max_precond_dim", "10000"}},
                     kRest,
                     kStorage})},
      {"mars-m", join({{{"lr", "0.004097"},
                        {"lr_rest", "0.002693"},
                        {"weight_decay", "0.01"},
                        {"momentum", "0.95"},
                        {"gamma", "0.025"},
                        {"eps", "1e-07"}},
                       kProducts,
                       kRest,
                       kStorage,
                       kCautious,
                       kInt8})},
      {"ademamix", join({{{"lr", "0.0002237"},
                          {"lr_rest", "0.0002237"},
                          {"weight_decay", "0.01"},
                          {"weight_decay_rest", "0.01"},
                          {"betas", "0.9,0.999,0.9999"},
                          {"alpha", "2"},
                          {"eps", "1e-08"},
                          {"warmup_steps", "0"}},
                         kStorage})},
      {"adafactor", join({{{"lr", "0.001"},
                           {"lr_rest", "0.001"},
                           {"weight_decay", "0"},
                           {"weight_decay_rest", "0"},
                           {"eps", "1e-30"},
                           {"clip_threshold", "1"},
                           {"decay_rate", "-0.8"}},
                          kStorage})},
      {"adamw", join({{{"lr", "0.0001544"},
                       {"lr_rest", "0.0001544"},
                       {"weight_decay", "0.01"},
                       {"weight_decay_rest", "0.01"},
                       {"betas", "0.9,0.95"},
                       {"eps", "1e-08"},
                       {"maximize", "false"}},
                      kStorage,
                      kCautious,
                      kInt8})},
      {"lion", join({{{"lr", "0.0001"},
                      {"lr_rest", "0.0001"},
                      {"weight_decay", "0.1"},
                      {"weight_decay_rest", "0.1"},
                      {"betas", "0.9,0.99"}},
                     kCautious,
                     kStorage})},
      {"sgd", join({{{"lr", "0.1"},
                     {"lr_rest", "0.1"},
                     {"weight_decay", "0.0005"},
                     {"weight_decay_rest", "0.0005"},
                     {"momentum", "0.9"},
                     {"nesterov", "false"},
                     {"maximize", "false"}},
                    kStorage})},
  };
  return rows;
}

TEST(Options, DefaultsAreThoseOfThePublishedTableAndNoOptionIsLeftOut) {
  const auto listed = list_optimizers();
  ASSERT_EQ(listed.size(), defaults().size());
  for (std::size_t i = 0; i < listed.size(); ++i) {
    SCOPED_TRACE(listed[i].name);
    EXPECT_EQ(listed[i].name, defaults()[i].name);
    EXPECT_EQ(values(Method::by_name(listed[i].name)), defaults()[i].expected);
    EXPECT_FALSE(listed[i].summary.empty());
    for (const OptionInfo& info : listed[i].options) EXPECT_FALSE(info.help.empty()) << info.key;
  }
}

TEST(Options, AStructWithoutInitialisersIsTheOptimizerOfThatName) {
  int count = 0;
#define RODE_EXPECT(Class, Options, expected, summary)             \
  EXPECT_EQ(Method(Options{}).name(), expected);                   \
  EXPECT_EQ(values(Options{}), values(Method::by_name(expected))); \
  ++count;
  RODE_FOR_EACH_OPTIMIZER(RODE_EXPECT)
#undef RODE_EXPECT
  EXPECT_EQ(count, 10);
}

// ---- Names ----------------------------------------------------------------------------

TEST(Options, NamesFollowTheOptionsThatDefineAVariant) {
  const auto name = [](const Method& method) { return std::string(method.name()); };
  // Of the published variants, all of the options.
  const RodeOptions published{
      .scale = RodeScale::kernel, .radius = Radius::learned, .radius_pull = 0, .nesterov = false};
  RodeOptions snr = published, fixed = published;
  snr.snr = true;
  fixed.radius = Radius::fixed;
  EXPECT_EQ(name(published), "rode");
  EXPECT_EQ(name(snr), "rode-snr");
  EXPECT_EQ(name(fixed), "rode-fixed");
  EXPECT_EQ(name(RodeOptions::paper()), "rode-paper");
  EXPECT_EQ(name(RodeOptions{.snr = true}), "rode");
  EXPECT_EQ(name(RodeOptions{.radius = Radius::fixed}), "rode");
  EXPECT_EQ(name(RodeOptions{.radius = Radius::adaptive}), "rode");
  EXPECT_EQ(name(MuonOptions{.scale = MuonScale::rms}), "muon-rms");
  EXPECT_EQ(name(MuonOptions{.scale = MuonScale::rms, .constraint = MuonConstraint::normproj}),
            "muon-normproj");
  EXPECT_EQ(name(MuonOptions{.constraint = MuonConstraint::normproj}), "muon");
  EXPECT_EQ(name(MuonOptions{.constraint = MuonConstraint::hyperball}), "muon");
}

TEST(Options, DesignatedInitialisersOfEveryStructReachTheMethod) {
  const auto value = [](const Method& method, std::string_view key) {
    return values(method).at(std::string(key));
  };
  EXPECT_EQ(value(RodeOptions{.lr = 0.5, .radius = Radius::adaptive}, "lr_rho"), "0.03");
  EXPECT_EQ(value(RodeOptions{.lr_rho = 0.25, .radius = Radius::adaptive}, "lr_rho"), "0.25");
  EXPECT_EQ(value(MuonOptions{.lr = 0.5, .storage = {.rounding = Rounding::exact}}, "rounding"),
            "exact");
  EXPECT_EQ(value(SoapOptions{.precondition_frequency = 3}, "precondition_frequency"), "3");
  EXPECT_EQ(value(MarsMOptions{.gamma = 0.5}, "gamma"), "0.5");
  EXPECT_EQ(value(AdEMAMixOptions{.betas = {0, 0.5, 0.25}}, "betas"), "0,0.5,0.25");
  EXPECT_EQ(value(AdafactorOptions{.lr = 0.5}, "lr_rest"), "0.5");
  EXPECT_EQ(value(AdamWOptions{.betas = {0.5, 0.25}}, "betas"), "0.5,0.25");
  EXPECT_EQ(value(SgdOptions{.storage = {.seed = 7}}, "seed"), "7");
}

// ---- Round trips ----------------------------------------------------------------------

TEST(Options, EveryDefaultParsesBackToItself) {
  for (const OptimizerInfo& info : list_optimizers()) {
    const Method method = Method::by_name(info.name);
    EXPECT_EQ(values(method.with(settings_of(method))), values(method)) << info.name;
    for (const OptionInfo& option : info.options) {
      EXPECT_EQ(values(method.with({{option.key, option.value}})), values(method))
          << info.name << " " << option.key;
    }
  }
}

TEST(Options, EveryOptionTakesAnotherValueAndPrintsItAsGiven) {
  for (const OptimizerInfo& info : list_optimizers()) {
    for (const OptionInfo& option : info.options) {
      SCOPED_TRACE(info.name + " " + option.key);
      // Refused in options_refused_test.cpp.
      if (info.name == "soap" && option.key == "state_dtype") continue;
      const auto [value, needs] = test::alternative(info.name, option);
      ASSERT_NE(value, "") << "options_support.h has no other value of this option";
      ASSERT_NE(value, option.value);
      Settings settings = needs;
      settings.emplace_back(option.key, value);
      const Method changed = Method::by_name(info.name, settings);
      EXPECT_EQ(values(changed).at(option.key), value);
      EXPECT_EQ(values(changed.with(settings_of(changed))), values(changed));
      EXPECT_EQ(changed.name(), info.name);
    }
  }
}

// ---- Defaults that follow other options -----------------------------------------------

TEST(Options, TellWhichOfThemWereGiven) {
  const auto set = [](const Method& method, std::string_view key) {
    for (const OptionInfo& info : method.options()) {
      if (info.key == key) return info.set;
    }
    return false;
  };
  for (const char* key : {"lr_rho", "ns_steps", "lr_rest"}) {
    EXPECT_FALSE(set(RodeOptions{.lr = 1e-4}, key)) << key;
    EXPECT_TRUE(set(RodeOptions{.lr_rho = 1, .ns_steps = 7, .lr_rest = 1}, key)) << key;
  }
  EXPECT_FALSE(set(RodeOptions{}, "lr"));
  EXPECT_TRUE(set(RodeOptions{.lr = 1e-4}, "lr"));
  EXPECT_TRUE(set(AdamWOptions{}, "lr"));
  EXPECT_FALSE(set(AdamWOptions{}, "weight_decay_rest"));
  EXPECT_TRUE(set(AdamWOptions{.weight_decay_rest = 0}, "weight_decay_rest"));
}

TEST(Options, ComeBackFromAMethodAsTheStructTheyWere) {
  const MuonOptions given{.lr = 0.25, .scale = MuonScale::rms, .splits = "*.qkv=3"};
  const Method method = given;
  ASSERT_NE(method.get_if<MuonOptions>(), nullptr);
  EXPECT_EQ(*method.get_if<MuonOptions>(), given);
  EXPECT_EQ(method.get_if<RodeOptions>(), nullptr);
  const Method read = Method(MuonOptions{}).with(settings_of(method));
  EXPECT_EQ(*read.get_if<MuonOptions>(), given);
  EXPECT_FALSE(*read.with({{"seed", "1"}}).get_if<MuonOptions>() == given);
}

}  // namespace
}  // namespace rode
