// SPDX-License-Identifier: Apache-2.0
// LibTorch's optimizer contract over the engine: groups, steps, state, archives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "rode/optimizer.h"
#include "rode/safetensors.h"
#include "rode/torch/options.h"
#include "rode/torch/ranks.h"
#include "rode/torch/routing.h"

namespace rode::torch {

// State of one parameter: the tensors that the engine updates, by the engine's keys.
class ParamState final : public ::torch::optim::OptimizerCloneableParamState<ParamState> {
 public:
  std::map<std::string, at::Tensor> tensors;

  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
};

// An optimizer that runs the engine on torch's memory: parameters, gradients and state stay
// tensors, and nothing is copied. The engine is built at the first step, and again if parameters,
// devices, types or fixed options have changed; state is kept. Throws
// rode::Error; a call that throws has changed nothing, except where Error::changed() says so:
// a step that left weights which are not finite (rode/optimizer.h).
//
// With a process group (rode/torch/process_group.h, rode/torch/ranks.h) every process has all
// weights and gradients, steps its share and keeps state for that alone; the weights are gathered
// after each step. Making the optimizer, step, save_consolidated and whole_state are then calls of
// all processes, and so is the step or bind after a group was added. All processes make a step, or
// none: docs/distributed.md.
class EngineOptimizer : public ::torch::optim::Optimizer {
 public:
  ~EngineOptimizer() override;
  EngineOptimizer(EngineOptimizer&&) noexcept;

  // One step. `closure`, where given, computes the loss and the gradients first. Parameters
  // without a gradient are left alone. CUDA: on torch's current stream, enqueued and not waited
  // for; what the device refuses comes from check().
  at::Tensor step(LossClosure closure = nullptr) override;
  // The same with lr, lr_rho and lr_rest of every group times `multiplier` (rode/schedule.h):
  // options and archives keep the rates as they were set.
  at::Tensor step(double multiplier, const LossClosure& closure = nullptr);

  // A gradient that holds NaN or Inf refuses the step (at first), or skips its parameter. From
  // the next step on; no part of an archive.
  void set_on_non_finite(OnBadGradient policy);
  // rode::EngineOptions::batched; false is for measurements. From the next step on; no part of an
  // archive.
  void set_batched(bool batched);

  // rode::Optimizer::keep_history, also of an engine that is built later, which keeps its own; no
  // part of an archive. take_history() waits for the device.
  void keep_history(std::size_t steps);
  std::vector<StepDiagnostics> take_history();

  // As torch's, and checks the options at once. Called through a reference to torch's class,
  // some versions of torch (2.13) give the group the defaults instead of its options.
  void add_param_group(const ::torch::optim::OptimizerParamGroup& group);

  // Options, state and step count. All or nothing; the optimizer must be of the same kind, over
  // parameters of the same names and shapes.
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;
  // The same archive where several processes share the state, for save() refuses there: on rank 0,
  // true; elsewhere nothing is written, false. It loads on any number of processes.
  bool save_consolidated(::torch::serialize::OutputArchive& archive);
  // The state of all parameters under the engine's names ("state.<parameter>.<key>"), on the host:
  // on rank 0, elsewhere empty. Of a file that has it, load_state() takes this process's share.
  std::vector<std::pair<std::string, at::Tensor>> whole_state();
  void load_state(const SafetensorsFile& file);

  // A state tensor ("momentum", ...), undefined where there is none: before the first step.
  at::Tensor state_tensor(const at::Tensor& parameter, std::string_view key) const;

  // Steps performed; waits for the device.
  std::int64_t steps_done() const;
  // Throws the error of a step that was refused since the last check, or whose result is not
  // finite (rode/optimizer.h); waits for the device. On the CPU step() itself has thrown it.
  void check();

  // What a step begins with: the engine on the options, tensors and stream as they are now, built
  // where there is none yet. For its state and routing table before the first step.
  void bind();
  // The engine as of the last step, bind() or load(), for diagnostics and routing_table(); valid
  // until the next of them, and throws before the first. Its options and tensors are this
  // optimizer's business.
  rode::Optimizer& engine();
  const rode::Optimizer& engine() const;

 protected:
  EngineOptimizer(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                  std::unique_ptr<::torch::optim::OptimizerOptions> defaults,
                  ProcessGroup process_group = {});

 private:
  class Binding;
  class Share;

  GroupOptions& adopted(std::size_t group);
  std::vector<const GroupOptions*> adopted_options();
  void deal();
  void bind_engine();
  void step_shared(double multiplier);
  void drop();
  void write_archive(
      ::torch::serialize::OutputArchive& archive,
      const ska::flat_hash_map<void*, std::unique_ptr<::torch::optim::OptimizerParamState>>& states)
      const;

  std::unique_ptr<Share> share_;  // null: one process
  std::unique_ptr<Binding> binding_;
  std::vector<std::unique_ptr<Binding>> kept_;  // graphs may still replay their steps
  std::int64_t steps_ = 0;                      // of earlier engines
  OnBadGradient on_non_finite_ = OnBadGradient::refuse;
  bool batched_ = true;
  std::size_t history_ = 0;
};

// `EngineOptions`: a struct of rode/optim/.
template <class EngineOptions>
class OptimizerOf final : public EngineOptimizer {
 public:
  using OptionsType = Options<EngineOptions>;

  // Matrices by the optimizer's rule, what is not a matrix by the rest's: two groups of their own
  // rates. Module types decide (routing.h); `defaults.route` and `overrides` choose.
  explicit OptimizerOf(const ::torch::nn::Module& module, OptionsType defaults = {},
                       const std::vector<Override>& overrides = {}, ProcessGroup process_group = {})
      : EngineOptimizer(rode::torch::param_groups(module, defaults, overrides),
                        std::make_unique<OptionsType>(defaults), std::move(process_group)) {}
  explicit OptimizerOf(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                       OptionsType defaults = {}, ProcessGroup process_group = {})
      : EngineOptimizer(groups, std::make_unique<OptionsType>(std::move(defaults)),
                        std::move(process_group)) {}
  explicit OptimizerOf(std::vector<at::Tensor> parameters, OptionsType defaults = {},
                       ProcessGroup process_group = {})
      : OptimizerOf(std::vector{::torch::optim::OptimizerParamGroup(std::move(parameters))},
                    std::move(defaults), std::move(process_group)) {}

  // Of a group, to be changed at any time.
  OptionsType& options(std::size_t group = 0) {
    return static_cast<OptionsType&>(this->param_groups().at(group).options());
  }
};

// The optimizer of a method that is known only at run time, such as Method::by_name's.
std::unique_ptr<EngineOptimizer> make_optimizer(const ::torch::nn::Module& module,
                                                const Method& method, GroupSettings settings = {},
                                                const std::vector<Override>& overrides = {},
                                                ProcessGroup process_group = {});

}  // namespace rode::torch
