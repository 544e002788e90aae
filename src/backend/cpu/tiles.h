// SPDX-License-Identifier: Apache-2.0
// Walks stored arrays of any type and geometry as short fp32 runs that stay in L1, so
// that every kernel is written once, for contiguous fp32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/jobs.h"

namespace rode::cpu {

// A chunk is one task and one partial sum: cut by size alone, whatever the threads.
inline constexpr std::int64_t kChunk = 65536;
// A tile is what a kernel sees at a time: five arrays of 4 KiB fit L1.
inline constexpr std::int64_t kTile = 1024;

inline std::int64_t chunk_count(std::int64_t elements) { return (elements + kChunk - 1) / kChunk; }

// Calls f(tight, stored, n) for the runs of chunk `chunk`: n <= kTile elements that start
// at `tight` in row-major order without gaps and at `stored` in the strided array.
template <class F>
void for_tiles(const Geometry& geometry, std::int64_t chunk, F&& f) {
  const std::int64_t end = std::min(geometry.numel(), (chunk + 1) * kChunk);
  std::int64_t i = chunk * kChunk;
  if (geometry.contiguous()) {
    for (; i < end; i += kTile) f(i, i, std::min(kTile, end - i));
    return;
  }
  std::int64_t row = i / geometry.cols, col = i % geometry.cols;
  while (i < end) {
    const std::int64_t n = std::min({kTile, end - i, geometry.cols - col});
    f(i, row * geometry.stride + col, n);
    i += n;
    col += n;
    if (col == geometry.cols) {
      col = 0;
      ++row;
    }
  }
}

inline Geometry flat(std::int64_t count) { return {1, count, count}; }

// Readers return the array itself where it is fp32, else a widened copy in `scratch`.
const float* read(const Grads& grad, std::int64_t at, std::int64_t n, float* scratch);
const float* read(const Weights& weight, std::int64_t at, std::int64_t n, float* scratch);
float* read(const Moments& moments, std::int64_t at, std::int64_t n, float* scratch);
// Stores what a kernel left at `values`; nothing to do where that is the array itself.
void write(const Moments& moments, std::int64_t at, std::int64_t n, const float* values);

// Rounds `fresh` as the weights are stored, writes it, and returns ||stored - w||^2.
// `sequence` is that of the step (rules::step_sequence); `index` is the element's position within
// the parameter.
double write_weights(const Weights& weight, std::uint64_t sequence, std::int64_t index,
                     std::int64_t at, std::int64_t n, const float* w, float* fresh);

}  // namespace rode::cpu
