// SPDX-License-Identifier: Apache-2.0
// Trains a task's model with one optimizer and one seed, into a folder. No Torch in this header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lab/run/folder.h"
#include "lab/run/plan.h"
#include "lab/run/progress.h"

namespace rode::lab {

struct TrainHooks {
  std::function<void(const Progress&)> progress;
  std::function<void(std::string_view)> note;  // messages for the user, each once
  // What is slow on this machine, and Torch's warnings, each once; result.json has them too.
  std::function<void(std::string_view)> warning;
  // Asked between the parts of a batch and of an evaluation: drop what is not whole, save, return.
  std::function<bool()> stop;
};

enum class TrainStatus { finished, interrupted, paused };

struct TrainOutcome {
  TrainStatus status = TrainStatus::finished;
  std::int64_t step = 0;
  Json result;  // result.json, where finished; where paused what is known so far
};

// Opens data, model and optimizer, and the folder: a new run, or with `resume` the one that is
// there (from its beginning where it has no checkpoint yet). Throws rode::Error, also for Torch's
// own errors. With options.meet every rank makes one and runs it; rank 0 alone writes and calls the
// hooks, of which all ranks are asked `stop`.
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
