// SPDX-License-Identifier: Apache-2.0
// Notes a job whose weights a step has left not finite, from the sums that it reports.
#pragma once

#include <cstdint>

#include "backend/cuda/tables/control.h"
#include "rules/gate.h"

namespace rode::cuda {

// Called by one thread per job. The least parameter stays: the same one in every run.
__device__ inline void note_end(Control& control, std::int32_t parameter, double ww, double dd) {
  if (!rules::ended_finite(ww, dd)) atomicMin(&control.spoiled, parameter);
}

}  // namespace rode::cuda
