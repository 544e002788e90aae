// SPDX-License-Identifier: Apache-2.0
// The Schatten-4 start on the device: ||G||_F^2 of the first Gram matrix is added up as its tiles
// are written, and joins the first polynomial where that is formed. No launch of its own.
//
// A matrix's word counts steps of 2^-48: whole numbers add up to the same sum in any order. A
// start has norm 1 at most, so ||G||_F^2 <= 1 up to rounding, far from the word's 2^15; and it is
// at least 1 / n, or counts as that (rules::schatten_scale), so the steps are fine enough.
#pragma once

#include "backend/cuda/newton_schulz/products.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda {

inline constexpr double kSquareSteps = 281474976710656.0;  // 2^48

// `squares` is a tile's share of ||G||_F^2, G = X_0^T X_0; the iteration starts from scale X_0. By
// one thread.
__device__ inline void add_squares(long long* word, double squares, float scale) {
  const double k2 = static_cast<double>(scale) * static_cast<double>(scale);
  const auto steps =
      static_cast<unsigned long long>(__double2ll_rn(k2 * k2 * squares * kSquareSteps));
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(steps) : "memory");
}

// The first iteration's blend, from the one without the Schatten-4 norm: after all tiles of the
// matrix have been added. `n` is the short side.
__device__ inline Blend of_squares(const Blend& blend, const long long* word, int n) {
  long long steps;
  asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(steps) : "l"(word) : "memory");
  const double s = rules::schatten_scale(static_cast<double>(steps) / kSquareSteps, n);
  const rules::NsTriple p =
      rules::of_scaled({static_cast<double>(blend.gamma), static_cast<double>(blend.beta),
                        static_cast<double>(blend.alpha)},
                       s);
  return {static_cast<float>(p.c), static_cast<float>(p.b), static_cast<float>(p.a), 0};
}

}  // namespace rode::cuda
