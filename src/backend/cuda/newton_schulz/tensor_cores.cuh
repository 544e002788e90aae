// SPDX-License-Identifier: Apache-2.0
// One tile of a product on the tensor cores by mma.sync: a ring of stages in shared memory, filled
// by cp.async, and what a warp loads and multiplies of it.
//
// Rows of shared memory are swizzled in vectors of 16 bytes: the eight rows that ldmatrix reads at
// a time lie in different banks.
#pragma once

#include <cstddef>
#include <type_traits>

#include "backend/cuda/newton_schulz/elements.cuh"
#include "backend/cuda/newton_schulz/products.h"

namespace rode::cuda::tensor_cores {

constexpr int kThreads = 128;
constexpr int kDepth = 32;  // of a stage, along K
constexpr int kStages = 4;
constexpr int kVector = 8;                    // elements of 16 bytes
constexpr int kOperand = kTileSide * kDepth;  // elements of one operand in a stage
constexpr unsigned kStageBytes = 4U * kOperand;
constexpr int kPitch = kTileSide + kVector;  // of the finished tile's rows
constexpr std::size_t kRingBytes = 2UL * kStages * 2 * kOperand;
constexpr std::size_t kTileBytes = 2UL * kTileSide * kPitch;
constexpr std::size_t kSharedBytes = kRingBytes > kTileBytes ? kRingBytes : kTileBytes;

// Where the vector at (row, vector) of a staged operand lies. Rows of K have 4 vectors, two of them
// fill the banks; rows of M or N have 16.
template <bool kAlongK>
__device__ inline int staged(int row, int vector) {
  return kAlongK ? row * 4 + (vector ^ (row >> 1 & 3)) : row * 16 + (vector ^ (row & 7));
}

// Loads one operand, stage by stage. A thread has the same vector of every 32nd row (along K; of
// every 8th along M or N), so that one address serves. What lies outside of the matrix is zero:
// rows may end within a vector, and what follows in memory is not defined.
template <bool kAlongK, class T>
struct Loader {
  static constexpr int kRowsApart = kAlongK ? kThreads / 4 : kThreads / 16;
  static constexpr int kRows = kAlongK ? kTileSide : kDepth;
  static constexpr int kRowBytes = kAlongK ? 2 * kDepth : 2 * kTileSide;

  const char* source;  // of the next stage
  long long stride;    // bytes
  int rows, bytes;     // left of the matrix from there on, down and across
  unsigned target;     // within the operand's part of a stage

  __device__ Loader(const PlainOperand& from, int in_bucket, int side, int from_k = 0) {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = kAlongK ? thread / 4 : thread / 16, vector = kAlongK ? thread % 4 : thread % 16;
    const int first_row = (kAlongK ? side : from_k) + row;
    const int first_col = (kAlongK ? from_k : side) + vector * kVector;
    stride = from.stride * 2;
    source = reinterpret_cast<const char*>(static_cast<const T*>(from.data) +
                                           in_bucket * from.matrix_stride + first_col) +
             first_row * stride;
    rows = from.rows - first_row;
    bytes = (from.cols - first_col) * 2;
    target = 16U * static_cast<unsigned>(staged<kAlongK>(row, vector));
  }

  __device__ void load(unsigned shared) {
    const int across = bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
#pragma unroll
    for (int down = 0; down < kRows; down += kRowsApart) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                       shared + target + static_cast<unsigned>(down * kRowBytes)),
                   "l"(source + down * stride), "r"(down < rows ? across : 0)
                   : "memory");
    }
    source += kAlongK ? 2LL * kDepth : kDepth * stride;
    if (kAlongK) {
      bytes -= 2 * kDepth;
    } else {
      rows -= kDepth;
    }
  }
};

template <bool kTransposed>
__device__ inline void load_matrices(unsigned (&to)[4], unsigned shared) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared));
  }
}

template <class T>
__device__ inline void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// A warp's sums: 4 x 8 blocks of 16 x 8, four of each per thread.
struct Sums {
  float at[4][8][4];
};

// Sixteen of K: what a warp multiplies at a time.
struct Fragments {
  unsigned a[4][4], b[4][4];
};

// A lane's address is that of a row of one of the four 8 x 8 matrices that ldmatrix loads:
// (row, k), (row + 8, k), (row, k + 8), (row + 8, k + 8) of the left operand,
// (col, k), (col, k + 8), (col + 8, k), (col + 8, k + 8) of the right one.
template <OperandOrder kOrder>
__device__ inline void load_fragments(Fragments& to, unsigned left, unsigned right, int row,
                                      int col, int k) {
  constexpr bool kLeftAlongK = kOrder != OperandOrder::m_n;
  constexpr bool kRightAlongK = kOrder == OperandOrder::k_k;
  const int lane = static_cast<int>(threadIdx.x) % 32, inner = lane % 8;
  const int first = lane / 8 % 2, second = lane / 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int side = row + 16 * i;
    const int at = kLeftAlongK ? staged<true>(side + inner + 8 * first, k / kVector + second)
                               : staged<false>(k + inner + 8 * second, side / kVector + first);
    load_matrices<!kLeftAlongK>(to.a[i], left + 16U * static_cast<unsigned>(at));
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int side = col + 16 * j;
    const int at = kRightAlongK ? staged<true>(side + inner + 8 * second, k / kVector + first)
                                : staged<false>(k + inner + 8 * first, side / kVector + second);
    load_matrices<!kRightAlongK>(to.b[j], right + 16U * static_cast<unsigned>(at));
  }
}

// A tile of C or U that the epilogue needs follows the stages through the ring, 32 rows in each
// half of a slot, while the last products are computed.
template <class T>
using Companion = Loader<false, T>;

__device__ inline unsigned companion_at(unsigned shared, int stages, int row, int col) {
  const int slot = (stages + row / 64) % kStages, half = row / 32 % 2;
  return shared + static_cast<unsigned>(slot) * kStageBytes +
         static_cast<unsigned>(half) * kStageBytes / 2 +
         16U * static_cast<unsigned>(staged<false>(row % 32, col / kVector)) +
         2U * static_cast<unsigned>(col % kVector);
}

// While one set of fragments is multiplied, the next is loaded, across stages too.
template <class T, OperandOrder kOrder, class Beside>
__device__ void multiply_tile(Sums& sums, const PlainOperand& a, const PlainOperand& b,
                              Beside* companion, int in_bucket, int row, int col, int stages,
                              unsigned shared) {
  constexpr int kSteps = kDepth / 16;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / 2 * 64, warp_col = warp % 2 * 64;
  const auto slot = [&](int stage) {
    return shared + static_cast<unsigned>(stage % kStages) * kStageBytes;
  };
  Loader<kOrder != OperandOrder::m_n, T> left(a, in_bucket, row);
  Loader<kOrder == OperandOrder::k_k, T> right(b, in_bucket, col);
  const auto load = [&](int stage) {
    if (stage < stages) {
      left.load(slot(stage));
      right.load(slot(stage) + kStageBytes / 2);
    } else if (companion != nullptr && stage < stages + 2) {
      companion->load(slot(stage));
      companion->load(slot(stage) + kStageBytes / 2);
    }
    // A group for every stage, also an empty one: waiting counts them.
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const auto arrived = [] {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();
  };
  Fragments fragments[2];
  const auto fetch = [&](Fragments& to, int stage, int k) {
    load_fragments<kOrder>(to, slot(stage), slot(stage) + kStageBytes / 2, warp_row, warp_col, k);
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) load(stage);
  arrived();
  fetch(fragments[0], 0, 0);
  for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) {
        fetch(fragments[(step + 1) % 2], stage, 16 * (step + 1));
      } else {
        arrived();  // and nobody reads this stage any more: the next load() takes its place
        fetch(fragments[(step + 1) % 2], stage + 1, 0);  // behind the last stage: not used
      }
      if (step == 0) load(stage + kStages - 1);
      const Fragments& now = fragments[step % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          multiply<T>(sums.at[i][j], now.a[i], now.b[j / 2][j % 2 * 2],
                      now.b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
}

}  // namespace rode::cuda::tensor_cores
