// SPDX-License-Identifier: Apache-2.0
// SOAP on the device, job by job, with the two factorizations on the host; backend/host/soap_step.h
// has the order of a step.
//
// Products and element-wise parts are kernels. The eigenvectors of the first gradient, and
// the sort and QR of every precondition_frequency-th one after it, are LAPACK's: the small
// factors go to the host and back. So a step waits for the device, and cannot be captured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/device/buffer.h"
#include "backend/cuda/tables/control.h"
#include "backend/cuda/tables/entries.h"
#include "backend/host/soap_step.h"
#include "backend/jobs.h"
#include "rules/soap_rule.h"

namespace rode::cuda {

// What the host must know of a job before it can step it.
struct SoapHead {
  std::int64_t step;
  std::int64_t live;
};

// All pointers are the device's.
struct SoapHeadArgs {
  const std::int64_t* const* steps;
  const JobResult* results;  // of the first job
  SoapHead* heads;
  std::int32_t count;
};
void launch_soap_heads(const SoapHeadArgs& args, cudaStream_t stream);

// to <- from, from bf16.
void launch_soap_widen(const std::uint16_t* from, float* to, std::int64_t count,
                       cudaStream_t stream);

// fresh <- beta2 gram + rest2 * sum of parts, from the parts' upper triangle into both.
// `fresh` may be the only part.
struct SoapGramArgs {
  const float *gram, *parts;
  float* fresh;
  std::int64_t n, part_stride;
  std::int32_t part_count;
  rules::SoapCoefficients coefficients;
};
void launch_soap_gram(const SoapGramArgs& args, cudaStream_t stream);

// m and v advance with the rotated gradient g; `direction` receives N.
struct SoapMomentArgs {
  const float* g;
  float *m, *v, *direction;
  std::int64_t count;
  rules::SoapCoefficients coefficients;
};
void launch_soap_moments(const SoapMomentArgs& args, cudaStream_t stream);

// y = x with index order[j] of the middle one of outer x extent x inner at j.
struct SoapPermuteArgs {
  const float* x;
  float* y;
  const std::int32_t* order;
  std::int64_t count, extent, inner;
};
void launch_soap_permute(const SoapPermuteArgs& args, cudaStream_t stream);

// W <- on_w W + on_n N; N null: W stays. Leaves ||W||^2 and the squared move per slice.
struct SoapWriteArgs {
  WeightView weight;
  const float* direction;
  std::int64_t count, offset;
  std::int64_t step;  // selects the random sequence
  float on_w, on_n;
  double* sums;  // ww and dd, a pair per slice
};
void launch_soap_write(const SoapWriteArgs& args, cudaStream_t stream);

// The job's sums and counter; a failed job gets neither.
struct SoapReportArgs {
  const double* sums;
  std::int64_t slices;
  std::int64_t* step;
  JobResult* result;
  Control* control;
  std::int32_t parameter;
  std::int32_t failed;
};
void launch_soap_report(const SoapReportArgs& args, cudaStream_t stream);

// Throws `unsupported` where the stream is being captured. To be asked before anything of
// the step is enqueued.
void check_soap_stream(cudaStream_t stream);

// Device memory of one job at a time; `buffer` also holds a factor's square.
struct SoapMemory : host::SoapSpace {
  float* parts;  // of one Gram product
  double* sums;
};

// Host memory of one factor at a time.
struct SoapHost {
  std::vector<float> gram, basis;
  std::vector<std::int32_t> order;
  std::vector<double> workspace;  // LAPACK's; doubles for their alignment
};

class SoapSteps {
 public:
  // The jobs' state exists; their pointers to weights and gradients may still change.
  SoapSteps(const std::deque<SoapJob>& jobs, cudaStream_t stream);

  // After the gate. `results`: of the first of these jobs. Waits for the stream.
  void step(const std::deque<SoapJob>& jobs, Control* control, JobResult* results,
            cudaStream_t stream);
  std::size_t workspace_bytes() const;  // on the device

 private:
  template <class T>
  T* reserve(std::int64_t count);

  std::vector<DeviceBuffer> memory_;  // of space_
  DeviceBuffer steps_, device_heads_;
  SoapMemory space_{};
  SoapHost host_;
  std::vector<SoapHead> heads_;
};

}  // namespace rode::cuda
