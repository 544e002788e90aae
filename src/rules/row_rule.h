// SPDX-License-Identifier: Apache-2.0
// NorMuon's normalisation of the iterate, row by row (recurrence: rode/optim/muon.h).
//
// O = X - t_w W is what Newton-Schulz gives: for Muon the iterate X itself, for RODE its
// projection, t_w = <X,W> / ||W||^2. With R_i = ||O_i||^2 for row i, n elements long:
//   v_i <- beta v_i + (1 - beta) R_i / n,  f_i = 1 / (sqrt(v_i) + eps)
//   F_i = f_i ||O|| / ||diag(f) O||,  O' = diag(F) O
// Sums over rows are all that this needs. O' is never formed; it joins the write-back,
//   W' = w W + F_i (x X + u W),  u = -x t_w.
// Rows are those of the true fan-out, however the matrix is stored.
#pragma once

#include <cmath>

#include "rules/host_device.h"
#include "rules/matrix_step.h"

namespace rode::rules {

// Over one row of the iterate and of the weight; the last two only where W is needed.
struct RowSums {
  double xx = 0, xw = 0, ww = 0;
};

// ||O_i||^2 and <O_i, W_i>.
struct RowParts {
  double oo = 0, ow = 0;
};

RODE_HOST_DEVICE inline RowParts row_parts(const RowSums& s, double t_w) {
  const double oo = s.xx - 2 * t_w * s.xw + t_w * t_w * s.ww;
  // Only NaN and what is not negative: the difference may round below 0.
  return {oo < 0 ? 0 : oo, s.xw - t_w * s.ww};
}

// Advances v_i and returns f_i.
RODE_HOST_DEVICE inline double row_factor(double beta, double oo, double length, float& v) {
  constexpr double eps = 1e-8;
  v = static_cast<float>(beta * static_cast<double>(v) + (1 - beta) * oo / length);
  return 1 / (std::sqrt(static_cast<double>(v)) + eps);
}

// Over all rows: ||O||^2, ||diag(f) O||^2 and <diag(f) O, W>.
struct RowTotals {
  double oo = 0, scaled = 0, along = 0;
};

RODE_HOST_DEVICE inline void add_row(RowTotals& sum, const RowParts& row, double f) {
  sum.oo += row.oo;
  sum.scaled += f * f * row.oo;
  sum.along += f * row.ow;
}

// F_i / f_i.
RODE_HOST_DEVICE inline double row_scale(const RowTotals& sum) {
  return sum.scaled > 0 ? std::sqrt(sum.oo / sum.scaled) : 0;
}

// What the write-back must know of O'.
struct NormalizedRows {
  double t_w = 0;  // O = X - t_w W
  double ow = 0;   // <O',W>
  double oo = 0;   // ||O'||^2
};

RODE_HOST_DEVICE inline NormalizedRows normalized_rows(const RowTotals& sum, double t_w) {
  return {t_w, row_scale(sum) * sum.along, sum.oo};
}

// RODE's: O' in place of the iterate, for it is projected once more.
RODE_HOST_DEVICE inline IterateSums iterate_sums(const NormalizedRows& rows, double rho) {
  return {rows.ow / rho, rows.oo};
}

}  // namespace rode::rules
