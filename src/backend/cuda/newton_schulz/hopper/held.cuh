// SPDX-License-Identifier: Apache-2.0
// Reprojection without a trip to device memory: a tile stays in shared memory until its matrix's
// inner product with U is known, and leaves as factor (D - t U).
//
// A consumer that has multiplied a tile takes its share of t from the rounded sums, adds it to the
// matrix's word in device memory, puts the tile down and goes on to multiply. The reprojection
// warps wait for the word, correct the tile and store it.
//
// No wait is circular as long as all clusters run (the launch is cooperative) and no cluster has
// more than kMostHeld items of one matrix in a row: each of the two consumers can have one tile put
// down and one in its registers, measured already (can_hold() in plan/lists.cpp).
#pragma once

#include "backend/cuda/newton_schulz/hopper/consumer.cuh"
#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/hopper/reproject.cuh"
#include "backend/cuda/newton_schulz/hopper/ring.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda::hopper {

// The consumer's epilogue: `at` stands on the stage that holds the tile of U, and is moved on.
template <class Element>
__device__ __forceinline__ void hold(const ProductArgs& args, const ProductTile& tile, Consumer& me,
                                     Shared& shared, Cursor& at, float (&d)[2][64]) {
  const std::uint32_t own = me.own_place();
  const std::uint32_t direction =
      own - me.tile + shared_address(shared.ring) + at.stage * kStageBytes;
  std::uint32_t packed[2][32];
  float t = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int from = 0; from < 32; from += kInFlight) {
      std::uint32_t u[kInFlight];
      me.read(direction, half, from, u);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int i = from + j;
        packed[half][i] = pack(d[half][2 * i], d[half][2 * i + 1], Element());
        const float2 x = unpack(packed[half][i], Element()), w = unpack(u[j], __half());
        t += x.x * w.x + x.y * w.y;
      }
      asm volatile("" : "+f"(t)::"memory");
    }
  }
  __syncwarp();
  release_stage(shared, at.stage);
  at.advance(1);
  double share = t;
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    share += __shfl_down_sync(0xffffffffU, share, offset);
  }
  if (me.lane == 0) shared.sums[me.index][me.warp][0] = share;
  me.sync();
  if (me.warp == 0 && me.lane == 0) {
    const double(&s)[4][2] = shared.sums[me.index];
    add_to_word<false>(args.words + tile.matrix, s[0][0] + s[1][0] + s[2][0] + s[3][0]);
  }
  // The tile before has left.
  mbarrier_wait(shared_address(&shared.stored[me.index]), me.parity ^ 1);
  me.parity ^= 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 32; ++i) write_shared(me.place(own, half, i), packed[half][i]);
  }
  // Every thread for itself: racecheck follows a barrier to those who arrive at it, not beyond.
  mbarrier_arrive(shared_address(&shared.ready[me.index]));
}

// The reprojection warps correct tiles, a quarter at a time: 6 rows of 16 runs of 8 elements at
// once, 6 runs per thread. Two quarters of U are on their way while a third is worked on, and the
// next tile's first ones while its sum is waited for.
inline constexpr int kRowsAtOnce = kReprojectors / kRunsAcross;
inline constexpr int kRuns = 6, kQuarterRows = kRuns * kRowsAtOnce;
static_assert(4 * kQuarterRows >= kTileSide);

// Where a thread's runs of U lie.
struct DirectionRuns {
  std::uint64_t at = 0;     // of its first run
  std::uint32_t apart = 0;  // bytes from one to the next
  int rows = 0;             // from its first run to the end of the matrix; 0: it has none

  __device__ DirectionRuns(const ProductArgs& args, const ProductItem& item, int rank, int row,
                           int column) {
    const PlainOperand& from = args.operands[item.bucket * kRoles + kRoleU];
    row += (item.tiles[0].row + rank) * kTileSide;
    column += item.col_tile * kTileSide;
    const long long first =
        item.tiles[0].in_bucket * from.matrix_stride + row * from.stride + column;
    at = __cvta_generic_to_global(static_cast<const __half*>(from.data) + first);
    apart = static_cast<std::uint32_t>(from.stride) * (kRowsAtOnce * 2);
    rows = column < from.cols ? from.rows - row : 0;
  }

  // Beyond the matrix nothing is read (or stored).
  __device__ void load(int quarter, uint4 (&u)[kRuns]) const {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int run = quarter * kRuns + i;
      if (run * kRowsAtOnce < rows) {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(u[i].x), "=r"(u[i].y), "=r"(u[i].z), "=r"(u[i].w)
                     : "l"(at + std::uint64_t{apart} * static_cast<unsigned>(run)));
      }
    }
  }
};

template <class Element>
__device__ inline void correct(std::uint32_t tile, int row, int column, const uint4 (&u)[kRuns],
                               float t, float factor) {
  // Addresses are made when they are needed: kept from tile to tile they would not fit.
  asm volatile("" : "+r"(row));
  constexpr int kAtOnce = 3;
#pragma unroll
  for (int from = 0; from < kRuns; from += kAtOnce) {
    uint4 x[kAtOnce];
    std::uint32_t at[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // Rows beyond the tile, of the last quarter: the thread's first one once more, not written.
      const int r = row + (from + i) * kRowsAtOnce;
      at[i] = tile + tile_byte(r < kTileSide ? r : row, column);
      x[i] = read_shared_16(at[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      x[i] = corrected<Element>(x[i], u[from + i], t, factor);
      if (row + (from + i) * kRowsAtOnce < kTileSide) write_shared_16(at[i], x[i]);
    }
  }
}

template <class Element>
__device__ __forceinline__ void reproject_held(const ProductArgs& args, Shared& shared, int first,
                                               int last, int rank) {
  if (first >= last) return;
  const int thread = static_cast<int>(threadIdx.x) - 32;
  const int row = thread / kRunsAcross, column = thread % kRunsAcross * 8;
  const bool leads = thread == 0;
  std::uint32_t parity = 0;
  uint4 even[kRuns] = {}, odd[kRuns] = {};
  ProductItem item = args.items[first], next = args.items[min(first + 1, last - 1)];
  DirectionRuns u(args, item, rank, row, column);
  wait_for_previous_launch();
  u.load(0, even);
  u.load(1, odd);
  int tiles = args.tiles[item.tiles[0].matrix].count;
  for (int i = first; i < last; ++i) {
    const int consumer = (i - first) & 1;
    const std::uint32_t tile = shared_address(shared.tile[consumer]);
    const ProductItem after = args.items[min(i + 2, last - 1)];
    const DirectionRuns next_u(args, next, rank, row, column);
    const int next_tiles = args.tiles[next.tiles[0].matrix].count;
    if (leads) {
      if (i > first) {
        // TMA has read the tile before.
        tma_store_wait_read();
        mbarrier_arrive(shared_address(&shared.stored[consumer ^ 1]));
      }
      // One thread asks: the word is one place in L2 for the whole device.
      shared.t = wait_for_sum(args.words + item.tiles[0].matrix, tiles);
    }
    sync<kReprojectors>(NamedBarrier::reprojectors);
    const double sum = shared.t;
    const auto t = static_cast<float>(sum),
               factor = static_cast<float>(rules::guard_factor(args.guard, sum));
    mbarrier_wait(shared_address(&shared.ready[consumer]), parity);
    parity ^= static_cast<std::uint32_t>(consumer);  // an mbarrier has every other item
    correct<Element>(tile, row, column, even, t, factor);
    u.load(2, even);
    correct<Element>(tile, row + kQuarterRows, column, odd, t, factor);
    u.load(3, odd);
    u = next_u;
    correct<Element>(tile, row + 2 * kQuarterRows, column, even, t, factor);
    u.load(0, even);
    correct<Element>(tile, row + 3 * kQuarterRows, column, odd, t, factor);
    u.load(1, odd);
    fence_proxy_async_shared();
    sync<kReprojectors>(NamedBarrier::reprojectors);
    if (leads) {
      const CUtensorMap* map = args.maps + item.bucket * kRoles + args.phases[0].d;
      store_tile(map, tile, (item.tiles[0].row + rank) * kTileSide, item.col_tile * kTileSide,
                 item.tiles[0].in_bucket);
    }
    item = next;
    next = after;
    tiles = next_tiles;
  }
  if (leads) tma_store_wait();
}

}  // namespace rode::cuda::hopper
