// SPDX-License-Identifier: Apache-2.0
// The loops of the element-wise rules; each is compiled once an instruction set.
//
// Compiled without contraction to fused operations (CMakeLists.txt): a compiler contracts in the
// body of a loop and not in its remainder, and then an element's result depends on its place. A
// part of a tensor, such as one process of several has, must give the bits of the whole.
#include "backend/cpu/kernels.h"
#include "backend/cpu/versions.h"

namespace rode::cpu {

RODE_VERSIONS
void adamw_run(const rules::AdamWCoefficients& c, const float* w, const float* g, float* m,
               float* v, float* out, std::int64_t n) {
  const rules::AdamWCoefficients k = c;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    float first = m[i], second = v[i];
    out[i] = rules::adamw_element(k, w[i], g[i], first, second);
    m[i] = first;
    v[i] = second;
  }
}

RODE_VERSIONS
void ademamix_run(const rules::AdEMAMixCoefficients& c, const float* w, const float* g, float* fast,
                  float* slow, float* v, float* out, std::int64_t n) {
  const rules::AdEMAMixCoefficients k = c;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    float first = fast[i], long_term = slow[i], second = v[i];
    out[i] = rules::ademamix_element(k, w[i], g[i], first, long_term, second);
    fast[i] = first;
    slow[i] = long_term;
    v[i] = second;
  }
}

RODE_VERSIONS
void sgd_run(const rules::SgdCoefficients& c, const float* w, const float* g, float* b, float* out,
             std::int64_t n) {
  const rules::SgdCoefficients k = c;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    float buffer = b[i];
    out[i] = rules::sgd_element(k, w[i], g[i], buffer);
    b[i] = buffer;
  }
}

}  // namespace rode::cpu
