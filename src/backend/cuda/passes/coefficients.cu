// SPDX-License-Identifier: Apache-2.0
// The coefficients of the write-back, W' = on_w W + on_x X, from what Newton-Schulz measured.
//
// One thread per matrix, some hundred bytes each: a launch costs its latency.
#include <cmath>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/passes/launches.h"
#include "rules/matrix_step.h"
#include "rules/row_rule.h"

namespace rode::cuda {
namespace {

constexpr int kThreads = 32;  // few matrices: over as many SMs as there are

// Whether passes/rows.cu has normalised the iterate's rows.
__device__ bool has_rows(const MatrixEntry& matrix, const MatrixStep& step) {
  return matrix.row_avg_sq != nullptr && step.moves != 0;
}

__device__ rules::MatrixWrite rode_coefficients(const MatrixEntry& matrix, double multiplier,
                                                const rules::IterateSums& x,
                                                const MatrixStep& step) {
  rules::IterateSums sums;
  if (step.moves != 0) sums = matrix.iterates != 0 ? x : rules::unconditioned_sums();
  if (has_rows(matrix, step)) sums = rules::iterate_sums(step.rows, step.rode.rho);
  return rules::rode_write(matrix.rode, multiplier, matrix.scale, step.rode, sums);
}

__device__ rules::MatrixWrite muon_coefficients(const MatrixEntry& matrix, double multiplier,
                                                const rules::IterateSums& x,
                                                const MatrixStep& step) {
  const rules::MuonConstants& c = matrix.muon_constants;
  const bool constrained = rules::constrained(c), measured = constrained && step.moves != 0;
  const double ww = constrained ? step.products.tt : 0;
  double wo = measured ? x.t * std::sqrt(ww) : 0, oo = measured ? x.xx : 0;
  if (has_rows(matrix, step)) {
    wo = step.rows.ow;
    oo = step.rows.oo;
  }
  const double radius = constrained ? static_cast<double>(*matrix.radius) : 0;
  rules::MatrixWrite write = rules::muon_write(c, multiplier, matrix.scale, ww, wo, oo, radius);
  if (step.moves == 0) write.x = 0;
  return write;
}

__global__ void __launch_bounds__(kThreads)
    coefficients(StepView view, MatrixRange range, const float* start_scale, const NsSums* sums) {
  follow();
  const std::int64_t at = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x;
  if (at >= range.count) return;
  const int index = range.matrices[at];
  if (view.live[index] == 0) return;
  const MatrixEntry& matrix = view.matrices[index];
  MatrixStep& step = view.matrix_steps[index];
  const double multiplier = view.control->multiplier;
  rules::IterateSums own;
  if (matrix.ns >= 0) own = {sums[matrix.ns].t, sums[matrix.ns].xx};
  step.write = matrix.muon == 0 ? rode_coefficients(matrix, multiplier, own, step)
                                : muon_coefficients(matrix, multiplier, own, step);
  if (has_rows(matrix, step)) step.write = rules::with_rows(step.write, step.rows);
  // Newton-Schulz has taken the scale in; a start that is the iterate has not.
  const double on_start =
      matrix.ns >= 0 && matrix.iterates == 0 ? static_cast<double>(start_scale[matrix.ns]) : 1.0;
  step.on_w = static_cast<float>(step.write.w);
  step.on_x = static_cast<float>(step.write.x * on_start);
  step.on_u = static_cast<float>(step.write.u);
  if (step.write.x == 0) step.moves = 0;
}

}  // namespace

void launch_coefficients(const StepView& view, MatrixRange range, const float* start_scale,
                         const NsSums* sums, cudaStream_t stream) {
  if (range.count == 0) return;
  const auto blocks = static_cast<unsigned>((range.count + kThreads - 1) / kThreads);
  launch_following(coefficients, blocks, kThreads, stream, view, range, start_scale, sums);
  RODE_CUDA_CHECK_LAUNCH(stream, "coefficients");
}

}  // namespace rode::cuda
