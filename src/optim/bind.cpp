// SPDX-License-Identifier: Apache-2.0
// Binds weights and gradients: their addresses go into the jobs of their parameter.
#include <fmt/format.h>

#include "optim/optimizer_impl.h"
#include "rode/error.h"

namespace rode {

std::string valid_indices(std::size_t count) {
  return count == 0 ? "none: there are no entries" : fmt::format("0 to {}", count - 1);
}

void check_grad(const Parameter& p, const ConstTensorView& grad) {
  if (grad.data == nullptr) return;
  if (!(grad.shape == p.value.shape)) {
    throw Error(ErrorKind::shape, "gradient",
                fmt::format("gradient of '{}' has shape {}; expected {} like the parameter", p.name,
                            to_string(grad.shape), to_string(p.value.shape)));
  }
  if (grad.dtype != DType::f32 && grad.dtype != DType::bf16) {
    throw Error(
        ErrorKind::dtype, "gradient",
        fmt::format("gradient of '{}' is {}; expected F32 or BF16", p.name, to_string(grad.dtype)));
  }
}

void check_moved(const Parameter& p, const TensorView& value) {
  if (value.shape == p.value.shape && value.dtype == p.value.dtype &&
      (value.data != nullptr || value.numel() == 0)) {
    return;
  }
  throw Error(ErrorKind::shape, "bind",
              fmt::format("new memory of '{}' is {} {}; expected {} {} as before, and not null",
                          p.name, to_string(value.dtype), to_string(value.shape),
                          to_string(p.value.dtype), to_string(p.value.shape)));
}

void Optimizer::bind_grad(std::size_t index, ConstTensorView grad) {
  Impl::Slot& slot = impl_->slot_at(index);
  check_grad(slot.parameter, grad);
  bind_grad(index, grad.data, grad.dtype);
}

void Optimizer::bind_value(std::size_t index, TensorView value) {
  Impl::Slot& slot = impl_->slot_at(index);
  check_moved(slot.parameter, value);
  bind_value(index, value.data, value.dtype);
}

void Optimizer::rebind_grad(std::size_t index, const void* data, DType dtype) {
  impl_->expect(Impl::Phase::none, "bind gradient");
  Impl::Slot& slot = impl_->slot_at(index);
  const ConstTensorView grad{data, slot.parameter.value.shape, dtype};
  check_grad(slot.parameter, grad);
  impl_->bind_grad(slot, grad);
}

void Optimizer::rebind_value(std::size_t index, void* data, DType dtype) {
  impl_->expect(Impl::Phase::none, "bind value");
  Impl::Slot& slot = impl_->slot_at(index);
  const TensorView value{data, slot.parameter.value.shape, dtype};
  check_moved(slot.parameter, value);
  impl_->bind_value(slot, value);
}

void Optimizer::Impl::bind_grad(Slot& slot, const ConstTensorView& grad) {
  changed = true;
  slot.parameter.grad = grad;
  point_at_grad(slot);
}

void Optimizer::Impl::point_at_grad(Slot& slot) {
  const ConstTensorView& grad = slot.parameter.grad;
  for (const std::size_t other : slot.tied) parameters[other].grad = grad;
  for (JobBase* job : slot.jobs) {
    job->grad.dtype = grad.dtype;
    job->grad.data = grad.data == nullptr
                         ? nullptr
                         : static_cast<const std::byte*>(grad.data) +
                               static_cast<std::size_t>(job->offset) * size_of(grad.dtype);
  }
}

void Optimizer::Impl::bind_value(Slot& slot, const TensorView& value) {
  changed = true;
  slot.parameter.value = value;
  for (const std::size_t other : slot.tied) parameters[other].value = value;
  for (JobBase* job : slot.jobs) {
    job->weight.data = static_cast<std::byte*>(value.data) +
                       static_cast<std::size_t>(job->offset) * size_of(value.dtype);
  }
}

Optimizer::Impl::Slot& Optimizer::Impl::slot_at(std::size_t index) {
  if (index >= slots.size()) {
    throw Error(ErrorKind::invalid_argument, "bind",
                fmt::format("parameter index {}; expected {}", index, valid_indices(slots.size())));
  }
  return slots[slots[index].owner];
}

}  // namespace rode
