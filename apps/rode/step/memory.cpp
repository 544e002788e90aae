// SPDX-License-Identifier: Apache-2.0
// Copies between the file's tensors and the device's.
#include "step/memory.h"

#include <cstring>

namespace rode::cli {

StepMemory::StepMemory(const StepInput& input, Device device)
    : input_(input), parameters_(input.parameters()) {
  if (device == Device::cpu) return;
  backend_ = make_cuda_backend({});
  for (Parameter& parameter : parameters_) {
    Copy& copy = copies_.emplace_back();
    copy.value = backend_->allocate(parameter.value.bytes());
    copy.value->upload(parameter.value.data, parameter.value.bytes());
    parameter.value.data = copy.value->data();
  }
}

ConstTensorView StepMemory::gradient(std::size_t parameter, std::int64_t k) {
  ConstTensorView grad = input_.gradient(parameter, k);
  if (backend_ == nullptr || grad.data == nullptr) return grad;
  Copy& copy = copies_[parameter];
  if (copy.grad == nullptr || copy.grad->bytes() < grad.bytes()) {
    copy.grad = backend_->allocate(grad.bytes());
    copy.uploaded = nullptr;
  }
  if (copy.uploaded != grad.data) copy.grad->upload(grad.data, grad.bytes());
  copy.uploaded = grad.data;
  grad.data = copy.grad->data();
  return grad;
}

void StepMemory::read_back() {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const TensorView& host = input_.parameters()[i].value;
    if (host.bytes() > 0) std::memcpy(host.data, copies_[i].value->host_view(), host.bytes());
  }
}

}  // namespace rode::cli
