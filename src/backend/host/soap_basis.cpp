// SPDX-License-Identifier: Apache-2.0
// Sorts the columns of L Q and orthonormalizes them.
#include "backend/host/soap_basis.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/host/lapack.h"

namespace rode::host {
namespace {

void transpose(float* square, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = i + 1; j < n; ++j) std::swap(square[i * n + j], square[j * n + i]);
  }
}

// order <- indices of diag(Q^T L Q), the largest first.
void sort_columns(const float* basis, const float* product, std::int64_t n, double* estimates,
                  std::int32_t* order) {
  std::fill(estimates, estimates + n, 0.0);
  for (std::int64_t at = 0, i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j, ++at) {
      estimates[j] += static_cast<double>(basis[at]) * static_cast<double>(product[at]);
    }
  }
  std::iota(order, order + n, 0);
  // Ties by index: stable, and without stable_sort's buffer.
  std::sort(order, order + n, [&](std::int32_t a, std::int32_t b) {
    return estimates[a] != estimates[b] ? estimates[a] > estimates[b] : a < b;
  });
}

}  // namespace

std::size_t next_basis_floats(std::int64_t n) {
  // The estimates, in double, and QR's work take turns.
  return std::max(2 * static_cast<std::size_t>(n), qr_workspace_floats(n));
}

bool next_basis(const float* basis, const float* product, std::int64_t n, float* next,
                std::int32_t* order, float* workspace) {
  sort_columns(basis, product, n, reinterpret_cast<double*>(workspace), order);
  // Columns become rows, as LAPACK wants them, and rows columns again.
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) next[j * n + i] = product[i * n + order[j]];
  }
  const bool done = orthonormalize(next, n, workspace);
  transpose(next, n);
  return done;
}

}  // namespace rode::host
