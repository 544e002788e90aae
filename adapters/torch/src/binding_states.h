// SPDX-License-Identifier: Apache-2.0
// The state tensors of one engine, taken from the optimizer's or made. Private to the binding.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "binding.h"
#include "rode/error.h"
#include "rode/stored_state.h"
#include "tensors.h"

namespace rode::torch {

inline Error refuse(ErrorKind kind, std::string_view operation, std::string_view message) {
  return Error(kind, operation, message);
}

inline std::string in_quotes(const std::string& name) { return "'" + name + "'"; }

inline std::string keys_of(const ParamState& state) {
  std::string out;
  for (const auto& [key, tensor] : state.tensors) out += (out.empty() ? "" : ", ") + key;
  return out;
}

// What the state of a matrix shows about its start: the moments of the rest's rule are there where
// it was zero (RodeOptions::on_zero).
inline std::optional<bool> began_at_zero(const ParamStates& states, const at::Tensor& parameter) {
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  if (found == states.end()) return std::nullopt;
  const auto* state = dynamic_cast<const ParamState*>(found->second.get());
  if (state == nullptr || state->tensors.empty()) return std::nullopt;
  return state->tensors.contains("exp_avg");
}

// Answers the engine's requests for state, and undoes its additions if construction fails.
class EngineOptimizer::Binding::States {
 public:
  States(ParamStates& states, std::vector<FollowedTensor>& all,
         const std::vector<PlannedState>& planned)
      : states_(states) {
    for (FollowedTensor& followed : all) {
      by_name_[followed.name] = &followed;
      followed.resumed = states.find(followed.parameter.unsafeGetTensorImpl()) != states.end();
    }
    for (const PlannedState& entry : planned) shapes_[entry.parameter][entry.key] = &entry;
    for (const PlannedState& entry : planned) convert(entry);
  }
  States(const States&) = delete;
  States& operator=(const States&) = delete;
  ~States() {
    if (settled_) return;
    for (const auto& [impl, key] : fresh_) {
      const auto found = states_.find(impl);
      auto& tensors = static_cast<ParamState&>(*found->second).tensors;
      tensors.erase(key);
      if (tensors.empty()) states_.erase(found);
    }
  }

  StateMemory memory(std::string_view parameter, std::string_view key, const Shape& shape,
                     DType dtype) {
    FollowedTensor& followed = *by_name_.at(std::string(parameter));
    void* impl = followed.parameter.unsafeGetTensorImpl();
    auto& entry = states_[impl];
    if (entry == nullptr) entry = std::make_unique<ParamState>();
    auto* state = dynamic_cast<ParamState*>(entry.get());
    if (state == nullptr) {
      throw refuse(ErrorKind::state_mismatch, "state",
                   "parameter " + in_quotes(followed.name) +
                       " has state of another optimizer; expected rode::torch::ParamState");
    }
    const std::string name(key);
    if (const auto made = converted_.find({impl, name}); made != converted_.end()) {
      return {made->second.data_ptr(), true};
    }
    const auto known = state->tensors.find(name);
    if (known != state->tensors.end()) {
      take(followed, name, known->second, shape, dtype);
      return {known->second.data_ptr(), true};
    }
    if (followed.resumed) {
      throw refuse(ErrorKind::state_mismatch, "state",
                   "parameter " + in_quotes(followed.name) + " has state (" + keys_of(*state) +
                       "), but no '" + name + "'; it belongs to another optimizer or " +
                       "other options; clear it, or load what these options saved");
    }
    const at::IntArrayRef sizes(shape.dims().data(), shape.dims().size());
    fresh_.emplace_back(impl, name);
    at::Tensor& tensor = state->tensors[name];
    tensor = at::zeros(sizes,
                       followed.parameter.options().dtype(torch_dtype(dtype)).requires_grad(false));
    return {tensor.data_ptr(), false};
  }

  // Every question was asked: what is there now stays.
  void settle() {
    for (const auto& [place, tensor] : converted_) {
      auto& tensors = static_cast<ParamState&>(*states_.at(place.first)).tensors;
      tensors[place.second] = tensor;
      if (tensor.scalar_type() != at::kChar) tensors.erase(scale_key(place.second));
    }
    for (const auto& [name, followed] : by_name_) {
      const auto found = states_.find(followed->parameter.unsafeGetTensorImpl());
      if (found == states_.end()) continue;
      for (const auto& [key, tensor] : static_cast<const ParamState&>(*found->second).tensors) {
        followed->state.push_back(tensor);
      }
    }
    settled_ = true;
  }

 private:
  // State that `state_dtype` stored differently before, in the storage that it has now.
  void convert(const PlannedState& planned) {
    const at::Tensor& parameter = by_name_.at(planned.parameter)->parameter;
    void* impl = parameter.unsafeGetTensorImpl();
    const auto found = states_.find(impl);
    if (found == states_.end()) return;
    const auto* state = dynamic_cast<const ParamState*>(found->second.get());
    if (state == nullptr) return;
    const auto known = state->tensors.find(planned.key);
    if (known == state->tensors.end()) return;
    const std::optional<DType> saved = engine_dtype(known->second.scalar_type());
    if (!saved || *saved == planned.dtype || !is_stored_state(*saved) ||
        !is_stored_state(planned.dtype)) {
      return;
    }
    const auto host = [](const at::Tensor& tensor) { return tensor.detach().cpu().contiguous(); };
    const auto view_of = [](const at::Tensor& tensor) {
      const DType dtype = engine_dtype(tensor.scalar_type()).value_or(DType::boolean);
      return TensorView{tensor.data_ptr(), shape_of(tensor), dtype};
    };
    const auto make = [](const PlannedState& entry) {
      const at::IntArrayRef sizes(entry.shape.dims().data(), entry.shape.dims().size());
      return at::zeros(sizes, at::TensorOptions().dtype(torch_dtype(entry.dtype)));
    };
    const std::string beside = scale_key(planned.key);
    const at::Tensor values = host(known->second), fresh = make(planned);
    ConstStoredState from{view_of(values), {}};
    StoredState to{view_of(fresh), {}};
    at::Tensor scales, fresh_scales;
    if (const auto given = state->tensors.find(beside); given != state->tensors.end()) {
      scales = host(given->second);
      from.scales = view_of(scales);
    }
    if (const auto own = shapes_.at(planned.parameter).find(beside);
        own != shapes_.at(planned.parameter).end()) {
      fresh_scales = make(*own->second);
      to.scales = view_of(fresh_scales);
    }
    convert_state(planned.parameter + "." + planned.key, from, to);
    converted_[{impl, planned.key}] = fresh.to(parameter.device());
    if (fresh_scales.defined()) {
      converted_[{impl, beside}] = fresh_scales.to(parameter.device());
    }
  }

  static void take(const FollowedTensor& followed, const std::string& key, at::Tensor& tensor,
                   const Shape& shape, DType dtype) {
    const bool same = shape_of(tensor) == shape && tensor.scalar_type() == torch_dtype(dtype) &&
                      tensor.layout() == at::kStrided;
    if (!same) {
      throw refuse(ErrorKind::state_mismatch, "state",
                   "'" + key + "' of parameter " + in_quotes(followed.name) + " is " +
                       describe(tensor) + "; expected " + c10::toString(torch_dtype(dtype)) + " " +
                       to_string(shape) +
                       "; load it with the parameters and options that saved it");
    }
    if (tensor.device() != followed.parameter.device() || !tensor.is_contiguous()) {
      tensor = tensor.detach().to(followed.parameter.device()).contiguous();
    }
  }

  ParamStates& states_;
  std::map<std::string, FollowedTensor*> by_name_;
  std::map<std::string, std::map<std::string, const PlannedState*>> shapes_;
  std::map<std::pair<void*, std::string>, at::Tensor> converted_;
  std::vector<std::pair<void*, std::string>> fresh_;
  bool settled_ = false;
};

}  // namespace rode::torch
