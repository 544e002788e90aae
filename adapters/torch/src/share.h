// SPDX-License-Identifier: Apache-2.0
// What this process steps of an optimizer's parameters, and how it gets the weights that others
// have stepped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding.h"
#include "rode/share.h"
#include "rode/torch/ranks.h"

namespace rode::torch {

using ParamGroups = std::vector<::torch::optim::OptimizerParamGroup>;
using StateTensors = std::map<std::string, at::Tensor>;

// The names that groups give, or "param.0", ... over all of them.
std::vector<std::string> names_of(const ParamGroups& groups,
                                  const std::vector<const GroupOptions*>& options);
// Shapes, types and options, as the engine plans with them; without addresses.
std::vector<ParameterGroup> planned_groups(const ParamGroups& groups,
                                           const std::vector<const GroupOptions*>& options,
                                           const ParamStates& states);
// The part of a tensor that has the parameter's shape.
at::Tensor part_of(const at::Tensor& tensor, const SharePiece& piece);

class EngineOptimizer::Share {
 public:
  explicit Share(ProcessGroup ranks);

  Ranks& ranks() const { return *ranks_; }
  bool alone() const { return ranks_->size() == 1; }

  // Deals out the parameters. A call of all ranks, which ends well on all of them or on none.
  void make(const ParamGroups& groups, const std::vector<const GroupOptions*>& options,
            OnBadGradient on_non_finite);
  // Reports to the others that this rank has failed, so that they do not wait for it.
  void report(const std::string& error);
  // Whether these are the parameters that were divided, unchanged.
  bool follows(const ParamGroups& groups) const;
  // Throws where the options do not allow the plan any more.
  void check(const ParamGroups& groups, const std::vector<const GroupOptions*>& options) const;

  // What this rank has of a parameter, by its place over all groups; null: nothing.
  const SharePiece* own(std::size_t index) const;

  // ---- Steps ----
  // Of the gradients that a step takes, once there is an engine: only then is it known which of
  // this rank's matrices began at zero, whose rule takes less.
  void set_limits(const ParamGroups& groups, const std::vector<const GroupOptions*>& options,
                  const ParamStates& states);
  // What this rank reports before a step: on all gradients, not only on its own, because a rank
  // whose copy is spoiled must not continue.
  StepReport report_of_gradients() const;
  // Throws where the ranks refuse the step, else the parameters that it leaves out.
  std::vector<std::size_t> agree(const StepReport& report, OnBadGradient on_non_finite);
  // Sends this rank's weights and takes those of the others. Returns the ranks whose step failed.
  std::vector<int> exchange(bool failed);

  // ---- State ----
  // The state of all parameters by their place, on rank 0; elsewhere nothing.
  std::optional<std::map<std::size_t, StateTensors>> collect(const ParamStates& states);
  // This rank's part of a parameter's state; nothing where it has none.
  std::optional<StateTensors> cut(std::size_t index, const StateTensors& whole) const;

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // Whether there is state by this plan. Not a look at this rank's: it may own nothing.
  bool begun = false;

 private:
  struct Form {
    Shape shape;
    at::ScalarType type;
    bool contiguous;
    c10::Device device;
    bool operator==(const Form&) const = default;
  };
  static Form form_of(const at::Tensor& tensor);
  ShareFacts deal(const ParamGroups& groups, const std::vector<const GroupOptions*>& options,
                  OnBadGradient on_non_finite);
  StateTensors joined(std::size_t index, const std::vector<const SharePiece*>& pieces,
                      const std::vector<StateTensors>& parts) const;

  ProcessGroup ranks_;
  std::vector<at::Tensor> parameters_;  // of all groups, on every rank the same
  std::vector<std::string> names_;
  std::vector<Form> forms_;
  SharePlan plan_;
  std::map<std::size_t, const SharePiece*> own_;
};

}  // namespace rode::torch
