// SPDX-License-Identifier: Apache-2.0
// The floor of a step with Newton-Schulz: its matrix products by the BLAS alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rode/optimizer.h"
#include "support.h"

namespace rode::cli {

// The products still needed once symmetry is used, per Newton-Schulz iteration on an m x n matrix
// (n the shorter side): the Gram matrix (ssyrk, m n^2), its square (ssyrk, n^3) and the applied
// product (sgemm, 2 m n^2). One matrix is one task; each thread calls a single-threaded BLAS.
class Products {
 public:
  Products(std::vector<PlannedMatrix> matrices, int threads);

  double run_ms();       // every product once, by the clock
  double flops() const;  // of symmetric products, over all matrices and iterations

 private:
  struct Workspace {
    Buffer gram;     // n x n
    Buffer square;   // n x n
    Buffer applied;  // m x n
  };

  void run_matrix(std::size_t index, const Workspace& workspace) const;

  std::vector<PlannedMatrix> matrices_;  // the most work first, so that threads end together
  std::vector<Buffer> values_;
  std::vector<Workspace> workspaces_;  // one per thread
};

// Normally distributed floats, the same for the same seed on any machine and thread count.
void fill_gaussian(float* values, std::size_t count, float deviation, std::uint64_t seed);

}  // namespace rode::cli
