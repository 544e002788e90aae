// SPDX-License-Identifier: Apache-2.0
// Runs that may be compared: those of one task and protocol, by optimizer and options.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/report/runs.h"
#include "lab/report/statistics.h"

namespace rode::lab {

// The seeds of one optimizer with one set of options.
struct OptimizerSummary {
  std::string name;   // as the task names it: "rode-published"
  std::string label;  // with the options in which those of the same name differ: "rode lr=0.002"
  std::vector<RunSummary> runs;

  const Json& run() const { return runs.front().run; }
  std::string option(const std::string& key) const;  // its text; empty where it has none
  double lr() const;                                 // NaN where it has none
  std::int64_t count(RunStatus status) const;
  std::int64_t diverged() const { return count(RunStatus::diverged); }
  // Of the runs that were finished, a number of result.json.
  BySeed by_seed(const std::string& key) const;
  // Over the same.
  std::optional<Spread> of(const std::string& key) const;
  std::optional<Spread> perplexity(const std::string& key) const;  // of the loss under that key
  // "3", "3, 1 diverged, 1 unfinished": how many there are, and what became of them.
  std::string seeds() const;
};

struct Comparison {
  std::string task;
  std::string name = {};  // for files: the task's, with what distinguishes two of the same task
  std::string title = {};
  std::string protocol = {};  // as it was run
  bool language = true;
  std::vector<OptimizerSummary> optimizers = {};

  const Json& run() const { return optimizers.front().run(); }
  std::int64_t steps() const;
  std::optional<double> lowest_possible_loss() const;
  // Tokens or images of a step.
  double units_per_step() const;
  const OptimizerSummary* find(const std::string& name) const;
  // Of those with the name or label, the one with the lowest mean final loss.
  const OptimizerSummary* best_of(const std::string& name) const;
};

// In the order in which the runs were found. A seed that occurs twice in a group is a copy: the
// second is a problem and left out. `titles`: of tasks that are not part of the build.
std::vector<Comparison> compare_runs(FoundRuns& found,
                                     const std::map<std::string, std::string>& titles = {});

// Those that charts show: all, or if that is more than a chart can distinguish, of each name the
// one with the lowest loss.
std::vector<const OptimizerSummary*> in_charts(const Comparison& comparison);

}  // namespace rode::lab
