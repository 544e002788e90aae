// SPDX-License-Identifier: Apache-2.0
// The coefficients of the write-back, W' = on_w W + on_x X, from what Newton-Schulz measured.
//
// One thread per matrix, some hundred bytes each: a launch costs its latency.
#include <cmath>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/passes/launches.h"

namespace rode::cuda {
namespace {

constexpr int kThreads = 32;  // few matrices: over as many SMs as there are

__device__ void rode_coefficients(const MatrixEntry& matrix, double multiplier, const NsSums& sums,
                                  MatrixStep& step) {
  double t = 0, xx = 0;
  if (step.moves != 0) {
    // Without iterations Q = X_0 exactly: already tangent, of norm 1.
    t = matrix.iterates != 0 ? sums.t : 0;
    xx = matrix.iterates != 0 ? sums.xx : 1;
  }
  step.write = step.rode.held ? rules::RodeWrite{1, 0, 0, 0}
                              : rules::rode_write(matrix.rode, multiplier, step.rode, t, xx);
}

__device__ void muon_coefficients(const MatrixEntry& matrix, double multiplier, const NsSums& sums,
                                  MatrixStep& step) {
  const rules::MuonConstants& c = matrix.muon_constants;
  const bool constrained = c.constraint != MuonConstraint::none;
  const double ww = constrained ? step.products[0] : 0;
  const bool measured = constrained && step.moves != 0;
  const double wo = measured ? sums.t * std::sqrt(ww) : 0, oo = measured ? sums.xx : 0;
  const double radius = constrained ? static_cast<double>(*matrix.radius) : 0;
  const rules::MuonWrite out = rules::muon_write(c, multiplier, matrix.scale, ww, wo, oo, radius);
  step.write = {out.w, step.moves != 0 ? out.x : 0, 0, 0};
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
  const NsSums own = matrix.ns >= 0 ? sums[matrix.ns] : NsSums{0, 0};
  if (matrix.muon == 0) {
    rode_coefficients(matrix, multiplier, own, step);
  } else {
    muon_coefficients(matrix, multiplier, own, step);
  }
  // Newton-Schulz has taken the scale in; a start that is the iterate has not.
  const double on_start =
      matrix.ns >= 0 && matrix.iterates == 0 ? static_cast<double>(start_scale[matrix.ns]) : 1.0;
  step.on_w = static_cast<float>(step.write.w);
  step.on_x = static_cast<float>(step.write.x * on_start);
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
