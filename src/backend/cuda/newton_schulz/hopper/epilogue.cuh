// SPDX-License-Identifier: Apache-2.0
// The epilogues: a tile's sums are rounded, blended, mirrored, measured against U, and stored.
#pragma once

#include <cstdint>

#include "backend/cuda/newton_schulz/hopper/consumer.cuh"
#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "backend/cuda/newton_schulz/schatten.cuh"

namespace rode::cuda::hopper {

// A tile on the diagonal and its mirror image, averaged. A product of factors that commute up to
// rounding is symmetric up to rounding; left so, the Gram form takes the difference for negative
// eigenvalues and blows it up.
template <class Element>
__device__ inline void average(const Consumer& me, std::uint32_t own,
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

// Sums of the squares of a tile as rounded, warp by warp.
template <class Element>
__device__ inline void sum_squares(const Consumer& me, Shared& shared,
                                   const std::uint32_t (&packed)[2][32]) {
  float squares = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float2 x = unpack(packed[half][i], Element());
      squares += x.x * x.x + x.y * x.y;
    }
  }
  double wide = squares;
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    wide += __shfl_down_sync(0xffffffffU, wide, offset);
  }
  if (me.lane == 0) shared.sums[me.index][me.warp][0] = wide;
}

// D = alpha acc + beta C + gamma I, and its mirror image on the other side of the diagonal. Each is
// stored by halves: one is on its way while the other is written.
template <class Element, bool kBlend, bool kSchatten>
__device__ __forceinline__ void epilogue_symmetric(const ProductArgs& args, const ProductItem& item,
                                                   const ProductTile& tile, Blend blend,
                                                   Consumer& me, Shared& shared,
                                                   float (&d)[2][64]) {
  const Phase& phase = args.phases[item.phase];
  const CUtensorMap* map = args.maps + item.bucket * kRoles + phase.d;
  const int row = tile.row * kTileSide, column = item.col_tile * kTileSide;
  const std::uint32_t own = me.own_place();
  if constexpr (kBlend) {
    me.wait_loaded();
    // Nobody may ask for the next tile before all have seen this one: see multiply().
    me.sync();
    if (kSchatten && phase.squares != nullptr) blend = shared.blend[me.index];
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
    if (kSchatten && phase.squares != nullptr) sum_squares<Element>(me, shared, packed);
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
  if constexpr (!kBlend) {
    if (kSchatten && phase.squares != nullptr && me.leads()) {
      const double(&s)[4][2] = shared.sums[me.index];
      const double own_squares = s[0][0] + s[1][0] + s[2][0] + s[3][0];
      add_squares(phase.squares + tile.matrix,
                  item.mirror && !diagonal ? 2 * own_squares : own_squares,
                  args.start_scale[tile.matrix]);
    }
  }
  // The other consumer multiplies meanwhile.
  if (phase.written != nullptr && me.leads()) {
    tma_store_wait();
    release_add(phase.written + tile.matrix);
  }
}

// Sums of a tile that an applying product takes: none, <D, U>, or that and ||D||^2.
enum class TileSums { none, t, t_and_xx };

// D = acc. Sums are those of the rounded numbers; `add` is given them by one thread, behind the
// tile's store.
template <class Element, TileSums kTileSums, class Add>
__device__ __forceinline__ void epilogue_apply(const ProductArgs& args, const ProductItem& item,
                                               int rank, Consumer& me, Shared& shared,
                                               float (&d)[2][64], const Add& add) {
  const CUtensorMap* map = args.maps + item.bucket * kRoles + args.phases[0].d;
  const std::uint32_t own = me.own_place();
  if constexpr (kTileSums != TileSums::none) {
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
      if constexpr (kTileSums != TileSums::none) me.read(own, half, from, direction);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int i = from + j;
        const std::uint32_t packed = pack(d[half][2 * i], d[half][2 * i + 1], Element());
        const float2 x = unpack(packed, Element());
        if constexpr (kTileSums != TileSums::none) {
          const float2 u = unpack(direction[j], __half());
          t += x.x * u.x + x.y * u.y;
        }
        if constexpr (kTileSums == TileSums::t_and_xx) xx += x.x * x.x + x.y * x.y;
        write_shared(me.place(own, half, i), packed);
      }
      asm volatile("" : "+f"(t), "+f"(xx)::"memory");
    }
  }
  if constexpr (kTileSums != TileSums::none) {
    double wide_t = t, wide_xx = xx;
    for (int offset = 16; offset > 0; offset >>= 1) {
      wide_t += __shfl_down_sync(0xffffffffU, wide_t, offset);
      if constexpr (kTileSums == TileSums::t_and_xx) {
        wide_xx += __shfl_down_sync(0xffffffffU, wide_xx, offset);
      }
    }
    if (me.lane == 0) {
      shared.sums[me.index][me.warp][0] = wide_t;
      shared.sums[me.index][me.warp][1] = wide_xx;
    }
  }
  fence_proxy_async_shared();
  me.sync();
  if (me.leads()) {
    const ProductTile tile = tile_of(item, rank);
    store_tile(map, me.tile, tile.row * kTileSide, item.col_tile * kTileSide, tile.in_bucket);
    if constexpr (kTileSums != TileSums::none) {
      const double(&s)[4][2] = shared.sums[me.index];
      add(tile, PartialSums{s[0][0] + s[1][0] + s[2][0] + s[3][0],
                            s[0][1] + s[1][1] + s[2][1] + s[3][1]});
    }
  }
}

}  // namespace rode::cuda::hopper
