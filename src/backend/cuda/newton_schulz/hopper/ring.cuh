// SPDX-License-Identifier: Apache-2.0
// The ring of operands in shared memory: one warpgroup fills it, two multiply from it.
#pragma once

#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/products.h"

namespace rode::cuda::hopper {

inline constexpr int kStages = 5;
inline constexpr int kBoxBytes = kBoxSide * kBoxSide * 2;
inline constexpr int kOperandBytes = kTileSide * kTileDepth * 2;  // two boxes
inline constexpr int kStageBytes = 2 * kOperandBytes;
inline constexpr int kTileBytes = kTileSide * kTileSide * 2;  // four boxes
inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = 3 * kWarpgroup;

struct Shared {
  alignas(1024) unsigned char ring[kStages * kStageBytes];
  alignas(1024) unsigned char tile[2][kTileBytes];  // one a multiplying warpgroup
  std::uint64_t full[kStages], empty[kStages], loaded[2];
  std::uint64_t ready[2], stored[2];  // of tiles that wait for their matrix's sum (held.cuh)
  double sums[2][4][2];
  double t;  // of the matrix whose tile is corrected
  // Tiles corrected in device memory (behind.cuh): the next, and what each crew works on.
  int next_deferred;
  struct {
    double t;
    int item;
  } crews[3];
};
static_assert(kTileBytes == kStageBytes, "a tile of U travels through the ring");
inline constexpr std::size_t kSharedBytes = sizeof(Shared) + 1024;  // to align by hand

// A CTA's tile of an item. Written out: an index that is not known makes an array of registers
// one of memory.
__device__ inline ProductTile tile_of(const ProductItem& item, int rank) {
  return rank == 0 ? item.tiles[0] : item.tiles[1];
}

// Until the phase before has written all of the tile's matrix. By one thread, before its copies.
__device__ inline void wait_written(const ProductArgs& args, const ProductItem& item,
                                    const ProductTile& tile) {
  if (item.need == 0) return;
  const int* written = args.phases[item.phase - 1].written + tile.matrix;
  while (read_count(written) < item.need) {
  }
  fence_for_loads();
}

// Place in the ring, and the parity of its present round.
struct Cursor {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance(int by) {
    const int next = stage + by;
    parity ^= static_cast<std::uint32_t>((next / kStages) & 1);
    stage = next % kStages;
  }
};

// ---- The copying warpgroup --------------------------------------------------------------------
// The two CTAs of a cluster multiply two tiles of one column: each loads its left operand and
// half of the right one, which the copy engine delivers to both; tiles of two matrices (of
// symmetric products) have nothing in common. kDirection: each item's tile of U follows its
// operands.
template <bool kSymmetric, bool kDirection>
__device__ inline void copy_operands(const ProductArgs& args, Shared& shared, int first, int last,
                                     int rank) {
  if (first >= last) return;
  const std::uint32_t ring = shared_address(shared.ring), full = shared_address(shared.full),
                      empty = shared_address(shared.empty);
  constexpr std::uint16_t kBoth = 3;
  Cursor at;
  ProductItem next = args.items[first];
  prefetch_map(args.maps + next.bucket * kRoles + args.phases[0].a);
  prefetch_map(args.maps + next.bucket * kRoles + args.phases[0].b);
  wait_for_previous_launch();
  fence_for_loads();  // what that one wrote without the copy engine is read with it
  for (int i = first; i < last; ++i) {
    const ProductItem item = next;
    next = args.items[i + 1 < last ? i + 1 : i];  // on its way while this one is copied
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
      const int depth = k * kTileDepth;
      const std::uint32_t barrier = full + at.stage * 8;
      const std::uint32_t to_left = ring + at.stage * kStageBytes;
      const std::uint32_t to_right = to_left + kOperandBytes;
      barrier_wait(empty + at.stage * 8, at.parity ^ 1);
      barrier_expect(barrier, kStageBytes);
      if (item.order == OperandOrder::m_n) {
        load_box(to_left, left, barrier, left_side, depth, tile.in_bucket);
        load_box(to_left + kBoxBytes, left, barrier, left_side + kBoxSide, depth, tile.in_bucket);
      } else {
        load_box(to_left, left, barrier, depth, left_side, tile.in_bucket);
        load_box(to_left + kBoxBytes, left, barrier, depth, left_side + kBoxSide, tile.in_bucket);
      }
      const bool along_k = item.order == OperandOrder::k_k;
      if (kSymmetric && !shared_right) {
#pragma unroll
        for (int box = 0; box < 2; ++box) {
          const int side = right_side + box * kBoxSide;
          load_box(to_right + box * kBoxBytes, right, barrier, along_k ? depth : side,
                   along_k ? side : depth, tile.in_bucket);
        }
      } else {
        const int side = right_side + rank * kBoxSide;
        load_box_multicast(to_right + rank * kBoxBytes, right, barrier, along_k ? depth : side,
                           along_k ? side : depth, tile.in_bucket, kBoth);
      }
      at.advance(1);
    }
    if constexpr (kDirection) {
      const std::uint32_t barrier = full + at.stage * 8, to = ring + at.stage * kStageBytes;
      barrier_wait(empty + at.stage * 8, at.parity ^ 1);
      barrier_expect(barrier, kTileBytes);
#pragma unroll
      for (int box = 0; box < 4; ++box) {
        load_box(to + box * kBoxBytes, maps + kRoleU, barrier,
                 item.col_tile * kTileSide + (box >> 1) * kBoxSide,
                 left_side + (box & 1) * kBoxSide, tile.in_bucket);
      }
      at.advance(1);
    }
  }
}

// ---- The multiplying warpgroups -----------------------------------------------------------------
// Hands a stage back. Both CTAs copy into it.
__device__ inline void release_stage(const Shared& shared, int stage) {
  if (threadIdx.x % 32 != 0) return;
  const std::uint32_t empty = shared_address(shared.empty) + stage * 8;
  barrier_arrive_at(empty, 0);
  barrier_arrive_at(empty, 1);
}

// `turn`: the other warpgroup's (0: it has no more work), given as soon as the last operands
// have been seen. It must not look at the ring before: a barrier tells only odd rounds from even
// ones, so nobody may wait for a round while the one before is still under way. kDirection: the
// tile of U has been seen too, and `at` stands there.
template <class Element, bool kAlongM, bool kAlongN, bool kDirection>
__device__ inline void multiply(float (&d)[2][64], Shared& shared, Cursor& at, int depth,
                                std::uint32_t turn) {
  // Sixteen steps of K further: 32 bytes in a row, or two groups of eight rows.
  constexpr std::uint64_t kLeftStep = kAlongM ? 2048 >> 4 : 32 >> 4;
  constexpr std::uint64_t kRightStep = kAlongN ? 2048 >> 4 : 32 >> 4;
  const std::uint32_t ring = shared_address(shared.ring), full = shared_address(shared.full);
  int before = 0;
  pin(d[0]);
  pin(d[1]);
  for (int k = 0; k < depth; ++k) {
    const std::uint32_t left = ring + at.stage * kStageBytes;
    const std::uint64_t upper = descriptor(left, !kAlongM),
                        lower = descriptor(left + kBoxBytes, !kAlongM),
                        right = descriptor(left + kOperandBytes, !kAlongN);
    barrier_wait(full + at.stage * 8, at.parity);
    products_begin();
#pragma unroll
    for (int step = 0; step < kTileDepth / 16; ++step) {
      const int accumulate = k > 0 || step > 0;
      product_64x128x16<Element, kAlongM, kAlongN>(d[0], upper + step * kLeftStep,
                                                   right + step * kRightStep, accumulate);
      product_64x128x16<Element, kAlongM, kAlongN>(d[1], lower + step * kLeftStep,
                                                   right + step * kRightStep, accumulate);
    }
    products_commit();
    if constexpr (!kDirection) {
      if (k + 1 == depth && turn != 0) turn_give(turn);
    }
    if (k > 0) {
      products_wait<1>();
      release_stage(shared, before);
    }
    before = at.stage;
    at.advance(1);
  }
  if constexpr (kDirection) {
    barrier_wait(full + at.stage * 8, at.parity);
    if (turn != 0) turn_give(turn);
  }
  products_wait<0>();
  pin(d[0]);
  pin(d[1]);
  release_stage(shared, before);
}

}  // namespace rode::cuda::hopper
