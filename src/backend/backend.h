// SPDX-License-Identifier: Apache-2.0
// The seam between the optimizers and the hardware.
//
// A step is measure, gate, update. `measure` reads everything and changes nothing, so
// that a bad gradient is known before any weight or state moves; the gate is one flag a
// job. `update` makes no decision on the host that depends on values: a device backend
// runs both as one captured graph, with multiplier and flags in device memory.
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
};

// Memory that the backend's operations can reach, zeroed at allocation.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual std::size_t bytes() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;

  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;

  // ||W||^2, for state that starts from the weights.
  virtual double squared_norm(const Weights& weight, const Geometry& geometry) = 0;

  // Called once when all jobs exist: plans order and workspace. Throws `unsupported`
  // where a job asks for what this backend or machine cannot do.
  virtual void prepare(JobList& jobs) = 0;
  virtual std::size_t workspace_bytes() const = 0;

  // Sets products, sums.ww (matrix rules), sums.gg and `finite` of every active job.
  virtual void measure(JobList& jobs) = 0;
  // Steps every active job; sets the remaining results.
  virtual void update(JobList& jobs, const StepContext& context) = 0;
};

struct BackendOptions {
  int threads = 0;
  bool batched = true;
};

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);
// Throws `unsupported` in a library built without CUDA.
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);

}  // namespace rode
