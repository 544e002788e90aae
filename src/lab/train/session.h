// SPDX-License-Identifier: Apache-2.0
// What a training loop does with Torch: one step, one evaluation, norms. No files here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "lab/models/model.h"
#include "lab/run/batches.h"
#include "lab/run/plan.h"
#include "lab/train/average.h"
#include "lab/train/gradient_buckets.h"
#include "lab/train/ranks.h"
#include "rode/torch/optimizer.h"

namespace rode::lab {

struct Measured {
  double loss = 0;
  std::optional<double> accuracy = {};  // images
};

// The same where the device has it, perhaps not yet: loss, and for images how many were right.
struct Unread {
  at::Tensor values;
  std::int64_t rows = 0;
};

struct WeightNorms {
  double all = 0;                                        // over every trained parameter
  std::vector<std::pair<std::string, double>> matrices;  // those of the matrix rule
};

// "auto", "cpu" or "cuda", each rank of a machine has its own; throws if there is none.
c10::Device choose_device(const std::string& name, int local_rank = 0);

// Seeds torch's generators, makes the model on the device and the optimizer over it. On several
// ranks every call except norms, parameters and what it is made of is one of all ranks.
class Session {
 public:
  Session(const TrainOptions& options, const Method& method, RunRanks ranks = {});

  // On several ranks each draws its own random numbers, by seed, step and rank: a run that is
  // resumed draws them again.
  void begin_step(std::int64_t step);
  // Weights and statistics as on rank 0.
  void synchronize_ranks();

  using Stop = std::function<bool()>;
  using Done = std::function<void(std::int64_t samples)>;

  // Gradients of a batch, in the task's number of parts, and the loss: nothing has moved yet. On
  // several ranks each takes its rows; gradients are those of the whole batch, the loss is added up
  // by read(). Nothing where `stop` said so between two parts: generators and statistics are then
  // as before.
  std::optional<Unread> gradients(const Batch& batch, const Stop& stop);
  // Waits for the device, once for all.
  std::vector<Measured> read(const std::vector<Unread>& unread) const;
  // All rates times `multiplier`. Enqueued only, on a GPU: what it refuses comes from check().
  void step(double multiplier);
  void set_momentum(double momentum);  // of the matrix rule, from the next step on
  void check();
  void clear_gradients() { optimizer_->zero_grad(); }
  void synchronize() const;  // waits for all that the device has to do
  // Over the validation samples, whose parts the ranks take in turn; nothing where `stop` said so.
  // `done`: after each part.
  std::optional<Measured> evaluate(BatchSource& batches, const Stop& stop, const Done& done);

  WeightNorms norms();
  std::vector<std::string> parameter_names();
  std::int64_t parameters();
  // On a GPU Torch's tensors and the engine's workspace; on the CPU the whole process.
  std::int64_t peak_bytes() const;
  // Torch's tensors alone, as torch.cuda.max_memory_allocated counts; nothing on the CPU.
  std::optional<std::int64_t> torch_peak_bytes() const;
  Model& model() { return *model_; }
  WeightAverage& average() { return average_; }
  rode::torch::EngineOptimizer& optimizer() { return *optimizer_; }
  c10::Device device() const { return device_; }
  int threads() const;

 private:
  struct Part {
    at::Tensor loss;
    at::Tensor hits;  // images classified rightly; undefined for language
  };
  Part forward(const Batch& batch, std::int64_t from, std::int64_t rows);
  at::Tensor nothing() const;  // the values of no rows
  void seed_generators(std::uint64_t seed) const;
  void clip();

  Task task_;
  std::uint64_t seed_;
  RunRanks ranks_;
  c10::Device device_;
  std::unique_ptr<Model> model_;
  WeightAverage average_;
  std::unique_ptr<rode::torch::EngineOptimizer> optimizer_;
  std::optional<GradientBuckets> buckets_;  // several ranks
};

}  // namespace rode::lab
