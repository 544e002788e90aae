// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz on many matrices of mixed shapes, a few launches an iteration.
//
// Matrices are cut into batches that share one workspace, so that its size does not grow
// with the model. The caller writes a start (and the direction U) into a matrix's slot,
// runs its batch, and reads the last iterate and its two sums. Nothing here reads a value on the
// host: a run may be captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/newton_schulz/plan/plan.h"

namespace rode::cuda {

// Where a matrix lies in the workspace: rows x cols, `stride` elements from row to row.
// Elements past `cols` in a row are not read.
struct NsSlot {
  void* start = nullptr;      // X_0, of norm 1 / (margin * start_scale); rounded to `dtype`
  void* direction = nullptr;  // U = W / rho; null without `sphere`; fp16 where `dtype` is bf16
  void* iterate = nullptr;    // the last one, before its last projection
  std::int64_t stride = 0;
  NsDType dtype = NsDType::fp32;  // of start and iterate
};

// After a run: t = <X, U>, xx = ||X||^2 of the last iterate X, of the numbers as stored.
struct NsSums {
  double t, xx;
};

class NewtonSchulz {
 public:
  // `workspace_limit`: bytes above which another batch is opened (one matrix always fits).
  NewtonSchulz(const std::vector<NsMatrix>& matrices, std::size_t workspace_limit, bool symmetric);
  ~NewtonSchulz();
  NewtonSchulz(NewtonSchulz&&) noexcept;
  NewtonSchulz& operator=(NewtonSchulz&&) noexcept;

  // Indices into the matrices given, batch by batch; slots of different batches overlap.
  const std::vector<std::vector<int>>& batches() const;
  const NsSlot& slot(int matrix) const;

  // Device arrays, one element a matrix. The caller sets `start_scale` before a run: the
  // iteration starts from start_scale * start (for a start whose norm was only predicted).
  float* start_scale() const;
  const NsSums* sums() const;  // where `sphere`

  // `after` is called behind every launch with its name (for timing).
  void run(std::size_t batch, cudaStream_t stream,
           const std::function<void(const char*)>& after = {}) const;
  std::size_t workspace_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rode::cuda
