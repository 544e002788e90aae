// SPDX-License-Identifier: Apache-2.0
// Writes what the driver wishes into the control block, in the order of the stream.
//
// Values travel as kernel arguments: no host memory has to stay valid, nothing waits. One
// thread each.
#include "backend/cuda/device/check.h"
#include "backend/cuda/tables/control.h"

namespace rode::cuda {
namespace {

__global__ void set_wishes(Control* control, double multiplier, bool refuse_all) {
  control->multiplier = multiplier;
  control->refuse_all = refuse_all ? 1 : 0;
}

__global__ void set_step(Control* control, std::int64_t step) { control->done = step; }

}  // namespace

void launch_set_wishes(Control* control, double multiplier, bool refuse_all, cudaStream_t stream) {
  set_wishes<<<1, 1, 0, stream>>>(control, multiplier, refuse_all);
  RODE_CUDA_CHECK_LAUNCH(stream, "set_wishes");
}

void launch_set_step(Control* control, std::int64_t step, cudaStream_t stream) {
  set_step<<<1, 1, 0, stream>>>(control, step);
  RODE_CUDA_CHECK_LAUNCH(stream, "set_step");
}

}  // namespace rode::cuda
