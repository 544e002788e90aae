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
  Impl::Entry& entry = impl_->entry_at(index);
  check_grad(entry.parameter, grad);
  bind_grad(index, grad.data, grad.dtype);
}

void Optimizer::bind_value(std::size_t index, TensorView value) {
  Impl::Entry& entry = impl_->entry_at(index);
  check_moved(entry.parameter, value);
  bind_value(index, value.data, value.dtype);
}

void Optimizer::rebind_grad(std::size_t index, const void* data, DType dtype) {
  impl_->expect(Impl::Phase::none, "bind gradient");
  Impl::Entry& entry = impl_->entry_at(index);
  const ConstTensorView grad{data, entry.parameter.value.shape, dtype};
  check_grad(entry.parameter, grad);
  impl_->bind_grad(entry, grad);
}

void Optimizer::rebind_value(std::size_t index, void* data, DType dtype) {
  impl_->expect(Impl::Phase::none, "bind value");
  Impl::Entry& entry = impl_->entry_at(index);
  const TensorView value{data, entry.parameter.value.shape, dtype};
  check_moved(entry.parameter, value);
  impl_->bind_value(entry, value);
}

void Optimizer::Impl::bind_grad(Entry& entry, const ConstTensorView& grad) {
  changed = true;
  entry.parameter.grad = grad;
  point_at_grad(entry);
}

void Optimizer::Impl::point_at_grad(Entry& entry) {
  const ConstTensorView& grad = entry.parameter.grad;
  for (const std::size_t other : entry.tied) parameters[other].grad = grad;
  for (JobBase* job : entry.jobs) {
    job->grad.dtype = grad.dtype;
    job->grad.data = grad.data == nullptr
                         ? nullptr
                         : static_cast<const std::byte*>(grad.data) +
                               static_cast<std::size_t>(job->offset) * size_of(grad.dtype);
  }
}

void Optimizer::Impl::bind_value(Entry& entry, const TensorView& value) {
  changed = true;
  entry.parameter.value = value;
  for (const std::size_t other : entry.tied) parameters[other].value = value;
  for (JobBase* job : entry.jobs) {
    job->weight.data = static_cast<std::byte*>(value.data) +
                       static_cast<std::size_t>(job->offset) * size_of(value.dtype);
  }
}

Optimizer::Impl::Entry& Optimizer::Impl::entry_at(std::size_t index) {
  if (index >= entries.size()) {
    throw Error(
        ErrorKind::invalid_argument, "bind",
        fmt::format("parameter index {}; expected {}", index, valid_indices(entries.size())));
  }
  return entries[entries[index].owner];
}

}  // namespace rode
