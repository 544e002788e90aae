// SPDX-License-Identifier: Apache-2.0
// The parts of a decoder that fused kernels may replace, each a function of its own.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace rode::lab {

// The type that products have now: autocast's, or that of the parameters.
at::ScalarType product_type(const at::Tensor& parameter);

// The residual stream, and what is still to be added to it; `delta` may be undefined.
struct Residual {
  at::Tensor x, delta;
};

struct Normed {
  at::Tensor sum, norm;
};

// sum = x + delta, norm = sum / sqrt(mean(sum^2) + eps) * weight over the last dimension.
Normed add_rms_norm(const Residual& stream, const at::Tensor& weight, double eps);

// silu(gate) * up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// Cosines and sines of the angles position / base^(2i/size), (length, size/2) each; made once per
// device and length.
class RotaryTable {
 public:
  RotaryTable(std::int64_t head_size, double base) : size_(head_size), base_(base) {}
  // Makes or extends the tables for such an input; double for double, fp32 otherwise.
  void prepare(std::int64_t length, const at::Tensor& like);
  // Turns the pairs (i, i + size/2) of x (batch, heads, length, size). Result has x's type.
  at::Tensor rotate(const at::Tensor& x) const;
  const at::Tensor& cos() const { return cos_; }
  const at::Tensor& sin() const { return sin_; }

 private:
  std::int64_t size_;
  double base_;
  at::Tensor cos_, sin_;
};

// Causal softmax attention: q (batch, heads, length, size), k and v with as many heads or a
// divisor (grouped queries). Returns (batch, length, heads * size).
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double dropout);

// (batch, length, heads * size) as (batch, heads, length, size).
at::Tensor split_heads(const at::Tensor& x, std::int64_t heads);

// Mean cross entropy of softmax(hidden weight^T) at `targets`; hidden (..., width), weight
// (vocabulary, width), targets (...). Logits exist for `rows` positions at a time, and their
// gradient is used up at once, so that neither is ever whole; rows = 0 chooses. The reduction is
// in fp32 or wider. First derivatives only.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t rows = 0);

}  // namespace rode::lab
