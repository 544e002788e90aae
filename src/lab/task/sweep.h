// SPDX-License-Identifier: Apache-2.0
// The [sweep] table of a task: how rates are searched, which `rode sweep` does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace rode::lab {

struct Task;
class TomlTable;

// One option of a search space. A range is log-uniform; equal ends are a fixed value.
struct SweepOption {
  std::string key;
  double low = 0;
  double high = 0;
  std::string same_as;  // takes the value of this option; empty: has a range of its own
};

struct SweepSpace {
  std::string optimizer;  // of the task, by its name there
  std::vector<SweepOption> options;
};

struct SweepSpec {
  std::int64_t trials = 0;         // per optimizer; 0: the task has no [sweep] table
  std::int64_t steps = 0;          // of a trial
  std::int64_t eval_interval = 0;  // in steps; 0: the task's
  std::string select;           // final-validation-loss, best-validation-loss, mean-training-loss
  std::int64_t last_steps = 0;  // of the mean
  std::string source;
  std::vector<SweepSpace> spaces;  // in the order of the file
};

// `task` has everything else by now: spaces are checked against its optimizers.
SweepSpec parse_sweep(TomlTable& table, const Task& task);
// Keys and forms as in the file.
nlohmann::ordered_json sweep_json(const SweepSpec& sweep);

}  // namespace rode::lab
