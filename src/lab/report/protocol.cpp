// SPDX-License-Identifier: Apache-2.0
// Compares what was run with what the paper ran.
#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lab/report/published.h"
#include "lab/task/task.h"
#include "rode/method.h"

namespace rode::lab {
namespace {

// Neither changes the numbers of a run.
const std::set<std::string> kNotOfTheProtocol = {"checkpoint_interval", "checkpoint_activations",
                                                 "steps", "epochs", "warmup"};

std::string shown_value(const std::string& what, const Json& value) {
  if (value.is_null()) return "not given";
  if (what.ends_with("eval_samples") && value == 0) return "all";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void compare_value(std::vector<std::string>& out, const std::string& what, const Json& here,
                   const Json& paper) {
  if (here == paper) return;
  out.push_back(fmt::format("{}: {} here, {} in the paper", what, shown_value(what, here),
                            shown_value(what, paper)));
}

void compare_parts(std::vector<std::string>& out, const std::string& part, const Json& here,
                   const Json& paper) {
  std::set<std::string> keys;
  for (const Json* side : {&here, &paper}) {
    for (const auto& [key, value] : side->items()) {
      if (kNotOfTheProtocol.count(key) == 0) keys.insert(key);
    }
  }
  for (const std::string& key : keys) {
    compare_value(out, fmt::format("{}.{}", part, key), here.value(key, Json()),
                  paper.value(key, Json()));
  }
}

// Its twin is Algorithm 1 as printed; an optimizer without one runs as the paper has it.
const OptimizerSpec* paper_optimizer(const Task& task, const std::string& name) {
  const std::string plain = without_twin(name);
  const OptimizerSpec* found = nullptr;
  for (const OptimizerSpec& spec : task.optimizers) {
    if (spec.name == plain + "-published") return &spec;
    if (spec.name == plain) found = &spec;
  }
  return found;
}

std::string option_differences(const Task& task, const OptimizerSummary& optimizer) {
  const OptimizerSpec* spec = paper_optimizer(task, optimizer.name);
  if (spec == nullptr) return {};
  std::vector<std::string> parts;
  for (const OptionInfo& option : Method::by_name(spec->optimizer, spec->settings).options()) {
    const std::string here = optimizer.option(option.key);
    if (here.empty() || here == option.value) continue;
    parts.push_back(fmt::format("{} {} ({})", option.key, here, option.value));
  }
  if (parts.empty()) return {};
  return fmt::format("options of {}, the paper's in brackets: {}", optimizer.label,
                     fmt::join(parts, ", "));
}

std::string seed_differences(const Comparison& comparison, std::int64_t seeds) {
  std::vector<std::string> parts;
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    const auto count = static_cast<std::int64_t>(optimizer.runs.size());
    if (count != seeds) parts.push_back(fmt::format("{} of {}", count, optimizer.label));
  }
  if (parts.empty()) return {};
  const bool all_same = std::all_of(
      comparison.optimizers.begin(), comparison.optimizers.end(), [&](const OptimizerSummary& one) {
        return one.runs.size() == comparison.optimizers.front().runs.size();
      });
  if (all_same) {
    return fmt::format("seeds: {} here, {} in the paper", comparison.optimizers.front().runs.size(),
                       seeds);
  }
  return fmt::format("seeds: {} here, {} in the paper", fmt::join(parts, ", "), seeds);
}

}  // namespace

std::vector<std::string> protocol_differences(const Comparison& comparison,
                                              const std::string& task) {
  std::vector<std::string> out;
  const auto found = published().tasks.find(task);
  if (found == published().tasks.end()) return out;
  const PublishedTask& paper = found->second;
  const Json& run = comparison.run();
  compare_value(out, "task", comparison.task, task);
  compare_value(out, "steps", comparison.steps(), paper.steps);
  const std::vector<std::string> names = task_names();
  if (std::find(names.begin(), names.end(), task) == names.end()) {
    out.emplace_back("the rest of the protocol is not compared: the task is not part of the build");
    return out;
  }
  const Task built_in = load_task(task);
  const Json expected = to_json(built_in);
  if (run.contains("warmup")) {
    compare_value(out, "warm-up", run["warmup"], built_in.train.warmup);
  }
  if (const std::string seeds = seed_differences(comparison, paper.seeds); !seeds.empty()) {
    out.push_back(seeds);
  }
  for (const char* part : {"model", "data", "train"}) {
    compare_parts(out, part, run["task"].value(part, Json::object()), expected.at(part));
  }
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    if (std::string text = option_differences(built_in, optimizer); !text.empty()) {
      out.push_back(std::move(text));
    }
  }
  out.insert(out.end(), paper.notes.begin(), paper.notes.end());
  return out;
}

}  // namespace rode::lab
