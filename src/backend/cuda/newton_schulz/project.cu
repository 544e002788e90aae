// SPDX-License-Identifier: Apache-2.0
// Reprojection of an iterate: D <- factor (D - t U), t = <D, U> of its matrix.
//
// 6 bytes per element in half precision (D and U read, D written), 12 in fp32. One block per
// tile of 128 x 128, 16 bytes per thread and load, a quarter of the tile in flight. Every block
// adds up its matrix's partial sums again, always in one order, which saves a launch. Blocks go
// from the tiles that were written last to the first: those may still be in L2.
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/newton_schulz/elements.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct alignas(16) Vector {
  static constexpr int kWidth = 16 / sizeof(T);
  T element[kWidth];
};

// Items that a cluster multiplied last come first.
__device__ inline int item_of(const ProductArgs& args, int block) {
  const int cluster = block % args.clusters, from_end = block / args.clusters;
  const int index = args.lists[cluster + 1] - 1 - from_end;
  return index >= args.lists[cluster] ? index : -1;
}

// The matrix's t, in every thread.
__device__ inline double sum_of(const ProductArgs& args, int matrix) {
  const TileRange range = args.tiles[matrix];
  double t = 0;
  for (int i = static_cast<int>(threadIdx.x); i < range.count; i += kThreads) {
    t += args.partials[range.first + i].t;
  }
  return block_sum<kThreads>(t);
}

template <class T>
__global__ void __launch_bounds__(kThreads) projection_kernel(const ProductArgs args) {
  using Direction = DirectionOf<T>;
  constexpr int kWidth = Vector<T>::kWidth, kAcross = kTileSide / kWidth;  // threads per row
  constexpr int kRowsApart = kThreads / kAcross, kPasses = 4;
  const int index = item_of(args, static_cast<int>(blockIdx.x) / kClusterSize);
  if (index < 0) return;
  const ProductItem item = args.items[index];
  const int rank = static_cast<int>(blockIdx.x) % kClusterSize;
  const ProductTile tile = item.tiles[rank];
  const double sum = sum_of(args, tile.matrix);
  const auto t = static_cast<float>(sum);
  const float factor = args.projection == Projection::guarded
                           ? static_cast<float>(rules::guard_factor(args.guard, sum))
                           : 1.0F;
  const PlainOperand* own = args.operands + item.bucket * kRoles;
  const PlainOperand to = own[args.phases[0].d];
  const int row = tile.row * kTileSide + static_cast<int>(threadIdx.x) / kAcross;
  const int column = item.col_tile * kTileSide + static_cast<int>(threadIdx.x) % kAcross * kWidth;
  if (column >= to.cols) return;
  const long long offset = tile.in_bucket * to.matrix_stride + row * to.stride + column;
  T* d = static_cast<T*>(to.data) + offset;
  const Direction* u = static_cast<const Direction*>(own[kRoleU].data) + offset;
#pragma unroll 2
  for (int done = 0; done < kTileSide; done += kPasses * kRowsApart) {
    Vector<T> x[kPasses];
    Vector<Direction> w[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int down = done + i * kRowsApart;
      if (row + down >= to.rows) continue;
      x[i] = *reinterpret_cast<const Vector<T>*>(d + down * to.stride);
      w[i] = *reinterpret_cast<const Vector<Direction>*>(u + down * to.stride);
    }
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int down = done + i * kRowsApart;
      if (row + down >= to.rows) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        narrow(rules::ns_project(widen(x[i].element[k]), widen(w[i].element[k]), t, factor),
               x[i].element[k]);
      }
      *reinterpret_cast<Vector<T>*>(d + down * to.stride) = x[i];
    }
  }
}

}  // namespace

cudaError_t launch_projection(const ProductArgs& args, NsDType dtype, cudaStream_t stream) {
  // As many rows of blocks as the longest list has items.
  const auto blocks = static_cast<unsigned>(args.clusters * args.longest * kClusterSize);
  switch (dtype) {
    case NsDType::fp16: projection_kernel<__half><<<blocks, kThreads, 0, stream>>>(args); break;
    case NsDType::bf16:
      projection_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(args);
      break;
    default: projection_kernel<float><<<blocks, kThreads, 0, stream>>>(args); break;
  }
  return cudaGetLastError();
}

}  // namespace rode::cuda
