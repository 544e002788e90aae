// SPDX-License-Identifier: Apache-2.0
// A task's batches for training and evaluation, as plain memory: no Torch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/stream/sample_order.h"
#include "lab/task/task.h"

namespace rode::lab {

struct Batch {
  std::int64_t rows = 0;
  std::vector<std::int64_t> tokens;  // language: (rows, sequence + 1)
  std::vector<float> pixels;         // images: (rows, 3, size, size)
  std::vector<std::int64_t> labels;
  StreamPosition after;  // training: position of the stream after this batch
};

class BatchSource {
 public:
  BatchSource(const Task& task, std::uint64_t seed, const std::filesystem::path& data_folder);
  ~BatchSource();

  std::uint64_t epoch_samples() const;
  std::optional<double> best_loss() const;  // the lowest that any model can reach, where known
  // Samples count as tokens in language tasks, as images in the others.
  std::int64_t units_per_row() const;
  // Messages for the user about the data, a line each.
  std::vector<std::string> notes() const;

  StreamPosition position() const;  // before begin()
  // Training batches, made ahead on a thread, from `position` on.
  void begin(const StreamPosition& position);
  Batch next();

  // The validation samples in order, `rows` at a time.
  std::int64_t evaluation_samples() const;
  void rewind_evaluation();
  std::optional<Batch> next_evaluation(std::int64_t rows);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rode::lab
