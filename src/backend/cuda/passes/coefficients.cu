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

// Newton-Schulz measured <X,W> with W / ||W||.
__device__ rules::MatrixWrite muon_coefficients(const MatrixEntry& matrix, double multiplier,
                                                rules::KnownIterate iterate,
                                                const MatrixStep& step) {
  const double ww = step.products.tt;
  const double radius = matrix.radius != nullptr ? static_cast<double>(*matrix.radius) : 0;
  iterate.measured.t *= std::sqrt(ww);
  return rules::write_back(matrix.muon_constants, multiplier, matrix.scale, ww, radius, iterate);
}

__global__ void __launch_bounds__(kThreads)
    coefficients(StepView view, MatrixRange range, const float* start_scale,
                 const rules::IterateSums* sums) {
  follow();
  const std::int64_t at = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x;
  if (at >= range.count) return;
  const int index = range.matrices[at];
  if (view.live[index] == 0) return;
  const MatrixEntry& matrix = view.matrices[index];
  MatrixStep& step = view.matrix_steps[index];
  const double multiplier = view.control->multiplier;
  rules::KnownIterate iterate{step.moves != 0};
  if (matrix.ns >= 0) iterate.measured = sums[matrix.ns];
  // passes/rows.cu has normalised them.
  if (matrix.row_avg_sq != nullptr && step.moves != 0) iterate.rows = &step.rows;
  step.write = matrix.muon == 0
                   ? rules::write_back(matrix.rode, multiplier, matrix.scale, step.rode, iterate)
                   : muon_coefficients(matrix, multiplier, iterate, step);
  // Newton-Schulz has taken the scale in; a start that is the iterate has not.
  const double on_start =
      matrix.ns >= 0 && matrix.iterates == 0 ? static_cast<double>(start_scale[matrix.ns]) : 1.0;
  step.on_w = static_cast<float>(step.write.w);
  step.on_x = static_cast<float>(step.write.x * on_start);
  step.on_u = static_cast<float>(step.write.u);
  step.cautious = step.write.cautious ? 1 : 0;
  if (step.write.x == 0) step.moves = 0;
}

}  // namespace

void launch_coefficients(const StepView& view, MatrixRange range, const float* start_scale,
                         const rules::IterateSums* sums, cudaStream_t stream) {
  if (range.count == 0) return;
  const auto blocks = static_cast<unsigned>((range.count + kThreads - 1) / kThreads);
  launch_following(coefficients, blocks, kThreads, stream, view, range, start_scale, sums);
  RODE_CUDA_CHECK_LAUNCH(stream, "coefficients");
}

}  // namespace rode::cuda
