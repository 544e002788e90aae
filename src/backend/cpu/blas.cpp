// SPDX-License-Identifier: Apache-2.0
// CBLAS behind 64-bit extents, and the thread count of the BLAS that was loaded.
#include "backend/cpu/blas.h"

#include <cblas.h>
#include <fmt/format.h>

#include "rode/error.h"

// Of the OpenMP runtime that OpenBLAS itself was linked with. Declared here because the
// compiler's own <omp.h> may belong to another runtime, or be absent.
extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int);
}

namespace rode::cpu {
namespace {

int narrow(std::int64_t extent) {
  // CBLAS counts in int; a matrix side of 2^31 does not occur, but must not wrap.
  if (extent > 0x7fffffff) {
    throw Error(
        ErrorKind::unsupported, "blas",
        fmt::format("matrix side {} exceeds the BLAS's 2^31 - 1; split the parameter", extent));
  }
  return static_cast<int>(extent);
}

}  // namespace

SingleThreadedBlas::SingleThreadedBlas() : saved_(omp_get_max_threads()) {
  if (saved_ != 1) omp_set_num_threads(1);
}

SingleThreadedBlas::~SingleThreadedBlas() {
  if (saved_ != 1) omp_set_num_threads(saved_);
}

void check_blas_threading(int threads) {
#if defined(OPENBLAS_SEQUENTIAL)
  const int kind = openblas_get_parallel();
  if (kind == OPENBLAS_SEQUENTIAL && threads > 1) {
    throw Error(ErrorKind::unsupported, "cpu",
                fmt::format("threads = {}, but the OpenBLAS that was loaded is its sequential "
                            "build, which gives wrong results when several threads call it; "
                            "install libopenblas0-openmp, or use threads = 1",
                            threads));
  }
  // The pthread build has one setting for the whole process.
  if (kind == OPENBLAS_THREAD) openblas_set_num_threads(1);
#else
  (void)threads;
#endif
}

void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
          std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
              trans_b ? CblasTrans : CblasNoTrans, narrow(m), narrow(n), narrow(k), alpha, a,
              narrow(lda), b, narrow(ldb), beta, c, narrow(ldc));
}

void syrk_upper(bool trans, std::int64_t n, std::int64_t k, float alpha, const float* a,
                std::int64_t lda, float* c, std::int64_t ldc) {
  cblas_ssyrk(CblasRowMajor, CblasUpper, trans ? CblasTrans : CblasNoTrans, narrow(n), narrow(k),
              alpha, a, narrow(lda), 0.0F, c, narrow(ldc));
}

}  // namespace rode::cpu
