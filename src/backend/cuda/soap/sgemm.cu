// SPDX-License-Identifier: Apache-2.0
// C = A B in fp32 with any strides: a plain tiled product.
//
// A block of 256 threads makes a 64 x 64 tile of C, 4 x 4 a thread, from 64 x 16 slices of
// A and B in shared memory; the next slices are on their way in registers meanwhile. A
// thread reads 8 numbers from shared memory for 16 multiply-adds, so these bound it. Bytes:
// A is read n / 64 times, B m / 64 times, mostly from L2. 64 x 64 rather than larger: the
// matrices are of side 3 to a few thousand, and small tiles leave no chip idle.
//
// Global reads run along the side whose stride is 1, so that both orientations coalesce.
#include <algorithm>

#include "backend/cuda/device/check.h"
#include "backend/cuda/soap/sgemm.h"

namespace rode::cuda {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256;
constexpr int kLoads = kTile * kDepth / kThreads;  // elements of a slice a thread fetches
// Blocks that fill a large chip twice, and the least part of k worth a block of its own.
constexpr std::int64_t kManyBlocks = 264, kLeastPart = 256;

template <class Sum>
struct alignas(16) Four {
  Sum v[4];
};

// A row of a slice: one Four more than it holds shifts the banks from row to row.
template <class Sum>
using SliceRow = Four<Sum>[kTile / 4 + 1];

__device__ std::int64_t offset(const Axis& axis, int i) {
  if (axis.outer_stride == 0) return i * axis.stride;
  const int outer = i / axis.inner;
  return outer * axis.outer_stride + (i - outer * axis.inner) * axis.stride;
}

// Fetches one operand's slices: `side` is the index of C, `depth` the summed one.
struct Fetcher {
  const float* data;
  Axis depth;
  bool depth_first;  // neighbouring threads differ in depth
  int thread;
  std::int64_t side_at[kLoads];  // negative: past the matrix

  __device__ Fetcher(const float* operand, const Axis& side, const Axis& depth_axis, int first,
                     int count, int own)
      : data(operand), depth(depth_axis), depth_first(side.stride != 1), thread(own) {
    for (int i = 0; i < kLoads; ++i) {
      const int index = first + side_of(i);
      side_at[i] = index < count ? offset(side, index) : -1;
    }
  }
  __device__ int side_of(int i) const {
    return depth_first ? thread / kDepth + i * (kThreads / kDepth) : thread % kTile;
  }
  __device__ int depth_of(int i) const {
    return depth_first ? thread % kDepth : thread / kTile + i * (kThreads / kTile);
  }

  __device__ void fetch(int begin, int end, float (&out)[kLoads]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = begin + depth_of(i);
      out[i] = side_at[i] >= 0 && at < end ? data[side_at[i] + offset(depth, at)] : 0.0F;
    }
  }
  template <class Sum>
  __device__ void store(const float (&in)[kLoads], SliceRow<Sum>* slice) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int side = side_of(i);
      slice[depth_of(i)][side / 4].v[side % 4] = static_cast<Sum>(in[i]);
    }
  }
};

// At least two blocks per multiprocessor: one computes while the other waits for its slices.
template <class Sum>
__global__ void __launch_bounds__(kThreads, 2) product(SgemmArgs args) {
  __shared__ SliceRow<Sum> a_slice[kDepth], b_slice[kDepth];
  const unsigned across = (static_cast<unsigned>(args.n) + kTile - 1) / kTile;
  const int top = static_cast<int>(blockIdx.x / across * kTile);
  const int left = static_cast<int>(blockIdx.x % across * kTile);
  if (args.upper && left + kTile <= top) return;
  const int thread = static_cast<int>(threadIdx.x), part = static_cast<int>(blockIdx.y);
  const std::int64_t depth = (static_cast<std::int64_t>(args.k) + args.splits - 1) / args.splits;
  const int begin = static_cast<int>(min(part * depth, static_cast<std::int64_t>(args.k)));
  const int end = static_cast<int>(min(begin + depth, static_cast<std::int64_t>(args.k)));

  const Fetcher from_a(args.a, args.a_row, args.a_col, top, args.m, thread);
  const Fetcher from_b(args.b, args.b_col, args.b_row, left, args.n, thread);
  const int row = thread / (kTile / 4), col = thread % (kTile / 4);  // of 4 x 4 squares
  Sum sum[4][4] = {};
  float a_next[kLoads], b_next[kLoads];
  from_a.fetch(begin, end, a_next);
  from_b.fetch(begin, end, b_next);
  for (int at = begin; at < end; at += kDepth) {
    from_a.store<Sum>(a_next, a_slice);
    from_b.store<Sum>(b_next, b_slice);
    __syncthreads();
    if (at + kDepth < end) {
      from_a.fetch(at + kDepth, end, a_next);
      from_b.fetch(at + kDepth, end, b_next);
    }
#pragma unroll
    for (int l = 0; l < kDepth; ++l) {
      const Four<Sum> a = a_slice[l][row], b = b_slice[l][col];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += a.v[i] * b.v[j];
      }
    }
    __syncthreads();
  }

  float* c = args.c + part * args.split_stride;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int y = top + 4 * row + i;
    if (y >= args.m) continue;
    const std::int64_t line = offset(args.c_row, y);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int x = left + 4 * col + j;
      if (x >= args.n) continue;
      float* out = c + line + offset(args.c_col, x);
      *out = static_cast<float>(sum[i][j]);
    }
  }
}

std::int64_t tiles_along(std::int64_t side) { return (side + kTile - 1) / kTile; }

}  // namespace

std::int32_t gram_splits(std::int64_t n, std::int64_t k) {
  const std::int64_t side = tiles_along(n),
                     tiles = std::max<std::int64_t>(1, side * (side + 1) / 2);
  return static_cast<std::int32_t>(
      std::max<std::int64_t>(1, std::min(k / kLeastPart, (kManyBlocks + tiles - 1) / tiles)));
}

void sgemm(const SgemmArgs& args, cudaStream_t stream) {
  if (args.m <= 0 || args.n <= 0) return;
  const dim3 grid(static_cast<unsigned>(tiles_along(args.m) * tiles_along(args.n)),
                  static_cast<unsigned>(args.splits));
  if (args.wide) {
    product<double><<<grid, kThreads, 0, stream>>>(args);
  } else {
    product<float><<<grid, kThreads, 0, stream>>>(args);
  }
  RODE_CUDA_CHECK_LAUNCH(stream, "sgemm");
}

}  // namespace rode::cuda
