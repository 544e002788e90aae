// SPDX-License-Identifier: Apache-2.0
// A consumer's tile in shared memory: where a thread's sums lie, and how tiles come and go by TMA.
#pragma once

#include <cstdint>

#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"

namespace rode::cuda::hopper {

// Byte of element (row, column) in a tile of four swizzled boxes; column is even.
__device__ inline std::uint32_t tile_byte(int row, int column) {
  return static_cast<std::uint32_t>((column >> 6) * (2 * kBoxBytes) + row * 128 +
                                    ((((column & 63) >> 3) ^ (row & 7)) << 4) + (column & 7) * 2);
}

// By one thread.
__device__ inline void store_tile(const CUtensorMap* map, std::uint32_t tile, int row, int column,
                                  int in_bucket) {
#pragma unroll
  for (int box = 0; box < 4; ++box) {
    tma_store(map, tile + box * kBoxBytes, column + (box >> 1) * kBoxSide,
              row + (box & 1) * kBoxSide, in_bucket);
  }
  tma_store_commit();
}

// Pairs of a tile that are read at once; beside 128 sums there is no room for all 64.
inline constexpr int kInFlight = 8;

// What a thread of a consumer carries from item to item.
struct Consumer {
  int index;  // 0 or 1
  int warp, lane;
  std::uint32_t tile;        // its place in shared memory
  std::uint32_t loaded;      // mbarrier
  std::uint32_t parity = 0;  // of `loaded`, or of Shared::stored where tiles are held

  __device__ void sync() const { hopper::sync<kWarpgroup>(consumer_barrier(index)); }
  // The one thread that issues TMA and waits for its stores.
  __device__ bool leads() const { return warp == 0 && elect_one(); }
  // Where pair i (of 32) of a thread's sums in one half of the tile lies: accumulators come
  // in blocks of 8 x 8, upper and lower in turn.
  __device__ int row(int half, int i) const {
    return half * 64 + warp * 16 + lane / 4 + (i & 1) * 8;
  }
  __device__ int column(int i) const { return (i >> 1) * 8 + (lane % 4) * 2; }
  // Its address: `own` is the thread's first, the swizzle is an exclusive or.
  __device__ std::uint32_t place(std::uint32_t own, int half, int i) const {
    return (own ^ static_cast<std::uint32_t>((i >> 1 & 7) << 4)) +
           static_cast<std::uint32_t>(half * kBoxBytes + (i & 1) * 1024 + (i >> 4) * 2 * kBoxBytes);
  }
  // Opaque to the compiler, which would keep all that follows from it through the product.
  __device__ std::uint32_t own_place() const {
    const int row0 = warp * 16 + lane / 4;
    auto own = tile + static_cast<std::uint32_t>(row0 * 128 + ((row0 & 7) << 4) + (lane % 4) * 4);
    asm volatile("" : "+r"(own));
    return own;
  }
  __device__ void read(std::uint32_t own, int half, int from,
                       std::uint32_t (&to)[kInFlight]) const {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) to[j] = read_shared(place(own, half, from + j));
  }

  // The left or right half of the tile.
  __device__ void write_side(std::uint32_t own, int side,
                             const std::uint32_t (&packed)[2][32]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 16 * side; i < 16 * side + 16; ++i) {
        write_shared(place(own, half, i), packed[half][i]);
      }
    }
  }
  // The same of its mirror image. Lane l gives the place of row l % 8 of block l / 8: blocks
  // (upper, lower) x (left, right).
  __device__ void write_mirrored_side(int side, const std::uint32_t (&packed)[2][32]) const {
    int block = lane / 8, inner = lane % 8;
    asm volatile("" : "+r"(block), "+r"(inner));  // as own_place()
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      const int r = (pair * 2 + block / 2) * 8 + inner;
      const int c = side * 64 + warp * 16 + (block % 2) * 8;
      stmatrix_transposed(tile + tile_byte(r, c), packed[side][4 * pair],
                          packed[side][4 * pair + 1], packed[side][4 * pair + 2],
                          packed[side][4 * pair + 3]);
    }
  }

  // Four boxes of a 128 x 128 tile; earlier stores must have been read. By the leader.
  __device__ void load_tile(const CUtensorMap* map, int row, int column, int in_bucket) const {
    tma_store_wait_read();
    mbarrier_expect_tx(loaded, kTileBytes);
#pragma unroll
    for (int box = 0; box < 4; ++box) {
      tma_load(tile + box * kBoxBytes, map, loaded, column + (box >> 1) * kBoxSide,
               row + (box & 1) * kBoxSide, in_bucket);
    }
  }
  // The left or right half of it, which all threads have written.
  __device__ void store_side(const CUtensorMap* map, int side, int row, int column,
                             int in_bucket) const {
    fence_proxy_async_shared();
    sync();
    if (!leads()) return;
#pragma unroll
    for (int box = 2 * side; box < 2 * side + 2; ++box) {
      tma_store(map, tile + box * kBoxBytes, column + side * kBoxSide, row + (box & 1) * kBoxSide,
                in_bucket);
    }
    tma_store_commit();
  }
  __device__ void wait_loaded() {
    mbarrier_wait(loaded, parity);
    parity ^= 1;
  }
  // What was stored from the tile has left, except the last kPending halves.
  template <int kPending = 0>
  __device__ void wait_free() const {
    if (leads()) tma_store_wait_read<kPending>();
    sync();
  }
};

}  // namespace rode::cuda::hopper
