// SPDX-License-Identifier: Apache-2.0
// The fused kernels by raw pointers and a stream: no Torch and no CUDA header. Without CUDA the
// same symbols give a named error.
//
// Arrays are dense rows unless a stride (in elements) is given. Sums are taken in an order that
// the shapes alone decide: two runs give the same bits.
#pragma once

#include <cstdint>

namespace rode::lab::fused {

enum class Type : std::uint8_t { f32, bf16 };
enum class Device : std::uint8_t { cpu, cuda };

// Whether this build has kernels for memory of that device.
bool has_kernels(Device device);

// The widest row that the norm takes.
inline constexpr std::int64_t kMaxNormWidth = 4096;

// sum = x + delta, y = sum r weight, r kept in `scale` (rows). Without `delta` the sum is x, and
// is not written. x, sum and weight are of type `stream`; delta and y of type `branch`:
// (f32, bf16), (f32, f32) or (bf16, bf16).
struct RmsNormForward {
  const void* x;
  const void* delta;
  const void* weight;
  void* sum;
  void* y;
  float* scale;
  std::int64_t rows, width;
  float eps;
  Type stream, branch;
};
void rms_norm_forward(const RmsNormForward& args, void* cuda_stream);

// dx = dsum + the norm's gradient; dsum may be null. `ddelta`, where not null, is dx in type
// `branch`. `partial`: rms_norm_partials(rows) rows of width fp32, used for dweight.
struct RmsNormBackward {
  const void* dy;
  const void* dsum;
  const void* sum;
  const void* weight;
  const float* scale;
  void* dx;
  void* ddelta;
  float* partial;
  void* dweight;
  std::int64_t rows, width;
  Type stream, branch;
};
inline std::int64_t rms_norm_partials(std::int64_t rows) {
  // Eight blocks on each of an H200's 132 processors: all at once, and each with equal work.
  return rows < 1056 ? rows : 1056;
}
void rms_norm_backward(const RmsNormBackward& args, void* cuda_stream);

// out = gate sigmoid(gate) up; rows of gate and up begin `stride` elements apart.
struct SwigluForward {
  const void* gate;
  const void* up;
  void* out;
  std::int64_t rows, width, stride;
  Type type;
};
void swiglu_forward(const SwigluForward& args, void* cuda_stream);

// Rows of dgate and dup begin `stride` elements apart, as those of gate and up do.
struct SwigluBackward {
  const void* gate;
  const void* up;
  const void* dout;
  void* dgate;
  void* dup;
  std::int64_t rows, width, stride;
  Type type;
};
void swiglu_backward(const SwigluBackward& args, void* cuda_stream);

// Turns the pairs (i, i + size/2) of the first `heads` heads of every row, in place. Row r is at
// position r mod length; cos, sin: (positions, size/2).
struct RotaryForward {
  void* data;
  const float* cos;
  const float* sin;
  std::int64_t rows, length, stride, heads, size;
  Type type;
};
void rotary_forward(const RotaryForward& args, void* cuda_stream);

// One gradient as attention leaves it: (batch, heads, length, size), the last dense.
struct HeadGrads {
  const void* data;
  std::int64_t batch_stride, head_stride, position_stride;
};

// Gradients of q, k (turned back) and v (as it is), side by side in rows of `out`, whose width is
// (heads + 2 kv_heads) size.
struct RotaryBackward {
  HeadGrads q, k, v;
  void* out;
  const float* cos;
  const float* sin;
  std::int64_t rows, length, heads, kv_heads, size;
  Type type;
};
void rotary_backward(const RotaryBackward& args, void* cuda_stream);

// losses[r] = log sum exp(row) - row[targets[r]] over the first `vocabulary` columns, NaN for a
// target outside of them. Where `gradient`, the row is then (softmax - [target]) scale, and 0 from
// `vocabulary` to `stride`.
struct CrossEntropy {
  void* logits;
  const std::int64_t* targets;
  float* losses;
  std::int64_t rows, vocabulary, stride;
  float scale;
  bool gradient;
  Type type;
};
void cross_entropy(const CrossEntropy& args, void* cuda_stream);

// Copies arrays of type `from` into arrays of type `to`: f32 to either, bf16 to bf16.
struct CastItem {
  const void* source;
  void* target;
  std::int64_t count;
};
void cast(const CastItem* items, std::int64_t count, Type from, Type to, void* cuda_stream);

}  // namespace rode::lab::fused
