// SPDX-License-Identifier: Apache-2.0
// From a task and a command line to numbers of steps and an optimizer's options.
#include "lab/run/plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lab/base/sha256.h"
#include "lab/task/constants.h"
#include "rode/error.h"
#include "rode/version.h"

namespace rode::lab {
namespace {

constexpr const char* kOwnDefaults = "the optimizer's own defaults";

std::int64_t interval(std::int64_t wanted, std::int64_t unit, std::int64_t otherwise) {
  return wanted > 0 ? wanted * unit : otherwise;
}

// At least one step.
std::int64_t share_of(std::int64_t total, double share) {
  const auto steps = std::llround(share * static_cast<double>(total));
  return std::clamp<std::int64_t>(steps, 1, total);
}

Schedule stable_decay(const TrainSpec& train, const RunPlan& plan) {
  const std::int64_t steps =
      std::min(share_of(plan.total, train.cooldown), plan.total - plan.warmup);
  const Cooldown form = train.cooldown_form == "sqrt"    ? Cooldown::square_root
                        : train.cooldown_form == "power" ? Cooldown::power
                                                         : Cooldown::linear;
  return Schedule::warmup_stable_decay(plan.warmup, plan.total, steps, form, train.cooldown_power);
}

// How bf16 weights are rounded belongs to the task: optimizers would not be comparable otherwise.
Settings with_rounding_of(const Task& task, Settings settings) {
  const auto is_rounding = [](const auto& entry) { return entry.first == "rounding"; };
  if (std::any_of(settings.begin(), settings.end(), is_rounding)) return settings;
  for (const OptimizerSpec& spec : task.optimizers) {
    const auto found = std::find_if(spec.settings.begin(), spec.settings.end(), is_rounding);
    if (found == spec.settings.end()) continue;
    settings.push_back(*found);
    break;
  }
  return settings;
}

}  // namespace

OptimizerSpec resolve_optimizer(const Task& task, const std::string& name,
                                const Settings& settings) {
  const auto has = [&](const OptimizerSpec& spec) { return spec.name == name; };
  if (std::none_of(task.optimizers.begin(), task.optimizers.end(), has)) {
    const auto all = list_optimizers();
    const auto known = [&](const OptimizerInfo& info) { return info.name == name; };
    if (std::any_of(all.begin(), all.end(), known)) {
      return {name, name, with_rounding_of(task, settings), kOwnDefaults};
    }
  }
  OptimizerSpec spec = task.optimizer(name);
  merge_settings(spec.settings, settings);
  return spec;
}

std::string note_of_defaults(const Task& task, const OptimizerSpec& spec) {
  if (spec.source != kOwnDefaults) return {};
  const Method method = Method::by_name(spec.optimizer, spec.settings);
  return fmt::format("task '{}' has no rates for '{}'; it runs with its own defaults (lr = {})",
                     task.name, spec.name, method.number("lr").value_or(0));
}

RunPlan plan_run(const Task& task, std::uint64_t samples, std::int64_t steps,
                 std::optional<std::int64_t> warmup) {
  const TrainSpec& train = task.train;
  RunPlan plan;
  const bool epochs = train.epochs > 0;
  plan.steps_per_epoch = std::max<std::int64_t>(
      1, (static_cast<std::int64_t>(samples) + train.batch - 1) / train.batch);
  const std::int64_t unit = epochs ? plan.steps_per_epoch : 1;
  const std::int64_t full = epochs ? train.epochs * plan.steps_per_epoch : train.steps;
  plan.total = steps > 0 ? steps : full;
  plan.warmup = warmup.value_or(train.warmup);
  plan.eval_every = interval(train.eval_interval, unit, plan.total);
  plan.checkpoint_every = interval(train.checkpoint_interval, unit, plan.eval_every);
  if (train.has_warmup()) {
    if (plan.warmup >= plan.total) {
      throw Error(ErrorKind::invalid_argument, "train",
                  fmt::format("{} steps with a warm-up of {} steps; expected more steps than "
                              "warm-up steps; set --warmup",
                              plan.total, plan.warmup));
    }
    plan.schedule = train.schedule == "wsd" ? stable_decay(train, plan)
                                            : Schedule::warmup_cosine(plan.warmup, plan.total);
  } else if (train.schedule == "cosine-epoch") {
    plan.by_epoch = true;
    const std::int64_t length =
        steps > 0 ? (steps + plan.steps_per_epoch - 1) / plan.steps_per_epoch : train.epochs;
    plan.schedule = Schedule::cosine_by_epoch(std::max<std::int64_t>(1, length));
  }
  plan.average_from = plan.total;
  if (train.average_tail > 0) plan.average_from -= share_of(plan.total, train.average_tail);
  return plan;
}

std::string note_of_repeats(const Task& task, const RunPlan& plan, std::uint64_t samples) {
  const double epochs = static_cast<double>(plan.total) * static_cast<double>(task.train.batch) /
                        static_cast<double>(samples);
  if (task.data.kind != "tokens" || task.train.steps == 0 || epochs <= 1) return {};
  return fmt::format(
      "{} steps of {} sequences go through the {} sequences of the training data {:.1f} times; get "
      "more data if each should be seen only once",
      plan.total, task.train.batch, samples, epochs);
}

std::string run_name(const Task& task) {
  return task.scale.empty() ? task.name : task.name + "-" + task.scale;
}

std::string describe_plan(const Task& task, const RunPlan& plan) {
  const TrainSpec& train = task.train;
  const std::int64_t full = train.epochs > 0 ? train.epochs * plan.steps_per_epoch : train.steps;
  return fmt::format(
      "{}{} steps of {} samples{}{}, {}",
      task.scale.empty() ? "" : fmt::format("scale {}: ", task.scale), plan.total, train.batch,
      plan.total == full ? "" : fmt::format(" (the task has {} steps)", full),
      train.has_warmup() ? fmt::format(", warm-up {}", plan.warmup) : "", train.schedule);
}

nlohmann::ordered_json describe_run(const TrainOptions& options, const RunPlan& plan,
                                    const OptimizerSpec& spec, const Method& method) {
  nlohmann::ordered_json task = to_json(options.task);
  task.erase("title");
  task.erase("source");
  task.erase("optimizers");
  task.erase("scales");
  task.erase("sweep");
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  for (const OptionInfo& info : method.options()) values[info.key] = info.value;
  nlohmann::ordered_json run = {{"format", 1},
                                {"task", std::move(task)},
                                {"optimizer", spec.name},
                                {"method", std::string(method.name())},
                                {"options", std::move(values)},
                                {"seed", options.seed},
                                {"steps", plan.total},
                                {"warmup", plan.warmup},
                                {"version", std::string(version())}};
  if (!options.weights.empty()) run["weights"] = {{"sha256", sha256_of_file(options.weights)}};
  return run;
}

}  // namespace rode::lab
