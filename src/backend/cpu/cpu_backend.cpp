// SPDX-License-Identifier: Apache-2.0
// Plans tasks and workspace once, then runs measure and update over them.
#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/blas.h"
#include "backend/cpu/host_buffer.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/row_radius.h"
#include "core/cores.h"
#include "rules/cost.h"
#include "rules/gate.h"
#include "rules/row_rule.h"

namespace rode::cpu {
namespace {

int thread_count(int asked) {
  const int threads = asked > 0 ? asked : available_cores();
  check_blas_threading(threads);
  return threads;
}

double newton_schulz_cost(const NsPlan& plan) {
  const double passes = 20 * static_cast<double>(plan.rows * plan.cols);
  return rules::newton_schulz_flops(plan.rows, plan.cols, plan.steps).symmetric + passes;
}

JobBase& base(const MatrixTask& task) {
  return std::visit([](auto* job) -> JobBase& { return *job; }, task.job);
}

// Of rules that only need to know that the gradient is finite.
template <class Job>
void measure_slice(const Job& job, std::int64_t slice, rules::MatrixProducts& out) {
  const std::int64_t count = geometry_of(job).numel();
  if (job.grad.dtype == DType::f32) {
    const std::int64_t begin = slice * kSlice;
    out.gg += sum_of_slice_squares(static_cast<const float*>(job.grad.data) + begin,
                                   std::min(kSlice, count - begin));
    return;
  }
  float scratch[kTile];
  for_tiles(flat(count), slice, [&](std::int64_t at, std::int64_t, std::int64_t n) {
    out.gg += sum_of_squares(read(job.grad, at, n, scratch), n);
  });
}

// The gate. A parameter is bad if one of its jobs is; its jobs become inactive, or with
// `refuse_all` the step is refused. Weights or momentum that hold NaN always refuse. Returns
// whether the step is refused.
bool close_gate(JobList& jobs, bool refuse_all) {
  bool refused = false, bad_gradient = false;
  jobs.for_each([&](const JobBase& job) {
    if (!job.active) return;
    bad_gradient = bad_gradient || !job.finite;
    refused = refused || rules::refuses_step({job.finite, job.weight_finite}, refuse_all);
  });
  if (refused || !bad_gradient) return refused;
  jobs.for_each([&](const JobBase& bad) {
    if (bad.finite) return;
    jobs.for_each([&](JobBase& job) {
      job.active = rules::lives(job.active, refused, job.parameter == bad.parameter);
    });
  });
  return false;
}

// After a step: the first parameter whose weights it has left not finite; -1: none.
std::int64_t spoiled_parameter(JobList& jobs) {
  std::int64_t first = -1;
  jobs.for_each([&](const JobBase& job) {
    if (!job.active || rules::ended_finite(job.sums.ww, job.sums.dd)) return;
    const auto parameter = static_cast<std::int64_t>(job.parameter);
    if (first < 0 || parameter < first) first = parameter;
  });
  return first;
}

}  // namespace

CpuBackend::CpuBackend(const BackendOptions& options)
    : pool_(thread_count(options.threads)), batched_(options.batched), phases_(options.phases) {}

std::unique_ptr<Buffer> CpuBackend::allocate(std::size_t bytes) {
  return std::make_unique<HostBuffer>(bytes);
}

std::unique_ptr<Buffer> CpuBackend::adopt(void* memory, std::size_t bytes) {
  return std::make_unique<BorrowedBuffer>(memory, bytes);
}

double CpuBackend::squared_norm(const Weights& weight, const Geometry& geometry) {
  float tile[kTile];
  double sum = 0;
  for (std::int64_t slice = 0; slice < slice_count(geometry.numel()); ++slice) {
    for_tiles(geometry, slice, [&](std::int64_t, std::int64_t stored, std::int64_t n) {
      sum += sum_of_squares(read(weight, stored, n, tile), n);
    });
  }
  return sum;
}

void CpuBackend::store_norm(const Weights& weight, const Geometry& geometry, float* out) {
  *out = static_cast<float>(std::sqrt(squared_norm(weight, geometry)));
}

Scratch CpuBackend::scratch(int worker) {
  const auto index = static_cast<std::size_t>(worker);
  return {static_cast<float*>(workspace_[0]->data()) + index * floats_per_worker_,
          static_cast<double*>(workspace_[1]->data()) + index * doubles_per_worker_,
          {static_cast<rules::RowSums*>(workspace_[2]->data()) + index * rows_per_worker_,
           static_cast<float*>(workspace_[3]->data()) + index * rows_per_worker_,
           static_cast<RowWork*>(workspace_[4]->data()) + index * radii_per_worker_}};
}

std::size_t CpuBackend::workspace_bytes() const {
  std::size_t bytes = measure_partial_.size() * sizeof(rules::MatrixProducts) +
                      element_partial_.size() * sizeof(Moved);
  for (const auto& buffer : workspace_) bytes += buffer->bytes();
  if (held_ != nullptr) bytes += held_->bytes();
  return bytes;
}

void CpuBackend::plan_matrices(JobList& jobs) {
  std::int64_t most_slices = 1;
  const auto add = [&](auto& job, const NsPlan& plan, std::size_t floats, double cost,
                       std::int64_t elements) {
    matrices_.push_back({&job, plan, cost});
    floats_per_worker_ = std::max(floats_per_worker_, floats);
    most_slices = std::max(most_slices, slice_count(elements));
  };
  const auto add_matrix = [&](auto& job) {
    const NsPlan chosen = plan(job, batched_);
    add(job, chosen, ns_workspace_floats(chosen), newton_schulz_cost(chosen), job.geometry.numel());
    if (job.rows.avg_sq == nullptr && !has_row_radius(job)) return;
    const auto rows = static_cast<std::size_t>(rules::row_count(job.geometry, job.rows.columns));
    rows_per_worker_ = std::max(rows_per_worker_, rows);
    if (has_row_radius(job)) radii_per_worker_ = std::max(radii_per_worker_, rows);
  };
  for (RodeJob& job : jobs.rode) add_matrix(job);
  for (MuonJob& job : jobs.muon) add_matrix(job);
  for (SoapJob& job : jobs.soap) {
    add(job, NsPlan{}, soap_workspace_floats(job), soap_cost(job), geometry_of(job).numel());
  }
  for (AdafactorJob& job : jobs.adafactor) {
    adafactors_.push_back(&job);
    most_slices = std::max(most_slices, slice_count(geometry_of(job).numel()));
  }
  doubles_per_worker_ = static_cast<std::size_t>(2 * most_slices);
  // Costly first: the threads then finish together. Equal costs are equal shapes, which
  // stand together as one batch.
  if (batched_) {
    std::stable_sort(matrices_.begin(), matrices_.end(),
                     [](const auto& a, const auto& b) { return a.cost > b.cost; });
  }
}

void CpuBackend::plan_slices(JobList& jobs) {
  const auto add_slices = [](std::vector<SliceTask>& tasks, std::size_t job,
                             std::int64_t elements) {
    for (std::int64_t slice = 0; slice < slice_count(elements); ++slice) {
      tasks.push_back({job, slice});
    }
  };
  jobs.for_each([&](auto& job) {
    add_slices(measure_tasks_, measured_.size(), geometry_of(job).numel());
    measured_.emplace_back(&job);
  });
  for (ElementJob& job : jobs.element) {
    add_slices(element_tasks_, elements_.size(), job.geometry.numel());
    elements_.push_back(&job);
  }
  measure_partial_.resize(measure_tasks_.size());
  element_partial_.resize(element_tasks_.size());
}

void CpuBackend::prepare(JobList& jobs) {
  plan_matrices(jobs);
  plan_slices(jobs);
  // Many matrices: one per thread, no waiting inside. Few: all threads on each in turn. Both cut
  // a matrix the same way, so they give the same bits. Decided once: the workspace depends on it.
  const std::int64_t working = std::min(pool_.threads(), available_cores());
  matrix_per_thread_ = batched_ && static_cast<std::int64_t>(matrices_.size()) >= 4 * working;
  // One matrix at a time takes one workspace, however many threads share it.
  const auto workers = static_cast<std::size_t>(matrix_per_thread_ ? pool_.threads() : 1);
  floats_per_worker_ = (floats_per_worker_ + 15) / 16 * 16;
  workspace_.push_back(allocate(workers * floats_per_worker_ * sizeof(float)));
  workspace_.push_back(allocate(workers * doubles_per_worker_ * sizeof(double)));
  workspace_.push_back(allocate(workers * rows_per_worker_ * sizeof(rules::RowSums)));
  workspace_.push_back(allocate(workers * rows_per_worker_ * sizeof(float)));
  workspace_.push_back(allocate(workers * radii_per_worker_ * sizeof(RowWork)));
  if (phases_) hold_writes();
}

// Room for the iterates of all matrices, and the factors of their rows.
void CpuBackend::hold_writes() {
  const auto each = [&](auto&& f) {
    for (MatrixTask& task : matrices_) {
      std::visit(
          [&]<class Job>(Job* job) {
            if constexpr (requires { job->rows; }) {
              const bool rows = job->rows.avg_sq != nullptr;
              f(task, job->geometry.numel(),
                rows ? rules::row_count(job->geometry, job->rows.columns) : 0);
            }
          },
          task.job);
    }
  };
  std::int64_t floats = 0;
  each([&](MatrixTask&, std::int64_t count, std::int64_t rows) { floats += count + rows; });
  held_ = allocate(static_cast<std::size_t>(floats) * sizeof(float));
  auto* at = static_cast<float*>(held_->data());
  each([&](MatrixTask& task, std::int64_t count, std::int64_t rows) {
    task.held.x = at;
    task.held.factors = at + count;
    at += count + rows;
  });
}

void CpuBackend::measure() {
  std::fill(measure_partial_.begin(), measure_partial_.end(), rules::MatrixProducts{});
  pool_.run(static_cast<std::int64_t>(measure_tasks_.size()), [&](std::int64_t index, int) {
    const auto at = static_cast<std::size_t>(index);
    const SliceTask task = measure_tasks_[at];
    std::visit(
        [&](const auto* job) {
          if (job->active) measure_slice(*job, task.slice, measure_partial_[at]);
        },
        measured_[task.job]);
  });

  // Partial sums are added in the order of the slices, whoever made them.
  std::size_t task = 0;
  for (std::size_t index = 0; index < measured_.size(); ++index) {
    rules::MatrixProducts sum;
    for (; task < measure_tasks_.size() && measure_tasks_[task].job == index; ++task) {
      sum += measure_partial_[task];
    }
    JobBase& job = *std::visit([](auto* any) -> JobBase* { return any; }, measured_[index]);
    job.sums = {};
    job.finite = job.weight_finite = true;
    if (!job.active) continue;
    job.products = sum;
    job.sums.gg = sum.gg;
    const bool measured =
        std::visit([](auto* any) { return reports_measured_norm(*any); }, measured_[index]);
    if (measured) job.sums.ww = sum.tt;
    const rules::Verdict verdict = rules::judge(sum, job.most_gg);
    job.finite = verdict.finite;
    job.weight_finite = verdict.weight_finite;
  }
}

void CpuBackend::update_matrices(const StepContext& context, Part part) {
  const auto step = [&](MatrixTask& task, Team& team, Scratch space) {
    if (!base(task).active) return;
    if (auto* const* soap = std::get_if<SoapJob*>(&task.job)) {
      if (part != Part::compute) cpu::update(**soap, team, space, context);
      return;
    }
    if (part == Part::apply) {
      const auto geometry = std::visit([](auto* job) { return geometry_of(*job); }, task.job);
      write_held(base(task), geometry, task.held, team, space.partial, context);
      return;
    }
    task.held.writes = false;
    if (part == Part::compute) space.held = &task.held;
    if (auto* const* rode = std::get_if<RodeJob*>(&task.job)) {
      cpu::update(**rode, task.plan, team, space, context);
    } else {
      cpu::update(*std::get<MuonJob*>(task.job), task.plan, team, space, context);
    }
  };
  if (matrix_per_thread_) {
    pool_.run(static_cast<std::int64_t>(matrices_.size()), [&](std::int64_t index, int worker) {
      Team alone(worker);
      step(matrices_[static_cast<std::size_t>(index)], alone, scratch(worker));
    });
    return;
  }
  for (MatrixTask& task : matrices_) {
    const SingleThreadedBlas single;
    Team all(&pool_);
    step(task, all, scratch(0));
  }
}

void CpuBackend::step(JobList& jobs, const StepContext& context) {
  measure();
  if (refuses(jobs, context)) return;
  update_matrices(context, Part::all);
  update_rest(context);
  finish(jobs, context);
}

void CpuBackend::compute(JobList& jobs, const StepContext& context) {
  if (refuses(jobs, context)) return;
  update_matrices(context, Part::compute);
  update_rest(context);
}

void CpuBackend::apply(JobList& jobs, const StepContext& context) {
  update_matrices(context, Part::apply);
  finish(jobs, context);
}

bool CpuBackend::refuses(JobList& jobs, const StepContext& context) {
  fetched_.refused = close_gate(jobs, context.refuse_all);
  if (fetched_.refused) ++fetched_.refused_steps;
  return fetched_.refused;
}

void CpuBackend::finish(JobList& jobs, const StepContext& context) {
  fetched_.done = context.step + 1;
  const std::int64_t spoiled = spoiled_parameter(jobs);
  if (spoiled < 0) return;
  ++fetched_.spoiled_steps;
  fetched_.spoiled_parameter = spoiled;
}

void CpuBackend::update_rest(const StepContext& context) {
  Team all(&pool_);
  for (AdafactorJob* job : adafactors_) {
    if (job->active) cpu::update(*job, all, scratch(0).partial, context);
  }

  std::fill(element_partial_.begin(), element_partial_.end(), Moved{});
  pool_.run(static_cast<std::int64_t>(element_tasks_.size()), [&](std::int64_t index, int) {
    // Backwards: the gradients measured last may still be in a cache.
    const std::size_t at = element_tasks_.size() - 1 - static_cast<std::size_t>(index);
    const SliceTask task = element_tasks_[at];
    const ElementJob& job = *elements_[task.job];
    if (job.active) update_slice(job, task.slice, context, element_partial_[at]);
  });
  for (std::size_t index = 0; index < element_tasks_.size(); ++index) {
    ElementJob& job = *elements_[element_tasks_[index].job];
    job.sums.ww += element_partial_[index].ww;
    job.sums.dd += element_partial_[index].dd;
  }
  for (ElementJob* job : elements_) {
    if (job->active && job->step != nullptr) ++*job->step;
  }
}

}  // namespace rode::cpu

namespace rode {

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options);
}

}  // namespace rode
