// SPDX-License-Identifier: Apache-2.0
// The contract: when the engine is built, what it receives, what an archive holds.
#include "rode/torch/optimizer.h"

#include <typeinfo>
#include <utility>

#include <torch/serialize/archive.h>

#include "archive_checksum.h"
#include "binding.h"
#include "rode/error.h"
#include "tensors.h"

namespace rode::torch {
namespace {

using ::torch::optim::OptimizerParamGroup;
using ::torch::serialize::InputArchive;
using ::torch::serialize::OutputArchive;
using Tensors = c10::Dict<std::string, at::Tensor>;

Error mismatch(const std::string& message) {
  return Error(ErrorKind::state_mismatch, "load",
               message + "; load it into an optimizer over the parameters that saved it");
}

template <class Value>
void read(InputArchive& archive, const std::string& key, Value& value) {
  if (!archive.try_read(key, value)) {
    throw mismatch("the archive has no '" + key + "': no optimizer of rode::torch saved it");
  }
}

std::int64_t read_count(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  read(archive, key, value);
  if (!value.isInt() || value.toInt() < 0)
    throw mismatch("the archive's '" + key + "' is not a count");
  return value.toInt();
}

// What was read must be what was written; archives of older versions have no checksum.
void verify(InputArchive& archive, const std::string& expected) {
  c10::IValue found;
  if (!archive.try_read("checksum", found)) {
    TORCH_WARN("the archive has no checksum; damage to it would not be noticed");
  } else if (!found.isString() || found.toStringRef() != expected) {
    throw Error(ErrorKind::file, "load",
                "the archive's contents give checksum '" + expected + "'; expected '" +
                    (found.isString() ? found.toStringRef() : std::string()) +
                    "', which it carries; it was damaged: restore it from a copy");
  }
}

const GroupOptions& options_of(const OptimizerParamGroup& group) {
  return dynamic_cast<const GroupOptions&>(group.options());
}

std::string name_of(const GroupOptions& options, std::size_t member, std::size_t index) {
  return member < options.names.size() ? options.names[member] : "param." + std::to_string(index);
}

// Newer torch (2.13) merges a group's options with the defaults for its own optimizers, and so
// loses those of all others.
void restore_options(OptimizerParamGroup& added, const OptimizerParamGroup& given) {
  if (given.has_options()) added.set_options(given.options().clone());
}

}  // namespace

void ParamState::serialize(OutputArchive& archive) const {
  Tensors out;
  for (const auto& [key, tensor] : tensors) out.insert(key, tensor);
  archive.write("tensors", c10::IValue(out));
}

void ParamState::serialize(InputArchive& archive) {
  c10::IValue value;
  read(archive, "tensors", value);
  tensors.clear();
  for (const auto& entry : value.toGenericDict()) {
    tensors.emplace(entry.key().toStringRef(), entry.value().toTensor());
  }
}

EngineOptimizer::EngineOptimizer(const std::vector<OptimizerParamGroup>& groups,
                                 std::unique_ptr<::torch::optim::OptimizerOptions> defaults)
    : Optimizer(groups, std::move(defaults)) {
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    restore_options(param_groups_[g], groups[g]);
    adopted(g);
  }
}
EngineOptimizer::~EngineOptimizer() = default;
EngineOptimizer::EngineOptimizer(EngineOptimizer&&) noexcept = default;

std::unique_ptr<EngineOptimizer> make_optimizer(const ::torch::nn::Module& module,
                                                const Method& method, GroupSettings settings,
                                                const std::vector<Override>& overrides) {
  std::unique_ptr<EngineOptimizer> made;
  any_optimizer([&]<class E>() {
    const E* options = method.get_if<E>();
    if (options == nullptr) return false;
    made = std::make_unique<OptimizerOf<E>>(module, Options<E>(*options, std::move(settings)),
                                            overrides);
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
                    " are another optimizer's; expected those of this one, such as "
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

void EngineOptimizer::bind() {
  std::vector<const GroupOptions*> options;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) options.push_back(&adopted(g));
  bool follows = binding_ != nullptr && binding_->follow(param_groups_, state_);
  for (std::size_t g = 0; follows && g < options.size(); ++g) {
    follows = options[g]->send(binding_->engine(), g);
  }
  if (follows) {
    binding_->follow_stream();
    return;
  }
  drop();
  binding_ = std::make_unique<Binding>(param_groups_, options, state_, steps_,
                                       BindingOptions{on_non_finite_, batched_});
}

at::Tensor EngineOptimizer::step(LossClosure closure) { return step(1.0, closure); }

at::Tensor EngineOptimizer::step(double multiplier, const LossClosure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  bind();
  binding_->step(multiplier);
  return loss;
}

const rode::Optimizer& EngineOptimizer::engine() const {
  if (binding_ == nullptr) {
    throw Error(ErrorKind::invalid_argument, "engine",
                "there is none before the first step; call step() or bind() first");
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

// Parameters by their place: what LibTorch keys by, the address, means nothing in another process.
void EngineOptimizer::save(OutputArchive& archive) const {
  std::vector<const GroupOptions*> views;
  std::vector<std::map<std::string, std::string>> values;
  for (const OptimizerParamGroup& group : param_groups_) {
    views.push_back(&options_of(group));
    values.push_back(given_options(views.back()->method()));
  }
  archive.write("checksum",
                c10::IValue(archive_checksum(steps_done(), param_groups_, views, values, state_)));
  archive.write("steps_done", c10::IValue(steps_done()));
  archive.write("groups", c10::IValue(static_cast<std::int64_t>(param_groups_.size())));
  std::size_t index = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const std::vector<at::Tensor>& params = param_groups_[g].params();
    OutputArchive group(archive.compilation_unit());
    group.write("parameters", c10::IValue(static_cast<std::int64_t>(params.size())));
    OutputArchive options(archive.compilation_unit());
    param_groups_[g].options().serialize(options);
    group.write("options", options);
    for (std::size_t i = 0; i < params.size(); ++i, ++index) {
      OutputArchive parameter(archive.compilation_unit());
      parameter.write("name", c10::IValue(name_of(options_of(param_groups_[g]), i, index)));
      const auto found = state_.find(params[i].unsafeGetTensorImpl());
      if (found == state_.end()) {
        ParamState().serialize(parameter);
      } else {
        found->second->serialize(parameter);
      }
      group.write("parameter" + std::to_string(i), parameter);
    }
    archive.write("group" + std::to_string(g), group);
  }
}

void EngineOptimizer::load(InputArchive& archive) {
  const std::int64_t steps = read_count(archive, "steps_done");
  const std::int64_t groups = read_count(archive, "groups");
  if (groups != static_cast<std::int64_t>(param_groups_.size())) {
    throw mismatch("the archive has " + std::to_string(groups) + " groups, the optimizer " +
                   std::to_string(param_groups_.size()));
  }
  std::vector<std::unique_ptr<::torch::optim::OptimizerOptions>> options;
  std::vector<std::map<std::string, std::string>> values(param_groups_.size());
  ParamStates states;
  std::size_t index = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const std::vector<at::Tensor>& params = param_groups_[g].params();
    InputArchive group;
    read(archive, "group" + std::to_string(g), group);
    const std::int64_t size = read_count(group, "parameters");
    if (size != static_cast<std::int64_t>(params.size())) {
      throw mismatch("group " + std::to_string(g) + " has " + std::to_string(size) +
                     " parameters in the archive, " + std::to_string(params.size()) + " here");
    }
    InputArchive saved;
    read(group, "options", saved);
    options.push_back(param_groups_[g].options().clone());
    options.back()->serialize(saved);
    c10::IValue texts;
    read(saved, "values", texts);
    for (const auto& entry : texts.toGenericDict()) {
      values[g][entry.key().toStringRef()] = entry.value().toStringRef();
    }
    for (std::size_t i = 0; i < params.size(); ++i, ++index) {
      InputArchive parameter;
      read(group, "parameter" + std::to_string(i), parameter);
      c10::IValue name;
      read(parameter, "name", name);
      const std::string own = name_of(options_of(param_groups_[g]), i, index);
      if (name.toStringRef() != own) {
        throw mismatch("parameter " + std::to_string(i) + " of group " + std::to_string(g) +
                       " is '" + name.toStringRef() + "' in the archive, '" + own + "' here");
      }
      auto state = std::make_unique<ParamState>();
      state->serialize(parameter);
      if (!state->tensors.empty()) states[params[i].unsafeGetTensorImpl()] = std::move(state);
    }
  }
  // The engine itself judges whether the state fits; until it has, nothing here has changed.
  std::vector<const GroupOptions*> views;
  for (const auto& own : options) views.push_back(dynamic_cast<const GroupOptions*>(own.get()));
  verify(archive, archive_checksum(steps, param_groups_, views, values, states));
  auto binding = std::make_unique<Binding>(param_groups_, views, states, steps,
                                           BindingOptions{on_non_finite_, batched_});
  drop();
  binding_ = std::move(binding);
  state_ = std::move(states);
  for (std::size_t g = 0; g < views.size(); ++g) adopted(g).assign(*views[g]);
  steps_ = steps;
}

}  // namespace rode::torch
