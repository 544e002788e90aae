// SPDX-License-Identifier: Apache-2.0
// What a step reads of the driver's wishes and tells of itself, in device memory.
#pragma once

#include <cstdint>
#include <limits>

#include <cuda_runtime_api.h>

#include "rules/gate.h"

namespace rode::cuda {

inline constexpr std::int32_t kNoParameter = std::numeric_limits<std::int32_t>::max();

// Kernels that run after the gate (passes/gate.cu) may rely on `step`, `multiplier` and `refused`
// of the step in progress; nobody but the gate and the setters (below) writes here, except that
// whoever sums up a job lowers `spoiled` (note_end).
struct Control {
  double multiplier;               // on lr, lr_rho and lr_rest
  std::int64_t step;               // of the step in progress, from 0; selects the random sequence
  std::int64_t done;               // steps performed; becomes `step` at the gate
  std::int64_t refused_steps;      // steps refused
  std::int64_t refused_parameter;  // of the first bad job of the latest one; -1: none yet
  std::int32_t refuse_all;         // a bad gradient leaves every job alone, not only its own
  std::int32_t refused;            // the last step was
  std::int64_t spoiled_steps;      // steps before the last that left weights not finite
  std::int32_t spoiled_parameter;  // the first such parameter of the latest of them; -1: none yet
  std::int32_t spoiled;            // of the last step, or kNoParameter
};

// What the driver sets between steps (passes/gate.cu).
void launch_set_wishes(Control* control, double multiplier, bool refuse_all, cudaStream_t stream);
void launch_set_step(Control* control, std::int64_t step, cudaStream_t stream);

#ifdef __CUDACC__
// Notes a job whose weights the step has left not finite, from the sums that it reports. Called
// by one thread per job. The least parameter stays: the same one in every run.
__device__ inline void note_end(Control& control, std::int32_t parameter, double ww, double dd) {
  if (!rules::ended_finite(ww, dd)) atomicMin(&control.spoiled, parameter);
}
#endif

}  // namespace rode::cuda
