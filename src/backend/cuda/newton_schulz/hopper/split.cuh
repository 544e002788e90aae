// SPDX-License-Identifier: Apache-2.0
// Epilogues of the split form (rules/split_rule.h), whose operands are e4m3.
//
// A symmetric product gives O, or off(P') and the factors a + diag P'; its tile of bytes takes half
// of the consumer's place in shared memory, the mirror image the other half. An applying product
// adds X (a + diag P') from the iterate in fp16, whose tile has been on its way, and takes the
// reprojection before it along: X is what the product before stored, corrected here.
#pragma once

#include <cstdint>

#include "backend/cuda/newton_schulz/hopper/consumer.cuh"
#include "backend/cuda/newton_schulz/hopper/e4m3.cuh"
#include "backend/cuda/newton_schulz/hopper/epilogue.cuh"
#include "backend/cuda/newton_schulz/hopper/ring.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "backend/cuda/newton_schulz/schatten.cuh"
#include "rules/split_rule.h"

namespace rode::cuda::hopper {

inline constexpr int kByteTile = kTileSide * kTileSide;  // two boxes of 64 rows of 128 bytes

// The diagonal of a matrix of the bucket, or its factors.
__device__ inline float* vector_of(const PlainOperand& operand, int in_bucket) {
  return static_cast<float*>(operand.data) + in_bucket * operand.matrix_stride;
}

// Where a thread's pairs lie in a tile of bytes, as Consumer::place(): `own` is its first.
struct BytePlaces {
  std::uint32_t own, mirrored, selector;

  __device__ explicit BytePlaces(const Consumer& me) {
    const int row = me.warp * 16 + me.lane / 4, inner = me.lane / 4;
    own = me.tile + static_cast<std::uint32_t>(row * 128 + (inner << 4) + me.lane % 4 * 2);
    // After neighbours in a column have exchanged bytes (mirror()): row and column change places.
    const int r = me.lane % 4 * 2 + (inner & 1);
    mirrored = me.tile + kByteTile +
               static_cast<std::uint32_t>(r * 128 + ((me.warp ^ r) << 4) + (inner & ~1));
    selector = (inner & 1) == 0 ? 0x6240U : 0x3715U;
    asm volatile("" : "+r"(own), "+r"(mirrored), "+r"(selector));  // as Consumer::own_place()
  }
  __device__ std::uint32_t place(int half, int i) const {
    return (own ^ static_cast<std::uint32_t>((i >> 2) << 4)) +
           static_cast<std::uint32_t>(half * 8192 + (i & 1) * 1024 + (i >> 1 & 1) * 8);
  }
  // Two rows, 8 apart, of columns c and c + 1: bytes (r, c), (r, c + 1), (r + 8, c), (r + 8, c +
  // 1). The lane with the neighbour row has the same of r ^ 1; one keeps column c, one c + 1.
  __device__ void mirror(int half, int column_block, std::uint32_t bytes) const {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffU, bytes, 4);
    const std::uint32_t turned = __byte_perm(bytes, other, selector);
    const std::uint32_t at =
        (mirrored ^ static_cast<std::uint32_t>(half << 6)) + column_block * 1024;
    write_shared_2(at, turned);
    write_shared_2(at + 8, turned >> 16);
  }
};

// Two boxes of bytes; earlier stores must have been read. By the leader.
__device__ inline void load_bytes(const Consumer& me, const CUtensorMap* map, int row, int column,
                                  int in_bucket) {
  tma_store_wait_read();
  mbarrier_expect_tx(me.loaded, kByteTile);
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    tma_load(me.tile + box * kBoxBytes, map, me.loaded, column, row + box * kBoxSide, in_bucket);
  }
}

// What an item needs of the diagonal or of the factors, asked for before it is multiplied: by its
// end they have come. One number per column (of wide applying products: row) goes to shared memory,
// those of the thread's four rows stay in registers.
struct VectorParts {
  float of_row[2][2] = {};

  // From `end` on there are zeros: behind the factors of the last rows nobody has written, and the
  // second block of a pair may have no rows of its own.
  __device__ VectorParts(const Consumer& me, Shared& shared, const float* vector, int at, int end) {
    const int thread = me.warp * 32 + me.lane;
    shared.vector[me.index][thread] = at + thread < end ? vector[at + thread] : 0.0F;
  }
  __device__ void load_rows(const Consumer& me, const float* vector, int row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) of_row[half][i] = vector[row + me.row(half, i)];
    }
  }
};

// kBlend: off(P') and the factors, from O^2 and O; else O. `rows`: the diagonal at the thread's.
template <bool kBlend>
__device__ __forceinline__ void epilogue_split(const ProductArgs& args, const ProductItem& item,
                                               const ProductTile& tile, Blend blend,
                                               const VectorParts& rows, Consumer& me,
                                               Shared& shared, float (&d)[2][64]) {
  const Phase& phase = args.phases[item.phase];
  const PlainOperand* own = args.operands + item.bucket * kRoles;
  if constexpr (kBlend) {
    me.wait_loaded();
    me.sync();  // nobody may ask for the next tile before all have seen this one
    if (phase.squares != nullptr) blend = shared.blend[me.index];
  } else {
    me.wait_free();
  }
  if (tile.row == kNoTile) return;
  const BytePlaces places(me);
  const int row = tile.row * kTileSide, column = item.col_tile * kTileSide;
  const bool diagonal = tile.row == item.col_tile, mirror = item.mirror != 0 && !diagonal;
  int below = diagonal ? me.row(0, 0) - me.column(0) : 1 << 20;  // rows below the diagonal
  asm volatile("" : "+r"(below));                                // as own_place()
  float* factors = vector_of(own[kRoleF], tile.in_bucket);
  const std::uint32_t columns = shared_address(&shared.vector[me.index][me.lane % 4 * 2]);
  rules::SplitScales scales = phase.scales;
  if (kBlend && phase.squares != nullptr) scales.p /= rules::schatten_room(own[phase.d].rows);
  // To products of unscaled numbers; and b and c so that O as stored gives off(P') as stored.
  const float inverse = kBlend ? 1 / scales.o : 1 / (scales.x * scales.x);
  const float b = blend.beta * scales.p * inverse, c = blend.alpha * scales.p * inverse;
  float squares = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&of_row)[2] = rows.of_row[half];
#pragma unroll
    for (int from = 0; from < 32; from += kInFlight) {
      std::uint32_t other[kInFlight], bytes = 0;
      float2 of_column[kInFlight / 2];
      if constexpr (kBlend) {
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) other[j] = read_shared_2(places.place(half, from + j));
#pragma unroll
        for (int j = 0; j < kInFlight; j += 2) {
          of_column[j / 2] = read_shared_pair(columns + (from + j) * 16);
        }
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int i = from + j;
        float low = d[half][2 * i], high = d[half][2 * i + 1];
        const int off = below + half * 64 + (i & 1) * 8 - (i >> 1) * 8;
        const bool on_low = off == 0, on_high = off == 1;
        if constexpr (kBlend) {
          const float2 o = unpack_e4m3(other[j]), of_c = of_column[j / 2];
          low *= inverse;
          high *= inverse;
          if (on_low || on_high) {
            factors[row + me.row(half, i)] =
                rules::split_diagonal(blend.gamma, blend.beta, blend.alpha, of_row[i & 1],
                                      (on_low ? low : high) * inverse);
          }
          low = rules::split_off(b, c, of_row[i & 1], of_c.x, o.x, low);
          high = rules::split_off(b, c, of_row[i & 1], of_c.y, o.y, high);
        } else {
          low *= inverse;
          high *= inverse;
          const float low_g = on_low ? of_row[i & 1] : low, high_g = on_high ? of_row[i & 1] : high;
          squares += low_g * low_g + high_g * high_g;
          low *= scales.o;
          high *= scales.o;
        }
        const std::uint32_t pair = pack_e4m3(on_low ? 0.0F : low, on_high ? 0.0F : high);
        write_shared_2(places.place(half, i), pair);
        bytes = (i & 1) == 0 ? pair : bytes | pair << 16;
        if (mirror && (i & 1) != 0) places.mirror(half, i >> 1, bytes);
      }
      asm volatile("" : "+f"(squares)::"memory");
    }
  }
  if constexpr (!kBlend) {
    if (phase.squares != nullptr) {
      double wide = squares;
#pragma unroll
      for (int offset = 16; offset > 0; offset >>= 1) {
        wide += __shfl_down_sync(0xffffffffU, wide, offset);
      }
      if (me.lane == 0) shared.sums[me.index][me.warp][0] = wide;
    }
  }
  fence_proxy_async_shared();
  me.sync();
  if (!me.leads()) return;
  const CUtensorMap* map = args.maps + item.bucket * kRoles + phase.d;
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    tma_store(map, me.tile + box * kBoxBytes, column, row + box * kBoxSide, tile.in_bucket);
  }
  if (mirror) {
#pragma unroll
    for (int box = 0; box < 2; ++box) {
      tma_store(map, me.tile + kByteTile + box * kBoxBytes, row, column + box * kBoxSide,
                tile.in_bucket);
    }
  }
  tma_store_commit();
  if constexpr (!kBlend) {
    if (phase.squares != nullptr) {
      const double(&s)[4][2] = shared.sums[me.index];
      const double sum = s[0][0] + s[1][0] + s[2][0] + s[3][0];
      add_squares(phase.squares + tile.matrix, mirror ? 2 * sum : sum,
                  args.start_scale[tile.matrix]);
    }
  }
  if (phase.written != nullptr) {  // the other consumer multiplies meanwhile
    tma_store_wait();
    release_add(phase.written + tile.matrix);
  }
}

// X <- X (a + diag P') + X off(P'). kWithU: X is corrected first, X - t U for X, and the sums of
// the next one with U are left in `partials`. Both are linear, so that X's tile can go before U's
// comes into its place: the sums in registers take X, then -t U.
template <bool kWithU>
__device__ __forceinline__ void epilogue_split_apply(const ProductArgs& args,
                                                     const ProductItem& item,
                                                     const ProductTile& tile, int rank,
                                                     Consumer& me, Shared& shared,
                                                     float (&d)[2][64]) {
  const Phase& phase = args.phases[0];
  const PlainOperand* operands = args.operands + item.bucket * kRoles;
  const CUtensorMap* maps = args.maps + item.bucket * kRoles;
  const bool wide = item.order == OperandOrder::k_n;  // factors of rows, not of columns
  const std::uint32_t own = me.own_place();
  rules::SplitScales scales = phase.scales;
  if (phase.squares != nullptr) scales.p /= rules::schatten_room(operands[kRoleP].rows);
  const float inverse = 1 / (scales.x * scales.p);
  const Correction correction = kWithU ? args.corrections[tile.matrix] : Correction{0, 1};
  const int row = tile.row * kTileSide, column = item.col_tile * kTileSide;
  me.wait_loaded();
  me.sync();  // the factors have been put down
  const std::uint32_t factors = shared_address(shared.vector[me.index]);
  const std::uint32_t columns = factors + me.lane % 4 * 8;
  // f(half, i, x, at): sums 2 i and 2 i + 1 of a half, the factors of its columns, where it lies.
  const auto for_pairs = [&](const auto& f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of_row[2] = {0, 0};
      if (wide) {
        of_row[0] = read_shared_float(factors + me.row(half, 0) * 4);
        of_row[1] = read_shared_float(factors + me.row(half, 1) * 4);
      }
#pragma unroll
      for (int from = 0; from < 32; from += kInFlight) {
        std::uint32_t read[kInFlight];
        float2 of_column[kInFlight / 2];
        me.read(own, half, from, read);
#pragma unroll
        for (int j = 0; j < kInFlight; j += 2) {
          of_column[j / 2] = wide ? float2{0, 0} : read_shared_pair(columns + (from + j) * 16);
        }
#pragma unroll
        for (int j = 0; j < kInFlight; ++j) {
          const float on = of_row[(from + j) & 1];
          f(half, from + j, unpack(read[j], __half()),
            float2{on + of_column[j / 2].x, on + of_column[j / 2].y});
        }
        asm volatile("" ::: "memory");
      }
    }
  };
  float t = 0, xx = 0;
  if constexpr (!kWithU) {
    for_pairs([&](int half, int i, float2 x, float2 f) {
      write_shared(me.place(own, half, i),
                   pack(f.x * x.x + inverse * d[half][2 * i],
                        f.y * x.y + inverse * d[half][2 * i + 1], __half()));
    });
  } else {
    for_pairs([&](int half, int i, float2 x, float2 f) {
      d[half][2 * i] = correction.factor * f.x * x.x + inverse * d[half][2 * i];
      d[half][2 * i + 1] = correction.factor * f.y * x.y + inverse * d[half][2 * i + 1];
    });
    me.sync();  // X has been read
    if (me.leads()) me.load_tile(maps + kRoleU, row, column, tile.in_bucket);
    me.wait_loaded();
    const float along = correction.factor * correction.t;
    for_pairs([&](int half, int i, float2 u, float2 f) {
      const std::uint32_t packed = pack(d[half][2 * i] - along * f.x * u.x,
                                        d[half][2 * i + 1] - along * f.y * u.y, __half());
      const float2 y = unpack(packed, __half());
      t += y.x * u.x + y.y * u.y;
      xx += y.x * y.x + y.y * y.y;
      write_shared(me.place(own, half, i), packed);
      asm volatile("" : "+f"(t), "+f"(xx));
    });
    double wide_t = t, wide_xx = xx;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      wide_t += __shfl_down_sync(0xffffffffU, wide_t, offset);
      wide_xx += __shfl_down_sync(0xffffffffU, wide_xx, offset);
    }
    if (me.lane == 0) {
      shared.sums[me.index][me.warp][0] = wide_t;
      shared.sums[me.index][me.warp][1] = wide_xx;
    }
  }
  fence_proxy_async_shared();
  me.sync();
  if (!me.leads()) return;
  store_tile(maps + phase.d, me.tile, row, column, tile.in_bucket);
  if constexpr (kWithU) {
    const double(&s)[4][2] = shared.sums[me.index];
    args.partials[item.partial + rank] = {s[0][0] + s[1][0] + s[2][0] + s[3][0],
                                          s[0][1] + s[1][1] + s[2][1] + s[3][1]};
  }
}

}  // namespace rode::cuda::hopper
