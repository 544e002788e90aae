// SPDX-License-Identifier: Apache-2.0
// A task that trains in a moment, and what is left of a run to compare.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lab/run/folder.h"
#include "lab/train/trainer.h"
#include "support.h"

namespace rode::lab {

inline Task small_task(const std::string& extra_train = "", const std::string& model_extra = "") {
  return parse_task(
      "title = \"Small\"\n"
      "[model]\nkind = \"qwen2\"\nlayers = 1\nwidth = 16\nheads = 2\nkv_heads = 2\n"
      "mlp_width = 24\nvocab_size = 64\n" +
          model_extra +
          "[data]\nkind = \"tiny-lm\"\nsequence = 12\ntrain_samples = 40\neval_samples = 6\n"
          "[train]\nsteps = 24\nbatch = 8\nwarmup = 3\neval_interval = 8\n"
          "checkpoint_interval = 3\nrouting = \"language\"\n" +
          extra_train +
          "[optimizers.rode]\nlr = 1e-2\nlr_rho = 1e-2\nlr_rest = 3e-3\nradius = \"adaptive\"\n"
          "source = \"test\"\n"
          "[optimizers.muon-rms]\nlr = 5e-3\nlr_rest = 3e-3\nsource = \"test\"\n"
          "[optimizers.soap]\nlr = 3e-3\nlr_rest = 3e-3\nsource = \"test\"\n"
          "[optimizers.adamw]\nlr = 3e-3\nlr_rest = 3e-3\nsource = \"test\"\n",
      "small", "test");
}

inline TrainOptions options_for(const Task& task, const std::string& optimizer,
                                const std::filesystem::path& out) {
  TrainOptions options;
  options.task = task;
  options.optimizer = optimizer;
  options.out = out;
  options.threads = 1;
  options.device = "cpu";
  return options;
}

inline std::vector<Json> of_kind(const std::filesystem::path& out, const std::string& kind) {
  std::vector<Json> lines;
  for (const Json& line : read_json_lines(out / "log.jsonl")) {
    if (line.value("kind", "") == kind) lines.push_back(line);
  }
  return lines;
}

// Everything that does not depend on time.
struct Left {
  std::string weights, log, checkpoint;
  explicit Left(const std::filesystem::path& out)
      : weights(read_file(out / "model.safetensors")),
        log(read_file(out / "log.jsonl")),
        checkpoint(read_file(RunFolder(out).checkpoint(RunFolder(out).checkpoints().back()))) {}
};

inline void expect_same(const Left& a, const Left& b) {
  EXPECT_FALSE(a.weights.empty());
  EXPECT_EQ(a.weights == b.weights, true) << "weights differ";
  EXPECT_EQ(a.log, b.log);
  EXPECT_EQ(a.checkpoint == b.checkpoint, true) << "checkpoints differ";
}

}  // namespace rode::lab
