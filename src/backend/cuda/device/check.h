// SPDX-License-Identifier: Apache-2.0
// Turns CUDA's error codes into rode::Error.
#pragma once

#include <cuda_runtime_api.h>

namespace rode::cuda {

// Throws `unsupported` with the expression, its place, the device and CUDA's text.
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* expression, const char* file,
                                   int line);

// Whether RODE_CUDA_SYNC=1 asks to wait after every launch, so that a fault is reported where
// it happened. Read once; a step then runs without a graph of the engine's own.
bool synchronises();

// After a launch: its own error, and in debugging that of its execution.
void check_launch(cudaStream_t stream, const char* kernel, const char* file, int line);

// For destructors: CUDA may be shutting down, and nothing can be done about it there.
inline void ignore(cudaError_t) {}

}  // namespace rode::cuda

#define RODE_CUDA_CHECK(expression)                                                     \
  do {                                                                                  \
    const cudaError_t rode_cuda_error = (expression);                                   \
    if (rode_cuda_error != cudaSuccess) {                                               \
      ::rode::cuda::throw_cuda_error(rode_cuda_error, #expression, __FILE__, __LINE__); \
    }                                                                                   \
  } while (false)

#define RODE_CUDA_CHECK_LAUNCH(stream, kernel) \
  ::rode::cuda::check_launch(stream, kernel, __FILE__, __LINE__)
