// SPDX-License-Identifier: Apache-2.0
// NorMuon's normalisation of the iterate, row by row (recurrence: rode/optim/muon.h).
//
// O = X - t_w W is what Newton-Schulz gives: for Muon the iterate X itself, for RODE its
// projection, t_w = <X,W> / ||W||^2. With R_i = ||O_i||^2 for row i, n elements long:
//   v_i <- beta v_i + (1 - beta) R_i / n,  f_i = 1 / (sqrt(v_i) + kRowEps)
//   F_i = f_i ||O|| / ||diag(f) O||,  O' = diag(F) O
// Sums over rows are all that this needs. O' is never formed; it joins the write-back,
//   W' = w W + F_i (x X + u W),  u = -x t_w.
// Rows are those of the true fan-out, however the matrix is stored.
#pragma once

#include <cmath>
#include <cstdint>

#include "rules/host_device.h"
#include "rules/matrix_step.h"
#include "rules/muon_rule.h"
#include "rules/rode_rule.h"

namespace rode::rules {

// A constant, not an option: it only keeps rows of zeros from a division by 0.
inline constexpr double kRowEps = 1e-8;

// The fan-out's rows and their length, of anything with rows and cols as stored; with `columns`
// they are its columns.
template <class Matrix>
RODE_HOST_DEVICE inline std::int64_t row_count(const Matrix& matrix, bool columns) {
  return columns ? matrix.cols : matrix.rows;
}
template <class Matrix>
RODE_HOST_DEVICE inline std::int64_t row_length(const Matrix& matrix, bool columns) {
  return columns ? matrix.rows : matrix.cols;
}

// What the rows need of a rule; `starts`: RODE's W has no direction yet (rode_rule.h).
struct RowPlan {
  double beta;
  bool weighted;  // sums with W are needed
  bool tangent;   // O is the part of X that is orthogonal to W; false: X itself
};

RODE_HOST_DEVICE inline RowPlan row_plan(const RodeConstants& c, bool starts) {
  return {c.row_beta, !starts, !starts};
}
RODE_HOST_DEVICE inline RowPlan row_plan(const MuonConstants& c) {
  return {c.row_beta, constrained(c) || c.muown.on, false};
}

// Over one row of the iterate and of the weight; the last two only where W is needed.
struct RowSums {
  double xx = 0, xw = 0, ww = 0;
};

// Those of scale X.
RODE_HOST_DEVICE inline RowSums scaled(const RowSums& sums, double scale) {
  return {scale * scale * sums.xx, scale * sums.xw, sums.ww};
}

// t_w of O = X - t_w W, from the sums over all rows.
RODE_HOST_DEVICE inline double tangent_factor(const RowSums& whole) { return whole.xw / whole.ww; }

// ||O_i||^2 and <O_i, W_i>.
struct RowParts {
  double oo = 0, ow = 0;
};

RODE_HOST_DEVICE inline RowParts row_parts(const RowSums& s, double t_w) {
  const double oo = s.xx - 2 * t_w * s.xw + t_w * t_w * s.ww;
  // The difference may round below 0; NaN stays NaN.
  return {oo < 0 ? 0 : oo, s.xw - t_w * s.ww};
}

// Advances v_i and returns f_i.
RODE_HOST_DEVICE inline double row_factor(double beta, double oo, double length, float& v) {
  v = static_cast<float>(beta * static_cast<double>(v) + (1 - beta) * oo / length);
  return 1 / (std::sqrt(static_cast<double>(v)) + kRowEps);
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

// One row: advances v_i, adds to the totals, and returns f_i as it is kept until they are complete.
RODE_HOST_DEVICE inline float advance_row(double beta, const RowSums& sums, double t_w,
                                          double length, float& v, RowTotals& totals) {
  const RowParts row = row_parts(sums, t_w);
  const double f = row_factor(beta, row.oo, length, v);
  add_row(totals, row, f);
  return static_cast<float>(f);
}

// F_i / f_i.
RODE_HOST_DEVICE inline double row_scale(const RowTotals& sum) {
  return sum.scaled > 0 ? std::sqrt(sum.oo / sum.scaled) : 0;
}

// F_i, from f_i as it was kept.
RODE_HOST_DEVICE inline float normalized_factor(double scale, float f) {
  return static_cast<float>(scale * static_cast<double>(f));
}

RODE_HOST_DEVICE inline NormalizedRows normalized_rows(const RowTotals& sum, double t_w) {
  return {t_w, row_scale(sum) * sum.along, sum.oo};
}

// W'_i = w W_i + x X_i, the coefficients of row i: w + u F_i and x F_i.
template <class T>
struct RowWrite {
  T w, x;
};
template <class T>
RODE_HOST_DEVICE inline RowWrite<T> row_write(T w, T u, T x, T f) {
  return {w + u * f, x * f};
}

}  // namespace rode::rules
