// SPDX-License-Identifier: Apache-2.0
// Sums over rows or columns of a stored matrix, cut into tasks by shape alone.
#include "backend/cpu/rows.h"

#include <algorithm>

#include "backend/cpu/loops.h"

namespace rode::cpu {
namespace {

// Columns that one task sums: their sums stay in L1 beside the tiles.
constexpr std::int64_t kColumns = 256;

void sum_rows(Team& team, const float* x, const Weights& weight, const Geometry& geometry,
              bool weighted, rules::RowSums* sums) {
  const std::int64_t height = std::max<std::int64_t>(1, kSlice / geometry.cols);
  team.run((geometry.rows + height - 1) / height, [&](std::int64_t task) {
    float tile[kTile];
    const std::int64_t end = std::min(geometry.rows, (task + 1) * height);
    for (std::int64_t i = task * height; i < end; ++i) {
      rules::RowSums sum;
      for (std::int64_t j = 0; j < geometry.cols; j += kTile) {
        const std::int64_t n = std::min(kTile, geometry.cols - j);
        const float* own = x + i * geometry.cols + j;
        sum.xx += sum_of_squares(own, n);
        if (!weighted) continue;
        const float* w = read(weight, i * geometry.stride + j, n, tile);
        sum.xw += dot(own, w, n);
        sum.ww += sum_of_squares(w, n);
      }
      sums[i] = sum;
    }
  });
}

void sum_columns(Team& team, const float* x, const Weights& weight, const Geometry& geometry,
                 bool weighted, rules::RowSums* sums) {
  team.run((geometry.cols + kColumns - 1) / kColumns, [&](std::int64_t task) {
    const std::int64_t first = task * kColumns, n = std::min(kColumns, geometry.cols - first);
    float tile[kColumns];
    double xx[kColumns] = {}, xw[kColumns] = {}, ww[kColumns] = {};
    for (std::int64_t i = 0; i < geometry.rows; ++i) {
      const float* own = x + i * geometry.cols + first;
      add_products_apart(own, own, xx, n);
      if (!weighted) continue;
      const float* w = read(weight, i * geometry.stride + first, n, tile);
      add_products_apart(own, w, xw, n);
      add_products_apart(w, w, ww, n);
    }
    for (std::int64_t j = 0; j < n; ++j) sums[first + j] = {xx[j], xw[j], ww[j]};
  });
}

}  // namespace

void sum_iterate(Team& team, const float* x, const Weights& weight, const Geometry& geometry,
                 bool columns, bool weighted, rules::RowSums* sums) {
  if (columns) {
    sum_columns(team, x, weight, geometry, weighted, sums);
  } else {
    sum_rows(team, x, weight, geometry, weighted, sums);
  }
}

rules::NormalizedRows normalize_rows(Team& team, const RowAverages& rows,
                                     const rules::RowPlan& plan, const float* x,
                                     const Weights& weight, const Geometry& geometry,
                                     const RowScratch& scratch) {
  sum_iterate(team, x, weight, geometry, rows.columns, plan.weighted, scratch.sums);
  const std::int64_t count = rules::row_count(geometry, rows.columns);
  const auto length = static_cast<double>(rules::row_length(geometry, rows.columns));
  double t_w = 0;
  if (plan.tangent) {
    rules::RowSums whole;
    for (std::int64_t i = 0; i < count; ++i) {
      whole.xw += scratch.sums[i].xw;
      whole.ww += scratch.sums[i].ww;
    }
    t_w = rules::tangent_factor(whole);
  }
  rules::RowTotals totals;
  for (std::int64_t i = 0; i < count; ++i) {
    scratch.factors[i] =
        rules::advance_row(plan.beta, scratch.sums[i], t_w, length, rows.avg_sq[i], totals);
  }
  const double scale = rules::row_scale(totals);
  for (std::int64_t i = 0; i < count; ++i) {
    scratch.factors[i] = rules::normalized_factor(scale, scratch.factors[i]);
  }
  return rules::normalized_rows(totals, t_w);
}

}  // namespace rode::cpu
