// SPDX-License-Identifier: Apache-2.0
// Training steps of a task's model on the GPU, on random tokens: time of forward, backward and
// optimizer, tokens per second, as one JSON object.
//
//   bench_lab_step [--task wiki-114m] [--optimizer rode] [--batch N] [--steps 30] [--warmup 10]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <nlohmann/json.hpp>
#include <torch/cuda.h>

#include "adapters/torch/src/cuda_stream.h"
#include "backend/cuda_check.h"
#include "lab/models/autocast.h"
#include "lab/models/model.h"
#include "rode/error.h"
#include "rode/torch/optimizer.h"

namespace {

using namespace rode;
using namespace rode::lab;

struct Options {
  std::string task = "wiki-114m", optimizer = "rode";
  std::int64_t batch = 0;  // 0: what the task has in memory at a time
  std::int64_t steps = 30, warmup = 10;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--task") options.task = value;
    if (key == "--optimizer") options.optimizer = value;
    if (key == "--batch") options.batch = std::stoll(value);
    if (key == "--steps") options.steps = std::stoll(value);
    if (key == "--warmup") options.warmup = std::stoll(value);
  }
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Points in time on torch's stream, by number.
class Marks {
 public:
  explicit Marks(std::size_t count) : events_(count) {
    for (cudaEvent_t& event : events_) rode::cuda::check(cudaEventCreate(&event), "event");
  }
  ~Marks() {
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void set(std::size_t i) {
    const auto stream = static_cast<cudaStream_t>(rode::torch::current_cuda_stream(0));
    rode::cuda::check(cudaEventRecord(events_[i], stream), "event");
  }
  double between(std::size_t from, std::size_t to) const {
    float ms = 0;
    rode::cuda::check(cudaEventElapsedTime(&ms, events_[from], events_[to]), "event");
    return static_cast<double>(ms);
  }

 private:
  std::vector<cudaEvent_t> events_;
};

nlohmann::ordered_json measure(const Options& options) {
  const Task task = load_task(options.task);
  const auto model = make_model(task.model, 1);
  model->module().to(at::kCUDA, task.train.parameters == "bf16" ? at::kBFloat16 : at::kFloat);
  model->set_checkpoint_activations(task.train.checkpoint_activations);
  const OptimizerSpec& spec = task.optimizer(options.optimizer);
  const auto optimizer = rode::torch::make_optimizer(
      model->module(), Method::by_name(spec.optimizer, spec.settings), {.route = task.train.route});
  const std::int64_t batch =
      options.batch > 0 ? options.batch : task.train.batch / task.train.accumulate;
  std::vector<at::Tensor> tokens;
  for (int i = 0; i < 4; ++i) {
    tokens.push_back(at::randint(task.model.vocab_size, {batch, task.data.sequence + 1},
                                 at::TensorOptions().dtype(at::kLong).device(at::kCUDA)));
  }
  const auto steps = static_cast<std::size_t>(options.steps);
  Marks marks(4 * steps);
  std::vector<double> host, whole, forward, backward, update;
  at::Tensor loss;
  for (std::int64_t i = -options.warmup; i < options.steps; ++i) {
    if (i == 0) ::torch::cuda::synchronize();
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t at = i < 0 ? 0 : 4 * static_cast<std::size_t>(i);
    const at::Tensor& data = tokens[static_cast<std::size_t>(i + options.warmup) % tokens.size()];
    marks.set(at);
    optimizer->zero_grad();
    {
      const AutocastScope scope(at::kCUDA, {task.train.precision == "bf16", at::kBFloat16});
      loss =
          model->loss(data.narrow(1, 0, task.data.sequence), data.narrow(1, 1, task.data.sequence));
    }
    marks.set(at + 1);
    loss.backward();
    marks.set(at + 2);
    optimizer->step(1e-3 * static_cast<double>(i + options.warmup + 1));  // as a schedule does
    marks.set(at + 3);
    host.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  ::torch::cuda::synchronize();
  optimizer->check();
  for (std::size_t i = 0; i < steps; ++i) {
    forward.push_back(marks.between(4 * i, 4 * i + 1));
    backward.push_back(marks.between(4 * i + 1, 4 * i + 2));
    update.push_back(marks.between(4 * i + 2, 4 * i + 3));
    if (i > 0) whole.push_back(marks.between(4 * i - 4, 4 * i));
  }
  const double ms = median(whole);
  return {{"task", options.task},
          {"optimizer", options.optimizer},
          {"batch", batch},
          {"sequence", task.data.sequence},
          {"ms", ms},
          {"forward_ms", median(forward)},
          {"backward_ms", median(backward)},
          {"optimizer_ms", median(update)},
          // Before the queue fills: what the host needs to enqueue a step.
          {"host_ms", *std::min_element(host.begin(), host.end())},
          {"tokens_per_second", 1e3 * static_cast<double>(batch * task.data.sequence) / ms},
          {"loss", loss.item<double>()}};
}

}  // namespace

int main(int argc, char** argv) {
  if (!::torch::cuda::is_available()) {
    std::fprintf(stderr, "bench_lab_step: no usable cuda device\n");
    return 77;
  }
  try {
    std::printf("%s\n", measure(parse(argc, argv)).dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_lab_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
