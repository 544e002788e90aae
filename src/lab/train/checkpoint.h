// SPDX-License-Identifier: Apache-2.0
// The whole state of a run as one safetensors file.
//
//   param.<name>, buffer.<name>     the model
//   state.<name>.<key>              the optimizer, as `rode step` names it
//   average.<name>                  averaged weights, where there are any
//   rng.cpu, rng.cuda               torch's generators
//   metadata "rode.step", ...       the engine's; "rode.train": a JSON object (TrainState)
// The data's random numbers are derived from seed, epoch and sample: its position is their state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "lab/models/model.h"
#include "lab/stream/sample_order.h"
#include "lab/train/average.h"
#include "lab/train/ranks.h"
#include "rode/torch/optimizer.h"

namespace rode::lab {

struct TrainState {
  std::int64_t step = 0;        // steps done
  std::int64_t evaluated = -1;  // the step after which the last evaluation was
  double best_loss = std::numeric_limits<double>::infinity();
  std::int64_t best_step = -1;
  double best_accuracy = 0;
  double last_loss = 0;  // of the last evaluation
  double last_accuracy = 0;
  // Of the last evaluation with averaged weights, where there was one and it was finite.
  std::optional<double> averaged_loss = {};
  double averaged_accuracy = 0;
  StreamPosition data;
  std::uint64_t log_bytes = 0;  // of log.jsonl, when it was saved
};

// Replaces `path` in one step; where that fails, what was there stays. A call of all ranks: each
// gives its share of the optimizer's state, and rank 0 writes the file, which is that of one
// process.
void save_checkpoint(const std::filesystem::path& path, Model& model,
                     rode::torch::EngineOptimizer& optimizer, c10::Device device,
                     const TrainState& state, const WeightAverage& average, const RunRanks& ranks);

struct LoadedCheckpoint {
  TrainState state;
  // Generators that the file does not have, as one saved on a CPU has none of CUDA: they restart
  // from the run's seed and the step.
  std::vector<std::string> seeded;
  std::string checksum_note;  // where the file has no checksum
};

// Throws rode::Error where the file is damaged or does not fit; a model half filled is then not to
// be used.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& path, Model& model,
                                 rode::torch::EngineOptimizer& optimizer, c10::Device device,
                                 std::uint64_t seed, WeightAverage& average);

}  // namespace rode::lab
