// SPDX-License-Identifier: Apache-2.0
// What an archive holds, of one process or of several that share an optimizer.
#include <utility>

#include <torch/serialize/archive.h>

#include "archive_checksum.h"
#include "binding.h"
#include "rode/error.h"
#include "share.h"

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
    throw mismatch("the archive has no '" + key +
                   "': it was not saved by an optimizer of rode::torch");
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
                    "', as recorded in it; it was damaged: restore it from a copy");
  }
}

const GroupOptions& options_of(const OptimizerParamGroup& group) {
  return dynamic_cast<const GroupOptions&>(group.options());
}

std::string name_of(const GroupOptions& options, std::size_t member, std::size_t index) {
  return member < options.names.size() ? options.names[member] : "param." + std::to_string(index);
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

// Parameters by their place: what LibTorch keys by, the address, means nothing in another process.
void EngineOptimizer::save(OutputArchive& archive) const {
  if (share_ && !share_->alone()) {
    throw Error(ErrorKind::unsupported, "save",
                "this process holds a share of the state; call save_consolidated() on every "
                "process, which fills the archive of rank 0");
  }
  write_archive(archive, state_);
}

void EngineOptimizer::write_archive(OutputArchive& archive, const ParamStates& states) const {
  std::vector<const GroupOptions*> views;
  std::vector<std::map<std::string, std::string>> values;
  for (const OptimizerParamGroup& group : param_groups_) {
    views.push_back(&options_of(group));
    values.push_back(given_options(views.back()->method()));
  }
  archive.write("checksum",
                c10::IValue(archive_checksum(steps_done(), param_groups_, views, values, states)));
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
      const auto found = states.find(params[i].unsafeGetTensorImpl());
      if (found == states.end()) {
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
  const bool begun = !states.empty();
  if (share_) {
    if (!share_->follows(param_groups_)) deal();
    share_->check(param_groups_, views);
    std::size_t place = 0;
    for (const OptimizerParamGroup& group : param_groups_) {
      for (const at::Tensor& parameter : group.params()) {
        const std::size_t at = place++;
        const auto found = states.find(parameter.unsafeGetTensorImpl());
        if (found == states.end()) continue;
        auto& state = static_cast<ParamState&>(*found->second);
        if (auto own = share_->cut(at, state.tensors)) {
          state.tensors = std::move(*own);
        } else {
          states.erase(found);
        }
      }
    }
  }
  auto binding = std::make_unique<Binding>(
      param_groups_, views, states, steps,
      Binding::EngineSettings{on_non_finite_, batched_, history_, share_.get()});
  if (share_) {
    share_->begun = begun;
    share_->set_limits(param_groups_, views, states);
  }
  drop();
  binding_ = std::move(binding);
  state_ = std::move(states);
  for (std::size_t g = 0; g < views.size(); ++g) adopted(g).assign(*views[g]);
  steps_ = steps;
}

}  // namespace rode::torch
