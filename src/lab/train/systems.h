// SPDX-License-Identifier: Apache-2.0
// What a training step costs with an optimizer: the paper's compute and memory table. No Torch
// here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lab/task/task.h"

namespace rode::lab {

struct SystemsCase {
  Task task;  // batch is one micro-batch, accumulate 1
  OptimizerSpec optimizer;
  bool batched = true;  // false: one matrix after the other
};

// The paper's protocol.
struct SystemsOptions {
  std::string device = "auto";
  int threads = 0;
  int warmup = 8;
  int steps = 25;
  int runs = 3;
};

struct SystemsResult {
  double step_ms = 0;       // a whole iteration: median over the runs of each run's median
  double optimizer_ms = 0;  // of it: step() and clearing the gradients
  std::vector<double> step_ms_of_runs;
  std::vector<double> optimizer_ms_of_runs;
  std::int64_t parameters = 0;
  std::int64_t state_bytes = 0;  // of the optimizer's tensors
  std::int64_t workspace_bytes = 0;
  std::optional<std::int64_t> torch_peak_bytes;  // CUDA: of Torch's allocator, the largest run's
};

// On random data: reading files is not what is measured.
SystemsResult measure_systems(const SystemsCase& what, const SystemsOptions& options);
// Commit, versions and chip, as run.json has them.
nlohmann::ordered_json systems_environment(const SystemsOptions& options);

}  // namespace rode::lab
