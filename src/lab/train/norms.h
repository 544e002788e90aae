// SPDX-License-Identifier: Apache-2.0
// Norms of a step where nobody may wait for the device: computed there, read with many others.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "rode/diagnostics.h"

namespace rode::lab {

// Made before the step, which has its gradients; finish() after it. By Torch, beside the engine's
// own sums, of which the device keeps only those of the last step.
class StepNorms {
 public:
  explicit StepNorms(std::vector<at::Tensor> parameters);
  at::Tensor finish();

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> before_;
  at::Tensor gradients_;
  at::Tensor weights_;
};

// What finish() returned of several steps, in one copy from the device.
std::vector<GlobalDiagnostics> read_norms(const std::vector<at::Tensor>& steps);

}  // namespace rode::lab
