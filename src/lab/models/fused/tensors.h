// SPDX-License-Identifier: Apache-2.0
// Torch's tensors as the kernels take them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "adapters/torch/src/cuda_stream.h"
#include "lab/models/fused/kernels.h"
#include "rode/error.h"

namespace rode::lab::fused {

inline Type type_of(at::ScalarType type) { return type == at::kFloat ? Type::f32 : Type::bf16; }
inline Type type_of(const at::Tensor& tensor) { return type_of(tensor.scalar_type()); }

// Null for an undefined tensor.
inline void* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

inline void* stream_of(const at::Tensor& tensor) {
  return tensor.is_cuda() ? rode::torch::current_cuda_stream(tensor.device().index()) : nullptr;
}

inline void first_derivative_only(const char* where) {
  if (!at::GradMode::is_enabled()) return;
  throw Error(ErrorKind::unsupported, where,
              "a second derivative was requested; only the first is implemented");
}

}  // namespace rode::lab::fused
