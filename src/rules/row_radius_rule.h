// SPDX-License-Identifier: Apache-2.0
// A radius for every row of the fan-out: RODE with radius_scope = rows, and Muown
// (recurrences: rode/optim/rode.h, rode/optim/muown.h).
//
// Both need the six products of every row before Newton-Schulz and, after it, the sums over the
// rows of X^2, X W and W^2. A row then has coefficients of its own:
//   B'_i = buffer_b B_i + buffer_g g_i + buffer_w W_i
//   X_i  = start_b B'_i + start_g g_i + start_w W_i
//   W'_i = w W_i + x X_i
// Rows are those of the true fan-out, however the matrix is stored.
#pragma once

#include <cmath>
#include <cstdint>

#include "rules/host_device.h"
#include "rules/matrix_step.h"
#include "rules/muon_rule.h"
#include "rules/rode_rule.h"
#include "rules/row_rule.h"

namespace rode::rules {

struct RowForm {
  double buffer_b = 0, buffer_g = 0, buffer_w = 0;
  double start_b = 0, start_g = 0, start_w = 0;
};

RODE_HOST_DEVICE inline double row_buffer(const RowForm& c, double b, double g, double w) {
  return c.buffer_b * b + c.buffer_g * g + c.buffer_w * w;
}
RODE_HOST_DEVICE inline double row_start(const RowForm& c, double b_next, double g, double w) {
  return c.start_b * b_next + c.start_g * g + c.start_w * w;
}

// ---- RODE -----------------------------------------------------------------------------

// Over all rows of a matrix.
struct RodeRowTotals {
  double pg_pg = 0, mm = 0, start = 0;
};

RODE_HOST_DEVICE inline void add_row(RodeRowTotals& sum, const RodeTangent& row) {
  sum.pg_pg += row.pg_pg;
  sum.mm += at_least_zero(row.mm);
  sum.start += at_least_zero(row.start);
}

// What the rows of a matrix share. rho, s and m_norm are those of the whole, for diagnostics;
// start_b and start_g hold for every row.
RODE_HOST_DEVICE inline RodeScalars rode_row_scalars(const RodeConstants& c,
                                                     const MatrixProducts& p,
                                                     const RodeRowTotals& sums, float* snr_norm) {
  RodeScalars r{};
  r.rho = r.rho_next = std::sqrt(p.tt);
  r.gamma = 1;
  r.held = !(r.rho > c.eps);
  if (r.held) return r;
  r.s = p.gt / r.rho;
  r.m_norm = std::sqrt(sums.mm);
  r.gamma = rode_damping(c, r.m_norm, std::sqrt(sums.pg_pg), snr_norm);
  r.direction = rode_has_direction(c, sums.start, p.bb, p.gg);
  if (!r.direction) return r;
  set_start(c, sums.start, r);
  return r;
}

// Counts a step of the radii, where their rule counts: from 1, 0 elsewhere.
RODE_HOST_DEVICE inline double rode_row_step(const RodeConstants& c, const RodeScalars& whole,
                                             std::int64_t* step) {
  const bool counts = c.radius == Radius::adaptive && !whole.held;
  return counts ? static_cast<double>(++*step) : 0;
}

// The state of row i.
RODE_HOST_DEVICE inline RodeScalarState row_state(const RodeScalarState& state, std::int64_t i) {
  const auto at = [&](float* first) { return first == nullptr ? nullptr : first + i; };
  return {nullptr, at(state.radius), at(state.radius_avg), at(state.radius_avg_sq), nullptr};
}

// rho' of a row; t is rode_row_step(), `state` the row's, which is advanced.
RODE_HOST_DEVICE inline double rode_row_radius(const RodeConstants& c, double multiplier,
                                               const RodeScalars& whole, const RadiusTarget& target,
                                               const RodeTangent& row, double t,
                                               const RodeScalarState& state) {
  if (row.held) return row.rho;
  const double rate = whole.direction ? multiplier * c.lr * whole.gamma : 0;
  const double pull = radius_pull(c, rate, target, row.rho);
  return next_radius(c, multiplier, row.rho, row.s, t, pull, state);
}

// A row that is held has no direction: its buffer accumulates, unprojected. `target` is the norm
// that the start of the whole matrix should have.
RODE_HOST_DEVICE inline RowForm rode_row_form(const RodeConstants& c, const RodeScalars& whole,
                                              const RodeTangent& row, double target) {
  if (row.held) return {c.momentum, 1, 0, 0, 0, 0};
  return {c.momentum,
          1,
          -c.momentum * row.bu / row.rho,
          whole.start_b * target,
          whole.start_g * target,
          -(whole.start_b + whole.start_g) * row.s / row.rho * target};
}

// t_w of O_i = X_i - t_w W_i (row_rule.h): every row has a tangent space of its own.
RODE_HOST_DEVICE inline double row_tangent_factor(const RowSums& row) {
  return row.ww > 0 ? tangent_factor(row) : 0;
}

// The coefficients of one row; `scale` is the angle per lr and norm of the row, f the factor of its
// iterate (normalize = rows; else 1). Adds ||Q_i||^2 to `qq`.
RODE_HOST_DEVICE inline RowWrite<double> rode_row_write(const RodeConstants& c, double multiplier,
                                                        double scale, const RodeScalars& whole,
                                                        const RodeTangent& row, double rho_next,
                                                        const RowSums& x, double f, double& qq) {
  RodeScalars own{};
  own.rho = row.rho;
  own.rho_next = rho_next;
  own.gamma = whole.gamma;
  own.held = row.held;
  own.direction = whole.direction && x.xx > 0;
  const IterateSums sums{row.held ? 0 : f * x.xw / row.rho, f * f * x.xx};
  const MatrixWrite write = rode_write(c, multiplier, scale, own, sums);
  qq += write.q * write.q;
  return {write.w, f * write.x};
}

// Of all rows, for diagnostics: the norm, from the sum of rode_row_write(), and the root mean
// square of the angles.
RODE_HOST_DEVICE inline MatrixWrite rode_rows_written(const RodeConstants& c, double multiplier,
                                                      double scale, const RodeScalars& whole,
                                                      double qq, std::int64_t count) {
  MatrixWrite write;
  write.q = std::sqrt(qq);
  write.theta =
      multiplier * c.lr * scale * whole.gamma * write.q / std::sqrt(static_cast<double>(count));
  return write;
}

// ---- Muown ----------------------------------------------------------------------------

// State per row; `step` is one number.
struct MuownState {
  float* radius = nullptr;          // g; 0: not yet measured
  float* direction_norm = nullptr;  // n; 0: not yet measured
  float* radius_avg = nullptr;
  float* radius_avg_sq = nullptr;
  std::int64_t* step = nullptr;
};

struct MuownRow {
  bool held = true;  // a row of zeros: it has no direction
  double g = 0, g_next = 0, n = 0;
  double k = 0;      // g / n; 0: the gradient lies along the row
  double slope = 0;  // <grad, u> / g: grad - slope W is tangent
  double start = 0;  // ||S_i||^2
};

// Advances the averages of one row; t counts steps from 1. Of g the weights themselves give the
// size, the state only the sign: a row that the user has scaled is taken as it is.
RODE_HOST_DEVICE inline MuownRow muown_row(const MuonConstants& c, double multiplier, double t,
                                           const MatrixProducts& p, const MuownState& state,
                                           std::int64_t i) {
  MuownRow r;
  const double rho = std::sqrt(p.tt), mu = c.momentum;
  r.held = !(rho > 0);
  if (r.held) return r;
  r.g = state.radius[i] < 0 ? -rho : rho;
  if (!(state.direction_norm[i] > 0)) state.direction_norm[i] = static_cast<float>(rho);
  r.n = static_cast<double>(state.direction_norm[i]);
  const double along = p.gt / r.g;
  r.slope = along / r.g;

  const MuownConstants& own = c.muown;
  const double m = own.beta1 * static_cast<double>(state.radius_avg[i]) + (1 - own.beta1) * along;
  const double v =
      own.beta2 * static_cast<double>(state.radius_avg_sq[i]) + (1 - own.beta2) * along * along;
  state.radius_avg[i] = static_cast<float>(m);
  state.radius_avg_sq[i] = static_cast<float>(v);
  const double m_hat = m / (1 - std::pow(own.beta1, t)), v_hat = v / (1 - std::pow(own.beta2, t));
  r.g_next = r.g - multiplier * own.lr_rho * m_hat / (std::sqrt(v_hat) + own.eps);

  // Of a gradient along the row rounding leaves about 2^-50 of its square.
  const double bu_part = p.bg - p.bt * r.slope, gg = at_least_zero(p.gg - p.gt * r.slope);
  r.k = gg > 0x1.0p-46 * p.gg ? r.g / r.n : 0;
  const double on_b = c.nesterov ? mu * mu : mu, on_g = (c.nesterov ? 1 + mu : 1) * r.k;
  r.start = at_least_zero(on_b * on_b * p.bb + 2 * on_b * on_g * bu_part + on_g * on_g * gg);
  return r;
}

// What the start of the whole matrix is divided by, so that its norm is at most `target`; 0: there
// is no direction. `start` is the sum over the rows.
RODE_HOST_DEVICE inline double muown_divisor(const MuonConstants& c, double start, double target) {
  const double norm = std::sqrt(start), divisor = norm + c.eps;
  return norm > 0 && divisor > kLeastDivisor ? divisor / target : 0;
}

// `divisor` is muown_divisor().
RODE_HOST_DEVICE inline RowForm muown_row_form(const MuonConstants& c, const MuownRow& r,
                                               double divisor) {
  if (r.held) return {c.momentum, 0, 0, 0, 0, 0};
  const double k = r.k;
  RowForm form{c.momentum, k, -k * r.slope, 0, 0, 0};
  if (divisor > 0) {
    form.start_b = (c.nesterov ? c.momentum : 1) / divisor;
    if (c.nesterov) {
      form.start_g = k / divisor;
      form.start_w = -k * r.slope / divisor;
    }
  }
  return form;
}

// Stores g' and n' of the row. x: the sums of the iterate, zero where there is none.
RODE_HOST_DEVICE inline RowWrite<double> muown_row_write(const MuonConstants& c, double multiplier,
                                                         double scale, const MuownRow& r, double ww,
                                                         const RowSums& x, const MuownState& state,
                                                         std::int64_t i) {
  if (r.held) return {1, 0};
  const double lr = multiplier * c.lr, along = r.n / r.g;
  const double step = x.xx > 0 ? -lr * scale : 0;
  const double norm2 = along * along * ww + 2 * along * step * x.xw + step * step * x.xx;
  if (!(norm2 > 0)) return {1, 0};
  const double n_next = std::sqrt(norm2);
  double w = r.g_next / n_next * along, g_next = r.g_next;
  const double on_x = r.g_next / n_next * step;
  if (c.weight_decay != 0) {
    w -= lr * c.weight_decay;
    g_next = std::sqrt(at_least_zero(w * w * ww + 2 * w * on_x * x.xw + on_x * on_x * x.xx));
  }
  state.radius[i] = static_cast<float>(g_next);
  state.direction_norm[i] = static_cast<float>(n_next);
  return {w, on_x};
}

}  // namespace rode::rules
