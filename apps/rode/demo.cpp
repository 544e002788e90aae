// SPDX-License-Identifier: Apache-2.0
// `rode demo`: several optimizers on one small problem with a known optimum.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "demo_problem.h"
#include "rode/optimizer.h"
#include "rode/schedule.h"
#include "support.h"

namespace rode::cli {
namespace {

constexpr std::int64_t kSteps = 300;
constexpr std::int64_t kWarmup = 20;
constexpr std::uint64_t kSeed = 1;

struct Entrant {
  std::string label;
  std::string optimizer;
  Settings settings;
};

// Rates: from a coarse sweep (factors of two or more) of each on this problem, once; RODE's are a
// little below the sweep's best, which lay near instability.
// No weight decay: the optimum is not at zero.
const std::vector<Entrant>& entrants() {
  static const std::vector<Entrant> list = {
      {"rode", "rode", {{"lr", "4e-3"}, {"lr_rho", "5"}}},
      {"rode-snr", "rode-snr", {{"lr", "3e-2"}, {"lr_rho", "5"}}},
      {"rode adaptive",
       "rode",
       {{"lr", "4e-3"}, {"lr_rho", "3e-2"}, {"radius", "adaptive"}, {"nesterov", "true"}}},
      {"muon-rms", "muon-rms", {{"lr", "2e-2"}}},
      {"soap", "soap", {{"lr", "5e-3"}, {"weight_decay", "0"}}},
      {"adamw", "adamw", {{"lr", "5e-3"}, {"weight_decay", "0"}}},
      {"sgd", "sgd", {{"lr", "4e-1"}, {"weight_decay", "0"}}},
  };
  return list;
}

struct Outcome {
  std::string label;
  std::string optimizer;
  Settings settings;
  double loss = 0;
  double distance = 0;
  double weight_norm = 0;
  double step_us = 0;  // median of the optimizer's own part
  std::size_t state_bytes = 0;
};

Outcome train(const Entrant& entrant) {
  Settings settings = entrant.settings;
  settings.emplace_back("lr_rest", entrant.optimizer == "sgd" ? "1e-1" : "2e-2");
  settings.emplace_back("weight_decay_rest", "0");
  DemoProblem problem(kSeed);
  EngineOptions engine;
  engine.threads = 1;  // these matrices are too small to share out
  Optimizer optimizer(problem.parameters(), Method::by_name(entrant.optimizer, settings),
                      {Route::language, {}}, engine);
  const Schedule schedule = Schedule::warmup_cosine(kWarmup, kSteps);
  std::vector<double> times;
  for (std::int64_t t = 0; t < kSteps; ++t) {
    problem.draw_batch_gradient();
    const auto start = std::chrono::steady_clock::now();
    optimizer.step(schedule.multiplier(t));
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    times.push_back(elapsed.count());
  }
  std::ranges::nth_element(times, times.begin() + kSteps / 2);
  return {entrant.label,      entrant.optimizer,     settings,          problem.loss(),
          problem.distance(), problem.weight_norm(), times[kSteps / 2], optimizer.state_bytes()};
}

Json to_json(const std::vector<Outcome>& outcomes, const DemoProblem& start) {
  Json list = Json::array();
  for (const Outcome& outcome : outcomes) {
    Json settings;
    for (const auto& [key, value] : outcome.settings) settings[key] = typed_value(value);
    list.push_back({{"label", outcome.label},
                    {"optimizer", outcome.optimizer},
                    {"settings", std::move(settings)},
                    {"loss", outcome.loss},
                    {"distance", outcome.distance},
                    {"weight_norm", outcome.weight_norm},
                    {"step_us", outcome.step_us},
                    {"state_bytes", outcome.state_bytes}});
  }
  return {{"steps", kSteps},
          {"seed", kSeed},
          {"start",
           {{"loss", start.loss()},
            {"distance", start.distance()},
            {"weight_norm", start.weight_norm()}}},
          {"optimizers", std::move(list)}};
}

void print_table(const std::vector<Outcome>& outcomes, const DemoProblem& start) {
  fmt::print(
      "A two-layer linear network (64 -> 96 -> 48) learns a known map from batches\n"
      "of 64: {} steps, {} of warm-up, cosine to zero, seed {}. The optimum has loss 0\n"
      "and distance 0.\n\n",
      kSteps, kWarmup, kSeed);
  std::vector<std::vector<std::string>> rows = {
      {"optimizer", "loss", "distance", "weight norm", "us a step", "state bytes"},
      {"(start)", fmt::format("{:.2e}", start.loss()), fmt::format("{:.2e}", start.distance()),
       fmt::format("{:.2f}", start.weight_norm()), "", ""}};
  for (const Outcome& outcome : outcomes) {
    rows.push_back(
        {outcome.label, fmt::format("{:.2e}", outcome.loss),
         fmt::format("{:.2e}", outcome.distance), fmt::format("{:.2f}", outcome.weight_norm),
         fmt::format("{:.0f}", outcome.step_us), fmt::format("{}", outcome.state_bytes)});
  }
  fmt::print("{}\n", format_table(rows));
  fmt::print(
      "distance: ||W2 W1 - T|| / ||T||. Rates were chosen once for this problem.\n"
      "It shows how the rules behave, not which of them trains a language model best.\n");
}

}  // namespace

void add_demo_command(CLI::App& app) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("demo", "Compare optimizers on a small built-in problem (seconds)");
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json] {
    std::vector<Outcome> outcomes;
    for (const Entrant& entrant : entrants()) outcomes.push_back(train(entrant));
    const DemoProblem start(kSeed);
    if (*json) {
      fmt::print("{}\n", to_json(outcomes, start).dump(2));
    } else {
      print_table(outcomes, start);
    }
  });
}

}  // namespace rode::cli
