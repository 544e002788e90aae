// SPDX-License-Identifier: Apache-2.0
// What a step reports of matrices and element jobs: squared norms of weights and moves.
//
// One block per job adds its partial sums, 16 bytes per slice.
#include "backend/cuda/device/check.h"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/passes/launches.h"
#include "backend/cuda/tables/spoiled.cuh"

namespace rode::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) finish(StepView view) {
  const int block = static_cast<int>(blockIdx.x);
  const int index =
      block < view.matrix_count ? block : view.element_from + (block - view.matrix_count);
  if (view.live[index] == 0) return;
  const JobEntry& job = view.jobs[index];
  const double* parts = view.moved + 2 * job.first_slice;
  const double dd = strided_sum<kThreads>(parts, job.slices, 2),
               ww = strided_sum<kThreads>(parts + 1, job.slices, 2);
  if (threadIdx.x != 0) return;
  view.results[index].dd = dd;
  // RODE's was measured.
  const bool rode = index < view.matrix_count && view.matrices[index].muon == 0;
  if (!rode) view.results[index].ww = ww;
  note_end(*view.control, job.parameter, ww, dd);
}

}  // namespace

void launch_finish(const StepView& view, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(view.matrix_count + view.element_count);
  if (blocks == 0) return;
  // A full barrier, and no early word to what follows: the caller's kernels find the step done.
  finish<<<blocks, kThreads, 0, stream>>>(view);
  RODE_CUDA_CHECK_LAUNCH(stream, "finish");
}

}  // namespace rode::cuda
