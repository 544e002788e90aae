// SPDX-License-Identifier: Apache-2.0
// Torch tensors as the engine sees them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "rode/tensor_view.h"

namespace rode::torch {

// Empty if the engine has no such type.
std::optional<DType> engine_dtype(at::ScalarType type);
at::ScalarType torch_dtype(DType dtype);

// What weights and gradients may be.
inline bool is_stepped(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16; }
inline DType stepped_dtype(at::ScalarType type) {
  return type == at::kFloat ? DType::f32 : DType::bf16;
}

Shape shape_of(const at::Tensor& tensor);
std::string describe(const at::Tensor& tensor);  // "Float (3, 4) on cpu"

// Throw where the engine cannot step it.
void check_parameter(const std::string& name, const at::Tensor& parameter);
void check_gradient(const std::string& name, const at::Tensor& grad, const at::Tensor& parameter);

// Throws where two tensors begin at the same address: they would be stepped twice.
void refuse_shared_memory(const std::vector<std::string>& names,
                          const std::vector<at::Tensor>& tensors);

}  // namespace rode::torch
