// SPDX-License-Identifier: Apache-2.0
// The seam between the optimizers and the hardware.
//
// A step is measure, gate, update. Measuring reads everything and changes nothing, so that
// a bad gradient is known before any weight or state moves; the gate is one flag per job. No
// decision inside depends on a value that the host has to read: a device backend runs all
// three as one captured graph, with multiplier, flags and scalars in device memory, and
// copies results to the jobs when `fetch` asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "backend/jobs.h"
#include "rode/optim/common.h"

namespace rode {

struct StepContext {
  double multiplier = 1.0;  // on lr, lr_rho and lr_rest
  // Counts from 0; selects the random sequence. A deferred backend counts for itself (see
  // `set_step`): the host does not know yet which of the steps before were refused.
  std::int64_t step = 0;
  bool refuse_all = true;  // a bad gradient leaves every job alone, not only its own
};

// What became of the steps so far.
struct Fetched {
  bool refused = false;            // the last one
  std::int64_t done = 0;           // steps that were performed, counted on from `set_step`
  std::int64_t refused_steps = 0;  // since the backend was made; never counted in `done`
  // Of the latest refused step: the parameter of its first bad job; -1 where not known.
  std::int64_t refused_parameter = -1;
  // Steps that were performed and left weights that are not finite, since the backend was made,
  // and the first such parameter of the latest of them.
  std::int64_t spoiled_steps = 0;
  std::int64_t spoiled_parameter = -1;
};

// Memory that the backend's operations can reach, zeroed at allocation.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;  // may not be the host's to read
  virtual std::size_t bytes() const = 0;
  // After every step enqueued before. `host` may be overwritten when it returns.
  virtual void upload(const void* host, std::size_t bytes) = 0;
  // The contents in host memory after every step enqueued before; valid until the next
  // call or step.
  virtual const void* host_view() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;
  // The same on caller-owned memory, which is neither zeroed nor freed.
  virtual std::unique_ptr<Buffer> adopt(void* memory, std::size_t bytes) = 0;

  // *out = ||W||, for state that starts from the weights; `out` lies in a Buffer.
  virtual void store_norm(const Weights& weight, const Geometry& geometry, float* out) = 0;
  // ||W||^2 on the host.
  virtual double squared_norm(const Weights& weight, const Geometry& geometry) = 0;

  // Called once when all jobs exist: plans order and workspace. Throws `unsupported`
  // where a job asks for what this backend or machine cannot do.
  virtual void prepare(JobList& jobs) = 0;
  virtual std::size_t workspace_bytes() const = 0;

  // Pointers, gradient types, `active` or constants of jobs have changed since the last
  // step. A caller's graph that contains a step sees new constants; its pointers, types and
  // flags are those of its capture.
  virtual void refresh(JobList& jobs) = 0;
  // Measures every active job, gates, and steps those that pass. A deferred backend only
  // enqueues that. Where its stream is being captured by the caller, multiplier and
  // refuse_all of the context are left out: a replay takes them from device memory, where
  // `set_multiplier` and the last step outside of a capture wrote them.
  virtual void step(JobList& jobs, const StepContext& context) = 0;
  // The same step in three calls, where BackendOptions::phases is set, with the same context; not
  // into a capture. `measure` changes nothing and may be called again. `compute` gates, forms the
  // momentum and the iterates of matrices and steps element-wise rules and Adafactor; a step that
  // is refused ends with it. `apply` writes the matrices, steps SOAP's, and ends the step.
  virtual void measure(JobList& jobs) = 0;
  // Brings `finite`, `weight_finite` and the sum gg of the last measure into the jobs; waits for
  // it.
  virtual void fetch_measured(JobList& jobs) = 0;
  virtual void compute(JobList& jobs, const StepContext& context) = 0;
  virtual void apply(JobList& jobs, const StepContext& context) = 0;

  // Brings the results of the last step into the jobs: sums, scalars, `finite`,
  // `weight_finite`, and `active` = false where the gate closed only that job. Waits for
  // all steps enqueued. May be called before the first step and as often as one likes.
  virtual Fetched fetch(JobList& jobs) = 0;

  // For a deferred backend: keeps the results of the last `steps` steps (0: none), without waiting
  // for them. `visit_kept` waits, brings those of every kept step into the jobs as `fetch` would,
  // the oldest first, calls `visit` each time and keeps them no longer. `active` of a job then
  // says whether that step moved it.
  virtual void keep_results(std::size_t /*steps*/) {}
  virtual void visit_kept(JobList& /*jobs*/, const std::function<void(const Fetched&)>& /*visit*/) {
  }

  // Whether step() returns before the step is done, so that its caller should fetch only
  // when it wants to know.
  virtual bool deferred() const = 0;
  // A cudaStream_t (null: the default stream); steps enqueued before come first. Not
  // while a capture is under way. Without meaning on the CPU, as the following two.
  virtual void set_stream(void* stream) = 0;
  // Whether that stream is being captured.
  virtual bool capturing() const { return false; }
  // For steps that a graph of the caller's replays.
  virtual void set_multiplier(double multiplier) = 0;
  // The number of the next step (0 at first), for state that was loaded. Counted on by the
  // backend with every step that is not refused, replays included.
  virtual void set_step(std::int64_t step) = 0;
};

struct BackendOptions {
  int threads = 0;
  bool batched = true;
  void* stream = nullptr;  // a cudaStream_t
  CudaProducts cuda_products = CudaProducts::automatic;
  bool phases = false;  // keeps the iterates of all matrices at once
};

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);
// Throws `unsupported` in a library built without CUDA.
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);

}  // namespace rode
