// SPDX-License-Identifier: Apache-2.0
// The same products for any device, and in fp32: one block per tile, fp32 arithmetic.
//
// 256 threads hold 8 x 8 sums each of a 128 x 128 tile; 16 steps of K are staged in shared
// memory at a time. This is the path of ns_dtype = fp32, of short sides below 64 and of
// chips before compute capability 8.0; CudaProducts::plain takes it anywhere.
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/newton_schulz/elements.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "backend/cuda/newton_schulz/schatten.cuh"

namespace rode::cuda {
namespace {

constexpr int kDepth = 16;
constexpr int kSide = 8;  // of a thread's block of sums
constexpr int kThreads = 256;

template <class T>
struct View {
  T* data;
  long long stride;
  int rows, cols;
  __device__ View(const PlainOperand& operand, int in_bucket)
      : data(static_cast<T*>(operand.data) + in_bucket * operand.matrix_stride),
        stride(operand.stride),
        rows(operand.rows),
        cols(operand.cols) {}
  __device__ T& at(int row, int col) const { return data[row * stride + col]; }
  __device__ float read(int row, int col) const {
    return row < rows && col < cols ? widen(at(row, col)) : 0.0F;
  }
};

template <class T, bool kSymmetric>
__global__ void __launch_bounds__(kThreads) product_kernel(const ProductArgs args) {
  __shared__ float left[kDepth][kTileSide + 4], right[kDepth][kTileSide + 4];
  const ProductItem item = args.items[blockIdx.x / kClusterSize];
  const int rank = static_cast<int>(blockIdx.x) % kClusterSize;
  const auto [in_bucket, matrix, row_tile] = item.tiles[rank];
  const int col_tile = item.col_tile;
  if (row_tile == kNoTile) return;
  const PlainOperand* own = args.operands + item.bucket * kRoles;
  const bool swap = item.order == OperandOrder::k_n;
  const Phase& phase = args.phases[0];
  const View<T> a(own[swap ? phase.b : phase.a], in_bucket),
      b(own[swap ? phase.a : phase.b], in_bucket), d(own[phase.d], in_bucket);
  const int row = row_tile * kTileSide, col = col_tile * kTileSide;
  const int thread_row = static_cast<int>(threadIdx.x) / 16 * kSide,
            thread_col = static_cast<int>(threadIdx.x) % 16 * kSide;

  float sum[kSide][kSide] = {};
  for (int k0 = 0; k0 < item.depth * kTileDepth; k0 += kDepth) {
    for (int i = static_cast<int>(threadIdx.x); i < kDepth * kTileSide; i += kThreads) {
      // Neighbouring threads read along the rows of memory, whichever way they lie.
      const int k_fast = i % kDepth, k_slow = i / kTileSide;
      const int side_slow = i / kDepth, side_fast = i % kTileSide;
      if (item.order == OperandOrder::m_n) {
        left[k_slow][side_fast] = a.read(k0 + k_slow, row + side_fast);
      } else {
        left[k_fast][side_slow] = a.read(row + side_slow, k0 + k_fast);
      }
      if (item.order == OperandOrder::k_k) {
        right[k_fast][side_slow] = b.read(col + side_slow, k0 + k_fast);
      } else {
        right[k_slow][side_fast] = b.read(k0 + k_slow, col + side_fast);
      }
    }
    __syncthreads();
    for (int k = 0; k < kDepth; ++k) {
      float x[kSide], y[kSide];
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
        x[i] = left[k][thread_row + i];
        y[i] = right[k][thread_col + i];
      }
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
#pragma unroll
        for (int j = 0; j < kSide; ++j) sum[i][j] += x[i] * y[j];
      }
    }
    __syncthreads();
  }

  Blend blend{1, 0, 0, 0};
  const bool blended = kSymmetric && phase.blends != nullptr;
  if (blended) {
    blend = phase.blends[matrix];
    if (phase.squares != nullptr) blend = of_squares(blend, phase.squares + matrix, d.rows);
  }
  const bool squares = kSymmetric && !blended && phase.squares != nullptr;
  const bool measure = !kSymmetric && args.projection != Projection::none;
  double t = 0, xx = 0;
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      const int r = row + thread_row + i, c = col + thread_col + j;
      const bool twice = item.mirror && row_tile == col_tile && r > c;
      if (r >= d.rows || c >= d.cols || twice) continue;
      float value = sum[i][j];
      if (blended) {
        const View<T> other(own[phase.c], in_bucket);
        value = blend.alpha * value + blend.beta * other.read(r, c) + (r == c ? blend.gamma : 0);
      }
      T rounded;
      narrow(value, rounded);
      d.at(r, c) = rounded;
      if (item.mirror && r != c) d.at(c, r) = rounded;
      if (squares) {
        const double x = widen(rounded);
        xx += item.mirror && r != c ? 2 * x * x : x * x;
      }
      if (measure) {
        const View<DirectionOf<T>> u(own[kRoleU], in_bucket);
        const double x = widen(rounded);
        t += x * static_cast<double>(u.read(r, c));
        xx += x * x;
      }
    }
  }
  if (squares) {
    xx = block_sum<kThreads>(xx);
    if (threadIdx.x == 0) add_squares(phase.squares + matrix, xx, args.start_scale[matrix]);
  }
  if (!measure) return;
  t = block_sum<kThreads>(t);
  xx = block_sum<kThreads>(xx);
  if (threadIdx.x == 0) {
    args.partials[item.partial + rank] = {t, xx};
  }
}

template <class T>
void launch_typed(const ProductArgs& args, bool symmetric, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(kClusterSize * args.count);
  if (symmetric) {
    product_kernel<T, true><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    product_kernel<T, false><<<blocks, kThreads, 0, stream>>>(args);
  }
}

}  // namespace

cudaError_t launch_plain(const ProductArgs& args, NsDType dtype, bool symmetric,
                         cudaStream_t stream) {
  switch (dtype) {
    case NsDType::fp16: launch_typed<__half>(args, symmetric, stream); break;
    case NsDType::bf16: launch_typed<__nv_bfloat16>(args, symmetric, stream); break;
    default: launch_typed<float>(args, symmetric, stream); break;
  }
  return cudaGetLastError();
}

}  // namespace rode::cuda
