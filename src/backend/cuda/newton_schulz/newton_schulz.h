// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz on many matrices of mixed shapes, a few launches per iteration.
//
// Matrices are cut into batches that share one workspace, so that its size does not grow
// with the model; unless their iterates are to be kept. The caller writes a start (and the
// direction U) into a matrix's slot, runs its batch, and reads the last iterate and its two sums.
// Nothing here reads a value on the host: a run may be captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/newton_schulz/plan/plan.h"
#include "rode/optim/common.h"
#include "rules/matrix_step.h"

namespace rode::cuda {

// Where a matrix lies in the workspace: rows x cols, `stride` elements from row to row.
// Elements past `cols` in a row are not read.
struct NsSlot {
  void* start = nullptr;      // X_0, of norm 1 / (margin * start_scale); rounded to `dtype`
  void* direction = nullptr;  // U = W / rho; null without `sphere`; fp16 where `dtype` is bf16
  void* iterate = nullptr;    // the last one, before its last projection
  void* between = nullptr;  // those after an odd number of applying products; others are at `start`
  std::int64_t stride = 0;
  NsDType dtype = NsDType::fp32;  // of start and iterate
};

class NewtonSchulz {
 public:
  // `workspace_limit`: bytes above which another batch is opened (one matrix always fits). `keep`:
  // batches do not share their workspace.
  NewtonSchulz(const std::vector<NsMatrix>& matrices, std::size_t workspace_limit, bool symmetric,
               CudaProducts products = CudaProducts::automatic, bool keep = false);
  ~NewtonSchulz();
  NewtonSchulz(NewtonSchulz&&) noexcept;
  NewtonSchulz& operator=(NewtonSchulz&&) noexcept;

  // Indices into the matrices given, batch by batch; slots of different batches overlap, unless
  // they are kept.
  const std::vector<std::vector<int>>& batches() const;
  const NsSlot& slot(int matrix) const;

  // Device arrays, one element per matrix. The caller sets `start_scale` before a run: the
  // iteration starts from start_scale * start (for a start whose norm was only predicted).
  float* start_scale() const;
  // After a run, of the last iterates, of the numbers as stored; where `sphere`.
  const rules::IterateSums* sums() const;

  // `after` is called behind every launch with its name (for timing).
  void run(std::size_t batch, cudaStream_t stream,
           const std::function<void(const char*)>& after = {}) const;
  std::size_t workspace_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rode::cuda
