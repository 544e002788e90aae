// SPDX-License-Identifier: Apache-2.0
// The BLAS, called with one thread per matrix product: parallelism is the engine's own.
#pragma once

#include <cstdint>

namespace rode::cpu {

// While it lives, BLAS calls of this thread use this thread alone; what was set before
// comes back at the end. (OpenMP's thread count is a setting of each thread, so neither
// the caller's own BLAS nor other threads notice.)
class SingleThreadedBlas {
 public:
  SingleThreadedBlas();
  ~SingleThreadedBlas();
  SingleThreadedBlas(const SingleThreadedBlas&) = delete;
  SingleThreadedBlas& operator=(const SingleThreadedBlas&) = delete;

 private:
  int saved_;
};

// Throws `unsupported` where the BLAS that was loaded is a build that several threads
// may not call at once (OpenBLAS's sequential build).
void check_blas_threading(int threads);

// All row-major, fp32.
// C (m x n) = alpha * op(A) op(B) + beta * C
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
          std::int64_t ldc);
// Upper triangle of C (n x n) = op(A) op(A)^T with op(A) n x k.
void syrk_upper(bool trans, std::int64_t n, std::int64_t k, float alpha, const float* a,
                std::int64_t lda, float* c, std::int64_t ldc);

}  // namespace rode::cpu
