// SPDX-License-Identifier: Apache-2.0
// The fused kernels as operations that autograd knows.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rode::lab::fused {

// Whether the kernels take tensors of this device, with parameters and residual stream of type
// `stream` and products of type `branch`.
bool takes(at::Device device, at::ScalarType stream, at::ScalarType branch);

struct Normed {
  at::Tensor sum, norm;
};

// sum = x + delta (x itself where delta is undefined), norm = RMSNorm(sum) in type `branch`. The
// gradients that come back for both leave as one.
Normed add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                    double eps, at::ScalarType branch);

// x (..., 2 width) is gate and up side by side: silu(gate) * up.
at::Tensor swiglu(const at::Tensor& x);

// Each group's tensors one below the other, in another type; 1-D ones end to end. All in one
// buffer, by one launch for some 96 tensors. A group of one tensor that has the type already is
// that tensor. Made again for every forward pass: nothing to keep up to date, and a backward pass
// uses what its forward pass saw.
std::vector<at::Tensor> joined_copies(const std::vector<std::vector<at::Tensor>>& groups,
                                      at::ScalarType type);

// `weight` in `type` with rows of zeros up to a multiple of 64: an odd number of columns costs the
// products that write them a factor of several.
at::Tensor padded_copy(const at::Tensor& weight, at::ScalarType type);

// x copy^T, where `copy` is that of `weights` by joined_copies. Gradients go to `weights`, in
// their type, out of one product.
at::Tensor project(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                   const at::Tensor& copy);

struct RotaryShape {
  at::Tensor cos, sin;  // (positions, size/2), fp32
  std::int64_t heads, kv_heads;
};

// q, k, v as (batch, heads, length, size) from one product; q and k are turned in place, and all
// three stay where the product wrote them. `parameters`: the weights of q, k, v, then their
// biases; `weight` and `bias`: their copies.
std::array<at::Tensor, 3> project_qkv(const at::Tensor& x,
                                      const std::vector<at::Tensor>& parameters,
                                      const at::Tensor& weight, const at::Tensor& bias,
                                      const RotaryShape& rotary);

// a^T b in `type`, without a rounding to the operands' type in between where torch can.
at::Tensor transposed_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type);
// sum += a^T b; sum is fp32 or of the operands' type.
void add_transposed_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace rode::lab::fused
