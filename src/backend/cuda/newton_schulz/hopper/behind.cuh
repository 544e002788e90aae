// SPDX-License-Identifier: Apache-2.0
// Reprojection of tiles that cannot be held: D <- factor (D - t U) in device memory, beside the
// products of the matrices that follow.
//
// A consumer that has multiplied a tile measures it, waits until its store is complete and only
// then adds its share to the matrix's word: a word that is complete tells that all tiles are in
// device memory, too. The reprojection warps take the CTA's tiles in order as their matrices become
// complete; consumers that have multiplied their last tile help them.
//
// Products wait for no reprojection, so no wait is circular; but all clusters must run (the launch
// is cooperative), since a word is complete only when all have added to it.
#pragma once

#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/hopper/reproject.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda::hopper {

// Threads that reproject a tile together: the reprojection warps, or a consumer.
template <int kCount>
struct Team {
  static constexpr int kRowsAtOnce = kCount / kRunsAcross;
  int thread;            // within the team
  NamedBarrier barrier;  // of its own
  int place;             // in Shared::teams

  __device__ void sync() const { hopper::sync<kCount>(barrier); }
  // The CTA's next tile that nobody has taken.
  __device__ int take(Shared& shared) const {
    if (thread == 0) shared.teams[place].item = atomicAdd(&shared.next_behind, 1);
    sync();
    return shared.teams[place].item;
  }
  __device__ double sum_of(const ProductArgs& args, Shared& shared, int matrix) const {
    if (thread == 0) {
      shared.teams[place].t = wait_for_sum(args.words + matrix, args.tiles[matrix].count);
      __threadfence();  // what the word tells of is read after it
    }
    sync();
    return shared.teams[place].t;
  }
};

__device__ inline uint4 read_16(std::uint64_t address) {
  uint4 v;
  // Not from L1: TMA stored it.
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}
__device__ inline void write_16(std::uint64_t address, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

template <class Element, int kCount>
__device__ __forceinline__ void reproject_behind(const ProductArgs& args, Shared& shared, int first,
                                                 int last, int rank, const Team<kCount>& team) {
  constexpr int kRows = Team<kCount>::kRowsAtOnce, kAtOnce = 6;
  constexpr int kRunsDown = (kTileSide + kRows - 1) / kRows;
  const int row = team.thread / kRunsAcross, column = team.thread % kRunsAcross * 8;
  for (int i = first + team.take(shared); i < last; i = first + team.take(shared)) {
    const ProductItem item = args.items[i];
    const ProductTile tile = tile_of(item, rank);
    const PlainOperand* own = args.operands + item.bucket * kRoles;
    const PlainOperand& to = own[args.phases[0].d];  // U lies in the same way
    const int at_row = tile.row * kTileSide + row, at_column = item.col_tile * kTileSide + column;
    const long long offset = 2 * (tile.in_bucket * to.matrix_stride + at_row * to.stride +
                                  static_cast<long long>(at_column));
    const std::uint64_t d = __cvta_generic_to_global(to.data) + static_cast<std::uint64_t>(offset);
    const std::uint64_t u =
        __cvta_generic_to_global(own[kRoleU].data) + static_cast<std::uint64_t>(offset);
    const std::uint32_t apart = static_cast<std::uint32_t>(to.stride) * (kRows * 2);
    // Rows of the thread, within the tile and the matrix.
    const int rows = at_column < to.cols ? min(to.rows - at_row, kTileSide - row) : 0;
    const double sum = team.sum_of(args, shared, tile.matrix);
    const auto t = static_cast<float>(sum),
               factor = static_cast<float>(rules::guard_factor(args.guard, sum));
#pragma unroll 1
    for (int from = 0; from < kRunsDown; from += kAtOnce) {
      uint4 x[kAtOnce] = {}, w[kAtOnce] = {};
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const std::uint64_t down = std::uint64_t{apart} * static_cast<unsigned>(from + k);
        if ((from + k) * kRows < rows) {
          x[k] = read_16(d + down);
          w[k] = read_16(u + down);
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const std::uint64_t down = std::uint64_t{apart} * static_cast<unsigned>(from + k);
        x[k] = corrected<Element>(x[k], w[k], t, factor);
        if ((from + k) * kRows < rows) write_16(d + down, x[k]);
      }
    }
    team.sync();  // its place in Shared has been read
  }
}

}  // namespace rode::cuda::hopper
