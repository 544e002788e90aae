// SPDX-License-Identifier: Apache-2.0
// What becomes of a tile's sums: rounded, blended, mirrored, measured against U.
#pragma once

#include "backend/cuda/newton_schulz/hopper/pairs.cuh"
#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/hopper/ring.cuh"
#include "backend/cuda/newton_schulz/products.h"

namespace rode::cuda::hopper {

__device__ inline std::uint32_t read_shared(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline void write_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

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
    store_box(map, tile + box * kBoxBytes, column + (box >> 1) * kBoxSide,
              row + (box & 1) * kBoxSide, in_bucket);
  }
  stores_commit();
}

// Pairs of a tile that are read at once; beside 128 sums there is no room for all 64.
inline constexpr int kInFlight = 8;

// What a multiplying warpgroup carries from item to item.
struct Worker {
  int group;  // 0 or 1
  int warp, lane;
  std::uint32_t tile;  // its place in shared memory
  std::uint32_t loaded;
  std::uint32_t parity = 0;  // of `loaded`

  __device__ void sync() const { warpgroup_sync(static_cast<std::uint32_t>(group) + 1); }
  // The one thread that issues copies and waits for stores.
  __device__ bool leads() const { return warp == 0 && elected(); }
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
      store_transposed(tile + tile_byte(r, c), packed[side][4 * pair], packed[side][4 * pair + 1],
                       packed[side][4 * pair + 2], packed[side][4 * pair + 3]);
    }
  }

  // Four boxes of a 128 x 128 tile; earlier stores must have been read. By the leader.
  __device__ void load_tile(const CUtensorMap* map, int row, int column, int in_bucket) const {
    stores_wait_read();
    barrier_expect(loaded, kTileBytes);
#pragma unroll
    for (int box = 0; box < 4; ++box) {
      load_box(tile + box * kBoxBytes, map, loaded, column + (box >> 1) * kBoxSide,
               row + (box & 1) * kBoxSide, in_bucket);
    }
  }
  // The left or right half of it, which all threads have written.
  __device__ void store_side(const CUtensorMap* map, int side, int row, int column,
                             int in_bucket) const {
    fence_for_copies();
    sync();
    if (!leads()) return;
#pragma unroll
    for (int box = 2 * side; box < 2 * side + 2; ++box) {
      store_box(map, tile + box * kBoxBytes, column + side * kBoxSide, row + (box & 1) * kBoxSide,
                in_bucket);
    }
    stores_commit();
  }
  __device__ void wait_loaded() {
    barrier_wait(loaded, parity);
    parity ^= 1;
  }
  // What was stored from the tile has left, but for the last kPending halves.
  template <int kPending = 0>
  __device__ void wait_free() const {
    if (leads()) stores_wait_read<kPending>();
    sync();
  }
};

// A tile on the diagonal and its mirror image, averaged. A product of factors that commute
// but for rounding is symmetric but for rounding; left so, the Gram form takes the difference
// for negative eigenvalues and blows it up.
template <class Element>
__device__ inline void average(const Worker& me, std::uint32_t own,
                               std::uint32_t (&packed)[2][32]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int from = 0; from < 32; from += kInFlight) {
      std::uint32_t mirrored[kInFlight];
      me.read(own, half, from, mirrored);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const float2 a = unpack(packed[half][from + j], Element()),
                     b = unpack(mirrored[j], Element());
        packed[half][from + j] = pack(0.5F * (a.x + b.x), 0.5F * (a.y + b.y), Element());
      }
    }
  }
}

// D = alpha acc + beta C + gamma I, and its mirror image on the other side of the diagonal. Each is
// stored by halves: one is on its way while the other is written.
template <class Element, bool kBlend>
__device__ __forceinline__ void finish_symmetric(const ProductArgs& args, const ProductItem& item,
                                                 const ProductTile& tile, const Blend& blend,
                                                 Worker& me, float (&d)[2][64]) {
  const Phase& phase = args.phases[item.phase];
  const CUtensorMap* map = args.maps + item.bucket * kRoles + phase.d;
  const int row = tile.row * kTileSide, column = item.col_tile * kTileSide;
  const std::uint32_t own = me.own_place();
  if constexpr (kBlend) {
    me.wait_loaded();
    // Nobody may ask for the next tile before all have seen this one: see multiply().
    me.sync();
  } else {
    me.wait_free();
  }
  if (tile.row == kNoTile) return;
  const bool diagonal = tile.row == item.col_tile;
  int below = diagonal ? me.row(0, 0) - me.column(0) : 1 << 20;  // rows below the diagonal
  asm volatile("" : "+r"(below));                                // as own_place()
  std::uint32_t packed[2][32];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int from = 0; from < 32; from += kInFlight) {
      std::uint32_t other[kInFlight];
      if constexpr (kBlend) me.read(own, half, from, other);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int i = from + j;
        float low = d[half][2 * i], high = d[half][2 * i + 1];
        if constexpr (kBlend) {
          const float2 c = unpack(other[j], Element());
          const int off = below + half * 64 + (i & 1) * 8 - (i >> 1) * 8;
          low = blend.alpha * low + blend.beta * c.x + (off == 0 ? blend.gamma : 0.0F);
          high = blend.alpha * high + blend.beta * c.y + (off == 1 ? blend.gamma : 0.0F);
        }
        packed[half][i] = pack(low, high, Element());
      }
      asm volatile("" ::: "memory");
    }
  }
  if constexpr (!kBlend) {
    // A product of a matrix with itself is symmetric as computed.
    if (item.mirror && diagonal && phase.a != phase.b) {
#pragma unroll
      for (int side = 0; side < 2; ++side) me.write_mirrored_side(side, packed);
      me.sync();
      average<Element>(me, own, packed);
      me.sync();
    }
  }
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    me.write_side(own, side, packed);
    me.store_side(map, side, row, column, tile.in_bucket);
  }
  if (item.mirror && !diagonal) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      me.wait_free<1>();
      me.write_mirrored_side(side, packed);
      me.store_side(map, side, column, row, tile.in_bucket);
    }
  }
  // The other warpgroup multiplies meanwhile.
  if (phase.written != nullptr && me.leads()) {
    stores_wait();
    tell(phase.written + tile.matrix);
  }
}

// Sums of a tile that an applying product takes: none, <D, U>, or that and ||D||^2.
enum class Sums { none, t, t_and_xx };

// D = acc. Sums are those of the rounded numbers; `add` is given them by one thread, behind the
// tile's store.
template <class Element, Sums kSums, class Add>
__device__ __forceinline__ void finish_apply(const ProductArgs& args, const ProductItem& item,
                                             int rank, Worker& me, Shared& shared,
                                             float (&d)[2][64], const Add& add) {
  const CUtensorMap* map = args.maps + item.bucket * kRoles + args.phases[0].d;
  const std::uint32_t own = me.own_place();
  if constexpr (kSums != Sums::none) {
    me.wait_loaded();
  } else {
    me.wait_free();
  }
  float t = 0, xx = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int from = 0; from < 32; from += kInFlight) {
      std::uint32_t direction[kInFlight];
      if constexpr (kSums != Sums::none) me.read(own, half, from, direction);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int i = from + j;
        const std::uint32_t packed = pack(d[half][2 * i], d[half][2 * i + 1], Element());
        const float2 x = unpack(packed, Element());
        if constexpr (kSums != Sums::none) {
          const float2 u = unpack(direction[j], __half());
          t += x.x * u.x + x.y * u.y;
        }
        if constexpr (kSums == Sums::t_and_xx) xx += x.x * x.x + x.y * x.y;
        write_shared(me.place(own, half, i), packed);
      }
      asm volatile("" : "+f"(t), "+f"(xx)::"memory");
    }
  }
  if constexpr (kSums != Sums::none) {
    double wide_t = t, wide_xx = xx;
    for (int offset = 16; offset > 0; offset >>= 1) {
      wide_t += __shfl_down_sync(0xffffffffU, wide_t, offset);
      if constexpr (kSums == Sums::t_and_xx) {
        wide_xx += __shfl_down_sync(0xffffffffU, wide_xx, offset);
      }
    }
    if (me.lane == 0) {
      shared.sums[me.group][me.warp][0] = wide_t;
      shared.sums[me.group][me.warp][1] = wide_xx;
    }
  }
  fence_for_copies();
  me.sync();
  if (me.leads()) {
    const ProductTile tile = tile_of(item, rank);
    store_tile(map, me.tile, tile.row * kTileSide, item.col_tile * kTileSide, tile.in_bucket);
    if constexpr (kSums != Sums::none) {
      const double(&s)[4][2] = shared.sums[me.group];
      add(tile, PartialSums{s[0][0] + s[1][0] + s[2][0] + s[3][0],
                            s[0][1] + s[1][1] + s[2][1] + s[3][1]});
    }
  }
}

}  // namespace rode::cuda::hopper
