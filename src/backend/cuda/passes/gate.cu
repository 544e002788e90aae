// SPDX-License-Identifier: Apache-2.0
// Between measuring and updating: sums of jobs, the gate, and every scalar of the step.
//
// `total` adds a job's partial sums, one block per job, 48 bytes per slice, or per row where rows
// have radii. `gate` is one block over all jobs, because a bad gradient of one may stop them all:
// verdicts and the decision (rules/gate.h), then the scalars and step counters of the jobs that
// live; where rows have radii, radii.cu makes these behind it. Whatever follows reads `live`;
// nothing has been changed before.
#include <cmath>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/passes/launches.h"
#include "backend/cuda/tables/control.h"
#include "rules/gate.h"
#include "rules/int8_state.h"
#include "rules/matrix_step.h"
#include "rules/rounding.h"

namespace rode::cuda {
namespace {

constexpr int kTotalThreads = 256;
constexpr int kGateThreads = 512;  // 128 registers per thread: the scalars are long expressions

__global__ void __launch_bounds__(kTotalThreads) total(StepView view) {
  follow();
  const JobEntry& job = view.jobs[blockIdx.x];
  const rules::MatrixProducts* parts = view.measured + job.first_sum;
  rules::MatrixProducts sums;
  if (job.active != 0) {
    const std::int64_t count = job.sums;
    if (job.measure == Measure::gradient) {
#pragma unroll 4
      for (std::int64_t c = threadIdx.x; c < count; c += kTotalThreads) sums.gg += parts[c].gg;
    } else {
#pragma unroll 4
      for (std::int64_t c = threadIdx.x; c < count; c += kTotalThreads) {
        sums.tt += parts[c].tt;
        sums.bt += parts[c].bt;
        sums.gt += parts[c].gt;
        sums.bb += parts[c].bb;
        sums.bg += parts[c].bg;
        sums.gg += parts[c].gg;
      }
    }
  }
  block_sums<kTotalThreads>(sums);
  if (threadIdx.x == 0) view.totals[blockIdx.x] = sums;
}

// Flags of one job, as measured.
__device__ JobResult judge(const StepView& view, int index) {
  const JobEntry& job = view.jobs[index];
  const rules::MatrixProducts& sums = view.totals[index];
  JobResult result{};
  result.finite = result.weight_finite = 1;
  if (job.active == 0) return result;
  const rules::Verdict verdict = rules::judge(sums, job.most_gg);
  result.gg = sums.gg;
  result.finite = verdict.finite ? 1 : 0;
  result.weight_finite = verdict.weight_finite ? 1 : 0;
  if (index < view.matrix_count && view.matrices[index].muon == 0) result.ww = sums.tt;
  return result;
}

__device__ void prepare_rode(const MatrixEntry& matrix, double multiplier, MatrixStep& step) {
  step.rode =
      rules::rode_scalars(matrix.rode, multiplier, matrix.target, step.products, matrix.state);
  step.held = step.rode.held ? 1 : 0;
  step.target = rules::start_target(matrix.rode.coefficients, matrix.iterates != 0);
  step.inverse_norm = rules::inverse_norm(step.rode);
}

__device__ void prepare_muon(const MatrixEntry& matrix, MatrixStep& step) {
  const rules::MuonConstants& c = matrix.muon_constants;
  step.muon = rules::muon_scalars(c, step.products);
  step.target = rules::start_target(c.coefficients, matrix.iterates != 0);
  const bool constrained = rules::constrained(c);
  const double ww = step.products.tt;
  step.held = rules::muon_held(c, constrained ? static_cast<double>(*matrix.radius) : 0) ? 1 : 0;
  step.inverse_norm = constrained && ww > 0 ? 1 / std::sqrt(ww) : 0;
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
  const std::uint64_t sequence = rules::step_sequence(job.weight.sequence, number);
  const std::uint64_t state_draws =
      rules::step_sequence(rules::state_sequence(job.weight.sequence), number);
  if (index < view.matrix_count) {
    const MatrixEntry& matrix = view.matrices[index];
    MatrixStep& step = view.matrix_steps[index];
    step.sequence = sequence;
    step.state_draws = state_draws;
    step.moves = 0;                 // unless a start is formed
    if (matrix.radii != 0) return;  // passes/radii.cu
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
    step.state_draws = state_draws;
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
    if (j < view.matrix_count) view.matrix_steps[j].products = view.totals[j];
    if (result.finite == 0) view.bad_parameter[view.jobs[j].parameter] = 1;
    if (rules::refuses_step({result.finite != 0, result.weight_finite != 0}, refuse_all)) {
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
    const bool live =
        rules::lives(job.active != 0, refused, view.bad_parameter[job.parameter] != 0);
    view.live[j] = view.results[j].live = live ? 1 : 0;
    if (live) prepare_job(view, j, multiplier, number);
  }
}

// What the driver sets between steps. Values travel as kernel arguments: no host memory has to stay
// valid, nothing waits. One thread each.
__global__ void set_wishes(Control* control, double multiplier, bool refuse_all) {
  control->multiplier = multiplier;
  control->refuse_all = refuse_all ? 1 : 0;
}

__global__ void set_step(Control* control, std::int64_t step) { control->done = step; }

}  // namespace

void launch_total(const StepView& view, cudaStream_t stream) {
  if (view.job_count == 0) return;
  launch_following(total, static_cast<unsigned>(view.job_count), kTotalThreads, stream, view);
  RODE_CUDA_CHECK_LAUNCH(stream, "total");
}

void launch_gate(const StepView& view, cudaStream_t stream) {
  launch_following(gate, 1, kGateThreads, stream, view);
  RODE_CUDA_CHECK_LAUNCH(stream, "gate");
}

void launch_set_wishes(Control* control, double multiplier, bool refuse_all, cudaStream_t stream) {
  set_wishes<<<1, 1, 0, stream>>>(control, multiplier, refuse_all);
  RODE_CUDA_CHECK_LAUNCH(stream, "set_wishes");
}

void launch_set_step(Control* control, std::int64_t step, cudaStream_t stream) {
  set_step<<<1, 1, 0, stream>>>(control, step);
  RODE_CUDA_CHECK_LAUNCH(stream, "set_step");
}

}  // namespace rode::cuda
