// SPDX-License-Identifier: Apache-2.0
// The ring of operands in shared memory: the producer fills it by TMA, two consumers multiply from
// it in turn.
#pragma once

#include <type_traits>

#include "backend/cuda/newton_schulz/hopper/e4m3.cuh"
#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"
#include "backend/cuda/newton_schulz/products.h"

namespace rode::cuda::hopper {

// Until the phase before has written all of the tile's matrix. By one thread, before its loads.
__device__ inline void wait_written(const ProductArgs& args, const ProductItem& item,
                                    const ProductTile& tile) {
  if (item.need == 0) return;
  const int* written = args.phases[item.phase - 1].written + tile.matrix;
  while (acquire_load(written) < item.need) {
  }
  fence_proxy_async_global();
}

// The producer, one thread. The two CTAs of a cluster multiply two tiles of one column: each loads
// its left operand and half of the right one, which TMA delivers to both; tiles of two matrices (of
// symmetric products) have nothing in common. kWithU: each item's tile of U follows its operands.
// kBytes: operands of e4m3, 128 of K in the 128 bytes of a row, all of them along K.
template <bool kSymmetric, bool kWithU, bool kBytes = false>
__device__ inline void produce(const ProductArgs& args, Shared& shared, int first, int last,
                               int rank) {
  if (first >= last) return;
  const std::uint32_t ring = shared_address(shared.ring), full = shared_address(shared.full),
                      empty = shared_address(shared.empty);
  constexpr std::uint16_t kBoth = 3;
  Cursor at;
  ProductItem next = args.items[first];
  prefetch_tensor_map(args.maps + next.bucket * kRoles + args.phases[0].a);
  prefetch_tensor_map(args.maps + next.bucket * kRoles + args.phases[0].b);
  wait_for_previous_launch();
  fence_proxy_async_global();  // what that one wrote with plain stores is read by TMA
  for (int i = first; i < last; ++i) {
    const ProductItem item = next;
    next = args.items[i + 1 < last ? i + 1 : i];  // on its way while this one is loaded
    const CUtensorMap* maps = args.maps + item.bucket * kRoles;
    const Phase& phase = args.phases[kSymmetric ? item.phase : 0];
    const bool swap = item.order == OperandOrder::k_n;
    const CUtensorMap* left = maps + (swap ? phase.b : phase.a);
    const CUtensorMap* right = maps + (swap ? phase.a : phase.b);
    const ProductTile tile = tile_of(item, rank);
    if constexpr (kSymmetric) wait_written(args, item, tile);
    const bool shared_right = item.tiles[0].in_bucket == item.tiles[1].in_bucket;
    const int left_side = tile.row * kTileSide;
    const int right_side = item.col_tile * kTileSide;
    for (int k = 0; k < item.depth; ++k) {
      const int depth = k * (kBytes ? kTileDepthE4m3 : kTileDepth);
      const std::uint32_t barrier = full + at.stage * 8;
      const std::uint32_t to_left = ring + at.stage * kStageBytes;
      const std::uint32_t to_right = to_left + kOperandBytes;
      mbarrier_wait(empty + at.stage * 8, at.parity ^ 1);
      mbarrier_expect_tx(barrier, kStageBytes);
      if (!kBytes && item.order == OperandOrder::m_n) {
        tma_load(to_left, left, barrier, left_side, depth, tile.in_bucket);
        tma_load(to_left + kBoxBytes, left, barrier, left_side + kBoxSide, depth, tile.in_bucket);
      } else {
        tma_load(to_left, left, barrier, depth, left_side, tile.in_bucket);
        tma_load(to_left + kBoxBytes, left, barrier, depth, left_side + kBoxSide, tile.in_bucket);
      }
      const bool along_k = kBytes || item.order == OperandOrder::k_k;
      if (kSymmetric && !shared_right) {
#pragma unroll
        for (int box = 0; box < 2; ++box) {
          const int side = right_side + box * kBoxSide;
          tma_load(to_right + box * kBoxBytes, right, barrier, along_k ? depth : side,
                   along_k ? side : depth, tile.in_bucket);
        }
      } else {
        const int side = right_side + rank * kBoxSide;
        tma_load_multicast(to_right + rank * kBoxBytes, right, barrier, along_k ? depth : side,
                           along_k ? side : depth, tile.in_bucket, kBoth);
      }
      at.advance(1);
    }
    if constexpr (kWithU) {
      const std::uint32_t barrier = full + at.stage * 8, to = ring + at.stage * kStageBytes;
      mbarrier_wait(empty + at.stage * 8, at.parity ^ 1);
      mbarrier_expect_tx(barrier, kTileBytes);
#pragma unroll
      for (int box = 0; box < 4; ++box) {
        tma_load(to + box * kBoxBytes, maps + kRoleU, barrier,
                 item.col_tile * kTileSide + (box >> 1) * kBoxSide,
                 left_side + (box & 1) * kBoxSide, tile.in_bucket);
      }
      at.advance(1);
    }
  }
}

// A consumer hands a stage back. Both CTAs' TMA writes into it.
__device__ inline void release_stage(const Shared& shared, int stage) {
  if (threadIdx.x % 32 != 0) return;
  const std::uint32_t empty = shared_address(shared.empty) + stage * 8;
  mbarrier_arrive_remote(empty, 0);
  mbarrier_arrive_remote(empty, 1);
}

// A consumer's product. `turn`: the other consumer's (none: it has no more work), given as soon as
// the last operands have been seen. It must not look at the ring before: an mbarrier tells only odd
// rounds from even ones, so nobody may wait for a round while the one before is still under way.
// kWithU: the tile of U has been seen too, and `at` stands there.
template <class Element, bool kAlongM, bool kAlongN, bool kWithU>
__device__ inline void multiply(float (&d)[2][64], Shared& shared, Cursor& at, int depth,
                                NamedBarrier turn) {
  // Sixteen steps of K further (of bytes 32): 32 bytes in a row, or two groups of eight rows.
  constexpr std::uint64_t kLeftStep = kAlongM ? 2048 >> 4 : 32 >> 4;
  constexpr std::uint64_t kRightStep = kAlongN ? 2048 >> 4 : 32 >> 4;
  const std::uint32_t ring = shared_address(shared.ring), full = shared_address(shared.full);
  int before = 0;
  pin_accumulators(d[0]);
  pin_accumulators(d[1]);
  for (int k = 0; k < depth; ++k) {
    const std::uint32_t left = ring + at.stage * kStageBytes;
    const std::uint64_t upper = descriptor(left, !kAlongM),
                        lower = descriptor(left + kBoxBytes, !kAlongM),
                        right = descriptor(left + kOperandBytes, !kAlongN);
    mbarrier_wait(full + at.stage * 8, at.parity);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileDepth / 16; ++step) {
      const int accumulate = k > 0 || step > 0;
      if constexpr (std::is_same_v<Element, E4m3>) {
        wgmma_64x128x32(d[0], upper + step * kLeftStep, right + step * kRightStep, accumulate);
        wgmma_64x128x32(d[1], lower + step * kLeftStep, right + step * kRightStep, accumulate);
      } else {
        wgmma_64x128x16<Element, kAlongM, kAlongN>(d[0], upper + step * kLeftStep,
                                                   right + step * kRightStep, accumulate);
        wgmma_64x128x16<Element, kAlongM, kAlongN>(d[1], lower + step * kLeftStep,
                                                   right + step * kRightStep, accumulate);
      }
    }
    wgmma_commit();
    if constexpr (!kWithU) {
      if (k + 1 == depth && turn != NamedBarrier::none) arrive<2 * kWarpgroup>(turn);
    }
    if (k > 0) {
      wgmma_wait<1>();
      release_stage(shared, before);
    }
    before = at.stage;
    at.advance(1);
  }
  if constexpr (kWithU) {
    mbarrier_wait(full + at.stage * 8, at.parity);
    if (turn != NamedBarrier::none) arrive<2 * kWarpgroup>(turn);
  }
  wgmma_wait<0>();
  pin_accumulators(d[0]);
  pin_accumulators(d[1]);
  release_stage(shared, before);
}

// The same of e4m3 operands, whose sums the tensor cores keep to 14 bits only: those of a stage,
// 128 of K, are added to sums in fp32. A quarter of the tile at a time, so that two quarters' sums
// fit beside the tile's: while one is added the other is multiplied.
__device__ inline void multiply_promoted(float (&d)[2][64], Shared& shared, Cursor& at, int depth,
                                         NamedBarrier turn) {
  const std::uint32_t ring = shared_address(shared.ring), full = shared_address(shared.full);
  float part[2][32];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 64; ++i) d[half][i] = 0;
  }
  const auto add = [&](int quarter) {
    float(&from)[32] = part[quarter & 1];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      asm volatile("" : "+f"(from[i])::"memory");
      float& to = d[quarter >> 1][(quarter & 1) * 32 + i];
      to += from[i];
      asm volatile("" : "+f"(to)::"memory");  // now, not when `from` is written again
    }
  };
  for (int k = 0; k < depth; ++k) {
    const std::uint32_t left = ring + at.stage * kStageBytes;
    mbarrier_wait(full + at.stage * 8, at.parity);
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const std::uint64_t a = descriptor(left + (quarter >> 1) * kBoxBytes, true),
                          b = descriptor(left + kOperandBytes + (quarter & 1) * kBoxBytes, true);
#pragma unroll
      for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(part[quarter & 1][i])::"memory");
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_64x64x32(part[quarter & 1], a + step * 2, b + step * 2, step > 0);
      }
      wgmma_commit();
      if (quarter == 0 && k + 1 == depth && turn != NamedBarrier::none) {
        arrive<2 * kWarpgroup>(turn);
      }
      if (quarter == 0) continue;
      wgmma_wait<1>();
      add(quarter - 1);
    }
    wgmma_wait<0>();  // ptxas would not let one quarter cross into the next round
    release_stage(shared, at.stage);
    add(3);
    at.advance(1);
  }
}

}  // namespace rode::cuda::hopper
