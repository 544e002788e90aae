// SPDX-License-Identifier: Apache-2.0
// Norm, rotary positions, gate and attention by torch's own operations.
#include "lab/models/functions.h"

#include <cmath>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

namespace rode::lab {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, weight.sizes(), weight, eps);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate) * up; }

void RotaryTable::prepare(std::int64_t length, const at::Tensor& like) {
  const at::ScalarType type = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (cos_.defined() && cos_.size(0) >= length && cos_.device() == like.device() &&
      cos_.scalar_type() == type) {
    return;
  }
  // Kept for later passes, which may record gradients: no tensors of inference alone.
  const c10::InferenceMode recorded(false);
  // In double: at position 1000 an angle in fp32 is off by 1e-4.
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor exponents = at::arange(0, size_, 2, options) / static_cast<double>(size_);
  const at::Tensor frequencies = at::exp(exponents * -std::log(base_));
  const at::Tensor angles = at::outer(at::arange(length, options), frequencies);
  cos_ = angles.cos().to(like.device(), type);
  sin_ = angles.sin().to(like.device(), type);
}

at::Tensor RotaryTable::rotate(const at::Tensor& x) const {
  const std::int64_t length = x.size(2);
  const at::Tensor cos = cos_.narrow(0, 0, length);
  const at::Tensor sin = sin_.narrow(0, 0, length);
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  const at::Tensor turned =
      at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
  return turned.to(x.scalar_type());
}

at::Tensor split_heads(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double dropout) {
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q, k, v, /*attn_mask=*/{}, dropout, /*is_causal=*/true, /*scale=*/std::nullopt,
      /*enable_gqa=*/k.size(1) != q.size(1));
  return mixed.transpose(1, 2).reshape({q.size(0), q.size(2), q.size(1) * q.size(3)});
}

}  // namespace rode::lab
