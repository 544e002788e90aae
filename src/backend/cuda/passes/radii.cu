// SPDX-License-Identifier: Apache-2.0
// Rows with radii (rules/row_radius_rule.h): scalars before Newton-Schulz, coefficients after it.
//
// `radii` follows the gate. From the six products of every row (measure.cu) it makes the scalars of
// each matrix, advances the radii, and leaves what the rows' momentum and start need (form.cu).
// `row_coefficients` follows the sums over the rows of the iterate (rows.cu): the coefficients with
// which each row is written (write.cu). One block per matrix, some 200 bytes per row: launches that
// cost their latency. Sums over rows are double, in an order that their number alone decides. A
// thread keeps its rows from loop to loop; what all rows share is made by one thread, because it
// advances state.
#include <cmath>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/passes/launches.h"
#include "rules/matrix_step.h"
#include "rules/row_radius_rule.h"

namespace rode::cuda {
namespace {

constexpr int kThreads = 256;

// The rows of one matrix, in the step in progress.
struct Rows {
  std::int64_t count;
  double length;
  const rules::MatrixProducts* products;
  RowRadius* radii;
  rules::RowForm* forms;
  const rules::RowSums* sums;
  float* factors;
  rules::RowWrite<float>* writes;

  __device__ Rows(const StepView& view, const JobEntry& job, const MatrixEntry& matrix)
      : count(rules::row_count(job, matrix.row_columns != 0)),
        length(static_cast<double>(rules::row_length(job, matrix.row_columns != 0))),
        products(view.measured + job.first_sum),
        radii(view.row_radii + matrix.first_row),
        forms(view.row_forms + matrix.first_row),
        sums(view.row_sums + matrix.first_row),
        factors(view.row_factors + matrix.first_row),
        writes(view.row_writes + matrix.first_row) {}

  // Calls f(i) for the rows of this thread.
  template <class F>
  __device__ void for_own(F&& f) const {
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) f(i);
  }
};

__device__ void begin_rode(const Rows& rows, const MatrixEntry& matrix, double multiplier,
                           MatrixStep& step) {
  __shared__ double steps;
  const rules::RodeConstants& c = matrix.rode;
  rules::RodeRowTotals own;
  rows.for_own(
      [&](std::int64_t i) { rules::add_row(own, rules::rode_tangent(c, rows.products[i])); });
  double sums[3] = {own.pg_pg, own.mm, own.start};
  block_sums<kThreads>(sums);
  const double target = rules::start_target(c.coefficients, matrix.iterates != 0);
  if (threadIdx.x == 0) {
    step.rode = rules::rode_row_scalars(c, step.products, {sums[0], sums[1], sums[2]},
                                        matrix.state.snr_norm);
    step.held = step.rode.held ? 1 : 0;
    step.target = target;
    steps = rules::rode_row_step(c, step.rode, matrix.state.step);
  }
  __syncthreads();
  const rules::RodeScalars whole = step.rode;
  double next_squared = 0;
  rows.for_own([&](std::int64_t i) {
    const rules::RodeTangent row = rules::rode_tangent(c, rows.products[i]);
    const double next = rules::rode_row_radius(c, multiplier, whole, matrix.target, row, steps,
                                               rules::row_state(matrix.state, i));
    next_squared += next * next;
    rows.radii[i].next = next;
    rows.forms[i] = rules::rode_row_form(c, whole, row, target);
  });
  next_squared = block_sum<kThreads>(next_squared);
  if (threadIdx.x == 0 && !whole.held) step.rode.rho_next = std::sqrt(next_squared);
}

__device__ void begin_muown(const Rows& rows, const MatrixEntry& matrix, double multiplier,
                            MatrixStep& step) {
  __shared__ double steps;
  const rules::MuonConstants& c = matrix.muon_constants;
  if (threadIdx.x == 0) steps = static_cast<double>(++*matrix.own.step);
  __syncthreads();
  double start = 0;
  rows.for_own([&](std::int64_t i) {
    const rules::MuownRow row =
        rules::muown_row(c, multiplier, steps, rows.products[i], matrix.own, i);
    rows.radii[i].muown = row;
    start += row.start;
  });
  start = block_sum<kThreads>(start);
  const double target = rules::start_target(c.coefficients, true);
  const double divisor = rules::muown_divisor(c, start, target);
  rows.for_own([&](std::int64_t i) {
    rows.forms[i] = rules::muown_row_form(c, rows.radii[i].muown, divisor);
  });
  if (threadIdx.x != 0) return;
  step.muon = {};
  step.muon.direction = divisor > 0;
  step.held = 0;
  step.target = target;
}

__global__ void __launch_bounds__(kThreads) radii(StepView view, const std::int32_t* matrices) {
  const int index = matrices[blockIdx.x];
  follow();
  if (view.live[index] == 0) return;
  const MatrixEntry& matrix = view.matrices[index];
  const Rows rows(view, view.jobs[index], matrix);
  MatrixStep& step = view.matrix_steps[index];
  const double multiplier = view.control->multiplier;
  if (matrix.muon == 0) {
    begin_rode(rows, matrix, multiplier, step);
  } else {
    begin_muown(rows, matrix, multiplier, step);
  }
  if (threadIdx.x == 0) view.results[index].held = step.held;
}

// The factors of normalize = rows, times row_scale(), which is returned.
__device__ double normalize(const Rows& rows, const MatrixEntry& matrix, double start_scale) {
  rules::RowTotals own;
  rows.for_own([&](std::int64_t i) {
    const rules::RowSums sums = rules::scaled(rows.sums[i], start_scale);
    rows.factors[i] =
        rules::advance_row(matrix.rode.row_beta, sums, rules::row_tangent_factor(sums), rows.length,
                           matrix.row_avg_sq[i], own);
  });
  double whole[3] = {own.oo, own.scaled, own.along};
  block_sums<kThreads>(whole);
  return rules::row_scale({whole[0], whole[1], whole[2]});
}

// `start_scale`: a start that is the iterate is written with it; else 1.
__device__ void end_rode(const Rows& rows, const MatrixEntry& matrix, double multiplier,
                         double start_scale, MatrixStep& step) {
  const rules::RodeConstants& c = matrix.rode;
  const rules::RodeScalars whole = step.rode;
  if (whole.held) {  // the whole block
    if (threadIdx.x == 0) step.write = {};
    return;
  }
  const bool moves = step.moves != 0, normalizes = moves && matrix.row_avg_sq != nullptr;
  const double scale = normalizes ? normalize(rows, matrix, start_scale) : 1;
  double qq = 0;
  rows.for_own([&](std::int64_t i) {
    const double f =
        normalizes ? static_cast<double>(rules::normalized_factor(scale, rows.factors[i])) : 1;
    const rules::RowSums sums = moves ? rules::scaled(rows.sums[i], start_scale) : rules::RowSums{};
    const auto write = rules::rode_row_write(c, multiplier, matrix.scale, whole,
                                             rules::rode_tangent(c, rows.products[i]),
                                             rows.radii[i].next, sums, f, qq);
    rows.writes[i] = {static_cast<float>(write.w), static_cast<float>(write.x * start_scale)};
  });
  qq = block_sum<kThreads>(qq);
  if (threadIdx.x != 0) return;
  step.write = rules::rode_rows_written(c, multiplier, matrix.scale, whole, qq, rows.count);
}

__device__ void end_muown(const Rows& rows, const MatrixEntry& matrix, double multiplier,
                          const MatrixStep& step) {
  const bool moves = step.moves != 0;
  rows.for_own([&](std::int64_t i) {
    const rules::RowSums sums = moves ? rows.sums[i] : rules::RowSums{};
    const auto write =
        rules::muown_row_write(matrix.muon_constants, multiplier, matrix.scale, rows.radii[i].muown,
                               rows.products[i].tt, sums, matrix.own, i);
    rows.writes[i] = {static_cast<float>(write.w), static_cast<float>(write.x)};
  });
}

__global__ void __launch_bounds__(kThreads)
    row_coefficients(StepView view, const std::int32_t* matrices, const float* start_scale) {
  const int index = matrices[blockIdx.x];
  follow();
  if (view.live[index] == 0) return;
  const MatrixEntry& matrix = view.matrices[index];
  const Rows rows(view, view.jobs[index], matrix);
  MatrixStep& step = view.matrix_steps[index];
  const double multiplier = view.control->multiplier;
  if (matrix.muon != 0) {
    end_muown(rows, matrix, multiplier, step);
    return;
  }
  // Newton-Schulz has taken the scale in.
  const double on_start =
      matrix.ns >= 0 && matrix.iterates == 0 ? static_cast<double>(start_scale[matrix.ns]) : 1.0;
  end_rode(rows, matrix, multiplier, on_start, step);
}

}  // namespace

void launch_radii(const StepView& view, MatrixRange range, cudaStream_t stream) {
  if (range.count == 0) return;
  launch_following(radii, static_cast<unsigned>(range.count), kThreads, stream, view,
                   range.matrices);
  RODE_CUDA_CHECK_LAUNCH(stream, "radii");
}

void launch_row_coefficients(const StepView& view, MatrixRange range, const float* start_scale,
                             cudaStream_t stream) {
  if (range.count == 0) return;
  launch_following(row_coefficients, static_cast<unsigned>(range.count), kThreads, stream, view,
                   range.matrices, start_scale);
  RODE_CUDA_CHECK_LAUNCH(stream, "row_coefficients");
}

}  // namespace rode::cuda
