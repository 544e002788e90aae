// SPDX-License-Identifier: Apache-2.0
// The [sweep] table: checked against the task, as JSON and as TOML.
#include "lab/task/sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.h"
#include "core/nearest.h"
#include "lab/base/toml_table.h"
#include "lab/task/task.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

constexpr std::int64_t kMaxTrials = 1'000'000;
constexpr const char* kMeanTrainingLoss = "mean-training-loss";
constexpr std::string_view kForms =
    "[low, high] with 0 < low < high, one number, or the name of an option with a range";

std::optional<double> real(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

SweepOption parse_option(const TomlTable& table, const std::string& key, const std::string& text) {
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos) {
    if (const auto value = real(text)) return {key, *value, *value, ""};
    if (!text.empty()) return {key, 0, 0, text};
  } else {
    const auto low = real(std::string_view(text).substr(0, comma));
    const auto high = real(std::string_view(text).substr(comma + 1));
    if (low && high && *low > 0 && *low < *high) return {key, *low, *high, ""};
  }
  table.fail(key, fmt::format("is '{}'; expected {}", printable(text), kForms));
}

// The engine judges the ends of a range and a value between them, which a whole number is not.
void check_values(const TomlTable& table, const OptimizerSpec& spec, const SweepOption& option) {
  constexpr double kBetween = 0.381966;
  const double between = option.low * std::pow(option.high / option.low, kBetween);
  for (const double value :
       {option.low, option.high, option.low < option.high ? between : option.low}) {
    Settings settings = spec.settings;
    std::erase_if(settings, [&](const auto& setting) { return setting.first == option.key; });
    settings.emplace_back(option.key, fmt::format("{}", value));
    try {
      (void)Method::by_name(spec.optimizer, settings);
    } catch (const Error& error) {
      table.fail(option.key, fmt::format("in [sweep.spaces.{}]: {}", spec.name, error.what()));
    }
  }
}

void check_space(const TomlTable& table, const OptimizerSpec& spec, const SweepSpace& space) {
  std::vector<std::string> ranges;
  for (const SweepOption& option : space.options) {
    if (option.low < option.high) ranges.push_back(option.key);
  }
  for (SweepOption option : space.options) {
    if (!option.same_as.empty()) {
      const auto by_name = [&](const SweepOption& other) { return other.key == option.same_as; };
      const auto source = std::ranges::find_if(space.options, by_name);
      if (source == space.options.end() || source->low >= source->high) {
        const std::string meant = nearest(option.same_as, ranges);
        table.fail(
            option.key,
            fmt::format("is '{}'; {}expected {}", printable(option.same_as),
                        meant.empty() ? "" : fmt::format("did you mean '{}'? ", meant), kForms));
      }
      option.low = source->low;
      option.high = source->high;
    }
    check_values(table, spec, option);
  }
  if (ranges.empty()) {
    table.fail("", fmt::format("[sweep.spaces.{}] has no range; expected at least one option as "
                               "[low, high]",
                               spec.name));
  }
}

SweepSpace parse_space(TomlTable& table, const Task& task, const std::string& name) {
  const auto by_name = [&](const OptimizerSpec& spec) { return spec.name == name; };
  const auto spec = std::ranges::find_if(task.optimizers, by_name);
  if (spec == task.optimizers.end()) {
    std::vector<std::string> names;
    for (const OptimizerSpec& other : task.optimizers) names.push_back(other.name);
    table.fail(
        "",
        fmt::format("[sweep.spaces.{}] does not name an optimizer of the task; did you mean '{}'?",
                    printable(name), nearest(name, names)));
  }
  SweepSpace space{name, {}};
  for (const auto& [key, text] : table.rest_as_text()) {
    space.options.push_back(parse_option(table, key, text));
  }
  check_space(table, *spec, space);
  return space;
}

void check_lengths(const TomlTable& table, const SweepSpec& sweep, const TrainSpec& train) {
  if (train.has_warmup() && sweep.steps <= train.warmup) {
    table.fail("steps", fmt::format("is {}; expected more than the {} steps of the warm-up, which "
                                    "a sweep keeps",
                                    sweep.steps, train.warmup));
  }
  if (sweep.eval_interval > 0 && train.epochs > 0) {
    table.fail("eval_interval", "is in steps, but the task's is in epochs; leave it out");
  }
}

}  // namespace

SweepSpec parse_sweep(TomlTable& table, const Task& task) {
  SweepSpec sweep;
  constexpr std::int64_t kMaxSweepSteps = 1'000'000'000;
  sweep.trials = table.required("trials", table.whole("trials", 1, kMaxTrials));
  sweep.steps = table.required("steps", table.whole("steps", 1, kMaxSweepSteps));
  sweep.eval_interval = table.whole("eval_interval", 1, kMaxSweepSteps).value_or(0);
  sweep.select = table.required(
      "select",
      table.word("select", {"final-validation-loss", "best-validation-loss", kMeanTrainingLoss}));
  if (sweep.select == kMeanTrainingLoss) {
    sweep.last_steps = table.required("last_steps", table.whole("last_steps", 1, sweep.steps));
  } else if (table.has("last_steps")) {
    table.fail("last_steps",
               fmt::format("belongs to select = \"{}\"; leave it out", kMeanTrainingLoss));
  }
  sweep.source = table.required("source", table.text("source"));
  auto spaces = table.required("spaces", table.table("spaces"));
  table.finish();
  check_lengths(table, sweep, task.train);
  for (const std::string& key : spaces.keys()) {
    auto space = spaces.required(key, spaces.table(key));
    sweep.spaces.push_back(parse_space(space, task, key));
  }
  if (sweep.spaces.empty()) spaces.fail("", "[sweep.spaces] is empty; expected at least one");
  return sweep;
}

nlohmann::ordered_json sweep_json(const SweepSpec& sweep) {
  using Json = nlohmann::ordered_json;
  Json json = {{"trials", sweep.trials}, {"steps", sweep.steps}};
  if (sweep.eval_interval > 0) json["eval_interval"] = sweep.eval_interval;
  json["select"] = sweep.select;
  if (sweep.last_steps > 0) json["last_steps"] = sweep.last_steps;
  json["source"] = sweep.source;
  Json spaces = Json::object();
  for (const SweepSpace& space : sweep.spaces) {
    Json options = Json::object();
    for (const SweepOption& option : space.options) {
      if (!option.same_as.empty()) {
        options[option.key] = option.same_as;
      } else if (option.low < option.high) {
        options[option.key] = {option.low, option.high};
      } else {
        options[option.key] = option.low;
      }
    }
    spaces[space.optimizer] = std::move(options);
  }
  json["spaces"] = std::move(spaces);
  return json;
}

}  // namespace rode::lab
