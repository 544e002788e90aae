// SPDX-License-Identifier: Apache-2.0
// Shared memory of a CTA of the product kernel, and everything its threads wait at.
//
// docs/cuda_architecture.md has the roles of the warps as a figure, and why no wait is circular.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/products.h"

namespace rode::cuda::hopper {

// Warpgroup 0 has the producer (one thread of warp 0) and the reprojection warps (1 to 3);
// warpgroups 1 and 2 are consumers 0 and 1.
inline constexpr int kWarpgroup = 128;
inline constexpr int kConsumers = 2;
inline constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kReprojectors = kWarpgroup - 32;

inline constexpr int kStages = 5;
inline constexpr int kBoxBytes = kBoxSide * kBoxSide * 2;
inline constexpr int kOperandBytes = kTileSide * kTileDepth * 2;  // two boxes
inline constexpr int kStageBytes = 2 * kOperandBytes;
inline constexpr int kTileBytes = kTileSide * kTileSide * 2;  // four boxes

// The hardware's barriers by number. Number 0 is __syncthreads()'s, used once, at the beginning.
enum class NamedBarrier : std::uint32_t {
  none = 0,
  // 128 threads: those of one consumer wait for each other.
  consumer_0 = 1,
  consumer_1 = 2,
  // 256 threads: the consumer of that number waits for its turn to read the ring; the other one
  // arrives, and goes on at once, when it has seen all of its own item's stages full.
  turn_0 = 3,
  turn_1 = 4,
  // 96 threads: the reprojection warps wait for each other.
  reprojectors = 5,
};
__device__ inline NamedBarrier consumer_barrier(int consumer) {
  return static_cast<NamedBarrier>(static_cast<std::uint32_t>(NamedBarrier::consumer_0) +
                                   static_cast<std::uint32_t>(consumer));
}
__device__ inline NamedBarrier turn_barrier(int consumer) {
  return static_cast<NamedBarrier>(static_cast<std::uint32_t>(NamedBarrier::turn_0) +
                                   static_cast<std::uint32_t>(consumer));
}
template <int kCount>
__device__ inline void sync(NamedBarrier barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(static_cast<std::uint32_t>(barrier)), "n"(kCount)
               : "memory");
}
template <int kCount>
__device__ inline void arrive(NamedBarrier barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(static_cast<std::uint32_t>(barrier)), "n"(kCount)
               : "memory");
}

struct Shared {
  alignas(1024) unsigned char ring[kStages * kStageBytes];
  alignas(1024) unsigned char tile[kConsumers][kTileBytes];

  // mbarriers. A stage of the ring holds operands: the producer arrives once and names the bytes,
  // TMA brings them (part of them from the other CTA); the consumer whose turn it is waits.
  std::uint64_t full[kStages];
  // A stage may be written: every warp of a consumer arrives, in both CTAs, since both CTAs'
  // copies go into it; the producers wait.
  std::uint64_t empty[kStages];
  // The consumer's tile holds C or U: its leader arrives and names the bytes; the consumer waits.
  std::uint64_t loaded[kConsumers];
  // Tiles that are held (held.cuh). Put down: all threads of the consumer arrive; the reprojection
  // warps wait. Stored: the leader of the reprojection warps arrives; the consumer waits.
  std::uint64_t ready[kConsumers], stored[kConsumers];

  double sums[kConsumers][4][2];  // of each warp: t, xx; or the squares of a Gram matrix's tile
  Blend blend[kConsumers];        // of a first iteration whose start has a Schatten-4 norm
  float vector[kConsumers][kTileSide];  // of a split tile's columns: the diagonal, or factors
  double t;                             // of the matrix whose held tile is reprojected
  // Tiles reprojected in device memory (behind.cuh): the next, and what each team works on.
  int next_behind;
  struct {
    double t;
    int item;
  } teams[kConsumers + 1];
};
static_assert(kTileBytes == kStageBytes, "a tile of U travels through the ring");
inline constexpr std::size_t kSharedBytes = sizeof(Shared) + 1024;  // to align by hand

// By one thread, before any other comes near them.
__device__ inline void init_barriers(Shared& shared) {
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared_address(&shared.full[stage]), 1);
    mbarrier_init(shared_address(&shared.empty[stage]), kClusterSize * 4);
  }
  for (int c = 0; c < kConsumers; ++c) {
    mbarrier_init(shared_address(&shared.loaded[c]), 1);
    mbarrier_init(shared_address(&shared.ready[c]), kWarpgroup);
    mbarrier_init(shared_address(&shared.stored[c]), 1);
  }
  mbarrier_init_fence();
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

// A CTA's tile of an item. Written out: an index that is not known makes an array of registers
// one of memory.
__device__ inline ProductTile tile_of(const ProductItem& item, int rank) {
  return rank == 0 ? item.tiles[0] : item.tiles[1];
}

}  // namespace rode::cuda::hopper
