// SPDX-License-Identifier: Apache-2.0
// The scalars around Newton-Schulz: what its starts lack, what its kernels weigh, and the
// sums that a step reports.
//
// `start_scale` and `finish` add a job's partial sums, one block a job; `rates` is one thread
// a matrix. They move some hundred bytes a matrix: each costs its launch.
#include <cmath>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/chain.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/spoiled.cuh"
#include "backend/cuda/launches.h"

namespace rode::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRateThreads = 32;  // few matrices: over as many SMs as there are

// parts[0], parts[width], ... added by the whole block.
__device__ double add_parts(const double* parts, std::int64_t count, int width) {
  double sum = 0;
#pragma unroll 4
  for (std::int64_t c = threadIdx.x; c < count; c += kThreads) sum += parts[width * c];
  return block_sum<kThreads>(sum);
}

// The predicted norm of a start comes from inner products. Where it is a small difference of
// large terms the prediction is off, and the start is scaled to the norm it should have.
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
  if (direction) reached = std::sqrt(add_parts(view.formed + job.first_chunk, job.chunks, 1));
  if (threadIdx.x != 0) return;
  const double target = step.target;
  // Muon's starts may be shorter than wanted (eps), only not longer.
  const bool off =
      matrix.muon != 0 ? reached > target * (1 + 1e-6) : std::abs(reached / target - 1) > 1e-6;
  const bool kernel = direction && reached > 0;
  if (live) step.kernel = kernel ? 1 : 0;
  start_scale[matrix.ns] = kernel && off ? static_cast<float>(target / reached) : 1.0F;
}

__device__ void rate_rode(const MatrixEntry& matrix, double multiplier, const NsSums& sums,
                          MatrixStep& step) {
  double t = 0, xx = 0;
  if (step.kernel != 0) {
    // Without iterations Q = X_0 exactly: already tangent, of norm 1.
    t = matrix.iterates != 0 ? sums.t : 0;
    xx = matrix.iterates != 0 ? sums.xx : 1;
  }
  step.write = step.rode.held ? rules::RodeWrite{1, 0, 0, 0}
                              : rules::rode_write(matrix.rode, multiplier, step.rode, t, xx);
}

__device__ void rate_muon(const MatrixEntry& matrix, double multiplier, const NsSums& sums,
                          MatrixStep& step) {
  const rules::MuonConstants& c = matrix.muon_constants;
  const bool constrained = c.constraint != MuonConstraint::none;
  const double ww = constrained ? step.products[0] : 0;
  const bool measured = constrained && step.kernel != 0;
  const double wo = measured ? sums.t * std::sqrt(ww) : 0, oo = measured ? sums.xx : 0;
  const double radius = constrained ? static_cast<double>(*matrix.radius) : 0;
  const rules::MuonWrite out = rules::muon_write(c, multiplier, matrix.scale, ww, wo, oo, radius);
  step.write = {out.w, step.kernel != 0 ? out.x : 0, 0, 0};
}

__global__ void __launch_bounds__(kRateThreads)
    rate(StepView view, MatrixRange range, const float* start_scale, const NsSums* sums) {
  follow();
  const std::int64_t at = blockIdx.x * static_cast<std::int64_t>(kRateThreads) + threadIdx.x;
  if (at >= range.count) return;
  const int index = range.matrices[at];
  if (view.live[index] == 0) return;
  const MatrixEntry& matrix = view.matrices[index];
  MatrixStep& step = view.matrix_steps[index];
  const double multiplier = view.control->multiplier;
  const NsSums own = matrix.ns >= 0 ? sums[matrix.ns] : NsSums{0, 0};
  if (matrix.muon == 0) {
    rate_rode(matrix, multiplier, own, step);
  } else {
    rate_muon(matrix, multiplier, own, step);
  }
  // Newton-Schulz has taken the scale in; a start that is the kernel has not.
  const double on_start =
      matrix.ns >= 0 && matrix.iterates == 0 ? static_cast<double>(start_scale[matrix.ns]) : 1.0;
  step.on_w = static_cast<float>(step.write.w);
  step.on_x = static_cast<float>(step.write.x * on_start);
  if (step.write.x == 0) step.kernel = 0;
}

__global__ void __launch_bounds__(kThreads) finish(StepView view) {
  const int block = static_cast<int>(blockIdx.x);
  const int index =
      block < view.matrix_count ? block : view.element_from + (block - view.matrix_count);
  if (view.live[index] == 0) return;
  const JobEntry& job = view.jobs[index];
  const double* parts = view.moved + 2 * job.first_chunk;
  const double dd = add_parts(parts, job.chunks, 2), ww = add_parts(parts + 1, job.chunks, 2);
  if (threadIdx.x != 0) return;
  view.results[index].dd = dd;
  // RODE's was measured.
  const bool rode = index < view.matrix_count && view.matrices[index].muon == 0;
  if (!rode) view.results[index].ww = ww;
  note_end(*view.control, job.parameter, ww, dd);
}

}  // namespace

void launch_start_scale(const StepView& view, MatrixRange range, float* start_scale,
                        cudaStream_t stream) {
  if (range.count == 0) return;
  launch_following(start_scale_of, static_cast<unsigned>(range.count), kThreads, stream, view,
                   range.matrices, start_scale);
  RODE_CUDA_CHECK_LAUNCH(stream, "start_scale");
}

void launch_rates(const StepView& view, MatrixRange range, const float* start_scale,
                  const NsSums* sums, cudaStream_t stream) {
  if (range.count == 0) return;
  const auto blocks = static_cast<unsigned>((range.count + kRateThreads - 1) / kRateThreads);
  launch_following(rate, blocks, kRateThreads, stream, view, range, start_scale, sums);
  RODE_CUDA_CHECK_LAUNCH(stream, "rate");
}

void launch_finish(const StepView& view, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(view.matrix_count + view.element_count);
  if (blocks == 0) return;
  // A full barrier, and no early word to what follows: the caller's kernels find the step done.
  finish<<<blocks, kThreads, 0, stream>>>(view);
  RODE_CUDA_CHECK_LAUNCH(stream, "finish");
}

}  // namespace rode::cuda
