// SPDX-License-Identifier: Apache-2.0
// CUDA's error codes as rode::Error, for what calls CUDA outside of the backend: the lab's kernels,
// the benchmarks.
#pragma once

#include <cuda_runtime_api.h>

namespace rode::cuda {

// Throws `unsupported` with `what`, the device and CUDA's text unless `error` is cudaSuccess.
void check(cudaError_t error, const char* what);

}  // namespace rode::cuda
