// SPDX-License-Identifier: Apache-2.0
// Turns tensors into views and state tensors into the engine's memory, and keeps them bound.
#include "binding.h"

#include <map>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/variable.h>

#include "cuda_stream.h"
#include "rode/error.h"
#include "rode/stored_state.h"
#include "tensors.h"

namespace rode::torch {
namespace {

Error refuse(ErrorKind kind, std::string_view operation, std::string_view message) {
  return Error(kind, operation, message);
}

std::string in_quotes(const std::string& name) { return "'" + name + "'"; }

std::string keys_of(const ParamState& state) {
  std::string out;
  for (const auto& [key, tensor] : state.tensors) out += (out.empty() ? "" : ", ") + key;
  return out;
}

// What the state of a matrix tells of its start: the moments of the rest's rule are there where it
// was zero (RodeOptions::on_zero).
std::optional<bool> began_at_zero(const ParamStates& states, const at::Tensor& parameter) {
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  if (found == states.end()) return std::nullopt;
  const auto* state = dynamic_cast<const ParamState*>(found->second.get());
  if (state == nullptr || state->tensors.empty()) return std::nullopt;
  return state->tensors.contains("exp_avg");
}

Parameter view(const std::string& name, const at::Tensor& value, Layout layout) {
  Parameter p;
  p.name = name;
  p.value = {value.data_ptr(), shape_of(value), stepped_dtype(value.scalar_type())};
  p.layout = layout;
  return p;
}

}  // namespace

// Answers the engine's requests for state, and undoes its additions if construction fails.
class EngineOptimizer::Binding::States {
 public:
  States(ParamStates& states, std::vector<Slot>& slots, const std::vector<PlannedState>& planned)
      : states_(states) {
    for (Slot& slot : slots) {
      by_name_[slot.name] = &slot;
      slot.resumed = states.find(slot.parameter.unsafeGetTensorImpl()) != states.end();
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
    Slot& slot = *by_name_.at(std::string(parameter));
    void* impl = slot.parameter.unsafeGetTensorImpl();
    auto& entry = states_[impl];
    if (entry == nullptr) entry = std::make_unique<ParamState>();
    auto* state = dynamic_cast<ParamState*>(entry.get());
    if (state == nullptr) {
      throw refuse(ErrorKind::state_mismatch, "state",
                   "parameter " + in_quotes(slot.name) +
                       " has state of another optimizer; expected rode::torch::ParamState");
    }
    const std::string name(key);
    if (const auto made = converted_.find({impl, name}); made != converted_.end()) {
      return {made->second.data_ptr(), true};
    }
    const auto known = state->tensors.find(name);
    if (known != state->tensors.end()) {
      take(slot, name, known->second, shape, dtype);
      return {known->second.data_ptr(), true};
    }
    if (slot.resumed) {
      throw refuse(ErrorKind::state_mismatch, "state",
                   "parameter " + in_quotes(slot.name) + " has state (" + keys_of(*state) +
                       "), but no '" + name + "'; it belongs to another optimizer or " +
                       "other options; clear it, or load what these options saved");
    }
    const at::IntArrayRef sizes(shape.dims().data(), shape.dims().size());
    fresh_.emplace_back(impl, name);
    at::Tensor& tensor = state->tensors[name];
    tensor =
        at::zeros(sizes, slot.parameter.options().dtype(torch_dtype(dtype)).requires_grad(false));
    return {tensor.data_ptr(), false};
  }

  // Every question was asked: what is there now stays.
  void settle() {
    for (const auto& [place, tensor] : converted_) {
      auto& tensors = static_cast<ParamState&>(*states_.at(place.first)).tensors;
      tensors[place.second] = tensor;
      if (tensor.scalar_type() != at::kChar) tensors.erase(scale_key(place.second));
    }
    for (const auto& [name, slot] : by_name_) {
      const auto found = states_.find(slot->parameter.unsafeGetTensorImpl());
      if (found == states_.end()) continue;
      for (const auto& [key, tensor] : static_cast<const ParamState&>(*found->second).tensors) {
        slot->state.push_back(tensor);
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

  static void take(const Slot& slot, const std::string& key, at::Tensor& tensor, const Shape& shape,
                   DType dtype) {
    const bool same = shape_of(tensor) == shape && tensor.scalar_type() == torch_dtype(dtype) &&
                      tensor.layout() == at::kStrided;
    if (!same) {
      throw refuse(ErrorKind::state_mismatch, "state",
                   "'" + key + "' of parameter " + in_quotes(slot.name) + " is " +
                       describe(tensor) + "; expected " + c10::toString(torch_dtype(dtype)) + " " +
                       to_string(shape) +
                       "; load it with the parameters and options that saved it");
    }
    if (tensor.device() != slot.parameter.device() || !tensor.is_contiguous()) {
      tensor = tensor.detach().to(slot.parameter.device()).contiguous();
    }
  }

  ParamStates& states_;
  std::map<std::string, Slot*> by_name_;
  std::map<std::string, std::map<std::string, const PlannedState*>> shapes_;
  std::map<std::pair<void*, std::string>, at::Tensor> converted_;
  std::vector<std::pair<void*, std::string>> fresh_;
  bool settled_ = false;
};

// ---- Building ---------------------------------------------------------------------------------

EngineOptimizer::Binding::Binding(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                                  const std::vector<const GroupOptions*>& options,
                                  ParamStates& states, std::int64_t steps_done,
                                  const BindingOptions& engine_options) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<at::Tensor>& params = groups[g].params();
    const std::vector<std::string>& given = options[g]->names;
    for (std::size_t i = 0; i < params.size(); ++i) {
      add_slot(params[i], i < given.size() ? given[i] : "param." + std::to_string(slots_.size()));
    }
    sizes_.push_back(params.size());
  }
  if (slots_.empty()) {
    throw refuse(ErrorKind::invalid_argument, "parameters", "no parameters given");
  }
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  for (const Slot& slot : slots_) {
    names.push_back(slot.name);
    values.push_back(slot.copy.defined() ? slot.copy : slot.parameter);
  }
  refuse_shared_memory(names, values);

  std::vector<ParameterGroup> given;
  std::vector<PlannedState> planned;
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupOptions& own = *options[g];
    const Method method = own.method();
    ParameterGroup group{
        {}, method, {group_route(own.rule, own.route, method), {}}, own.coupling()};
    for (std::size_t i = 0; i < sizes_[g]; ++i, ++index) {
      group.parameters.push_back(view(names[index], values[index], own.layout));
      group.parameters.back().zero_start = began_at_zero(states, slots_[index].parameter);
    }
    for (PlannedState& entry : planned_state(group.parameters, group.method, group.routing)) {
      planned.push_back(std::move(entry));
    }
    given.push_back(std::move(group));
  }
  States memory(states, slots_, planned);
  rode::EngineOptions engine;
  c10::OptionalDeviceGuard guard;  // the engine takes the current device for its own
  if (device_.is_cuda()) {
    guard.reset_device(device_);
    stream_ = current_cuda_stream(device_.index());
    engine.device = Device::cuda;
    engine.stream = stream_;
  }
  engine.threads = at::get_num_threads();
  engine.on_non_finite = engine_options.on_non_finite;
  engine.batched = engine_options.batched;
  engine.on_missing = OnBadGradient::skip;  // as torch.optim does
  engine.state_memory = [&memory](std::string_view parameter, std::string_view key,
                                  const Shape& shape, DType dtype) {
    return memory.memory(parameter, key, shape, dtype);
  };
  engine.notify = [](std::string_view text) { TORCH_WARN(std::string(text)); };
  engine_ = std::make_unique<rode::Optimizer>(std::move(given), std::move(engine));
  engine_->set_steps_done(steps_done);
  memory.settle();
}

void EngineOptimizer::Binding::add_slot(const at::Tensor& parameter, std::string name) {
  const c10::Device device = parameter.device();
  if (!is_stepped(parameter.scalar_type()) || parameter.layout() != at::kStrided) {
    throw refuse(ErrorKind::dtype, "parameters",
                 "parameter " + in_quotes(name) + " is " + describe(parameter) +
                     "; expected a dense one, Float or BFloat16; convert the module");
  }
  if (!device.is_cpu() && !device.is_cuda()) {
    throw refuse(
        ErrorKind::unsupported, "parameters",
        "parameter " + in_quotes(name) + " is on " + device.str() + "; expected cpu or cuda");
  }
  if (slots_.empty()) device_ = device;
  if (device != device_) {
    throw refuse(ErrorKind::unsupported, "parameters",
                 in_quotes(slots_.front().name) + " is on " + device_.str() + ", " +
                     in_quotes(name) + " on " + device.str() +
                     "; one optimizer steps one device; make one for each");
  }
  Slot& slot = slots_.emplace_back();
  slot.name = std::move(name);
  slot.parameter = parameter;
  if (!parameter.is_contiguous()) slot.copy = parameter.detach().contiguous();
}

// ---- Following --------------------------------------------------------------------------------

bool EngineOptimizer::Binding::follow(
    const std::vector<::torch::optim::OptimizerParamGroup>& groups, const ParamStates& states) {
  if (groups.size() != sizes_.size()) return false;
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].params().size() != sizes_[g]) return false;
    for (const at::Tensor& p : groups[g].params()) {
      const Slot& slot = slots_[index];
      const TensorView& bound = engine_->parameters()[index].value;
      const bool same = p.is_same(slot.parameter) && engine_dtype(p.scalar_type()) == bound.dtype &&
                        p.device() == device_ && p.is_contiguous() != slot.copy.defined() &&
                        shape_of(p) == bound.shape;
      if (!same) return false;
      const auto found = states.find(p.unsafeGetTensorImpl());
      if ((found == states.end()) != slot.state.empty()) return false;
      if (found != states.end()) {
        const auto* state = dynamic_cast<const ParamState*>(found->second.get());
        if (state == nullptr || state->tensors.size() != slot.state.size()) return false;
        auto own = slot.state.begin();
        for (const auto& [key, tensor] : state->tensors) {
          if (!tensor.is_same(*own++)) return false;
        }
      }
      if (!slot.copy.defined()) engine_->bind_value(index, p.data_ptr(), bound.dtype);
      ++index;
    }
  }
  return true;
}

void EngineOptimizer::Binding::follow_grads(std::vector<at::Tensor>& kept) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    at::Tensor grad = slot.parameter.grad();
    if (!grad.defined()) {
      engine_->bind_grad(i, nullptr, DType::f32);
      continue;
    }
    if (grad.layout() != at::kStrided || grad.device() != device_ ||
        grad.sizes() != slot.parameter.sizes()) {
      throw refuse(ErrorKind::shape, "step",
                   "gradient of " + in_quotes(slot.name) + " is " + describe(grad) +
                       "; expected a dense one like the parameter, " + describe(slot.parameter) +
                       (grad.layout() != at::kStrided ? "; use sparse(false) in its module" : ""));
    }
    if (!is_stepped(grad.scalar_type())) grad = grad.detach().to(at::kFloat);
    if (!grad.is_contiguous()) grad = grad.detach().contiguous();
    engine_->bind_grad(i, grad.data_ptr(), stepped_dtype(grad.scalar_type()));
    kept.push_back(std::move(grad));
  }
}

// ---- Stepping ---------------------------------------------------------------------------------

void EngineOptimizer::Binding::follow_stream() {
  if (!device_.is_cuda()) return;
  void* stream = current_cuda_stream(device_.index());
  if (stream != stream_) engine_->set_stream(stream);
  stream_ = stream;
}

void EngineOptimizer::Binding::step(double multiplier) {
  const at::NoGradGuard no_grad;
  c10::OptionalDeviceGuard guard;
  if (device_.is_cuda()) guard.reset_device(device_);
  captured_ = engine_->capturing() || captured_;
  std::vector<at::Tensor> kept;  // copies of gradients, alive until the step is enqueued
  follow_grads(kept);
  for (Slot& slot : slots_) {
    if (slot.copy.defined()) slot.copy.copy_(slot.parameter);
  }
  try {
    engine_->step(multiplier);
  } catch (const Error& error) {
    if (error.changed()) write_back();
    throw;
  }
  write_back();
}

void EngineOptimizer::Binding::write_back() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (engine_->parameters()[i].grad.data == nullptr) continue;  // left alone
    if (slot.copy.defined()) slot.parameter.copy_(slot.copy);
    // Autograd must see that weights changed, though no torch operation wrote them.
    ::torch::autograd::impl::bump_version(slot.parameter);
  }
}

}  // namespace rode::torch
