// SPDX-License-Identifier: Apache-2.0
// Reprojection behind the products: D <- factor (D - t U), by warps that do not multiply.
#pragma once

#include "backend/cuda/device/finish.cuh"
#include "backend/cuda/device/hopper.cuh"
#include "backend/cuda/device/ring.cuh"
#include "backend/cuda/products.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda::hopper {

// What a warp subtracts, and from which matrix; asked for once a matrix.
struct Subtracted {
  int matrix = -1;
  float t = 0, factor = 1;

  __device__ void wait_for(const Verdict* verdicts, int wanted) {
    if (wanted == matrix) return;
    const Verdict& verdict = verdicts[wanted];
    while (peek_count(&verdict.ready) == 0) __nanosleep(100);
    __threadfence();
    matrix = wanted;
    t = __ldcg(&verdict.t);
    factor = __ldcg(&verdict.factor);
  }
};

// Four times two rows of 128 columns, 16 bytes a lane, of D and of U.
template <class Element>
struct Slice {
  static constexpr int kPasses = 4, kRowsApart = 2, kRows = kPasses * kRowsApart;
  uint4 x[kPasses], u[kPasses];

  __device__ void load(const Element* from, const Element* direction, long long stride, int rows) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (i * kRowsApart >= rows) continue;
      x[i] = __ldcg(reinterpret_cast<const uint4*>(from + i * kRowsApart * stride));
      u[i] = __ldcg(reinterpret_cast<const uint4*>(direction + i * kRowsApart * stride));
    }
  }
  __device__ void store(Element* to, long long stride, int rows, const Subtracted& s) const {
    const auto line = [&](std::uint32_t p, std::uint32_t q) {
      const float2 v = unpack(p, Element()), w = unpack(q, Element());
      return pack(rules::ns_project(v.x, w.x, s.t, s.factor),
                  rules::ns_project(v.y, w.y, s.t, s.factor), Element());
    };
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (i * kRowsApart >= rows) continue;
      const uint4 v{line(x[i].x, u[i].x), line(x[i].y, u[i].y), line(x[i].z, u[i].z),
                    line(x[i].w, u[i].w)};
      __stcg(reinterpret_cast<uint4*>(to + i * kRowsApart * stride), v);
    }
  }
};

// The tiles this CTA has written, half a tile at a time, by every warp that has nothing else
// to do: three of the copying warpgroup from the start, the others when their products are
// done. They wait for a matrix's verdict without holding anybody up. While one slice is
// combined and written the next is on its way.
template <class Element>
__device__ inline void project_tiles(const ProductArgs& args, Shared& shared, int first, int last,
                                     int rank, int lane) {
  constexpr int kHalf = kTileSide / 2, kRows = Slice<Element>::kRows;
  static_assert(kHalf % (2 * kRows) == 0);
  Subtracted subtracted;
  for (;;) {
    unsigned ticket = lane == 0 ? atomicAdd(&shared.tickets, 1U) : 0;
    ticket = __shfl_sync(0xffffffffU, ticket, 0);
    const int index = first + static_cast<int>(ticket / 2);
    if (index >= last) return;
    const ProductItem item = args.items[index];
    const PlainOperand* own = args.operands + item.group * kRoles;
    const PlainOperand to = own[args.d];
    const int row =
        (item.row_tile + rank) * kTileSide + static_cast<int>(ticket % 2) * kHalf + lane / 16;
    const int column = item.col_tile * kTileSide + lane % 16 * 8;
    const long long offset = item.batch * to.batch_stride + row * to.stride + column;
    Element* x = static_cast<Element*>(to.data) + offset;
    const Element* u = static_cast<const Element*>(own[kRoleU].data) + offset;
    const long long stride = to.stride, step = kRows * stride;
    int rows = column < to.cols ? to.rows - row : 0;
    subtracted.wait_for(args.verdicts, item.matrix);
    Slice<Element> even, odd;
    even.load(x, u, stride, rows);
#pragma unroll 1
    for (int done = 0; done < kHalf; done += 2 * kRows) {
      odd.load(x + step, u + step, stride, rows - kRows);
      even.store(x, stride, rows, subtracted);
      // The last slice's successor belongs to the next half: nothing is read for it.
      const int left = done + 2 * kRows < kHalf ? rows - 2 * kRows : 0;
      even.load(x + 2 * step, u + 2 * step, stride, left);
      odd.store(x + step, stride, rows - kRows, subtracted);
      x += 2 * step;
      u += 2 * step;
      rows -= 2 * kRows;
    }
  }
}

}  // namespace rode::cuda::hopper
