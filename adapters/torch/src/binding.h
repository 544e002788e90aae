// SPDX-License-Identifier: Apache-2.0
// One engine on the memory of torch tensors: builds it, follows the tensors, steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "rode/torch/optimizer.h"

namespace rode::torch {

using ParamStates = ska::flat_hash_map<void*, std::unique_ptr<::torch::optim::OptimizerParamState>>;

// What an optimizer asks of its engine besides the groups' options.
struct BindingOptions {
  OnBadGradient on_non_finite = OnBadGradient::refuse;
  bool batched = true;
};

class EngineOptimizer::Binding {
 public:
  // Takes state tensors from `states`, and adds those that are missing. `options`: one per group.
  // Throws, and then `states` is as it was.
  Binding(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
          const std::vector<const GroupOptions*>& options, ParamStates& states,
          std::int64_t steps_done, const BindingOptions& engine_options);

  // Binds the weights as they lie now. False: parameters or state differ from those at the start.
  bool follow(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
              const ParamStates& states);
  // On torch's current stream from here on.
  void follow_stream();
  void step(double multiplier);

  rode::Optimizer& engine() { return *engine_; }
  // A graph that was captured around step() replays on this engine's memory.
  bool captured() const { return captured_; }

 private:
  // What only torch knows of a parameter; the rest is engine().parameters()[index].
  struct Slot {
    std::string name;
    at::Tensor parameter;
    at::Tensor copy;                // of a weight that is not contiguous: stepped instead of it
    bool resumed = false;           // had state before: all of it must be there
    std::vector<at::Tensor> state;  // in the order of its keys; keeps the memory alive
  };
  class States;

  void add_slot(const at::Tensor& parameter, std::string name);
  void follow_grads(std::vector<at::Tensor>& kept);
  void write_back();  // what torch must see of a step

  c10::Device device_{c10::kCPU};
  std::vector<std::size_t> sizes_;  // parameters per group
  std::vector<Slot> slots_;
  void* stream_ = nullptr;
  bool captured_ = false;
  std::unique_ptr<rode::Optimizer> engine_;
};

}  // namespace rode::torch
