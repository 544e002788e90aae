// SPDX-License-Identifier: Apache-2.0
// Adafactor: factored second moments, an update clipped by its root mean square.
//
//   row_i <- decay row_i + (1 - decay) (mean over j of g_ij^2 + eps);  col_j over i likewise
//   u_ij = g_ij (row_i / mean(row))^-1/2 col_j^-1/2      (rank < 2: u = g v^-1/2)
//   W <- keep W - scale u,  scale = lr / max(1, rms(u) / clip_threshold)
//
// The update u is never stored: one pass sums its squares, the next computes it again and
// writes the weights. Bytes per element in fp32: 4 to sum rows and columns, 4 to sum u^2,
// 12 to write; small planes are read once less. Blocks of 256 threads, one per slice;
// in a tile a warp walks rows and a lane keeps the sums of its eight columns in registers.
// All sums are double and have two stages: a block's own, then the blocks' in their order.
#include "backend/cuda/adafactor/adafactor_steps.h"
#include "backend/cuda/adafactor/walks.cuh"
#include "backend/cuda/device/check.h"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/tables/control.h"

namespace rode::cuda {
namespace adafactor {
namespace {

__device__ bool gated(const AdafactorArgs& args, std::int64_t task) {
  return args.control->refused != 0 || args.results[task].live == 0;
}

// Where weights and gradients lie, the table of jobs says: a graph of the caller's has its own.
__device__ AdafactorTask task_of(const AdafactorArgs& args, std::int32_t index) {
  AdafactorTask task = args.tasks[index];
  task.weight = args.jobs[index].weight;
  task.grad = args.jobs[index].grad;
  return task;
}

// Sums of squares of the tile's rows and columns, from one reading.
__global__ void __launch_bounds__(kThreads) sum_lines(AdafactorArgs args) {
  const AdafactorSlice slice = args.tiles[blockIdx.x];
  if (gated(args, slice.task)) return;
  const AdafactorTask task = task_of(args, slice.task);
  __shared__ double shared[kWarps][kAdafactorTileCols];
  const Tile tile(task, slice.index);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  double* row_parts =
      args.line_parts + task.row_parts + (tile.plane * task.tiles_across + tile.across) * task.rows;
  double* col_parts =
      args.line_parts + task.col_parts + (tile.plane * task.tiles_down + tile.down) * task.cols;
  double col_sum[kLaneCols] = {};
  for (std::int64_t i = tile.top + warp; i < tile.bottom; i += kWarps) {
    const std::int64_t line = (tile.plane * task.rows + i) * task.cols;
    float g[kLaneCols];
#pragma unroll
    for (int l = 0; l < kLaneCols; ++l) {
      const std::int64_t j = tile.left + lane + 32 * l;
      g[l] = j < tile.right ? value_at(task.grad, line + j) : 0.0F;
    }
    double row_sum = 0;
#pragma unroll
    for (int l = 0; l < kLaneCols; ++l) {
      row_sum += square(g[l]);
      col_sum[l] += square(g[l]);
    }
    row_sum = warp_sum(row_sum);
    if (lane == 0) row_parts[i] = row_sum;
  }
#pragma unroll
  for (int l = 0; l < kLaneCols; ++l) shared[warp][lane + 32 * l] = col_sum[l];
  __syncthreads();
  const std::int64_t j = tile.left + threadIdx.x;
  if (j >= tile.right) return;
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared[w][threadIdx.x];
  col_parts[j] = sum;
}

// Adds a line's parts, `stride` apart, and advances its average.
__device__ float advance(float old, double decay, double eps, const double* parts,
                         std::int64_t count, std::int64_t stride, std::int64_t length) {
  double sum = 0;
  for (std::int64_t part = 0; part < count; ++part) sum += parts[part * stride];
  return rules::adafactor_mean(decay, eps, old, sum, length);
}

// New averages of 256 rows or columns of a plane; of rows also their sum.
__global__ void __launch_bounds__(kThreads) average_lines(AdafactorArgs args) {
  const AdafactorSlice slice = args.lines[blockIdx.x];
  if (gated(args, slice.task)) return;
  const AdafactorTask task = args.tasks[slice.task];
  const double decay = decay_of(task), eps = task.constants.eps;
  const std::int64_t row_slices = task.planes * task.row_blocks;
  if (slice.index < row_slices) {
    const std::int64_t plane = slice.index / task.row_blocks;
    const std::int64_t i = slice.index % task.row_blocks * kAdafactorLines + threadIdx.x;
    double value = 0;
    if (i < task.rows) {
      float* row = task.row + plane * task.rows + i;
      *row = advance(*row, decay, eps,
                     args.line_parts + task.row_parts + plane * task.tiles_across * task.rows + i,
                     task.tiles_across, task.rows, task.cols);
      value = static_cast<double>(*row);
    }
    const double sum = block_sum<kThreads>(value);
    if (threadIdx.x == 0) args.line_parts[task.row_sums + slice.index] = sum;
    return;
  }
  const std::int64_t col_blocks = (task.cols + kAdafactorLines - 1) / kAdafactorLines;
  const std::int64_t index = slice.index - row_slices, plane = index / col_blocks;
  const std::int64_t j = index % col_blocks * kAdafactorLines + threadIdx.x;
  if (j >= task.cols) return;
  float* col = task.col + plane * task.cols + j;
  *col = advance(*col, decay, eps,
                 args.line_parts + task.col_parts + plane * task.tiles_down * task.cols + j,
                 task.tiles_down, task.cols, task.rows);
}

struct Squares {
  double sum = 0;
  __device__ void operator()(std::int64_t, float u) { sum += square(u); }
};

__global__ void __launch_bounds__(kThreads) sum_squares(AdafactorArgs args) {
  const AdafactorSlice slice = args.slices[blockIdx.x];
  if (gated(args, slice.task)) return;
  const AdafactorTask task = task_of(args, slice.task);
  Squares own;
  visit<true>(args, task, slice.index, own);
  const double sum = block_sum<kThreads>(own.sum);
  if (threadIdx.x == 0) args.squares[blockIdx.x] = sum;
}

// One block per job: the clipping of its update.
__global__ void __launch_bounds__(kThreads) clip(AdafactorArgs args) {
  if (gated(args, blockIdx.x)) return;
  const AdafactorTask& task = args.tasks[blockIdx.x];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < task.slices; i += kThreads) {
    sum += args.squares[task.first_slice + i];
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x != 0) return;
  const double mean_square = sum / static_cast<double>(task.planes * task.rows * task.cols);
  args.writes[blockIdx.x] =
      rules::adafactor_write(task.constants, args.control->multiplier, mean_square);
}

struct Writer {
  const AdafactorTask& task;
  rules::AdafactorWrite write;
  std::uint64_t sequence;
  Moved moved;

  __device__ void operator()(std::int64_t at, float u) {
    const float w[1] = {value_at(task.weight, at)};
    float fresh[1] = {write.keep * w[0] - write.scale * u};
    store_weights(task.weight, sequence, task.offset + at, at, fresh);
    moved.add(w, fresh);
  }
};

__global__ void __launch_bounds__(kThreads) write_weights(AdafactorArgs args) {
  const AdafactorSlice slice = args.slices[blockIdx.x];
  if (gated(args, slice.task)) return;
  const AdafactorTask task = task_of(args, slice.task);
  Writer own{task,
             args.writes[slice.task],
             rules::step_sequence(task.weight.sequence, args.control->step),
             {}};
  visit<false>(args, task, slice.index, own);
  double sums[2] = {own.moved.ww, own.moved.dd};
  block_sums<kThreads>(sums);
  if (threadIdx.x != 0) return;
  args.sums[2 * static_cast<std::int64_t>(blockIdx.x)] = sums[0];
  args.sums[2 * static_cast<std::int64_t>(blockIdx.x) + 1] = sums[1];
}

__global__ void __launch_bounds__(kThreads) report(AdafactorArgs args) {
  if (gated(args, blockIdx.x)) return;
  const AdafactorTask& task = args.tasks[blockIdx.x];
  double sums[2] = {};
  for (std::int64_t i = threadIdx.x; i < task.slices; i += kThreads) {
    sums[0] += args.sums[2 * (task.first_slice + i)];
    sums[1] += args.sums[2 * (task.first_slice + i) + 1];
  }
  block_sums<kThreads>(sums);
  if (threadIdx.x != 0) return;
  args.results[blockIdx.x].ww = sums[0];
  args.results[blockIdx.x].dd = sums[1];
  note_end(*args.control, args.jobs[blockIdx.x].parameter, sums[0], sums[1]);
}

}  // namespace
}  // namespace adafactor

void launch_adafactor(const AdafactorArgs& args, cudaStream_t stream) {
  using namespace adafactor;
  const auto run = [&](auto kernel, const char* name, std::int64_t blocks) {
    if (blocks == 0) return;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
    RODE_CUDA_CHECK_LAUNCH(stream, name);
  };
  run(sum_lines, "adafactor sum_lines", args.tile_count);
  run(average_lines, "adafactor average_lines", args.line_count);
  run(sum_squares, "adafactor sum_squares", args.slice_count);
  run(clip, "adafactor clip", args.task_count);
  run(write_weights, "adafactor write_weights", args.slice_count);
  run(report, "adafactor report", args.task_count);
}

}  // namespace rode::cuda
