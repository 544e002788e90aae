// SPDX-License-Identifier: Apache-2.0
// What a forward pass moves besides gradients: random numbers and statistics.
#pragma once

#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

namespace rode::lab {

// As it was when this was made: a batch that is dropped half-way leaves no trace.
class ForwardState {
 public:
  ForwardState(const ::torch::nn::Module& module, c10::Device device) {
    keep_generator(at::kCPU);
    if (device.is_cuda()) keep_generator(device);
    for (const at::Tensor& buffer : module.buffers()) buffers_.emplace_back(buffer, buffer.clone());
  }

  void restore() {
    const ::torch::NoGradGuard no_grad;
    for (auto& [generator, state] : generators_) generator.set_state(state);
    for (auto& [buffer, value] : buffers_) buffer.copy_(value);
  }

 private:
  void keep_generator(c10::Device device) {
    const at::Generator& generator = at::globalContext().defaultGenerator(device);
    generators_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // with their values
};

}  // namespace rode::lab
