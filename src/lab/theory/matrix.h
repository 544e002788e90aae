// SPDX-License-Identifier: Apache-2.0
// Matrices as flat lists of doubles, with the few operations that the checks of the theory need.
#pragma once

#include <cstddef>
#include <vector>

namespace rode::lab::theory {

using Values = std::vector<double>;  // row-major

struct Extent {
  std::size_t rows = 0, cols = 0;
  std::size_t count() const { return rows * cols; }
};

double dot(const Values& a, const Values& b);
double norm(const Values& a);                                             // Frobenius
Values sum(double alpha, const Values& a, double beta, const Values& b);  // alpha a + beta b
Values tangent(const Values& x, const Values& u);                         // x - <x,u> u
Values unit(const Values& a);
double nuclear_norm(const Values& a, Extent extent);  // to about 1e-7 of the largest singular value

}  // namespace rode::lab::theory
