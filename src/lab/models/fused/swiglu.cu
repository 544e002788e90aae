// SPDX-License-Identifier: Apache-2.0
// SwiGLU on gate and up as one product leaves them, side by side: forward and backward.
//
//   forward   s = gate sigmoid(gate) up            6 bytes per element of s in bf16
//   backward  dgate, dup from gate, up and ds      10 bytes
//
// A thread has eight neighbours of a row (16 bytes of each array), a block a part of one row: the
// only division is one per block.
#include "lab/models/fused/elements.cuh"
#include "lab/models/fused/kernels.h"
#include "lab/models/fused/launch.h"
#include "lab/models/fused/math.h"

namespace rode::lab::fused {
namespace {

constexpr int kThreads = 256;

// The part of a row that a block has.
struct Shape {
  unsigned per_row;  // blocks per row
  unsigned threads;
};

template <int kWidth>
Shape shape_of(std::int64_t width) {
  const unsigned threads = warps_for(ceil_div(width, kWidth), kThreads);
  return {static_cast<unsigned>(ceil_div(ceil_div(width, kWidth), threads)), threads};
}

template <class T, int kWidth>
__global__ void forward_kernel(SwigluForward a, unsigned per_row) {
  const std::int64_t row = blockIdx.x / per_row;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.x % per_row) * blockDim.x + threadIdx.x) * kWidth;
  if (column >= a.width) return;
  float gate[kWidth], up[kWidth];
  load(static_cast<const T*>(a.gate) + row * a.stride + column, gate);
  load(static_cast<const T*>(a.up) + row * a.stride + column, up);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) gate[j] = swiglu(gate[j], up[j]);
  store(static_cast<T*>(a.out) + row * a.width + column, gate);
}

template <class T, int kWidth>
__global__ void backward_kernel(SwigluBackward a, unsigned per_row) {
  const std::int64_t row = blockIdx.x / per_row;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.x % per_row) * blockDim.x + threadIdx.x) * kWidth;
  if (column >= a.width) return;
  const std::int64_t at = row * a.stride + column;
  float gate[kWidth], up[kWidth], grad[kWidth];
  load(static_cast<const T*>(a.gate) + at, gate);
  load(static_cast<const T*>(a.up) + at, up);
  load(static_cast<const T*>(a.dout) + row * a.width + column, grad);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const GateGrads grads = swiglu_grad(gate[j], up[j], grad[j]);
    gate[j] = grads.gate;
    up[j] = grads.up;
  }
  store(static_cast<T*>(a.dgate) + at, gate);
  store(static_cast<T*>(a.dup) + at, up);
}

template <class T, int kWidth>
void launch(const SwigluForward& a, cudaStream_t stream) {
  const Shape shape = shape_of<kWidth>(a.width);
  forward_kernel<T, kWidth>
      <<<blocks(a.rows * shape.per_row), shape.threads, 0, stream>>>(a, shape.per_row);
  check_launch("swiglu_forward");
}

template <class T, int kWidth>
void launch(const SwigluBackward& a, cudaStream_t stream) {
  const Shape shape = shape_of<kWidth>(a.width);
  backward_kernel<T, kWidth>
      <<<blocks(a.rows * shape.per_row), shape.threads, 0, stream>>>(a, shape.per_row);
  check_launch("swiglu_backward");
}

template <class Args>
void dispatch(const Args& a, bool eights, void* cuda_stream) {
  if (a.rows == 0 || a.width == 0) return;
  auto* const stream = static_cast<cudaStream_t>(cuda_stream);
  if (a.type == Type::bf16) {
    eights ? launch<Bf16, 8>(a, stream) : launch<Bf16, 1>(a, stream);
  } else {
    eights ? launch<float, 8>(a, stream) : launch<float, 1>(a, stream);
  }
}

}  // namespace

void swiglu_forward(const SwigluForward& args, void* cuda_stream) {
  dispatch(args, in_eights({args.gate, args.up, args.out}, {args.width, args.stride}), cuda_stream);
}

void swiglu_backward(const SwigluBackward& args, void* cuda_stream) {
  dispatch(
      args,
      in_eights({args.gate, args.up, args.dout, args.dgate, args.dup}, {args.width, args.stride}),
      cuda_stream);
}

}  // namespace rode::lab::fused
