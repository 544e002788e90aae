// SPDX-License-Identifier: Apache-2.0
// fp32 products of matrices whose rows and columns may be indices of a tensor.
//
// A mode of a row-major tensor (outer x extent x inner) is multiplied without moving the
// tensor: outer and inner together are one side of a matrix whose elements do not lie at
// equal distances. Such a side is an `Axis`.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace rode::cuda {

// Element i of a side lies at (i / inner) * outer_stride + (i % inner) * stride.
// outer_stride = 0: one plain stride, `inner` is not read.
struct Axis {
  std::int64_t stride = 1;
  std::int32_t inner = 1;
  std::int64_t outer_stride = 0;
};

// C = A B with A m x k, B k x n and C m x n; transposing is a matter of strides.
struct SgemmArgs {
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  Axis a_row, a_col;  // m, k
  Axis b_row, b_col;  // k, n
  Axis c_row, c_col;  // m, n
  std::int32_t m = 0, n = 0, k = 0;
  // Tiles wholly below the diagonal are left alone: C is symmetric, the caller mirrors it.
  bool upper = false;
  // Sums in double. A Gram matrix squares the condition of its factor: what fp32 sums lose
  // there, its small eigenvalues have lost.
  bool wide = false;
  // k is cut into `splits` parts; part s writes c + s * split_stride, the caller adds them.
  std::int32_t splits = 1;
  std::int64_t split_stride = 0;
};

// Parts of k with which an n x n Gram product of length k fills a large chip.
std::int32_t gram_splits(std::int64_t n, std::int64_t k);

void sgemm(const SgemmArgs& args, cudaStream_t stream);

}  // namespace rode::cuda
