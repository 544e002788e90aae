// SPDX-License-Identifier: Apache-2.0
// The floor of a step with Newton-Schulz: its matrix products by the BLAS alone.
#include "bench/products.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numbers>
#include <thread>

#include <cblas.h>

#include "rules/cost.h"
#include "rules/splitmix64.h"

// Of the OpenMP runtime that OpenBLAS was linked with; <omp.h> may belong to another one.
extern "C" void omp_set_num_threads(int);

namespace rode::cli {
namespace {

double symmetric_flops(const PlannedMatrix& matrix) {
  return rules::newton_schulz_flops(matrix.rows, matrix.columns, matrix.iterations).symmetric;
}

std::size_t elements(const PlannedMatrix& matrix) {
  return static_cast<std::size_t>(matrix.rows * matrix.columns);
}

}  // namespace

void fill_gaussian(float* values, std::size_t count, float deviation, std::uint64_t seed) {
  // Box-Muller on 24-bit uniforms; 1 - u keeps the logarithm finite.
  constexpr float unit = 0x1p-24f;
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < count; i += 2) {
    const std::uint64_t bits = rules::next_splitmix64(state);
    const float u = static_cast<float>(bits >> 40) * unit;
    const float angle = 2 * std::numbers::pi_v<float> * static_cast<float>(bits & 0xffffffu) * unit;
    const float radius = deviation * std::sqrt(-2 * std::log(1 - u));
    values[i] = radius * std::cos(angle);
    if (i + 1 < count) values[i + 1] = radius * std::sin(angle);
  }
}

Products::Products(std::vector<PlannedMatrix> matrices, int threads)
    : matrices_(std::move(matrices)) {
  std::ranges::stable_sort(matrices_, std::greater{}, symmetric_flops);
  std::size_t longest = 0;
  std::size_t largest_gram = 0;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const PlannedMatrix& matrix = matrices_[i];
    const auto side = static_cast<std::size_t>(std::min(matrix.rows, matrix.columns));
    longest = std::max(longest, elements(matrix));
    largest_gram = std::max(largest_gram, side * side);
    Buffer& values = values_.emplace_back(elements(matrix) * sizeof(float));
    fill_gaussian(values.floats(), elements(matrix), 0.02f, i);
  }
  for (int t = 0; t < threads; ++t) {
    Workspace workspace{Buffer(largest_gram * sizeof(float)), Buffer(largest_gram * sizeof(float)),
                        Buffer(longest * sizeof(float))};
    // Touched here, so that no page fault falls into a measurement.
    fill_gaussian(workspace.gram.floats(), largest_gram, 0.02f, 1);
    fill_gaussian(workspace.square.floats(), largest_gram, 0.02f, 2);
    std::fill_n(workspace.applied.floats(), longest, 0.0f);
    workspaces_.push_back(std::move(workspace));
  }
}

double Products::flops() const {
  double sum = 0;
  for (const PlannedMatrix& matrix : matrices_) sum += symmetric_flops(matrix);
  return sum;
}

void Products::run_matrix(std::size_t index, const Workspace& workspace) const {
  const auto rows = static_cast<blasint>(matrices_[index].rows);
  const auto columns = static_cast<blasint>(matrices_[index].columns);
  const bool tall = rows >= columns;
  const blasint n = std::min(rows, columns);
  const blasint k = std::max(rows, columns);
  const float* x = values_[index].floats();
  float* gram = workspace.gram.floats();
  float* square = workspace.square.floats();
  float* applied = workspace.applied.floats();
  // The results are not fed back: the time of a product does not depend on its values, and
  // values that neither grow nor vanish keep denormal numbers out.
  for (int i = 0; i < matrices_[index].iterations; ++i) {
    cblas_ssyrk(CblasRowMajor, CblasLower, tall ? CblasTrans : CblasNoTrans, n, k, 1.0f, x, columns,
                0.0f, gram, n);
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, n, 1.0f, gram, n, 0.0f, square, n);
    if (tall) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, n, n, 1.0f, x, columns, square,
                  n, 0.0f, applied, columns);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, columns, n, 1.0f, square, n, x,
                  columns, 0.0f, applied, columns);
    }
  }
}

double Products::run_ms() {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<std::size_t> next{0};
  {
    std::vector<std::jthread> workers;
    workers.reserve(workspaces_.size());
    for (const Workspace& workspace : workspaces_) {
      workers.emplace_back([this, &next, &workspace] {
        omp_set_num_threads(1);  // per calling thread: the BLAS must not start its own
        for (std::size_t i = next++; i < matrices_.size(); i = next++) run_matrix(i, workspace);
      });
    }
  }
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count();
}

}  // namespace rode::cli
