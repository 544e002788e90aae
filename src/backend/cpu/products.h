// SPDX-License-Identifier: Apache-2.0
// The products of Newton-Schulz in fp32, cut into tasks by shape alone.
#pragma once

#include <cstdint>

#include "backend/cpu/thread_pool.h"

namespace rode::cpu {

// A (n x n) = X^T X for a tall X (rows >= cols), X X^T for a wide one; n the short side.
// Symmetric: half the FLOPs. Both triangles are written.
void gram(Team& team, const float* x, std::int64_t rows, std::int64_t cols, bool symmetric,
          float* a);

// ||A||_F^2 of a symmetric A, from its upper triangle. `partial` has room for slice_count(n * n)
// doubles.
double symmetric_squares(Team& team, const float* a, std::int64_t n, double* partial);

// S = A^2 for a symmetric A; with `symmetric` only the upper triangle of S is written.
void square(Team& team, const float* a, std::int64_t n, bool symmetric, float* s);

// P = a I + b A + c S in both triangles; S is read in its upper triangle.
void polynomial(Team& team, const float* a_matrix, const float* s, std::int64_t n, double a,
                double b, double c, float* p);

// Y = X P (tall) or P X (wide), P symmetric.
void apply(Team& team, const float* x, const float* p, std::int64_t rows, std::int64_t cols,
           float* y);

// C = A B for symmetric A and B that commute, so that C is symmetric: upper blocks are
// multiplied, the lower ones mirrored.
void commuting_product(Team& team, const float* a, const float* b, std::int64_t n, float* c);

}  // namespace rode::cpu
