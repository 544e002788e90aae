// SPDX-License-Identifier: Apache-2.0
// The contract: when the engine is built, and what it receives.
#include "rode/torch/optimizer.h"

#include <typeinfo>
#include <utility>

#include "binding.h"
#include "rode/error.h"
#include "share.h"

namespace rode::torch {
namespace {

using ::torch::optim::OptimizerParamGroup;

// Newer torch (2.13) merges a group's options with the defaults for its own optimizers, and so
// loses those of all others.
void restore_options(OptimizerParamGroup& added, const OptimizerParamGroup& given) {
  if (given.has_options()) added.set_options(given.options().clone());
}

}  // namespace

EngineOptimizer::EngineOptimizer(const std::vector<OptimizerParamGroup>& groups,
                                 std::unique_ptr<::torch::optim::OptimizerOptions> defaults,
                                 ProcessGroup process_group)
    : Optimizer(groups, std::move(defaults)) {
  if (process_group) share_ = std::make_unique<Share>(std::move(process_group));
  try {
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      restore_options(param_groups_[g], groups[g]);
      adopted(g);
    }
  } catch (const Error& error) {
    if (share_) share_->report(error.what());
    throw;
  }
  if (share_) deal();
}
EngineOptimizer::~EngineOptimizer() = default;
EngineOptimizer::EngineOptimizer(EngineOptimizer&&) noexcept = default;

std::unique_ptr<EngineOptimizer> make_optimizer(const ::torch::nn::Module& module,
                                                const Method& method, GroupSettings settings,
                                                const std::vector<Override>& overrides,
                                                ProcessGroup process_group) {
  std::unique_ptr<EngineOptimizer> made;
  any_optimizer([&]<class E>() {
    const E* options = method.get_if<E>();
    if (options == nullptr) return false;
    made = std::make_unique<OptimizerOf<E>>(module, Options<E>(*options, std::move(settings)),
                                            overrides, std::move(process_group));
    return true;
  });
  return made;  // the list has every method's struct
}

// ---- Groups -----------------------------------------------------------------------------------

GroupOptions& EngineOptimizer::adopted(std::size_t group) {
  ::torch::optim::OptimizerOptions& options = param_groups_[group].options();
  auto* own = dynamic_cast<GroupOptions*>(&options);
  if (own == nullptr || typeid(options) != typeid(*defaults_)) {
    throw Error(ErrorKind::invalid_argument, "groups",
                "options of group " + std::to_string(group) +
                    " belong to another optimizer; expected this optimizer's, such as "
                    "rode::torch::RODEOptions for rode::torch::RODE");
  }
  if (!own->initial_lr) own->adopt();
  const std::size_t members = param_groups_[group].params().size();
  if (!own->names.empty() && own->names.size() != members) {
    throw Error(ErrorKind::invalid_argument, "groups",
                "group " + std::to_string(group) + " has " + std::to_string(members) +
                    " parameters and " + std::to_string(own->names.size()) +
                    " names; expected one each, or no names");
  }
  return *own;
}

void EngineOptimizer::add_param_group(const OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  try {
    restore_options(param_groups_.back(), group);
    adopted(param_groups_.size() - 1);
  } catch (...) {
    param_groups_.pop_back();
    throw;
  }
}

// ---- Steps ------------------------------------------------------------------------------------

void EngineOptimizer::drop() {
  steps_ = steps_done();
  if (binding_ != nullptr && binding_->captured()) kept_.push_back(std::move(binding_));
  binding_.reset();
}

void EngineOptimizer::set_on_non_finite(OnBadGradient policy) {
  if (policy == on_non_finite_) return;
  drop();
  on_non_finite_ = policy;
}

void EngineOptimizer::set_batched(bool batched) {
  if (batched == batched_) return;
  drop();
  batched_ = batched;
}

void EngineOptimizer::keep_history(std::size_t steps) {
  if (binding_ != nullptr) binding_->engine().keep_history(steps);
  history_ = steps;
}

std::vector<StepDiagnostics> EngineOptimizer::take_history() {
  if (binding_ == nullptr) return {};
  binding_->follow_stream();
  return binding_->engine().take_history();
}

std::vector<const GroupOptions*> EngineOptimizer::adopted_options() {
  std::vector<const GroupOptions*> options;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) options.push_back(&adopted(g));
  return options;
}

void EngineOptimizer::bind() {
  if (share_ && !share_->follows(param_groups_)) deal();
  bind_engine();
}

void EngineOptimizer::bind_engine() {
  const std::vector<const GroupOptions*> options = adopted_options();
  bool follows = binding_ != nullptr && binding_->follow(param_groups_, state_);
  for (std::size_t g = 0; follows && g < options.size(); ++g) {
    follows = options[g]->send(binding_->engine(), g);
  }
  if (follows) {
    binding_->follow_stream();
    return;
  }
  if (share_) share_->check(param_groups_, options);
  drop();
  binding_ = std::make_unique<Binding>(
      param_groups_, options, state_, steps_,
      Binding::EngineSettings{on_non_finite_, batched_, history_, share_.get()});
  if (share_) share_->set_limits(param_groups_, options, state_);
}

at::Tensor EngineOptimizer::step(LossClosure closure) { return step(1.0, closure); }

at::Tensor EngineOptimizer::step(double multiplier, const LossClosure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  if (share_) {
    step_shared(multiplier);
  } else {
    bind();
    binding_->step(multiplier);
  }
  return loss;
}

const rode::Optimizer& EngineOptimizer::engine() const {
  if (binding_ == nullptr) {
    throw Error(ErrorKind::invalid_argument, "engine",
                "the engine does not exist before the first step; call step() or bind() first");
  }
  return binding_->engine();
}

rode::Optimizer& EngineOptimizer::engine() {
  return const_cast<rode::Optimizer&>(std::as_const(*this).engine());
}

void EngineOptimizer::check() {
  if (binding_ == nullptr) return;
  binding_->follow_stream();
  binding_->engine().check();
}

std::int64_t EngineOptimizer::steps_done() const {
  if (binding_ == nullptr) return steps_;
  binding_->follow_stream();
  return binding_->engine().steps_done();
}

// ---- State ------------------------------------------------------------------------------------

at::Tensor EngineOptimizer::state_tensor(const at::Tensor& parameter, std::string_view key) const {
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  if (found == state_.end()) return {};
  const auto* state = dynamic_cast<const ParamState*>(found->second.get());
  if (state == nullptr) return {};
  const auto entry = state->tensors.find(std::string(key));
  return entry == state->tensors.end() ? at::Tensor() : entry->second;
}

}  // namespace rode::torch
