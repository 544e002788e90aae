// SPDX-License-Identifier: Apache-2.0
// Between measuring and updating: sums of jobs, the gate, and every scalar of the step.
//
// `total` adds a job's partial sums, one block per job, 48 bytes per slice. `gate` is one block
// over all jobs, because a bad gradient of one may stop them all: flags as the CPU backend
// sets them, then the decision of backend/gate.cpp, then the scalars and step counters of
// the jobs that live. Whatever follows reads `live`; nothing has been changed before.
#include <cmath>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/weights.cuh"
#include "backend/cuda/passes/launches.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda {
namespace {

constexpr int kTotalThreads = 256;
constexpr int kGateThreads = 512;  // 128 registers per thread: the scalars are long expressions

__global__ void __launch_bounds__(kTotalThreads) total(StepView view) {
  follow();
  const JobEntry& job = view.jobs[blockIdx.x];
  const double* parts = view.measured + 6 * job.first_slice;
  double sums[6] = {};
  if (job.active != 0) {
    const std::int64_t slices = job.slices;
    const bool more = job.measure != Measure::gradient;
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < slices; c += kTotalThreads) {
      sums[5] += parts[6 * c + 5];
      if (more) {
#pragma unroll
        for (int i = 0; i < 5; ++i) sums[i] += parts[6 * c + i];
      }
    }
  }
  block_sums<kTotalThreads>(sums);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 0; i < 6; ++i) view.totals[6 * blockIdx.x + i] = sums[i];
}

// Flags of one job, as measured.
__device__ JobResult judge(const StepView& view, int index) {
  const JobEntry& job = view.jobs[index];
  const double* sums = view.totals + 6 * index;
  JobResult result{};
  result.finite = result.weight_finite = 1;
  if (job.active == 0) return result;
  result.gg = sums[5];
  result.finite = sums[5] <= job.most_gg ? 1 : 0;  // false for NaN
  if (index >= view.matrix_count) return result;
  if (view.matrices[index].muon == 0) result.ww = sums[0];
  // Without a third array its sum is 0.
  result.weight_finite = isfinite(sums[3]) && isfinite(sums[0]) ? 1 : 0;
  return result;
}

__device__ void prepare_rode(const MatrixEntry& matrix, double multiplier, MatrixStep& step) {
  const double* p = step.products;
  step.rode = rules::rode_scalars(matrix.rode, multiplier, {p[0], p[1], p[2], p[3], p[4], p[5]},
                                  matrix.state);
  step.held = step.rode.held ? 1 : 0;
  step.target = matrix.iterates != 0 ? 1 / rules::ns_margin(matrix.rode.coefficients) : 1.0;
  step.inverse_norm = step.rode.held ? 0 : 1 / step.rode.rho;
}

__device__ void prepare_muon(const MatrixEntry& matrix, MatrixStep& step) {
  const rules::MuonConstants& c = matrix.muon_constants;
  const double* p = step.products;
  // MARS-M measured its previous gradient in the place of the weight.
  step.muon = rules::muon_scalars(c, {p[3], p[4], p[5], p[1], p[2], p[0]});
  step.target = 1 / rules::ns_margin(c.coefficients);
  const bool constrained = c.constraint != MuonConstraint::none;
  step.held = constrained && !(*matrix.radius > 0) ? 1 : 0;
  step.inverse_norm = constrained && p[0] > 0 ? 1 / std::sqrt(p[0]) : 0;
}

__device__ void prepare_element(const ElementEntry& element, double multiplier, std::int64_t t,
                                ElementStep& step) {
  rules::ElementRules::visit(element.rule, [&]<class Rule>() {
    step.coefficients.as<typename Rule::Coefficients>() =
        Rule::coefficients(element.constants.as<typename Rule::Constants>(), multiplier, t);
  });
}

__device__ void prepare_job(const StepView& view, int index, double multiplier,
                            std::int64_t number) {
  const JobEntry& job = view.jobs[index];
  const std::int64_t t = job.step != nullptr ? ++*job.step : 0;
  const std::uint64_t sequence = sequence_of_step(job.weight.sequence, number);
  if (index < view.matrix_count) {
    const MatrixEntry& matrix = view.matrices[index];
    MatrixStep& step = view.matrix_steps[index];
    step.sequence = sequence;
    step.moves = 0;  // unless a start is formed
    if (matrix.muon == 0) {
      prepare_rode(matrix, multiplier, step);
    } else {
      prepare_muon(matrix, step);
    }
    view.results[index].held = step.held;
  } else if (index >= view.element_from) {
    const int element = index - view.element_from;
    ElementStep& step = view.element_steps[element];
    step.sequence = sequence;
    prepare_element(view.elements[element], multiplier, t, step);
  }
}

// Every thread keeps the same jobs from phase to phase.
__global__ void __launch_bounds__(kGateThreads) gate(StepView view) {
  __shared__ int first_bad;
  follow();
  const int thread = static_cast<int>(threadIdx.x);
  Control& control = *view.control;
  const bool refuse_all = control.refuse_all != 0;
  const double multiplier = control.multiplier;
  const std::int64_t number = control.done;
  if (thread == 0) first_bad = view.job_count;
  for (int j = thread; j < view.job_count; j += kGateThreads) {
    view.bad_parameter[view.jobs[j].parameter] = 0;
  }
  __syncthreads();

  bool refuse = false;
  for (int j = thread; j < view.job_count; j += kGateThreads) {
    const JobResult result = judge(view, j);
    view.results[j] = result;
    if (j < view.matrix_count) {
      for (int i = 0; i < 6; ++i) view.matrix_steps[j].products[i] = view.totals[6 * j + i];
    }
    if (result.finite == 0) view.bad_parameter[view.jobs[j].parameter] = 1;
    if (result.weight_finite == 0 || (refuse_all && result.finite == 0)) {
      refuse = true;
      atomicMin(&first_bad, j);
    }
  }
  const bool refused = __syncthreads_or(refuse ? 1 : 0) != 0;

  if (thread == 0) {
    if (control.spoiled != kNoParameter) {  // the step before
      ++control.spoiled_steps;
      control.spoiled_parameter = control.spoiled;
      control.spoiled = kNoParameter;
    }
    control.step = number;
    control.refused = refused ? 1 : 0;
    if (refused) {
      ++control.refused_steps;
      control.refused_parameter = view.jobs[first_bad].parameter;
    } else {
      control.done = number + 1;
    }
  }
  for (int j = thread; j < view.job_count; j += kGateThreads) {
    const JobEntry& job = view.jobs[j];
    const bool live = !refused && job.active != 0 && view.bad_parameter[job.parameter] == 0;
    view.live[j] = view.results[j].live = live ? 1 : 0;
    if (live) prepare_job(view, j, multiplier, number);
  }
}

}  // namespace

void launch_gate(const StepView& view, cudaStream_t stream) {
  if (view.job_count > 0) {
    launch_following(total, static_cast<unsigned>(view.job_count), kTotalThreads, stream, view);
    RODE_CUDA_CHECK_LAUNCH(stream, "total");
  }
  launch_following(gate, 1, kGateThreads, stream, view);
  RODE_CUDA_CHECK_LAUNCH(stream, "gate");
}

}  // namespace rode::cuda
