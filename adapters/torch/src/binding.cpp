// SPDX-License-Identifier: Apache-2.0
// Turns tensors into views and state tensors into the engine's memory, and keeps them bound.
#include "binding.h"

#include <cstddef>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/variable.h>

#include "binding_states.h"
#include "cuda_stream.h"
#include "rode/error.h"
#include "share.h"
#include "tensors.h"

namespace rode::torch {
namespace {

Parameter view(const std::string& name, const at::Tensor& value, Layout layout) {
  Parameter p;
  p.name = name;
  p.value = {value.data_ptr(), shape_of(value), stepped_dtype(value.scalar_type())};
  p.layout = layout;
  return p;
}

}  // namespace

// ---- Building ---------------------------------------------------------------------------------

EngineOptimizer::Binding::Binding(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                                  const std::vector<const GroupOptions*>& options,
                                  ParamStates& states, std::int64_t steps_done,
                                  const EngineSettings& engine_options) {
  const std::vector<std::string> all_names = names_of(groups, options);
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const std::size_t index = places_.size();
      const SharePiece* piece =
          engine_options.share == nullptr ? nullptr : engine_options.share->own(index);
      const bool own = engine_options.share == nullptr || piece != nullptr;
      places_.push_back(own ? followed_.size() : kNotHere);
      if (own) add_followed(parameter, all_names[index], piece);
    }
    sizes_.push_back(group.params().size());
  }
  if (places_.empty()) {
    throw refuse(ErrorKind::invalid_argument, "parameters", "no parameters given");
  }
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  for (const FollowedTensor& followed : followed_) {
    names.push_back(followed.name);
    values.push_back(followed.value());
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
      const std::size_t at = places_[index];
      if (at == kNotHere) continue;
      Parameter& p = group.parameters.emplace_back(view(names[at], values[at], own.layout));
      p.zero_start = began_at_zero(states, followed_[at].parameter);
      if (followed_[at].part) p.first_element = followed_[at].part->first;
    }
    for (PlannedState& entry : planned_state(group.parameters, group.method, group.routing)) {
      planned.push_back(std::move(entry));
    }
    given.push_back(std::move(group));
  }
  States memory(states, followed_, planned);
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
  engine.share = engine_options.share != nullptr;
  engine.state_memory = [&memory](std::string_view parameter, std::string_view key,
                                  const Shape& shape, DType dtype) {
    return memory.memory(parameter, key, shape, dtype);
  };
  engine.notify = [](std::string_view text) { TORCH_WARN(std::string(text)); };
  engine_ = std::make_unique<rode::Optimizer>(std::move(given), std::move(engine));
  engine_->set_steps_done(steps_done);
  if (engine_options.history > 0) engine_->keep_history(engine_options.history);
  memory.settle();
}

at::Tensor EngineOptimizer::Binding::FollowedTensor::value() const {
  if (copy.defined()) return copy;
  return part ? part_of(parameter.detach(), *part) : parameter;
}

void EngineOptimizer::Binding::add_followed(const at::Tensor& parameter, std::string name,
                                            const SharePiece* piece) {
  check_parameter(name, parameter);
  const c10::Device device = parameter.device();
  if (followed_.empty()) device_ = device;
  if (device != device_) {
    throw refuse(ErrorKind::unsupported, "parameters",
                 in_quotes(followed_.front().name) + " is on " + device_.str() + ", " +
                     in_quotes(name) + " on " + device.str() +
                     "; an optimizer works on one device; make one optimizer per device");
  }
  FollowedTensor& followed = followed_.emplace_back();
  followed.name = std::move(name);
  followed.parameter = parameter;
  if (piece != nullptr && !piece->whole) followed.part = *piece;
  if (!parameter.is_contiguous()) followed.copy = parameter.detach().contiguous();
}

// ---- Following --------------------------------------------------------------------------------

bool EngineOptimizer::Binding::follow(
    const std::vector<::torch::optim::OptimizerParamGroup>& groups, const ParamStates& states) {
  if (groups.size() != sizes_.size()) return false;
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].params().size() != sizes_[g]) return false;
    for (const at::Tensor& p : groups[g].params()) {
      const std::size_t at = places_[index++];
      if (at == kNotHere) continue;
      const FollowedTensor& followed = followed_[at];
      const TensorView& bound = engine_->parameters()[at].value;
      const Shape shape = followed.part ? followed.part->shape(shape_of(p)) : shape_of(p);
      const bool same = p.is_same(followed.parameter) &&
                        engine_dtype(p.scalar_type()) == bound.dtype && p.device() == device_ &&
                        p.is_contiguous() != followed.copy.defined() && shape == bound.shape;
      if (!same) return false;
      const auto found = states.find(p.unsafeGetTensorImpl());
      if ((found == states.end()) != followed.state.empty()) return false;
      if (found != states.end()) {
        const auto* state = dynamic_cast<const ParamState*>(found->second.get());
        if (state == nullptr || state->tensors.size() != followed.state.size()) return false;
        auto own = followed.state.begin();
        for (const auto& [key, tensor] : state->tensors) {
          if (!tensor.is_same(*own++)) return false;
        }
      }
      if (!followed.copy.defined()) {
        const std::int64_t first = followed.part ? followed.part->first : 0;
        const auto offset = static_cast<std::size_t>(first) * p.element_size();
        engine_->bind_value(at, static_cast<std::byte*>(p.data_ptr()) + offset, bound.dtype);
      }
    }
  }
  return true;
}

void EngineOptimizer::Binding::follow_grads(std::vector<at::Tensor>& kept) {
  for (std::size_t i = 0; i < followed_.size(); ++i) {
    const FollowedTensor& followed = followed_[i];
    at::Tensor grad = followed.parameter.grad();
    if (!grad.defined()) {
      engine_->bind_grad(i, nullptr, DType::f32);
      continue;
    }
    check_gradient(followed.name, grad, followed.parameter);
    if (!is_stepped(grad.scalar_type())) grad = grad.detach().to(at::kFloat);
    if (!grad.is_contiguous()) grad = grad.detach().contiguous();
    if (followed.part) grad = part_of(grad.detach(), *followed.part);
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

void EngineOptimizer::Binding::step(double multiplier, const std::vector<std::size_t>& left) {
  const at::NoGradGuard no_grad;
  c10::OptionalDeviceGuard guard;
  if (device_.is_cuda()) guard.reset_device(device_);
  captured_ = engine_->capturing() || captured_;
  std::vector<at::Tensor> kept;  // copies of gradients, alive until the step is enqueued
  follow_grads(kept);
  for (const std::size_t index : left) {
    if (places_[index] != kNotHere) engine_->bind_grad(places_[index], nullptr, DType::f32);
  }
  for (FollowedTensor& followed : followed_) {
    if (followed.copy.defined()) followed.copy.copy_(followed.parameter);
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
  for (std::size_t i = 0; i < followed_.size(); ++i) {
    FollowedTensor& followed = followed_[i];
    if (engine_->parameters()[i].grad.data == nullptr) continue;  // left alone
    if (followed.copy.defined()) followed.parameter.copy_(followed.copy);
    // Autograd must see that weights changed, though no torch operation wrote them.
    ::torch::autograd::impl::bump_version(followed.parameter);
  }
}

}  // namespace rode::torch
