// SPDX-License-Identifier: Apache-2.0
// Kernels of a step follow each other closely: a launch is made ready while the one before it
// still runs, and waits on the device for its end (from compute capability 9.0 on).
//
// Every kernel that is launched so calls follow() in all its threads before it touches what an
// earlier one has written. Then the one before is complete, and so are all before that. (The
// product kernel waits role by role.) `measure`, first, and `finish`, last, are full barriers.
#pragma once

#include <cuda_runtime.h>

namespace rode::cuda {

// Lets the next launch be made ready; waits for the one before to end.
__device__ inline void allow_next_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_previous_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void follow() {
  allow_next_launch();
  wait_for_previous_launch();
}

// Whether the present device can do it.
inline bool can_follow() {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return false;
  }
  return major >= 9;
}

// kernel<<<blocks, threads, 0, stream>>>(args...) behind the kernel that was launched last on the
// stream. Errors are left to cudaGetLastError(), as those of <<<>>>.
template <class... Parameters, class... Args>
void launch_following(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                      cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = can_follow() ? 1 : 0;
  (void)cudaLaunchKernelEx(&config, kernel, Parameters(args)...);
}

}  // namespace rode::cuda
