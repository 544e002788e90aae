// SPDX-License-Identifier: Apache-2.0
// Cross entropy of rows of logits; the gradient takes the logits' place.
//
//   loss = log sum exp(x) - x_t,  x' = (exp(x) / sum exp(x) - [t]) scale
//
// A block has a row. Where two rows fit a processor's shared memory, a row is read from memory once
// and kept there between the sum and the gradient: 4 bytes per logit in bf16, 2 of them without the
// gradient; a row of 50257 takes 100 KB. Longer rows are read twice. Each thread keeps a largest
// element and a sum of its own (the sum is corrected when the largest changes), and reads back only
// what it wrote itself.
#include <algorithm>

#include "lab/models/fused/elements.cuh"
#include "lab/models/fused/kernels.h"
#include "lab/models/fused/launch.h"
#include "lab/models/fused/math.h"

namespace rode::lab::fused {
namespace {

constexpr int kThreads = 512;
constexpr int kBatch = 4;  // runs that a thread asks for before it looks at the first

__device__ SoftmaxSum block_combine(SoftmaxSum own) {
  __shared__ SoftmaxSum parts[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    own = combine(own, {__shfl_xor_sync(0xffffffffU, own.max, distance),
                        __shfl_xor_sync(0xffffffffU, own.sum, distance)});
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  own = parts[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) own = combine(own, parts[w]);
  return own;
}

// Columns that are not there count for nothing.
template <int kWidth>
__device__ void hide(std::int64_t column, std::int64_t vocabulary, float (&x)[kWidth]) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    if (column + j >= vocabulary) x[j] = -INFINITY;
  }
}

template <int kWidth>
__device__ void add_run(SoftmaxSum& own, const float (&x)[kWidth]) {
  float largest = x[0];
#pragma unroll
  for (int j = 1; j < kWidth; ++j) largest = fmaxf(largest, x[j]);
  if (largest > own.max) {
    own.sum *= exp_of(own.max - largest);  // at first 0 times exp(-inf)
    own.max = largest;
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum += exp_of(x[j] - own.max);
  own.sum += sum;
}

// A NaN among the logits is passed over by fmaxf, but not by the sum.
template <class T, int kWidth, bool kStaged>
__global__ void __launch_bounds__(kThreads) row_kernel(CrossEntropy a) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* const row = static_cast<T*>(a.logits) + blockIdx.x * a.stride;
  T* const kept = kStaged ? reinterpret_cast<T*>(memory) : row;
  const std::int64_t target = a.targets[blockIdx.x];
  const bool known = target >= 0 && target < a.vocabulary;
  // Before the sum's barrier: later its place may hold the gradient.
  const float at_target = threadIdx.x == 0 && known ? value_of(row[target]) : 0.0F;

  SoftmaxSum own{-INFINITY, 0.0F};
  const std::int64_t first = threadIdx.x * kWidth;
  for (std::int64_t begin = first; begin < a.vocabulary; begin += kBatch * kThreads * kWidth) {
    float x[kBatch][kWidth];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int64_t column = begin + b * kThreads * kWidth;
      if (column < a.vocabulary) load(row + column, x[b]);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int64_t column = begin + b * kThreads * kWidth;
      if (column >= a.vocabulary) break;
      if (kStaged) store(kept + column, x[b]);
      if (column + kWidth > a.vocabulary) hide(column, a.vocabulary, x[b]);
      add_run(own, x[b]);
    }
  }
  const float all = log_sum(block_combine(own));
  if (threadIdx.x == 0) a.losses[blockIdx.x] = known ? all - at_target : NAN;
  if (!a.gradient) return;
#pragma unroll 4
  for (std::int64_t column = first; column < a.stride; column += kThreads * kWidth) {
    float x[kWidth];
    if (column < a.vocabulary) {
      load(kept + column, x);
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[j] = -INFINITY;
    }
    if (column + kWidth > a.vocabulary) hide(column, a.vocabulary, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x[j] = logit_grad(x[j], all, column + j == target, a.scale);
    store(row + column, x);
  }
}

// Shared memory of a block if two are to share a processor; 1 KB of each is the system's.
int staging_bytes() {
  int device = 0, processor = 0, block = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&processor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute");
  return std::min(block, processor / 2 - 1024) - 512;
}

template <class T, int kWidth>
void launch(const CrossEntropy& a, cudaStream_t stream) {
  const std::int64_t bytes =
      ceil_div(a.vocabulary, kWidth) * kWidth * static_cast<std::int64_t>(sizeof(T));
  if (a.gradient && bytes <= staging_bytes()) {
    const auto kernel = row_kernel<T, kWidth, true>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "cudaFuncSetAttribute");
    kernel<<<blocks(a.rows), kThreads, static_cast<std::size_t>(bytes), stream>>>(a);
  } else {
    row_kernel<T, kWidth, false><<<blocks(a.rows), kThreads, 0, stream>>>(a);
  }
  check_launch("cross_entropy");
}

}  // namespace

void cross_entropy(const CrossEntropy& args, void* cuda_stream) {
  if (args.rows == 0) return;
  auto* const stream = static_cast<cudaStream_t>(cuda_stream);
  const bool eights = in_eights({args.logits}, {args.stride});
  if (args.type == Type::bf16) {
    eights ? launch<Bf16, 8>(args, stream) : launch<Bf16, 1>(args, stream);
  } else {
    eights ? launch<float, 8>(args, stream) : launch<float, 1>(args, stream);
  }
}

}  // namespace rode::lab::fused
