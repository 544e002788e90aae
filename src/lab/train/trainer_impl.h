// SPDX-License-Identifier: Apache-2.0
// A run while it trains. Private to the trainer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/run/batches.h"
#include "lab/run/lock.h"
#include "lab/run/log.h"
#include "lab/train/checkpoint.h"
#include "lab/train/ranks.h"
#include "lab/train/session.h"
#include "lab/train/trainer.h"
#include "rode/error.h"

namespace rode::lab {

struct Trainer::Impl {
  Impl(const TrainOptions& given, TrainHooks given_hooks, const RunRanks& given_ranks);

  // On every rank, where one was asked to.
  bool stopping() const { return ranks.any(hooks.stop && hooks.stop()); }
  void note(const std::string& text) const {
    if (hooks.note) hooks.note(text);
  }
  void warn(const std::string& text) {
    warnings.push_back(text);
    if (hooks.warning) hooks.warning(text);
  }

  void begin();
  void begin_in_folder(const Json& run);
  bool find_finished();
  void take_lock();
  void load();
  void take_over(const TrainState& found);
  bool follow_leader();
  void save();
  void save_final();
  void save_best();
  bool evaluate();
  bool train_step();
  void take_step(double multiplier);
  std::optional<std::string> divergence(const Error& error) const;
  void read_losses();
  std::string refused_step();
  void read_history();
  void join_diagnostics();
  bool logs_matrices(std::int64_t step) const;
  void settle();
  Progress progress() const;
  void report(const Progress& progress) const {
    if (hooks.progress) hooks.progress(progress);
  }
  [[noreturn]] void diverge(std::int64_t step, const std::string& what);
  Json result(const char* status);
  TrainOutcome interrupted() {
    save();
    // No rank ends before rank 0 has written: whoever started the ranks may end the others then.
    (void)ranks.any(false);
    return {TrainStatus::interrupted, state.step, {}};
  }
  TrainOutcome run();

  TrainOptions options;
  TrainHooks hooks;
  OptimizerSpec spec;
  Method method;
  BatchSource batches;
  RunPlan plan;
  RunRanks ranks;
  RunFolder folder;
  std::optional<RunLock> lock;
  Session session;
  TrainState state;
  std::unique_ptr<RunLog> log;   // from run() on; null on ranks that do not lead
  std::optional<Json> finished;  // result.json of a run that is already complete
  bool resumed = false;
  // The last checkpoint: its step, and that of the last evaluation in it. A run that was stopped
  // during an evaluation has saved the step without it.
  std::int64_t saved = -1;
  std::int64_t saved_evaluation = -1;
  WeightNorms norms;  // at the last evaluation
  std::vector<std::string> warnings;
  std::optional<double> loss;  // of the last batch that was read
  std::optional<Rates> rates;  // of the last step
  // Steps without a line in the log yet: their losses, as far as they were read, and those that
  // the device still has.
  std::vector<StepRecord> waiting;
  std::vector<Measured> losses;
  std::vector<Unread> unread;
  std::int64_t read_interval = 1;
  Pace pace;
};

}  // namespace rode::lab
