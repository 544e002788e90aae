// SPDX-License-Identifier: Apache-2.0
// Rows that are normalised (NorMuon, rules/row_rule.h): sums of each, then averages and factors.
//
//   ||X_i||^2 and, where W is needed, <X_i,W_i>, ||W_i||^2 for every row i of the fan-out
//
// `row_sums` reads the iterate and, for RODE and constrained Muon, the weights: 2 and 4 bytes per
// element with bf16 iterates and fp32 weights. A warp per row, eight rows per block; where the rows
// of the fan-out are the columns of the matrix as stored, a block takes 32 columns, its warps every
// eighth row. `row_factors` is one block per matrix, some dozen bytes per row. Sums are double, in
// an order that the shape alone decides. The first is launched where rows are normalised or have
// radii (radii.cu), the second where they are normalised and have none.
#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/passes/launches.h"
#include "rules/row_rule.h"

namespace rode::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
static_assert(kWarps == kRowsPerBlock && kColumnsPerBlock == 32);

__device__ rules::RowPlan plan_of(const MatrixEntry& matrix, const MatrixStep& step) {
  return matrix.muon != 0 ? rules::row_plan(matrix.muon_constants)
                          : rules::row_plan(matrix.rode, step.rode.starts);
}

// Adds kWidth elements that begin at row `i`, column `j`.
template <int kWidth>
__device__ void add_run(const JobEntry& job, const MatrixEntry& matrix, bool weighted,
                        std::int64_t i, std::int64_t j, rules::RowSums& sums) {
  const Runs<kWidth, 1> one{0, 1};
  const std::int64_t place[1] = {i * matrix.slot_stride + j}, at[1] = {i * job.stride + j};
  Bits<kWidth> x_bits[1], w_bits[1];
  load(matrix.iterate, matrix.slot_dtype != NsDType::fp32, one, place, x_bits);
  clear(w_bits[0]);
  if (weighted) load(job.weight, one, at, w_bits);
  float x[kWidth], w[kWidth];
  decode_slot(x_bits[0], matrix.slot_dtype, x);
  decode(w_bits[0], job.weight.bf16 != 0, w);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const double y = static_cast<double>(x[k]), z = static_cast<double>(w[k]);
    sums.xx += y * y;
    if (!weighted) continue;
    sums.xw += y * z;
    sums.ww += z * z;
  }
}

__device__ void sum_row(const JobEntry& job, const MatrixEntry& matrix, bool weighted,
                        std::int64_t row, rules::RowSums* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= job.rows) return;  // the whole warp
  rules::RowSums sums;
  if (job.slot_vector != 0 && fours_stay_in_rows(job)) {
    const std::int64_t whole = job.cols & ~std::int64_t{3};
    for (std::int64_t j = 4 * lane; j < whole; j += 128) {
      add_run<4>(job, matrix, weighted, row, j, sums);
    }
    if (whole + lane < job.cols) add_run<1>(job, matrix, weighted, row, whole + lane, sums);
  } else {
    for (std::int64_t j = lane; j < job.cols; j += 32) {
      add_run<1>(job, matrix, weighted, row, j, sums);
    }
  }
  sums = {warp_sum(sums.xx), warp_sum(sums.xw), warp_sum(sums.ww)};
  if (lane == 0) out[row] = sums;
}

__device__ void sum_columns(const JobEntry& job, const MatrixEntry& matrix, bool weighted,
                            std::int64_t first, rules::RowSums* out) {
  __shared__ double parts[3][kWarps][kColumnsPerBlock];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t column = first + lane;
  rules::RowSums sums;
  if (column < job.cols) {
    for (std::int64_t i = warp; i < job.rows; i += kWarps) {
      add_run<1>(job, matrix, weighted, i, column, sums);
    }
  }
  parts[0][warp][lane] = sums.xx;
  parts[1][warp][lane] = sums.xw;
  parts[2][warp][lane] = sums.ww;
  __syncthreads();
  if (warp != 0 || column >= job.cols) return;
  for (int w = 1; w < kWarps; ++w) {
    sums.xx += parts[0][w][lane];
    sums.xw += parts[1][w][lane];
    sums.ww += parts[2][w][lane];
  }
  out[column] = sums;
}

__global__ void __launch_bounds__(kThreads) row_sums(StepView view, const RowEntry* rows) {
  const RowEntry entry = rows[blockIdx.x];
  const JobEntry job = view.jobs[entry.job];
  follow();
  if (view.live[entry.job] == 0 || view.matrix_steps[entry.job].moves == 0) return;
  const MatrixEntry& matrix = view.matrices[entry.job];
  const bool weighted = plan_of(matrix, view.matrix_steps[entry.job]).weighted;
  rules::RowSums* out = view.row_sums + matrix.first_row;
  if (matrix.row_columns != 0) {
    sum_columns(job, matrix, weighted, entry.first, out);
  } else {
    sum_row(job, matrix, weighted, entry.first + static_cast<int>(threadIdx.x) / 32, out);
  }
}

__global__ void __launch_bounds__(kThreads)
    row_factors(StepView view, const std::int32_t* matrices, const float* start_scale) {
  const int index = matrices[blockIdx.x];
  follow();
  MatrixStep& step = view.matrix_steps[index];
  if (view.live[index] == 0 || step.moves == 0) return;
  const JobEntry& job = view.jobs[index];
  const MatrixEntry& matrix = view.matrices[index];
  const bool columns = matrix.row_columns != 0;
  const std::int64_t count = rules::row_count(job, columns);
  const auto length = static_cast<double>(rules::row_length(job, columns));
  const double scale = matrix.iterates != 0 ? 1.0 : static_cast<double>(start_scale[matrix.ns]);
  const rules::RowPlan plan = plan_of(matrix, step);
  const rules::RowSums* sums = view.row_sums + matrix.first_row;
  float* factors = view.row_factors + matrix.first_row;

  double t_w = 0;
  if (plan.tangent) {
    double whole[2] = {0, 0};
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
      whole[0] += scale * sums[i].xw;
      whole[1] += sums[i].ww;
    }
    block_sums<kThreads>(whole);
    t_w = rules::tangent_factor({0, whole[0], whole[1]});
  }
  rules::RowTotals own;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    factors[i] = rules::advance_row(plan.beta, rules::scaled(sums[i], scale), t_w, length,
                                    matrix.row_avg_sq[i], own);
  }
  double whole[3] = {own.oo, own.scaled, own.along};
  block_sums<kThreads>(whole);
  const rules::RowTotals totals{whole[0], whole[1], whole[2]};
  const double k = rules::row_scale(totals);
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    factors[i] = rules::normalized_factor(k, factors[i]);
  }
  if (threadIdx.x == 0) step.rows = rules::normalized_rows(totals, t_w);
}

}  // namespace

void launch_row_sums(const StepView& view, RowRange rows, cudaStream_t stream) {
  if (rows.count == 0) return;
  launch_following(row_sums, static_cast<unsigned>(rows.count), kThreads, stream, view, rows.rows);
  RODE_CUDA_CHECK_LAUNCH(stream, "row_sums");
}

void launch_row_factors(const StepView& view, MatrixRange matrices, const float* start_scale,
                        cudaStream_t stream) {
  if (matrices.count == 0) return;
  launch_following(row_factors, static_cast<unsigned>(matrices.count), kThreads, stream, view,
                   matrices.matrices, start_scale);
  RODE_CUDA_CHECK_LAUNCH(stream, "row_factors");
}

}  // namespace rode::cuda
