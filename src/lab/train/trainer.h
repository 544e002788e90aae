// SPDX-License-Identifier: Apache-2.0
// Trains a task's model with one optimizer and one seed, into a folder. No Torch in this header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lab/train/run_folder.h"
#include "lab/train/run_plan.h"

namespace rode::lab {

// What a progress line shows, after every step and evaluation.
struct Progress {
  std::int64_t step = 0;
  std::int64_t total = 0;
  double loss = 0;  // of the batch
  std::optional<double> eval_loss = {};
  std::optional<double> eval_accuracy = {};  // images
  bool evaluated = false;                    // eval_loss is new
  double lr = 0;
  std::optional<double> lr_rho = {};
  std::optional<double> lr_rest = {};
  double units_per_second = 0;  // tokens or images
  double seconds_left = 0;
  std::string_view unit = {};  // "tokens", "images"
};
std::string format_progress(const Progress& progress);

struct TrainHooks {
  std::function<void(const Progress&)> progress;
  std::function<void(std::string_view)> note;  // what a user should hear once
  std::function<bool()> stop;                  // asked between batches: save and return
};

enum class TrainStatus { finished, interrupted, paused };

struct TrainOutcome {
  TrainStatus status = TrainStatus::finished;
  std::int64_t step = 0;
  Json result;  // result.json, where finished; where paused what is known so far
};

// Opens data, model and optimizer, and the folder: a new run, or with `resume` the one that is
// there (from its beginning where it has no checkpoint yet). Throws rode::Error.
class Trainer {
 public:
  explicit Trainer(const TrainOptions& options, TrainHooks hooks = {});
  ~Trainer();

  // To the end, or until hooks.stop or options.until says so; a checkpoint is then there. A loss
  // that is not finite throws (ErrorKind::non_finite) and leaves the checkpoints from before it;
  // result.json then says "diverged".
  TrainOutcome run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rode::lab
