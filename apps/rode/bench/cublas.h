// SPDX-License-Identifier: Apache-2.0
// The rate of large bf16 products by cuBLAS, loaded at run time: not linked.
#pragma once

#include <optional>

#include <cuda_runtime_api.h>

namespace rode::cli {

// TFLOP/s of an n x n x n product, median of `repeat`; none where cuBLAS is not on this
// machine or refuses. `a` and `b` hold n*n bf16 numbers on the device, `c` has room for them.
std::optional<double> cublas_tflops(int n, const void* a, const void* b, void* c, int repeat,
                                    cudaStream_t stream);

}  // namespace rode::cli
