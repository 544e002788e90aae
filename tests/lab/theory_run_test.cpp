// SPDX-License-Identifier: Apache-2.0
// The assumptions on the folder of a run: each check holds on what RODE writes, and finds a wrong
// line.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lab/base/sealed_json.h"
#include "lab/run/folder.h"
#include "lab/support.h"
#include "lab/theory/problem.h"
#include "lab/theory/theory.h"
#include "rode/error.h"
#include "rode/method.h"
#include "rode/optim/rode.h"
#include "rode/safetensors.h"

namespace rode::lab::theory {
namespace {

namespace fs = std::filesystem;

// What one matrix's step looks like in a log; the numbers fit lr 0.01 and lr_rho 0.1.
Json entry() {
  return {{"rho", 2.0},    {"rho_next", 1.95}, {"s", 0.5},      {"q", 3.0},
          {"theta", 0.03}, {"gamma", 1.0},     {"m_norm", 10.0}};
}

class TheoryRun : public ::testing::Test {
 protected:
  TheoryRun() { fs::create_directories(folder_.path() / "checkpoints"); }

  void write(const Method& method, const Json& matrix) {
    Json options = Json::object();
    for (const OptionInfo& info : method.options()) options[info.key] = info.value;
    write_json(
        folder_.path() / "run.json",
        {{"optimizer", "mine"}, {"method", std::string(method.name())}, {"options", options}});
    std::ofstream log(folder_.path() / "log.jsonl");
    log << sealed({{"kind", "evaluation"}, {"step", 0}, {"matrices", {{"w", {{"radius", 2}}}}}})
        << "\n";
    log << sealed({{"kind", "step"},
                   {"step", 9},
                   {"lr", 0.01},
                   {"lr_rho", 0.1},
                   {"matrices", {{"w", matrix}, {"skipped", skipped()}}}})
        << "\n";
  }

  // A checkpoint of one matrix; its momentum is Gaussian, or along the weight.
  void save(bool along) {
    Gaussian gaussian(1);
    std::vector<float> weight, momentum;
    for (int i = 0; i < 48; ++i) {
      weight.push_back(static_cast<float>(gaussian.next()));
      momentum.push_back(along ? 2 * weight.back() : static_cast<float>(gaussian.next()));
    }
    const Shape shape = {8, 6};
    const std::vector<TensorEntry> entries = {{"param.w", view(weight.data(), shape)},
                                              {"state.w.momentum", view(momentum.data(), shape)}};
    write_safetensors(RunFolder(folder_.path()).checkpoint(10), entries);
  }

  Report report() { return check_run(folder_.path()); }

  static const Check& named(const Report& report, const std::string& name) {
    for (const Check& check : report.checks) {
      if (check.name == name) return check;
    }
    throw std::runtime_error("no check " + name);
  }

  static Json skipped() {
    Json json = entry();
    for (auto& value : json) value = 0.0;
    return json;
  }

  Scratch folder_;
};

const RodeOptions kPublished{
    .scale = RodeScale::kernel, .radius = Radius::learned, .nesterov = false};

TEST_F(TheoryRun, EveryCheckHoldsOnARightLog) {
  write(kPublished, entry());
  save(false);
  const Report found = report();
  EXPECT_TRUE(found.all_hold());
  for (const Check& check : found.checks) EXPECT_TRUE(check.holds) << check.name;
  std::map<std::string, double> constants;
  for (const Measured& constant : found.constants) constants[constant.symbol] = constant.value;
  EXPECT_NEAR(constants.at("M_max"), 1.0, 1e-12);
  EXPECT_GT(constants.at("c_NS"), 0.5);
  EXPECT_LE(constants.at("c_NS"), 1.0);
  EXPECT_EQ(named(found, "run_alignment").label, "app:assump:polar");
}

TEST_F(TheoryRun, EveryCheckFindsItsWrongFigure) {
  const auto broken = [&](const std::string& name, const char* key, double value) {
    Json matrix = entry();
    matrix[key] = value;
    write(kPublished, matrix);
    EXPECT_FALSE(named(report(), name).holds) << name;
    EXPECT_FALSE(report().all_hold());
  };
  broken("run_angle", "theta", 0.031);
  broken("run_radius", "rho_next", 1.94);
  broken("run_floor", "rho_next", 1e-6);
  broken("run_direction", "q", 0.0);
  broken("run_largest_angle", "theta", 0.8);
  broken("run_iterate", "q", -1.0);
}

TEST_F(TheoryRun, MomentumAlongTheWeightIsNotAligned) {
  write(kPublished, entry());
  save(true);
  EXPECT_FALSE(named(report(), "run_alignment").holds);
}

TEST_F(TheoryRun, AnAdaptiveRadiusIsNotThePapersAndIsNotCompared) {
  write(RodeOptions{.radius = Radius::adaptive}, entry());
  for (const Check& check : report().checks) EXPECT_NE(check.name, "run_radius");
}

TEST_F(TheoryRun, RunsOfOtherOptimizersAndLogsWithoutFiguresAreRefused) {
  write(Method::by_name("muon"), entry());
  EXPECT_THROW(report(), Error);
  write(kPublished, skipped());
  EXPECT_THROW(report(), Error);
  Json matrix = entry();
  matrix.erase("q");
  write(kPublished, matrix);
  EXPECT_THROW(report(), Error);
}

}  // namespace
}  // namespace rode::lab::theory
