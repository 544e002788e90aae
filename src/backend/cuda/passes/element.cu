// SPDX-License-Identifier: Apache-2.0
// The element rules over the tensors of all parameters, one launch per rule that a step has.
//
// A kernel of all rules would have the registers of the greediest. Blocks of another rule leave at
// once; a step with more than one rule is rare.
//
// The equations are those of rules/; what all elements of a tensor share was computed at the
// gate. Bytes per element in fp32: with k moments it reads 8 + 4k and writes 4 + 4k, 3 less of each
// where the first moment is int8. ||W' - W||^2
// and ||W||^2 are left per slice. One block of 256 threads per slice, five blocks per SM: as many
// threads as fit bring more than runs in flight.
#include "backend/cuda/device/check.h"
#include "backend/cuda/device/int8.cuh"
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
  std::int32_t rule;  // index of the kernel's
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

// The same with the first moment in int8, block by block.
template <class Rule>
__device__ Moved step_blocks(const JobEntry& job, std::uint64_t sequence, const Walk& slice,
                             const typename Rule::Coefficients& coefficients,
                             const QuantizedState& state) {
  constexpr int kArrays = Rule::kMoments;
  const typename Rule::Coefficients c = coefficients;
  Moved moved;
  update_blocks(slice, state, job.vector != 0,
                [&]<int kWidth, int kCount>(const Runs<kWidth, kCount, kWarp>& runs,
                                            const std::int64_t(&at)[kCount], float scale,
                                            float(&first)[kCount][kWidth]) {
                  Bits<kWidth> w_bits[kCount], g_bits[kCount], m_bits[kArrays][kCount];
                  load_int8(state.data, runs, at, m_bits[0]);
                  load(job.weight, runs, at, w_bits);
                  load(job.grad, runs, at, g_bits);
#pragma unroll
                  for (int k = 1; k < kArrays; ++k) load(job.moments[k], runs, at, m_bits[k]);
#pragma unroll
                  for (int u = 0; u < kCount; ++u) {
                    float w[kWidth], g[kWidth], m[kArrays][kWidth], fresh[kWidth];
                    decode(w_bits[u], job.weight.bf16 != 0, w);
                    decode(g_bits[u], job.grad.bf16 != 0, g);
                    decode_int8(m_bits[0][u], scale, m[0]);
#pragma unroll
                    for (int k = 1; k < kArrays; ++k)
                      decode(m_bits[k][u], job.moments[k].bf16 != 0, m[k]);
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) {
                      float own[kArrays];
#pragma unroll
                      for (int k = 0; k < kArrays; ++k) own[k] = m[k][i];
                      fresh[i] = Rule::element(c, w[i], g[i], own);
                      first[u][i] = own[0];
#pragma unroll
                      for (int k = 1; k < kArrays; ++k) m[k][i] = own[k];
                    }
#pragma unroll
                    for (int k = 1; k < kArrays; ++k) store(job.moments[k], at[u], m[k]);
                    store_weights(job.weight, sequence, job.offset + at[u], at[u], fresh);
                    moved.add(w, fresh);
                  }
                });
  return moved;
}

// kInt8: some first moment is. A block of it in registers: fewer threads with more on their way.
template <class Rule, bool kInt8>
__global__ void __launch_bounds__(kSliceThreads, kInt8 ? 3 : 5) element(Args args) {
  const SliceEntry entry = args.slices[blockIdx.x];
  const std::int32_t index = entry.job - args.element_from;
  if (args.live[entry.job] == 0 || args.elements[index].rule != args.rule) return;
  const JobEntry job = args.jobs[entry.job];
  const ElementStep& step = args.steps[index];
  const auto& coefficients = step.coefficients.as<typename Rule::Coefficients>();
  const Walk slice(job.rows, job.cols, entry.index);
  Moved moved;
  if (kInt8 && job.scales != nullptr) {
    const QuantizedState state{static_cast<std::int8_t*>(job.moments[0].data),
                               job.scales,
                               job.stride,
                               job.scale_stride,
                               job.offset,
                               step.state_draws,
                               job.stochastic_state != 0};
    moved = step_blocks<Rule>(job, step.sequence, slice, coefficients, state);
  } else {
    moved = step_slice<Rule>(job, step.sequence, slice, coefficients);
  }
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
  std::int32_t rule = 0;
  rules::ElementRules::for_each([&]<class Rule>() {
    Args args{range.slices,       view.jobs,  view.live,         view.elements,
              view.element_steps, view.moved, view.element_from, rule++};
    if ((view.element_rules >> args.rule & 1U) == 0) return;
    auto kernel = element<Rule, false>;
    if constexpr (Rule::kQuantizesFirst) {
      if (view.int8_elements != 0) kernel = element<Rule, true>;
    }
    kernel<<<static_cast<unsigned>(range.count), kSliceThreads, 0, stream>>>(args);
    RODE_CUDA_CHECK_LAUNCH(stream, "element");
  });
}

}  // namespace rode::cuda
