// SPDX-License-Identifier: Apache-2.0
// Lets one inline function serve the CPU and the CUDA backend.
#pragma once

#if defined(__CUDACC__)
#define RODE_HOST_DEVICE __host__ __device__
#else
#define RODE_HOST_DEVICE
#endif
