// SPDX-License-Identifier: Apache-2.0
// Dense double matrices for the oracle: the plainest loops that give the answer.
#pragma once

#include <cstddef>
#include <vector>

namespace rode::reference {

struct Matrix {
  std::size_t rows = 0, cols = 0;
  std::vector<double> data;  // row-major

  Matrix() = default;
  Matrix(std::size_t r, std::size_t c) : rows(r), cols(c), data(r * c, 0.0) {}
  double& operator()(std::size_t i, std::size_t j) { return data[i * cols + j]; }
  double operator()(std::size_t i, std::size_t j) const { return data[i * cols + j]; }
};

Matrix identity(std::size_t n);
Matrix transpose(const Matrix& a);
Matrix multiply(const Matrix& a, const Matrix& b);

// alpha * a + beta * b.
Matrix combine(double alpha, const Matrix& a, double beta, const Matrix& b);
Matrix scale(double alpha, const Matrix& a);

double inner(const Matrix& a, const Matrix& b);  // <a, b> = tr(a^T b)
double norm(const Matrix& a);                    // Frobenius

// The orthogonal factor of a square matrix by Householder reflections. Column
// signs are whatever the reflections give; no rule here depends on them.
Matrix orthogonal_factor(const Matrix& a);

// Eigenvectors of a symmetric matrix as columns, largest eigenvalue first, by
// cyclic Jacobi rotations.
Matrix eigenvectors(const Matrix& a);

}  // namespace rode::reference
