// SPDX-License-Identifier: Apache-2.0
// Element types of Newton-Schulz's workspace, one element at a time.
#pragma once

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace rode::cuda {

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline void narrow(float x, float& out) { out = x; }
__device__ inline void narrow(float x, __nv_bfloat16& out) { out = __float2bfloat16_rn(x); }
__device__ inline void narrow(float x, __half& out) { out = __float2half_rn(x); }

// U is kept in fp16 beside either half-precision type.
template <class T>
using DirectionOf = std::conditional_t<std::is_same_v<T, float>, float, __half>;

}  // namespace rode::cuda
