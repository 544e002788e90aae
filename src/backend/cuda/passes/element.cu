// SPDX-License-Identifier: Apache-2.0
// The element rules over the tensors of all parameters in one launch.
//
// The equations are those of rules/; what all elements of a tensor share was computed at the
// gate. Bytes per element in fp32: with k moments it reads 8 + 4k and writes 4 + 4k. ||W' - W||^2
// and ||W||^2 are left per slice. One block of 256 threads per slice, five blocks per SM: as many
// threads as fit bring more than runs in flight.
#include "backend/cuda/device/check.h"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/passes/launches.h"

namespace rode::cuda {
namespace {

// What the kernel reads, not the whole view of a step: registers are scarce.
struct Args {
  const SliceEntry* slices;
  const JobEntry* jobs;
  const std::int32_t* live;
  const ElementEntry* elements;
  const ElementStep* steps;
  double* moved;
  std::int32_t element_from;
};

template <class Rule>
__device__ Moved step_slice(const JobEntry& job, std::uint64_t sequence, const Walk& slice,
                            const typename Rule::Coefficients& coefficients) {
  constexpr int kArrays = Rule::kMoments;
  constexpr int kRuns = kArrays == 1 ? 2 : 1;  // runs in flight: what the registers admit
  const typename Rule::Coefficients c = coefficients;
  Moved moved;
  walk<kRuns>(slice.count, job.vector != 0,
              [&]<int kWidth, int kCount>(const Runs<kWidth, kCount>& runs) {
                std::int64_t at[kCount];
#pragma unroll
                for (int u = 0; u < kCount; ++u) at[u] = slice.first + runs.element(u);
                Bits<kWidth> w_bits[kCount], g_bits[kCount], m_bits[kArrays][kCount];
                load(job.weight, runs, at, w_bits);
                load(job.grad, runs, at, g_bits);
#pragma unroll
                for (int k = 0; k < kArrays; ++k) load(job.moments[k], runs, at, m_bits[k]);
#pragma unroll
                for (int u = 0; u < kCount; ++u) {
                  if (!runs.valid(u)) continue;
                  float w[kWidth], g[kWidth], m[kArrays][kWidth], fresh[kWidth];
                  decode(w_bits[u], job.weight.bf16 != 0, w);
                  decode(g_bits[u], job.grad.bf16 != 0, g);
#pragma unroll
                  for (int k = 0; k < kArrays; ++k)
                    decode(m_bits[k][u], job.moments[k].bf16 != 0, m[k]);
#pragma unroll
                  for (int i = 0; i < kWidth; ++i) {
                    float own[kArrays];
#pragma unroll
                    for (int k = 0; k < kArrays; ++k) own[k] = m[k][i];
                    fresh[i] = Rule::element(c, w[i], g[i], own);
#pragma unroll
                    for (int k = 0; k < kArrays; ++k) m[k][i] = own[k];
                  }
#pragma unroll
                  for (int k = 0; k < kArrays; ++k) store(job.moments[k], at[u], m[k]);
                  store_weights(job.weight, sequence, job.offset + at[u], at[u], fresh);
                  moved.add(w, fresh);
                }
              });
  return moved;
}

__global__ void __launch_bounds__(kSliceThreads, 5) element(Args args) {
  const SliceEntry entry = args.slices[blockIdx.x];
  if (args.live[entry.job] == 0) return;
  const JobEntry job = args.jobs[entry.job];
  const ElementStep& step = args.steps[entry.job - args.element_from];
  const Walk slice(job.rows, job.cols, entry.index);
  Moved moved;
  rules::ElementRules::visit(args.elements[entry.job - args.element_from].rule, [&]<class Rule>() {
    moved = step_slice<Rule>(job, step.sequence, slice,
                             step.coefficients.as<typename Rule::Coefficients>());
  });
  double sums[2] = {moved.dd, moved.ww};
  block_sums<kSliceThreads>(sums);
  if (threadIdx.x != 0) return;
  double* out = args.moved + 2 * (job.first_slice + entry.index);
  out[0] = sums[0];
  out[1] = sums[1];
}

}  // namespace

void launch_element(const StepView& view, SliceRange range, cudaStream_t stream) {
  if (range.count == 0) return;
  element<<<static_cast<unsigned>(range.count), kSliceThreads, 0, stream>>>(
      {range.slices, view.jobs, view.live, view.elements, view.element_steps, view.moved,
       view.element_from});
  RODE_CUDA_CHECK_LAUNCH(stream, "element");
}

}  // namespace rode::cuda
