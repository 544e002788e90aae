// SPDX-License-Identifier: Apache-2.0
// Walks stored arrays of any type and geometry as short fp32 runs that stay in L1, so
// that every loop is written once, for contiguous fp32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/jobs.h"

namespace rode::cpu {

// A slice is one task and one partial sum: cut by size alone, whatever the threads.
inline constexpr std::int64_t kSlice = 65536;
// A tile is what a loop sees at a time: five arrays of 1 KiB are still in L1 when the sums over
// them follow.
inline constexpr std::int64_t kTile = 256;

inline std::int64_t slice_count(std::int64_t elements) { return (elements + kSlice - 1) / kSlice; }

// Calls f(tight, stored, n, row, col) for the runs of slice `slice`, each within one row: n <=
// kTile elements that start at `tight` in row-major order without gaps and at `stored` in the
// strided array.
template <class F>
void for_row_tiles(const Geometry& geometry, std::int64_t slice, F&& f) {
  const std::int64_t end = std::min(geometry.numel(), (slice + 1) * kSlice);
  std::int64_t i = slice * kSlice;
  std::int64_t row = i / geometry.cols, col = i % geometry.cols;
  while (i < end) {
    const std::int64_t n = std::min({kTile, end - i, geometry.cols - col});
    f(i, row * geometry.stride + col, n, row, col);
    i += n;
    col += n;
    if (col == geometry.cols) {
      col = 0;
      ++row;
    }
  }
}

// The same without regard to rows where the array has no gaps: f(tight, stored, n).
template <class F>
void for_tiles(const Geometry& geometry, std::int64_t slice, F&& f) {
  if (!geometry.contiguous()) {
    for_row_tiles(geometry, slice,
                  [&](std::int64_t tight, std::int64_t stored, std::int64_t n, std::int64_t,
                      std::int64_t) { f(tight, stored, n); });
    return;
  }
  const std::int64_t end = std::min(geometry.numel(), (slice + 1) * kSlice);
  for (std::int64_t i = slice * kSlice; i < end; i += kTile) f(i, i, std::min(kTile, end - i));
}

inline Geometry flat(std::int64_t count) { return {1, count, count}; }

// Readers return the array itself where it is fp32, else a widened copy in `scratch`.
const float* read(const Grads& grad, std::int64_t at, std::int64_t n, float* scratch);
const float* read(const Weights& weight, std::int64_t at, std::int64_t n, float* scratch);
float* read(const Moments& moments, std::int64_t at, std::int64_t n, float* scratch);
// Stores what a loop left at `values`; nothing to do where that is the array itself.
void write(const Moments& moments, std::int64_t at, std::int64_t n, const float* values);

// Rounds `fresh` as the weights are stored, writes it, and returns ||stored - w||^2.
// `sequence` is that of the step (rules::step_sequence); `index` is the element's position within
// the parameter.
double write_weights(const Weights& weight, std::uint64_t sequence, std::int64_t index,
                     std::int64_t at, std::int64_t n, const float* w, float* fresh);

}  // namespace rode::cpu
