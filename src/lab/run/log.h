// SPDX-License-Identifier: Apache-2.0
// What a run writes while it goes: log.jsonl, times.jsonl and TensorBoard's events.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/run/append_file.h"
#include "lab/run/event_file.h"
#include "lab/run/folder.h"
#include "rode/diagnostics.h"

namespace rode::lab {

struct StepRecord {
  std::int64_t step = 0;  // counts from 0
  double loss = 0;
  std::optional<double> accuracy = {};
  double multiplier = 0;
  double lr = 0;
  std::optional<double> lr_rho = {};
  std::optional<double> lr_rest = {};
  std::optional<double> momentum = {};           // where it warms up
  std::optional<GlobalDiagnostics> global = {};  // of steps that were waited for
  std::vector<MatrixDiagnostics> matrices = {};  // RODE, where they are logged
};

struct EvalRecord {
  std::int64_t step = 0;  // steps done
  double loss = 0;
  std::optional<double> accuracy = {};
  double best_loss = 0;
  // Of the averaged weights, if there are any.
  std::optional<double> averaged_loss = {};
  std::optional<double> averaged_accuracy = {};
  double weight_norm = 0;
  std::vector<std::pair<std::string, double>> radii = {};  // norm of every matrix
};

class RunLog {
 public:
  // Continues after `step` steps, with the first `log_bytes` of the log. What is missing or damaged
  // of the files is reported to `note`: the checkpoint is good without it.
  RunLog(const RunFolder& folder, std::uint64_t log_bytes, std::int64_t step, bool tensorboard,
         const Note& note = {});

  void step(const StepRecord& record);
  void evaluation(const EvalRecord& record);
  void diverged(std::int64_t step, std::string_view what);
  // Time spent so far, earlier processes of the run included.
  void time(std::int64_t step, double units_per_second);
  double seconds() const;

  void sync() { log_.sync(); }
  std::uint64_t bytes() const { return log_.size(); }

 private:
  using Clock = std::chrono::steady_clock;

  AppendFile log_;
  std::unique_ptr<AppendFile> times_;  // made where it is known what of it is kept
  std::optional<EventFile> events_ = {};
  double seconds_before_ = 0;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace rode::lab
