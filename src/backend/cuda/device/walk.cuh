// SPDX-License-Identifier: Apache-2.0
// How a block walks a slice: which elements its threads take, and where those lie.
#pragma once

#include <cstdint>

#include "backend/cuda/device/arrays.h"

namespace rode::cuda {

// Up to kCount runs of kWidth elements that one of kThreads threads works on at the same time.
template <int kWidth, int kCount, int kThreads = kSliceThreads>
struct Runs {
  static constexpr int kStep = kWidth * kThreads;  // from one run to the next
  int begin;                                       // of the first run
  int end;                                         // runs from here on are not there
  __device__ int element(int u) const { return begin + u * kStep; }
  __device__ bool valid(int u) const { return element(u) < end; }
};

// A slice of a row-major matrix. Elements are numbered from the slice's first one, in
// row-major order without gaps.
struct Walk {
  std::int64_t first;     // the slice's first element
  std::int64_t row, col;  // the same
  std::int64_t cols;
  int count;  // of elements in the slice

  __device__ Walk(std::int64_t rows, std::int64_t columns, std::int64_t index)
      : first(index * kSlice), cols(columns) {
    const std::int64_t left = rows * columns - first;
    count = static_cast<int>(left < kSlice ? left : kSlice);
    row = first / columns;
    col = first - row * columns;
  }

  // Row and column of element `i`.
  struct Place {
    std::int64_t row, col;
  };
  __device__ Place place(int i) const {
    const std::int64_t right = col + i, down = rows_to(right);
    return {row + down, right - down * cols};
  }

  // Where it lies in an array with `stride` elements from row to row.
  __device__ std::int64_t at(int i, std::int64_t stride) const {
    if (stride == cols) return first + i;
    const std::int64_t right = col + i, down = rows_to(right);
    return (row + down) * stride + (right - down * cols);
  }

  // The same for all runs: one branch for them together.
  template <int kWidth, int kCount, int kThreads>
  __device__ void places(const Runs<kWidth, kCount, kThreads>& runs, std::int64_t stride,
                         std::int64_t (&begin)[kCount]) const {
    if (stride == cols) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) begin[u] = first + runs.element(u);
    } else {
#pragma unroll
      for (int u = 0; u < kCount; ++u) begin[u] = at(runs.element(u), stride);
    }
  }

  // Rows down from the slice's first row to what lies `right` of that row's beginning.
  __device__ std::int64_t rows_to(std::int64_t right) const {
    // A slice ends in the next row at the latest where rows are longer than it.
    return cols >= kSlice ? (right >= cols ? 1 : 0)
                          : static_cast<std::int64_t>(static_cast<std::uint32_t>(right) /
                                                      static_cast<std::uint32_t>(cols));
  }
};

// Calls body(Runs) until the block has covered `count` elements: in runs of four where
// `vector`, with what is left of the last run one by one; else one by one throughout.
template <int kCount, class Body>
__device__ void walk(int count, bool vector, Body&& body) {
  const int thread = static_cast<int>(threadIdx.x);
  if (vector) {
    const int whole = count & ~3;
    for (int i = 4 * thread; i < whole; i += kCount * Runs<4, kCount>::kStep) {
      body(Runs<4, kCount>{i, whole});
    }
    if (whole + thread < count) body(Runs<1, 1>{whole + thread, count});
    return;
  }
  for (int i = thread; i < count; i += kCount * Runs<1, kCount>::kStep) {
    body(Runs<1, kCount>{i, count});
  }
}

}  // namespace rode::cuda
