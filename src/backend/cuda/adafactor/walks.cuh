// SPDX-License-Identifier: Apache-2.0
// How a block walks a slice of Adafactor's: element by element, with the update u of each.
#pragma once

#include <cstdint>

#include "backend/cuda/adafactor/adafactor_steps.h"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"

namespace rode::cuda::adafactor {

inline constexpr int kThreads = kAdafactorLines, kWarps = kThreads / 32;
inline constexpr int kLaneCols = kAdafactorTileCols / 32;

// The gate has counted this gradient already.
__device__ inline double decay_of(const AdafactorTask& task) {
  return rules::adafactor_decay(task.constants, *task.step);
}

__device__ inline double square(float x) { return static_cast<double>(x) * static_cast<double>(x); }

// Plain loads, not streaming ones: the next pass reads the gradient again.
__device__ inline float value_at(const void* data, bool bf16, std::int64_t at) {
  return bf16 ? rules::bf16_to_float(static_cast<const std::uint16_t*>(data)[at])
              : static_cast<const float*>(data)[at];
}
__device__ inline float value_at(const ArrayView& array, std::int64_t at) {
  return value_at(array.data, array.bf16 != 0, at);
}
__device__ inline float value_at(const WeightView& weight, std::int64_t at) {
  if (weight.low_bits == nullptr) return value_at(weight.data, weight.bf16 != 0, at);
  return rules::join_halves(static_cast<const std::uint16_t*>(weight.data)[at],
                            weight.low_bits[at]);
}

struct Tile {
  std::int64_t plane, down, across, top, bottom, left, right;
  __device__ Tile(const AdafactorTask& task, std::int64_t index) {
    const std::int64_t each = task.tiles_down * task.tiles_across;
    plane = index / each;
    down = index % each / task.tiles_across;
    across = index % each % task.tiles_across;
    top = down * kAdafactorTileRows;
    bottom = min(task.rows, top + kAdafactorTileRows);
    left = across * kAdafactorTileCols;
    right = min(task.cols, left + kAdafactorTileCols);
  }
};

// The three walks below call sink(at, u) for every element of a slice.

template <class Sink>
__device__ void walk_tile(const AdafactorArgs& args, const AdafactorTask& task, std::int64_t index,
                          Sink& sink) {
  const Tile tile(task, index);
  const double* row_sums = args.line_parts + task.row_sums + tile.plane * task.row_blocks;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < task.row_blocks; i += kThreads) sum += row_sums[i];
  const double mean = block_sum<kThreads>(sum) / static_cast<double>(task.rows);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float col[kLaneCols];
#pragma unroll
  for (int l = 0; l < kLaneCols; ++l) {
    const std::int64_t j = tile.left + lane + 32 * l;
    col[l] = j < tile.right ? task.col[tile.plane * task.cols + j] : 1.0F;
  }
  for (std::int64_t i = tile.top + warp; i < tile.bottom; i += kWarps) {
    const std::int64_t line = tile.plane * task.rows + i;
    const float on_row = rules::adafactor_on_row(task.row[line], mean);
    float g[kLaneCols];
#pragma unroll
    for (int l = 0; l < kLaneCols; ++l) {
      const std::int64_t j = tile.left + lane + 32 * l;
      g[l] = j < tile.right ? value_at(task.grad, line * task.cols + j) : 0.0F;
    }
#pragma unroll
    for (int l = 0; l < kLaneCols; ++l) {
      const std::int64_t j = tile.left + lane + 32 * l;
      if (j < tile.right) {
        sink(line * task.cols + j, rules::adafactor_factored(g[l], on_row, col[l]));
      }
    }
  }
}

// Whole planes of at most 64 x 64, as many as fit; `kFresh` advances row and col first.
template <bool kFresh, class Sink>
__device__ void walk_planes(const AdafactorTask& task, std::int64_t index, Sink& sink) {
  __shared__ float g[kAdafactorPlanes], on_row[kAdafactorPlanes];
  const int rows = static_cast<int>(task.rows), cols = static_cast<int>(task.cols);
  const int size = rows * cols;
  const std::int64_t together = kAdafactorPlanes / size, first = index * together;
  const int count = static_cast<int>(min(together, task.planes - first));
  float* row = task.row + first * rows;
  float* col = task.col + first * cols;
  const int thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < count * size; at += kThreads) {
    g[at] = value_at(task.grad, first * size + at);
  }
  __syncthreads();
  if (kFresh) {
    const double decay = decay_of(task), eps = task.constants.eps;
    for (int line = thread; line < count * rows; line += kThreads) {
      double sum = 0;
      for (int j = 0; j < cols; ++j) sum += square(g[line * cols + j]);
      row[line] = rules::adafactor_mean(decay, eps, row[line], sum, cols);
    }
    for (int line = thread; line < count * cols; line += kThreads) {
      const float* top = g + line / cols * size + line % cols;
      double sum = 0;
      for (int i = 0; i < rows; ++i) sum += square(top[i * cols]);
      col[line] = rules::adafactor_mean(decay, eps, col[line], sum, rows);
    }
    __syncthreads();  // row and col are read back below by other threads
  }
  for (int line = thread; line < count * rows; line += kThreads) {
    const float* plane_row = row + line / rows * rows;
    double sum = 0;
    for (int i = 0; i < rows; ++i) sum += static_cast<double>(plane_row[i]);
    on_row[line] = rules::adafactor_on_row(row[line], sum / static_cast<double>(rows));
  }
  __syncthreads();
  for (int at = thread; at < count * size; at += kThreads) {
    sink(first * size + at,
         rules::adafactor_factored(g[at], on_row[at / cols], col[at / size * cols + at % cols]));
  }
}

// Rank < 2: a second moment of its own for every element.
template <bool kFresh, class Sink>
__device__ void walk_run(const AdafactorTask& task, std::int64_t index, Sink& sink) {
  const double decay = decay_of(task);
  const auto keep = static_cast<float>(decay), rest = static_cast<float>(1 - decay),
             eps = static_cast<float>(task.constants.eps);
  const std::int64_t begin = index * kAdafactorRun, end = min(task.cols, begin + kAdafactorRun);
  for (std::int64_t at = begin + threadIdx.x; at < end; at += kThreads) {
    const float g = value_at(task.grad, at);
    float v = value_at(task.exp_avg_sq, at);
    if (kFresh) {
      const float next[1] = {rules::adafactor_second(keep, rest, eps, g, v)};
      store(task.exp_avg_sq, at, next);
      // As stored, like the pass that writes: the clipped RMS is that of the update.
      v = task.exp_avg_sq.bf16 != 0 ? rules::bf16_to_float(rules::bf16_nearest(next[0])) : next[0];
    }
    sink(at, rules::adafactor_factored(g, 1.0F, v));
  }
}

template <bool kFresh, class Sink>
__device__ void visit(const AdafactorArgs& args, const AdafactorTask& task, std::int64_t index,
                      Sink& sink) {
  switch (task.cut) {
    case AdafactorCut::run: walk_run<kFresh>(task, index, sink); break;
    case AdafactorCut::planes: walk_planes<kFresh>(task, index, sink); break;
    case AdafactorCut::tile: walk_tile(args, task, index, sink); break;
  }
}

}  // namespace rode::cuda::adafactor
