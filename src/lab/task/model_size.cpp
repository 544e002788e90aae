// SPDX-License-Identifier: Apache-2.0
// Parameters of each kind of model by its shape, and the memory they take.
#include "lab/task/model_size.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "rode/error.h"

namespace rode::lab {
namespace {

struct Stage {
  std::int64_t blocks, width;
};

// Convolutions without biases, each with a BatchNorm of two numbers per channel.
std::int64_t convolution(std::int64_t in, std::int64_t out, std::int64_t size) {
  return in * out * size * size + 2 * out;
}

// The layout of src/lab/models/resnet.cpp.
std::int64_t resnet_parameters(const ModelSpec& model) {
  const bool large = model.kind == "resnet50";
  const std::int64_t n = model.layers;
  const std::int64_t w = model.width;
  const std::vector<Stage> stages =
      large ? std::vector<Stage>{{3, 64}, {4, 128}, {6, 256}, {3, 512}}
            : std::vector<Stage>{{(n + 2) / 3, w}, {(n + 1) / 3, 2 * w}, {n / 3, 4 * w}};
  std::int64_t in = stages.front().width;
  std::int64_t sum = convolution(3, in, large ? 7 : 3);
  bool first_stage = true;
  for (const Stage& stage : stages) {
    const std::int64_t out = stage.width * (large ? 4 : 1);
    for (std::int64_t i = 0; i < stage.blocks; ++i) {
      sum += convolution(in, stage.width, large ? 1 : 3) +
             convolution(stage.width, out, large ? 1 : 3);
      if (large) sum += convolution(stage.width, stage.width, 3);
      if (i == 0 && (in != out || !first_stage)) sum += convolution(in, out, 1);
      in = out;
    }
    first_stage = false;
  }
  return sum + in * model.classes + model.classes;
}

std::int64_t decoder_parameters(const ModelSpec& model) {
  const std::int64_t w = model.width;
  const std::int64_t tables = model.vocab_size * w * (model.tied ? 1 : 2);
  if (model.kind == "gpt2") {
    const std::int64_t attention = 4 * w * w + 4 * w;
    const std::int64_t mlp = 2 * w * model.mlp_width + model.mlp_width + w;
    return tables + model.positions * w + model.layers * (attention + mlp + 4 * w) + 2 * w;
  }
  const std::int64_t keys = w / model.heads * model.kv_heads;
  const std::int64_t attention = 2 * w * w + 2 * w * keys + w + 2 * keys;
  return tables + model.layers * (attention + 3 * w * model.mlp_width + 2 * w) + w;
}

}  // namespace

std::int64_t parameter_count(const ModelSpec& model) {
  return model.vocab_size > 0 ? decoder_parameters(model) : resnet_parameters(model);
}

std::int64_t least_training_bytes(const Task& task, bool on_cpu) {
  constexpr std::int64_t kDrawn = 4;
  const std::int64_t stored = task.train.parameters == "bf16" ? 2 : 4;
  return parameter_count(task.model) * (on_cpu ? std::max(kDrawn, 2 * stored) : kDrawn);
}

std::int64_t machine_bytes() {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) bytes = std::int64_t{pages} * page;
  // "max" where there is no limit, which does not read as a number.
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::int64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

void require_memory(const Task& task, bool on_cpu, std::int64_t available) {
  const std::int64_t needed = least_training_bytes(task, on_cpu);
  if (needed <= available) return;
  constexpr double kGigabyte = 1e9;
  throw Error(
      ErrorKind::invalid_argument, "task",
      fmt::format("task '{}' has a model of {} parameters, which needs at least {:.1f} GB "
                  "of memory for {}; this machine has {:.1f} GB; choose a smaller model",
                  task.name, parameter_count(task.model), static_cast<double>(needed) / kGigabyte,
                  on_cpu ? "weights and gradients" : "weights on the host",
                  static_cast<double>(available) / kGigabyte));
}

}  // namespace rode::lab
