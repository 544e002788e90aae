// SPDX-License-Identifier: Apache-2.0
// The seam between the optimizers and the hardware.
//
// A step is measure, gate, update. Measuring reads everything and changes nothing, so that
// a bad gradient is known before any weight or state moves; the gate is one flag a job. No
// decision inside depends on a value that the host has to read: a device backend runs all
// three as one captured graph, with multiplier, flags and scalars in device memory, and
// copies results to the jobs when `fetch` asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "backend/jobs.h"

namespace rode {

struct StepContext {
  double multiplier = 1.0;  // on lr, lr_rho and lr_rest
  std::int64_t step = 0;    // counts from 0; selects the random stream
  bool refuse_all = true;   // a bad gradient leaves every job alone, not only its own
};

// Memory that the backend's operations can reach, zeroed at allocation.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;  // may not be the host's to read
  virtual std::size_t bytes() const = 0;
  virtual void upload(const void* host, std::size_t bytes) = 0;
  // The contents in host memory, valid until the next call or step.
  virtual const void* host_view() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;

  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;

  // *out = ||W||, for state that starts from the weights; `out` lies in a Buffer.
  virtual void store_norm(const Weights& weight, const Geometry& geometry, float* out) = 0;
  // ||W||^2 on the host.
  virtual double squared_norm(const Weights& weight, const Geometry& geometry) = 0;

  // Called once when all jobs exist: plans order and workspace. Throws `unsupported`
  // where a job asks for what this backend or machine cannot do.
  virtual void prepare(JobList& jobs) = 0;
  virtual std::size_t workspace_bytes() const = 0;

  // Pointers, gradient types or constants of jobs have changed since the last step.
  virtual void refresh(JobList& jobs) = 0;
  // Measures every active job, gates, and steps those that pass.
  virtual void step(JobList& jobs, const StepContext& context) = 0;
  // Brings the results of the last step into the jobs: flags, sums, scalars. Returns
  // whether it was refused.
  virtual bool fetch(JobList& jobs) = 0;
};

// The gate of a backend whose flags the host can read. A parameter is bad if one of its
// jobs is; its jobs become inactive, or with `refuse_all` the step is refused. Weights or
// momentum that hold NaN always refuse. Returns whether the step is refused.
bool close_gate(JobList& jobs, bool refuse_all);

struct BackendOptions {
  int threads = 0;
  bool batched = true;
};

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);
// Throws `unsupported` in a library built without CUDA.
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);

}  // namespace rode
