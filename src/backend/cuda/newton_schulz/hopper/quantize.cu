// SPDX-License-Identifier: Apache-2.0
// Between two iterations of the split form: the operands in e4m3, from the iterate.
//
// X is the iterate as stored, corrected by the reprojection, factor (X - t U): rounded to e4m3 and
// written twice, along its rows and along its columns, because wgmma takes bytes along K alone. The
// corrected X itself is not written: the next product corrects it again as it reads it. The sums of
// squares of its columns (rows, where it is wide) are the diagonal of the Gram matrix.
//
// 6 bytes per element: X and U read, two copies written; 4 where nothing is corrected. One block
// per tile of 128 x 128, four per SM, 16 bytes per thread and load, half of the tile in flight. The
// copy along columns goes through shared memory by words: 4 x 4 bytes are turned in registers. Sums
// of a tile are left per column; the last tile of a column of tiles adds them up in their order.
#include <cstdint>

#include <cuda_fp16.h>

#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/newton_schulz/hopper/e4m3.cuh"
#include "backend/cuda/newton_schulz/hopper/reproject.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda {
namespace {

using hopper::corrected;
using hopper::pack_e4m3;
using hopper::tile_of;
using hopper::unpack;

constexpr int kBlock = 256;
constexpr int kAcross = kTileSide / 8;         // runs of eight elements
constexpr int kRowsApart = kBlock / kAcross;   // 16
constexpr int kRuns = kTileSide / kRowsApart;  // of a thread
constexpr int kAtOnce = 4;
constexpr int kWords = kTileSide / 4;  // of a row of bytes

// Word w of row r: turned by rows of 16, so that those who read 16 rows of a word, and those who
// write two words of a row, find all banks.
__device__ inline int word_at(int r, int w) { return r * kWords + ((w + (r >> 4) * 4) & 31); }

// Items that a cluster multiplied last come first: they may still be in L2.
__device__ inline int item_of(const QuantizeArgs& args, int block) {
  const int cluster = block % args.clusters, from_end = block / args.clusters;
  const int index = args.lists[cluster + 1] - 1 - from_end;
  return index >= args.lists[cluster] ? index : -1;
}

__device__ inline std::uint32_t four_bytes(float a, float b, float c, float d) {
  return pack_e4m3(a, b) | pack_e4m3(c, d) << 16;
}

// Rows i of column j become row j: 4 x 4 bytes.
__device__ inline void turn(const std::uint32_t (&in)[4], std::uint32_t (&out)[4]) {
  const std::uint32_t a = __byte_perm(in[0], in[1], 0x5140), b = __byte_perm(in[2], in[3], 0x5140),
                      c = __byte_perm(in[0], in[1], 0x7362), d = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(a, b, 0x5410);
  out[1] = __byte_perm(a, b, 0x7632);
  out[2] = __byte_perm(c, d, 0x5410);
  out[3] = __byte_perm(c, d, 0x7632);
}

__device__ inline uint4 read_once(const void* at) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}

// t and factor of every matrix: the product before left its tiles' sums. A launch of its own, since
// a matrix of the 1.5B shapes has 840 tiles, and each would read the sums of all.
__global__ void __launch_bounds__(kBlock) correction_kernel(const QuantizeArgs args) {
  follow();
  const int matrix = args.members[blockIdx.x];
  const TileRange range = args.tiles[matrix];
  double t = 0;
  for (int i = static_cast<int>(threadIdx.x); i < range.count; i += kBlock) {
    t += args.partials[range.first + i].t;
  }
  t = block_sum<kBlock>(t);
  if (threadIdx.x != 0) return;
  const double factor =
      args.projection == Projection::guarded ? rules::guard_factor(args.guard, t) : 1.0;
  args.corrections[matrix] = {static_cast<float>(t), static_cast<float>(factor)};
}

template <bool kCorrect>
__global__ void __launch_bounds__(kBlock, 4) quantize_kernel(const QuantizeArgs args) {
  __shared__ std::uint32_t bytes[kTileSide * kWords];
  __shared__ float sums[kRowsApart][kTileSide];
  __shared__ int last;
  const int index = item_of(args, static_cast<int>(blockIdx.x) / kClusterSize);
  follow();
  if (index < 0) return;
  const ProductItem item = args.items[index];
  const int rank = static_cast<int>(blockIdx.x) % kClusterSize;
  const ProductTile tile = tile_of(item, rank);
  const PlainOperand* own = args.operands + item.bucket * kRoles;
  const PlainOperand from = own[kRoleX];
  const bool wide = item.order == OperandOrder::k_n;
  const int row0 = tile.row * kTileSide, column0 = item.col_tile * kTileSide;
  [[maybe_unused]] const bool first = item.partial == args.tiles[tile.matrix].first && rank == 0;
  if (row0 >= from.rows) return;

  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kAcross, column = thread % kAcross * 8;
  const int left = from.cols - column0 - column;  // columns of the matrix from the thread's first
  const long long offset =
      tile.in_bucket * from.matrix_stride + (row0 + row) * from.stride + column0 + column;
  const auto* x = static_cast<const __half*>(from.data) + offset;
  const auto* u = static_cast<const __half*>(own[kRoleU].data) + offset;
  const PlainOperand& along_rows = own[wide ? kRoleXLong : kRoleXShort];
  const PlainOperand& along_columns = own[wide ? kRoleXShort : kRoleXLong];
  auto* rows_out = static_cast<std::uint8_t*>(along_rows.data) +
                   tile.in_bucket * along_rows.matrix_stride + (row0 + row) * along_rows.stride +
                   column0 + column;
  float of_column[8] = {};
  uint4 v[kAtOnce], w[kAtOnce];
  const int stride = static_cast<int>(from.stride),
            stride_out = static_cast<int>(along_rows.stride);
  const auto load = [&](int done) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int down = (done + i) * kRowsApart;
      v[i] = w[i] = uint4{0, 0, 0, 0};
      if (row0 + row + down < from.rows && left > 0) {
        v[i] = read_once(x + down * stride);
        if constexpr (kCorrect) w[i] = read_once(u + down * stride);
      }
    }
  };
  Correction correction{0, 1};
  if constexpr (kCorrect) {
    correction = args.corrections[tile.matrix];
  } else {
    if (first && threadIdx.x == 0) args.corrections[tile.matrix] = correction;
  }
#pragma unroll 1
  for (int done = 0; done < kRuns; done += kAtOnce) {
    load(done);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int down = (done + i) * kRowsApart;
      if constexpr (kCorrect) {
        v[i] = corrected<__half>(v[i], w[i], correction.t, correction.factor);
      }
      const std::uint32_t pairs[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
      float e[8];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 pair = unpack(pairs[k], __half());
        // Past the end of a row anything may lie.
        e[2 * k] = 2 * k < left ? pair.x : 0.0F;
        e[2 * k + 1] = 2 * k + 1 < left ? pair.y : 0.0F;
      }
      if (wide) {
        float of_row = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) of_row += e[k] * e[k];
#pragma unroll
        for (int distance = kAcross / 2; distance > 0; distance /= 2) {
          of_row += __shfl_xor_sync(0xffffffffU, of_row, distance);
        }
        if (thread % kAcross == 0) sums[0][row + down] = of_row;
      } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) of_column[k] += e[k] * e[k];
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) e[k] *= args.scale;
      const std::uint32_t low = four_bytes(e[0], e[1], e[2], e[3]),
                          high = four_bytes(e[4], e[5], e[6], e[7]);
      if (row0 + row + down < from.rows && left > 0) {
        *reinterpret_cast<uint2*>(rows_out + down * stride_out) = {low, high};
      }
      *reinterpret_cast<uint2*>(&bytes[word_at(row + down, thread % kAcross * 2)]) = {low, high};
    }
  }
  if (!wide) {
#pragma unroll
    for (int k = 0; k < 8; ++k) sums[row][column + k] = of_column[k];
  }
  __syncthreads();

  // 16 rows of four columns per thread: eight threads share a column's 128 bytes.
  const int group = thread % 8, word = thread / 8;
  if (column0 + word * 4 < from.cols && row0 + group * 16 < from.rows) {
    std::uint32_t turned[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t in[4], out[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) in[i] = bytes[word_at(group * 16 + k * 4 + i, word)];
      turn(in, out);
#pragma unroll
      for (int i = 0; i < 4; ++i) turned[i][k] = out[i];
    }
    auto* columns_out = static_cast<std::uint8_t*>(along_columns.data) +
                        tile.in_bucket * along_columns.matrix_stride +
                        (column0 + word * 4) * along_columns.stride + row0 + group * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column0 + word * 4 + i >= from.cols) continue;
      *reinterpret_cast<uint4*>(columns_out + i * along_columns.stride) = {
          turned[i][0], turned[i][1], turned[i][2], turned[i][3]};
    }
  }

  // The diagonal: this tile's part, and where it is the last one, all parts in their order.
  const int strip = wide ? tile.row : item.col_tile, part = wide ? item.col_tile : tile.row;
  const int parts = ((wide ? from.cols : from.rows) + kTileSide - 1) / kTileSide;
  const PlainOperand& squares = own[kRoleSquares];
  float* of_matrix = static_cast<float*>(squares.data) + tile.in_bucket * squares.matrix_stride +
                     strip * kTileSide;
  if (thread < kTileSide) {
    float sum = sums[0][thread];
    if (!wide) {
#pragma unroll
      for (int k = 1; k < kRowsApart; ++k) sum += sums[k][thread];
    }
    of_matrix[part * squares.stride + thread] = sum;
    __threadfence();
  }
  __syncthreads();
  if (thread == 0) {
    int* count = args.arrived + args.first_strip[tile.matrix] + strip;
    last = atomicAdd(count, 1) == parts - 1 ? 1 : 0;
    if (last != 0) *count = 0;  // for the next pass
    __threadfence();
  }
  __syncthreads();
  if (last == 0 || thread >= kTileSide) return;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < parts; ++i) sum += __ldcg(of_matrix + i * squares.stride + thread);
  const PlainOperand& sizes = own[kRoleD];
  (static_cast<float*>(sizes.data) +
   tile.in_bucket * sizes.matrix_stride)[strip * kTileSide + thread] = sum;
}

}  // namespace

cudaError_t launch_quantize(const QuantizeArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.clusters * args.longest * kClusterSize);
  const bool corrects =
      args.projection == Projection::guarded || args.projection == Projection::every;
  if (corrects) {
    launch_following(correction_kernel, static_cast<unsigned>(args.count), kBlock, stream, args);
  }
  launch_following(corrects ? quantize_kernel<true> : quantize_kernel<false>, blocks, kBlock,
                   stream, args);
  return cudaGetLastError();
}

}  // namespace rode::cuda
