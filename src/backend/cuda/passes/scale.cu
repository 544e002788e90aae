// SPDX-License-Identifier: Apache-2.0
// Brings the starts of Newton-Schulz to the norm they should have.
//
// One block per matrix adds the partial sums that form.cu left: 8 bytes per slice, so a launch
// costs its latency.
#include <cmath>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/passes/launches.h"
#include "rules/matrix_step.h"

namespace rode::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    start_scale_of(StepView view, const std::int32_t* matrices, float* start_scale) {
  follow();
  const int index = matrices[blockIdx.x];
  const MatrixEntry& matrix = view.matrices[index];
  const JobEntry& job = view.jobs[index];
  MatrixStep& step = view.matrix_steps[index];
  const bool live = view.live[index] != 0;
  const bool direction = live && (matrix.muon != 0 ? step.muon.direction : step.rode.direction);
  double reached = 0;
  if (direction)
    reached = std::sqrt(strided_sum<kThreads>(view.formed + job.first_slice, job.slices, 1));
  if (threadIdx.x != 0) return;
  const bool moves = rules::start_moves(direction, reached);
  if (live) step.moves = moves ? 1 : 0;
  const auto wanted = matrix.muon != 0 ? rules::StartNorm::at_most : rules::StartNorm::exact;
  const double correction = rules::start_correction(wanted, step.target, reached);
  start_scale[matrix.ns] = moves ? static_cast<float>(correction) : 1.0F;
}

}  // namespace

void launch_start_scale(const StepView& view, MatrixRange range, float* start_scale,
                        cudaStream_t stream) {
  if (range.count == 0) return;
  launch_following(start_scale_of, static_cast<unsigned>(range.count), kThreads, stream, view,
                   range.matrices, start_scale);
  RODE_CUDA_CHECK_LAUNCH(stream, "start_scale");
}

}  // namespace rode::cuda
