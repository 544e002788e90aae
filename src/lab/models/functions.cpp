// SPDX-License-Identifier: Apache-2.0
// Norm, rotary positions, gate and attention: by torch's own operations, the norm by a fused
// kernel where there is one.
#include "lab/models/functions.h"

#include <cmath>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "lab/models/autocast.h"
#include "lab/models/fused/kernels.h"
#include "lab/models/fused/ops.h"

namespace rode::lab {

at::ScalarType product_type(const at::Tensor& parameter) {
  const AutocastState autocast = AutocastState::of(parameter.device().type());
  return autocast.enabled ? autocast.dtype : parameter.scalar_type();
}

Normed add_rms_norm(const Residual& stream, const at::Tensor& weight, double eps) {
  const at::ScalarType type = product_type(weight);
  if (stream.x.scalar_type() == weight.scalar_type() &&
      fused::takes(weight.device(), weight.scalar_type(), type) &&
      weight.numel() <= fused::kMaxNormWidth) {
    const fused::Normed out = fused::add_rms_norm(stream.x, stream.delta, weight, eps, type);
    return {out.sum, out.norm};
  }
  const at::Tensor sum = stream.delta.defined() ? stream.x + stream.delta : stream.x;
  return {sum, at::rms_norm(sum, weight.sizes(), weight, eps)};
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
