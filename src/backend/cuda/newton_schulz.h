// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz on many matrices of mixed shapes, a few launches an iteration.
//
// Matrices are cut into chunks that share one workspace, so that its size does not grow
// with the model. The caller writes a start (and the direction U) into a matrix's slot,
// runs its chunk, and reads the kernel and its two sums. Nothing here reads a value on the
// host: a run may be captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/ns_plan.h"

namespace rode::cuda {

// Where a matrix lies in the workspace: rows x cols, `stride` elements from row to row.
// Elements past `cols` in a row are not read.
struct NsSlot {
  void* start = nullptr;      // X_0, of norm 1 / (margin * start_scale); rounded to `dtype`
  void* direction = nullptr;  // U = W / rho; null without `sphere`; fp16 where `dtype` is bf16
  void* kernel = nullptr;     // the last iterate, before its last projection
  std::int64_t stride = 0;
  NsDType dtype = NsDType::fp32;  // of start and kernel
};

// After a run: t = <kernel, U>, xx = ||kernel||^2, of the numbers as stored.
struct NsSums {
  double t, xx;
};

class NewtonSchulz {
 public:
  // `workspace_limit`: bytes above which another chunk is opened (one matrix always fits).
  NewtonSchulz(const std::vector<NsMatrix>& matrices, std::size_t workspace_limit, bool symmetric);
  ~NewtonSchulz();
  NewtonSchulz(NewtonSchulz&&) noexcept;
  NewtonSchulz& operator=(NewtonSchulz&&) noexcept;

  // Indices into the matrices given, chunk by chunk; slots of different chunks overlap.
  const std::vector<std::vector<int>>& chunks() const;
  const NsSlot& slot(int matrix) const;

  // Device arrays, one element a matrix. The caller sets `start_scale` before a run: the
  // iteration starts from start_scale * start (for a start whose norm was only predicted).
  float* start_scale() const;
  const NsSums* sums() const;  // where `sphere`

  // `after` is called behind every launch with its name (for timing).
  void run(std::size_t chunk, cudaStream_t stream,
           const std::function<void(const char*)>& after = {}) const;
  std::size_t workspace_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rode::cuda
