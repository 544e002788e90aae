// SPDX-License-Identifier: Apache-2.0
// The tensors of `rode step` where the engine works on them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "rode/optimizer.h"
#include "step/input.h"

namespace rode::cli {

// On the CPU the input's own memory; on CUDA a copy of the weights, and of the gradients of
// one step at a time.
class StepMemory {
 public:
  StepMemory(const StepInput& input, Device device);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  // The gradient of step k; valid until another step's is requested.
  ConstTensorView gradient(std::size_t parameter, std::int64_t k);
  // Copies the weights into the input's.
  void read_back();

 private:
  struct Copy {
    std::unique_ptr<rode::Buffer> value, grad;
    const void* uploaded = nullptr;  // gradient that `grad` holds
  };

  const StepInput& input_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<Backend> backend_;  // null on the CPU
  std::vector<Copy> copies_;
};

}  // namespace rode::cli
