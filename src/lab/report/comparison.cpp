// SPDX-License-Identifier: Apache-2.0
// Groups runs, and names the groups.
#include "lab/report/comparison.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/file_io.h"
#include "lab/base/name.h"
#include "lab/task/task.h"

namespace rode::lab {
namespace {

constexpr std::size_t kMostCurves = 16;  // of one chart

// All that two runs of one comparison share.
std::string protocol_key(const Json& run) {
  Json key = {{"task", run.at("task")}, {"steps", run.at("steps")}};
  // weights: those that it began from; extended: with schedules of several lengths
  for (const char* part : {"warmup", "weights", "extended"}) {
    if (run.contains(part)) key[part] = run[part];
  }
  return key.dump();
}

std::string optimizer_key(const Json& run) {
  return Json{{"name", run.at("optimizer")}, {"options", run.at("options")}}.dump();
}

bool is_language(const Json& run) {
  return run["task"].contains("data") && run["task"]["data"].contains("sequence");
}

std::string title_of(const std::string& task, const std::map<std::string, std::string>& titles) {
  const auto given = titles.find(task);
  if (given != titles.end()) return given->second;
  const std::vector<std::string> names = task_names();
  if (std::find(names.begin(), names.end(), task) == names.end()) return task;
  return load_task(task).title;
}

// "1 to 3", "1, 2, 7"
std::string seeds_text(const std::set<std::uint64_t>& seeds) {
  if (seeds.size() == 1) return fmt::format("seed {}", *seeds.begin());
  if (*seeds.rbegin() - *seeds.begin() + 1 == seeds.size()) {
    return fmt::format("seeds {} to {}", *seeds.begin(), *seeds.rbegin());
  }
  return fmt::format("seeds {}", fmt::join(seeds, ", "));
}

std::string protocol_of(const Comparison& comparison) {
  const Json& run = comparison.run();
  const Json train = run["task"].value("train", Json::object());
  const auto steps = run["steps"].get<std::int64_t>();
  const std::string scale = text_at(run["task"], "scale");
  std::string text = scale.empty() ? "" : fmt::format("scale {}: ", scale);
  text += fmt::format("{} steps", steps);
  if (const auto batch = number_at(train, "batch")) text += fmt::format(" of {} samples", *batch);
  if (const auto whole = number_at(train, "steps"); whole && *whole != static_cast<double>(steps)) {
    text += fmt::format(" (the task has {} steps)", *whole);
  }
  if (const auto epochs = number_at(train, "epochs")) {
    text += fmt::format(" (the task has {} epochs)", *epochs);
  }
  const std::string schedule = text_at(train, "schedule");
  if (const auto warmup = number_at(run, "warmup");
      warmup && (schedule == "cosine" || schedule == "wsd")) {
    text += fmt::format(", warm-up {}", *warmup);
  }
  if (!schedule.empty()) text += ", " + schedule;
  if (const auto share = number_at(train, "cooldown")) {
    text += fmt::format(" ({} cool-down over {} of the steps)", text_at(train, "cooldown_form"),
                        *share);
  }
  if (const auto warm = number_at(train, "momentum_warmup")) {
    text += fmt::format(", momentum warmed up over {} steps", *warm);
  }
  if (const auto tail = number_at(train, "average_tail")) {
    text += fmt::format(", weights averaged over the last {} of the steps", *tail);
  }
  std::set<std::uint64_t> seeds;
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    for (const RunSummary& one : optimizer.runs) seeds.insert(one.seed);
  }
  if (run.contains("weights")) text += ", started from given weights";
  if (run.contains("extended")) text += ", extended from a shorter run";
  return text + "; " + seeds_text(seeds);
}

// Those of one name differ in some options, or are one.
void label_all(std::vector<OptimizerSummary>& optimizers) {
  for (OptimizerSummary& one : optimizers) {
    one.label = one.name;
    std::set<std::string> differing;
    for (const OptimizerSummary& other : optimizers) {
      if (&other == &one || other.name != one.name) continue;
      for (const auto& [key, value] : one.run()["options"].items()) {
        if (other.option(key) != value.get<std::string>()) differing.insert(key);
      }
    }
    for (const auto& [key, value] : one.run()["options"].items()) {
      if (differing.count(key) == 0) continue;
      one.label += fmt::format(" {}={}", key, value.get<std::string>());
    }
  }
}

// The task and its scale, where it is the only one of that name, else with steps, else with a
// number.
void name_all(std::vector<Comparison>& all) {
  const auto plain = [](const Comparison& c) {
    const std::string scale = text_at(c.run()["task"], "scale");
    return is_name(scale) ? fmt::format("{}-{}", c.task, scale) : c.task;
  };
  const auto with_steps = [&](const Comparison& c) {
    return fmt::format("{}-{}-steps", plain(c), c.steps());
  };
  std::map<std::string, int> tasks;
  std::map<std::string, int> lengths;
  for (const Comparison& one : all) ++tasks[plain(one)], ++lengths[with_steps(one)];
  std::map<std::string, int> used;
  for (Comparison& one : all) {
    const bool alone = tasks[plain(one)] == 1;
    one.name = alone ? plain(one) : with_steps(one);
    if (alone || lengths[one.name] == 1) continue;
    one.name += fmt::format("-{}", ++used[one.name]);
  }
}

std::optional<Spread> over_finished(const OptimizerSummary& optimizer, const std::string& key,
                                    double (*map)(double)) {
  std::vector<double> values;
  for (const RunSummary& run : optimizer.runs) {
    const auto value = run.finished() ? run.number(key) : std::nullopt;
    if (value) values.push_back(map(*value));
  }
  return spread_of(values);
}

double mean_loss(const OptimizerSummary& optimizer) {
  const auto loss = optimizer.of("final_loss");
  return loss ? loss->mean : std::numeric_limits<double>::infinity();
}

}  // namespace

std::string OptimizerSummary::option(const std::string& key) const {
  return text_at(run()["options"], key);
}

double OptimizerSummary::lr() const {
  const std::string text = option("lr");
  double value = std::numeric_limits<double>::quiet_NaN();
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::int64_t OptimizerSummary::count(RunStatus status) const {
  return std::count_if(runs.begin(), runs.end(),
                       [&](const RunSummary& run) { return run.status == status; });
}

BySeed OptimizerSummary::by_seed(const std::string& key) const {
  BySeed values;
  for (const RunSummary& run : runs) {
    const auto value = run.finished() ? run.number(key) : std::nullopt;
    if (value) values.emplace(run.seed, *value);
  }
  return values;
}

std::optional<Spread> OptimizerSummary::of(const std::string& key) const {
  return over_finished(*this, key, [](double value) { return value; });
}

std::optional<Spread> OptimizerSummary::perplexity(const std::string& key) const {
  return over_finished(*this, key, [](double value) { return std::exp(value); });
}

std::string OptimizerSummary::seeds() const {
  std::string text = fmt::format("{}", runs.size());
  if (const auto failed = diverged()) text += fmt::format(", {} diverged", failed);
  if (const auto open = count(RunStatus::unfinished)) text += fmt::format(", {} unfinished", open);
  return text;
}

std::int64_t Comparison::steps() const { return run()["steps"]; }

std::optional<double> Comparison::lowest_possible_loss() const {
  for (const OptimizerSummary& optimizer : optimizers) {
    for (const RunSummary& one : optimizer.runs) {
      if (const auto lowest = one.number("lowest_possible_loss")) return lowest;
    }
  }
  return {};
}

double Comparison::units_per_step() const {
  const Json& about = run()["task"];
  const double batch = number_at(about.value("train", Json::object()), "batch").value_or(0);
  return language ? batch * number_at(about["data"], "sequence").value_or(0) : batch;
}

const OptimizerSummary* Comparison::find(const std::string& wanted) const {
  for (const OptimizerSummary& optimizer : optimizers) {
    if (optimizer.label == wanted) return &optimizer;
  }
  return best_of(wanted);
}

const OptimizerSummary* Comparison::best_of(const std::string& wanted) const {
  const OptimizerSummary* best = nullptr;
  for (const OptimizerSummary& optimizer : optimizers) {
    if (optimizer.name != wanted) continue;
    if (best == nullptr || mean_loss(optimizer) < mean_loss(*best)) best = &optimizer;
  }
  return best;
}

std::vector<Comparison> compare_runs(FoundRuns& found,
                                     const std::map<std::string, std::string>& titles) {
  std::vector<Comparison> all;
  std::map<std::string, std::size_t> places;
  std::vector<std::map<std::string, std::size_t>> inner;
  for (RunSummary& run : found.runs) {
    const auto [place, is_new] = places.emplace(protocol_key(run.run), all.size());
    if (is_new) {
      all.push_back({.task = text_at(run.run["task"], "name")});
      all.back().language = is_language(run.run);
      inner.emplace_back();
    }
    Comparison& comparison = all[place->second];
    const auto [at, first] =
        inner[place->second].emplace(optimizer_key(run.run), comparison.optimizers.size());
    if (first) comparison.optimizers.push_back({text_at(run.run, "optimizer"), {}, {}});
    std::vector<RunSummary>& runs = comparison.optimizers[at->second].runs;
    const auto twin = std::find_if(runs.begin(), runs.end(),
                                   [&](const RunSummary& one) { return one.seed == run.seed; });
    if (twin != runs.end()) {
      found.problems.push_back(
          {run.folder, fmt::format("seed {} of the same run as '{}': only the first is used",
                                   run.seed, printable(twin->folder.string()))});
      continue;
    }
    runs.push_back(std::move(run));
  }
  found.runs.clear();
  for (Comparison& comparison : all) {
    label_all(comparison.optimizers);
    comparison.title = title_of(comparison.task, titles);
    const std::string scale = text_at(comparison.run()["task"], "scale");
    const std::string suffix = scale.empty() ? "" : fmt::format(", scale {}", scale);
    if (!comparison.title.ends_with(suffix)) comparison.title += suffix;
    comparison.protocol = protocol_of(comparison);
  }
  name_all(all);
  return all;
}

std::vector<const OptimizerSummary*> in_charts(const Comparison& comparison) {
  std::vector<const OptimizerSummary*> shown;
  for (const OptimizerSummary& one : comparison.optimizers) {
    if (comparison.optimizers.size() > kMostCurves && comparison.best_of(one.name) != &one)
      continue;
    shown.push_back(&one);
  }
  return shown;
}

}  // namespace rode::lab
