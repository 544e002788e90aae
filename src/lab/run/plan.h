// SPDX-License-Identifier: Apache-2.0
// What a run will do, decided before it begins: length, intervals, schedule, optimizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lab/task/task.h"
#include "rode/method.h"
#include "rode/schedule.h"

namespace rode::lab {

constexpr std::int64_t kDefaultTimeout = 1800;  // seconds, as c10d has it

// What the command line asks for.
struct TrainOptions {
  Task task;
  std::string optimizer;  // of the task, or of the engine
  Settings settings;      // win over the task's
  std::uint64_t seed = 1;
  std::filesystem::path out;
  std::filesystem::path data_folder;
  bool resume = false;
  bool overwrite = false;              // removes a run that is in `out`
  std::int64_t steps = 0;              // 0: the task's
  std::optional<std::int64_t> warmup;  // in steps, instead of the task's
  std::int64_t until = 0;       // pauses after this step, of a schedule that goes on; 0: at the end
  int threads = 0;              // 0: torch's own number
  std::string device = "auto";  // auto, cpu, cuda
  std::int64_t keep = 2;        // checkpoints
  bool keep_best = false;       // the weights of the lowest validation loss, in <out>/best
  std::filesystem::path weights;  // safetensors to begin from; empty: drawn from the seed
  // Norms and the matrices' diagnostics in the log, every log_interval steps, without a wait for
  // the device; 0: norms where losses are read, matrices before evaluations.
  std::int64_t log_interval = 0;
  // Steps between two readings of losses and norms, each of which waits for the device; 0: 1 on
  // the CPU, 10 on a GPU.
  std::int64_t read_interval = 0;
  bool tensorboard = true;
  // Several processes: with those that RANK, WORLD_SIZE and so on name, as torchrun sets them.
  bool meet = false;
  std::string ranks_backend = "auto";              // of their communication: auto, gloo, nccl
  std::int64_t timeout_seconds = kDefaultTimeout;  // of each wait for another process
};

// The task's entry with `settings` over it; an optimizer of the engine that the task does not name
// has its own defaults, and `source` says so.
OptimizerSpec resolve_optimizer(const Task& task, const std::string& name,
                                const Settings& settings);

// A message for the user about an optimizer that the task does not name; empty for the others.
std::string note_of_defaults(const Task& task, const OptimizerSpec& spec);

struct RunPlan {
  std::int64_t total = 0;            // steps
  std::int64_t steps_per_epoch = 0;  // the last may have a smaller batch
  std::int64_t eval_every = 0;
  std::int64_t checkpoint_every = 0;
  std::int64_t warmup = 0;
  bool by_epoch = false;
  Schedule schedule = Schedule::constant();
  // Weights are averaged after every step from the one after this on; `total`: never.
  std::int64_t average_from = 0;

  bool averages_at(std::int64_t step) const { return step > average_from; }
  double multiplier(std::int64_t step) const {
    return schedule.multiplier(by_epoch ? step / steps_per_epoch : step);
  }
  bool evaluates_at(std::int64_t step) const { return step == total || step % eval_every == 0; }
  bool saves_at(std::int64_t step) const {
    return step == total || (step > 0 && step % checkpoint_every == 0);
  }
};

// `samples`: of an epoch. `steps` over 0 replaces the task's length, but not its warm-up.
RunPlan plan_run(const Task& task, std::uint64_t samples, std::int64_t steps,
                 std::optional<std::int64_t> warmup = {});
// A warning where a run by steps on real data goes through them more than once; else empty.
std::string note_of_repeats(const Task& task, const RunPlan& plan, std::uint64_t samples);
// The folder of a task's runs below "runs": "gpt2", "gpt2-tiny".
std::string run_name(const Task& task);
// The protocol in words: "60 steps of 128 samples (the task has 4000), warm-up 20, cosine".
std::string describe_plan(const Task& task, const RunPlan& plan);

// All that decides a run's numbers, as run.json holds it.
nlohmann::ordered_json describe_run(const TrainOptions& options, const RunPlan& plan,
                                    const OptimizerSpec& spec, const Method& method);

}  // namespace rode::lab
