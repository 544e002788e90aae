// SPDX-License-Identifier: Apache-2.0
// Rotary positions of q and k in place where their product left them; and the gradients of q, k
// and v, turned back, side by side for the product's own gradient.
//
//   (a, b) -> (a cos - b sin, b cos + a sin) for the pairs (i, i + size/2) of a head
//
// Forward 4 bytes per element of q and k in bf16, backward 4 per element of q, k and v: no
// joining of the three by a copy of its own. A thread has eight pairs; x runs over the pairs of a
// row, y over rows.
#include "lab/models/fused/elements.cuh"
#include "lab/models/fused/kernels.h"
#include "lab/models/fused/launch.h"
#include "lab/models/fused/math.h"

namespace rode::lab::fused {
namespace {

template <int kWidth>
__device__ void turn_runs(const float* cos, const float* sin, float sign, float (&first)[kWidth],
                          float (&second)[kWidth]) {
  float c[kWidth], s[kWidth];
  load(cos, c);
  load(sin, s);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const Pair pair = turn(first[j], second[j], c[j], sign * s[j]);
    first[j] = pair.first;
    second[j] = pair.second;
  }
}

template <class T, int kWidth>
__global__ void forward_kernel(RotaryForward a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const int half = static_cast<int>(a.size / 2), runs = half / kWidth;
  const std::int64_t angles = row % a.length * half;
  T* const data = static_cast<T*>(a.data) + row * a.stride;
  for (int item = static_cast<int>(threadIdx.x); item < a.heads * runs;
       item += static_cast<int>(blockDim.x)) {
    const int head = item / runs, i = item % runs * kWidth;
    T* const at = data + head * a.size + i;
    float first[kWidth], second[kWidth];
    load(at, first);
    load(at + half, second);
    turn_runs(a.cos + angles + i, a.sin + angles + i, 1.0F, first, second);
    store(at, first);
    store(at + half, second);
  }
}

template <class T>
__device__ const T* head_of(const HeadGrads& grads, std::int64_t batch, std::int64_t head,
                            std::int64_t position) {
  return static_cast<const T*>(grads.data) + batch * grads.batch_stride + head * grads.head_stride +
         position * grads.position_stride;
}

template <class T, int kWidth>
__global__ void backward_kernel(RotaryBackward a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const int half = static_cast<int>(a.size / 2), runs = half / kWidth;
  const std::int64_t batch = row / a.length, position = row % a.length;
  const int turned = static_cast<int>(a.heads + a.kv_heads);
  const int heads = turned + static_cast<int>(a.kv_heads);
  T* const out = static_cast<T*>(a.out) + row * heads * a.size;
  for (int item = static_cast<int>(threadIdx.x); item < heads * runs;
       item += static_cast<int>(blockDim.x)) {
    const int head = item / runs, i = item % runs * kWidth;
    const T* from;
    if (head < a.heads) {
      from = head_of<T>(a.q, batch, head, position);
    } else if (head < turned) {
      from = head_of<T>(a.k, batch, head - a.heads, position);
    } else {
      from = head_of<T>(a.v, batch, head - turned, position);
    }
    float first[kWidth], second[kWidth];
    load(from + i, first);
    load(from + half + i, second);
    if (head < turned) {
      const std::int64_t angles = position * half + i;
      turn_runs(a.cos + angles, a.sin + angles, -1.0F, first, second);
    }
    T* const to = out + head * a.size + i;
    store(to, first);
    store(to + half, second);
  }
}

// A row's items along x, and rows along y to fill 256 threads.
dim3 block_of(std::int64_t items) {
  const unsigned x = warps_for(items, 256);
  return {x, 256 / x, 1};
}

template <class T, int kWidth>
void launch(const RotaryForward& a, cudaStream_t stream) {
  const dim3 block = block_of(a.heads * (a.size / 2 / kWidth));
  forward_kernel<T, kWidth><<<blocks(ceil_div(a.rows, block.y)), block, 0, stream>>>(a);
  check_launch("rotary_forward");
}

template <class T, int kWidth>
void launch(const RotaryBackward& a, cudaStream_t stream) {
  const dim3 block = block_of((a.heads + 2 * a.kv_heads) * (a.size / 2 / kWidth));
  backward_kernel<T, kWidth><<<blocks(ceil_div(a.rows, block.y)), block, 0, stream>>>(a);
  check_launch("rotary_backward");
}

template <class Args>
void dispatch(const Args& a, bool eights, void* cuda_stream) {
  if (a.size % 2 != 0) {
    throw Error(ErrorKind::shape, "fused", "heads of width " + std::to_string(a.size));
  }
  if (a.rows == 0) return;
  auto* const stream = static_cast<cudaStream_t>(cuda_stream);
  if (a.type == Type::bf16) {
    eights ? launch<Bf16, 8>(a, stream) : launch<Bf16, 1>(a, stream);
  } else {
    eights ? launch<float, 8>(a, stream) : launch<float, 1>(a, stream);
  }
}

bool in_eights_too(const HeadGrads& grads) {
  return in_eights({grads.data}, {grads.batch_stride, grads.head_stride, grads.position_stride});
}

}  // namespace

void rotary_forward(const RotaryForward& args, void* cuda_stream) {
  dispatch(args, in_eights({args.data, args.cos, args.sin}, {args.stride, args.size / 2}),
           cuda_stream);
}

void rotary_backward(const RotaryBackward& args, void* cuda_stream) {
  dispatch(args,
           in_eights({args.out, args.cos, args.sin}, {args.size / 2}) && in_eights_too(args.q) &&
               in_eights_too(args.k) && in_eights_too(args.v),
           cuda_stream);
}

}  // namespace rode::lab::fused
