// SPDX-License-Identifier: Apache-2.0
// One engine on the memory of torch tensors: builds it, follows the tensors, steps.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "rode/share.h"
#include "rode/torch/optimizer.h"

namespace rode::torch {

using ParamStates = ska::flat_hash_map<void*, std::unique_ptr<::torch::optim::OptimizerParamState>>;

class EngineOptimizer::Binding {
 public:
  // What an optimizer asks of its engine besides the groups' options.
  struct EngineSettings {
    OnBadGradient on_non_finite = OnBadGradient::refuse;
    bool batched = true;
    std::size_t history = 0;
    const Share* share = nullptr;  // of several processes: what this one steps
  };

  // Takes state tensors from `states`, and adds those that are missing. `options`: one per group.
  // Throws, and then `states` is as it was.
  Binding(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
          const std::vector<const GroupOptions*>& options, ParamStates& states,
          std::int64_t steps_done, const EngineSettings& engine_options);

  // Binds the weights as they lie now. False: parameters or state differ from those at the start.
  bool follow(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
              const ParamStates& states);
  // On torch's current stream from here on.
  void follow_stream();
  // `left`: parameters that it leaves alone, by their place over all groups.
  void step(double multiplier, const std::vector<std::size_t>& left = {});

  rode::Optimizer& engine() { return *engine_; }
  // A graph that was captured around step() replays on this engine's memory.
  bool captured() const { return captured_; }

 private:
  // What only torch knows of a parameter; the rest is engine().parameters()[index].
  struct FollowedTensor {
    std::string name;
    at::Tensor parameter;
    std::optional<SharePiece> part;  // where this process steps a part of it
    at::Tensor copy;                 // of a weight that is not contiguous: stepped instead of it
    bool resumed = false;            // had state before: all of it must be there
    std::vector<at::Tensor> state;   // in the order of its keys; keeps the memory alive

    at::Tensor value() const;  // what is stepped
  };
  class States;

  static constexpr std::size_t kNotHere = static_cast<std::size_t>(-1);

  void add_followed(const at::Tensor& parameter, std::string name, const SharePiece* piece);
  void follow_grads(std::vector<at::Tensor>& kept);
  void write_back();  // what torch must see of a step

  c10::Device device_{c10::kCPU};
  std::vector<std::size_t> sizes_;  // parameters per group
  // Of all parameters the place in followed_, or kNotHere: another process steps it.
  std::vector<std::size_t> places_;
  std::vector<FollowedTensor> followed_;
  void* stream_ = nullptr;
  bool captured_ = false;
  std::unique_ptr<rode::Optimizer> engine_;
};

}  // namespace rode::torch
