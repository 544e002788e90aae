// SPDX-License-Identifier: Apache-2.0
// Sums of a job's six products over a block.
#pragma once

#include "backend/cuda/device/reduce.cuh"
#include "rules/matrix_step.h"

namespace rode::cuda {

// Every thread gets the sums. All kThreads threads of the block take part.
template <int kThreads>
__device__ inline void block_sums(rules::MatrixProducts& p) {
  double values[6] = {p.tt, p.bt, p.gt, p.bb, p.bg, p.gg};
  block_sums<kThreads>(values);
  p = {values[0], values[1], values[2], values[3], values[4], values[5]};
}

}  // namespace rode::cuda
