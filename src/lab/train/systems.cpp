// SPDX-License-Identifier: Apache-2.0
// Times iterations of a session between waits for the device.
#include "lab/train/systems.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <c10/core/CachingDeviceAllocator.h>
#include <nlohmann/json.hpp>

#include "lab/train/environment.h"
#include "lab/train/session.h"
#include "lab/train/torch_messages.h"
#include "rode/optimizer.h"

namespace rode::lab {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Batch random_batch(const Task& task) {
  std::mt19937_64 random(1);  // NOLINT: the same data in every run is the point
  Batch batch;
  batch.rows = task.train.batch;
  const auto rows = static_cast<std::size_t>(batch.rows);
  if (task.is_language()) {
    batch.tokens.resize(rows * static_cast<std::size_t>(task.data.sequence + 1));
    std::uniform_int_distribution<std::int64_t> token(0, task.model.vocab_size - 1);
    for (std::int64_t& value : batch.tokens) value = token(random);
    return batch;
  }
  const auto side = static_cast<std::size_t>(task.data.image_size);
  batch.pixels.resize(rows * 3 * side * side);
  std::normal_distribution<float> pixel;
  for (float& value : batch.pixels) value = pixel(random);
  std::uniform_int_distribution<std::int64_t> label(0, task.model.classes - 1);
  batch.labels.resize(rows);
  for (std::int64_t& value : batch.labels) value = label(random);
  return batch;
}

TrainOptions session_options(const Task& task, const SystemsOptions& options) {
  TrainOptions out;
  out.task = task;
  out.device = options.device;
  out.threads = options.threads;
  return out;
}

void measure_run(const SystemsCase& what, const SystemsOptions& options, const Batch& batch,
                 SystemsResult& result) {
  Session session(session_options(what.task, options),
                  Method::by_name(what.optimizer.optimizer, what.optimizer.settings));
  session.optimizer().set_batched(what.batched);
  if (session.device().is_cuda()) {
    c10::getDeviceAllocator(session.device().type())->resetPeakStats(session.device().index());
  }
  std::vector<double> steps;
  std::vector<double> optimizer;
  for (int i = 0; i < options.warmup + options.steps; ++i) {
    session.synchronize();
    const Clock::time_point begin = Clock::now();
    (void)session.gradients(batch, {});
    session.synchronize();
    const Clock::time_point middle = Clock::now();
    session.step(1);
    session.clear_gradients();
    session.synchronize();
    const Clock::time_point end = Clock::now();
    if (i < options.warmup) continue;
    steps.push_back(milliseconds(begin, end));
    optimizer.push_back(milliseconds(middle, end));
  }
  session.check();
  result.step_ms_of_runs.push_back(median(std::move(steps)));
  result.optimizer_ms_of_runs.push_back(median(std::move(optimizer)));
  result.parameters = session.parameters();
  const rode::Optimizer& engine = session.optimizer().engine();
  result.state_bytes = static_cast<std::int64_t>(engine.state_bytes());
  result.workspace_bytes = static_cast<std::int64_t>(engine.workspace_bytes());
  if (const auto peak = session.torch_peak_bytes()) {
    result.torch_peak_bytes = std::max(result.torch_peak_bytes.value_or(0), *peak);
  }
}

}  // namespace

SystemsResult measure_systems(const SystemsCase& what, const SystemsOptions& options) {
  SystemsResult result;
  WarningNotes ignored([](const std::string&) {});
  with_torch_messages(ignored, [&] {
    const Batch batch = random_batch(what.task);
    for (int run = 0; run < options.runs; ++run) measure_run(what, options, batch, result);
  });
  result.step_ms = median(result.step_ms_of_runs);
  result.optimizer_ms = median(result.optimizer_ms_of_runs);
  return result;
}

nlohmann::ordered_json systems_environment(const SystemsOptions& options) {
  return describe_environment(choose_device(options.device));
}

}  // namespace rode::lab
