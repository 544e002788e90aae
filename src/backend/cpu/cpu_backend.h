// SPDX-License-Identifier: Apache-2.0
// The CPU backend: a thread pool, one workspace per thread, and the order of the jobs.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/newton_schulz.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/thread_pool.h"

namespace rode::cpu {

// One slice of one job in a pass over many arrays.
struct SliceTask {
  std::size_t job;
  std::int64_t slice;
};

// What is still to be written of a matrix, where steps are made in phases.
struct HeldWrite {
  float* x = nullptr;        // room for its iterate, without gaps
  float* factors = nullptr;  // room for those of its rows
  rules::MatrixWrite write = {};
  bool writes = false, iterate = false, scaled = false, columns = false;
  bool measured = false;  // reports_measured_norm
};

// Scratch of the thread (or team) that works on one matrix.
struct Scratch {
  float* floats = nullptr;
  double* partial = nullptr;
  RowScratch rows = {};       // where rows are normalised, or have radii
  HeldWrite* held = nullptr;  // the write is left to a later phase
};

// A matrix job with its plan.
struct MatrixTask {
  std::variant<RodeJob*, MuonJob*, SoapJob*> job;
  NsPlan plan;
  double cost = 0;      // FLOPs
  HeldWrite held = {};  // where steps are made in phases
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options);

  std::unique_ptr<Buffer> allocate(std::size_t bytes) override;
  std::unique_ptr<Buffer> adopt(void* memory, std::size_t bytes) override;
  void store_norm(const Weights& weight, const Geometry& geometry, float* out) override;
  double squared_norm(const Weights& weight, const Geometry& geometry) override;
  void prepare(JobList& jobs) override;
  std::size_t workspace_bytes() const override;
  void refresh(JobList&) override {}  // the jobs themselves are read at every step
  void step(JobList& jobs, const StepContext& context) override;
  void measure(JobList&) override { measure(); }
  void fetch_measured(JobList&) override {}  // measuring writes into the jobs themselves
  void compute(JobList& jobs, const StepContext& context) override;
  void apply(JobList& jobs, const StepContext& context) override;
  Fetched fetch(JobList&) override { return fetched_; }
  bool deferred() const override { return false; }
  void set_stream(void*) override {}
  void set_multiplier(double) override {}
  void set_step(std::int64_t step) override { fetched_.done = step; }

 private:
  void measure();
  void update_rest(const StepContext& context);
  void plan_matrices(JobList& jobs);
  void plan_slices(JobList& jobs);
  // All of a step, or the part of a phase.
  enum class Part { all, compute, apply };
  void update_matrices(const StepContext& context, Part part);
  bool refuses(JobList& jobs, const StepContext& context);
  void finish(JobList& jobs, const StepContext& context);
  void hold_writes();
  Scratch scratch(int worker);

  ThreadPool pool_;
  bool batched_, phases_;
  Fetched fetched_;
  bool matrix_per_thread_ = false;    // set by prepare
  std::vector<MatrixTask> matrices_;  // costly ones first
  std::vector<AnyJob> measured_;      // what SliceTask::job counts in measure
  std::vector<SliceTask> measure_tasks_;
  std::vector<rules::MatrixProducts> measure_partial_;  // one per task
  std::vector<ElementJob*> elements_;
  std::vector<SliceTask> element_tasks_;
  std::vector<Moved> element_partial_;
  std::vector<AdafactorJob*> adafactors_;

  std::size_t floats_per_worker_ = 0, doubles_per_worker_ = 0, rows_per_worker_ = 0;
  std::size_t radii_per_worker_ = 0;
  std::vector<std::unique_ptr<Buffer>> workspace_;  // floats, doubles; sums, factors, work of rows
  std::unique_ptr<Buffer> held_;                    // iterates and factors, for phases
};

// matrices.cpp
NsPlan plan(const RodeJob& job, bool batched);
void measure_slice(const RodeJob& job, std::int64_t slice, rules::MatrixProducts& out);
void update(RodeJob& job, const NsPlan& plan, Team& team, Scratch scratch,
            const StepContext& context);
NsPlan plan(const MuonJob& job, bool batched);
void measure_slice(const MuonJob& job, std::int64_t slice, rules::MatrixProducts& out);
void update(MuonJob& job, const NsPlan& plan, Team& team, Scratch scratch,
            const StepContext& context);
// What an update with Scratch::held has left to write.
void write_held(JobBase& job, const Geometry& geometry, const HeldWrite& held, Team& team,
                double* partial, const StepContext& context);

// soap.cpp
std::size_t soap_workspace_floats(const SoapJob& job);
double soap_cost(const SoapJob& job);
void update(SoapJob& job, Team& team, Scratch scratch, const StepContext& context);

// elementwise.cpp
void update_slice(const ElementJob& job, std::int64_t slice, const StepContext& context,
                  Moved& out);

// adafactor.cpp
void update(AdafactorJob& job, Team& team, double* partial, const StepContext& context);

}  // namespace rode::cpu
