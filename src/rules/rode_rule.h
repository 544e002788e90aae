// SPDX-License-Identifier: Apache-2.0
// RODE's scalars and element-wise equations (recurrence: rode/optim/rode.h).
//
// Every scalar of a step comes from six inner products of (W, B, g), so none needs a pass of its
// own: with bu = <B,U>, s = <g,U>
//   ||P(B)||^2 = ||B||^2 - bu^2,  <P(B),P(g)> = <B,g> - bu s,  ||P(g)||^2 = ||g||^2 - s^2.
// The products are accumulated in double; the differences are clamped at 0.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "rode/optim/rode.h"
#include "rules/host_device.h"
#include "rules/matrix_step.h"
#include "rules/rode_radius_rule.h"

namespace rode::rules {

// Whether the direction moves, and whether Newton-Schulz shapes what it moves along.
RODE_HOST_DEVICE inline bool turns(const RodeConstants& c) {
  return c.direction != Direction::fixed;
}
RODE_HOST_DEVICE inline bool iterates(const RodeConstants& c) {
  return turns(c) && c.conditioner == Conditioner::newton_schulz;
}
RODE_HOST_DEVICE inline int iterations(const RodeConstants& c) {
  return iterates(c) ? c.ns_steps : 0;
}

inline SpherePlan sphere_plan(const RodeConstants& c, bool normalized) {
  // Rows with radii are projected one by one, after the iteration.
  const bool given = iterates(c) && c.radius_scope == RadiusScope::matrix;
  return {given, given && !normalized};
}

// The radius and the angle are told from the start, so its norm is the target.
RODE_HOST_DEVICE inline StartNorm start_norm(const RodeConstants&) { return StartNorm::exact; }

struct RodeScalars {
  double rho, rho_next, s, m_norm, gamma;
  bool held;          // ||W|| <= eps, and nothing to start along
  bool direction;     // a direction exists and is not fixed
  bool starts;        // ||W|| <= eps, and this step gives it a direction
  double start_norm;  // of a matrix with ||W|| <= eps: L of on_zero = start, 0 where it is held
  // B' = momentum * B + g + buffer_w * W
  double buffer_w;
  // X_0 = start_b * B' + start_g * g + start_w * W, of norm 1
  double start_b, start_g, start_w;
};

RODE_HOST_DEVICE inline double at_least_zero(double x) { return x > 0 ? x : 0; }

// What the six products tell of the radius and of the tangent space; of a matrix, or of one row
// (row_radius_rule.h).
struct RodeTangent {
  double rho, s, bu;
  bool held;         // rho <= eps: there is no direction, and the rest is 0
  double pg_pg, mm;  // ||P(g)||^2, ||M||^2
  double start;      // ||beta M + P(g)||^2 with Nesterov, else ||M||^2
};

// The squared norms, from bu and s; with both at 0 those of a P that changes nothing.
RODE_HOST_DEVICE inline void set_tangent_norms(const RodeConstants& c, const MatrixProducts& p,
                                               RodeTangent& r) {
  const double beta = c.momentum;
  const double pb_pb = at_least_zero(p.bb - r.bu * r.bu);
  const double pb_pg = p.bg - r.bu * r.s;
  r.pg_pg = at_least_zero(p.gg - r.s * r.s);
  r.mm = beta * beta * pb_pb + 2 * beta * pb_pg + r.pg_pg;
  // M = B' - s U; with Nesterov the start is beta M + P(g) = beta^2 P(B) + (1 + beta) P(g).
  r.start = c.nesterov ? beta * beta * (beta * beta * pb_pb + 2 * (1 + beta) * pb_pg) +
                             (1 + beta) * (1 + beta) * r.pg_pg
                       : r.mm;
}

RODE_HOST_DEVICE inline RodeTangent rode_tangent(const RodeConstants& c, const MatrixProducts& p) {
  RodeTangent r{};
  r.rho = std::sqrt(p.tt);
  r.held = !(r.rho > c.eps);
  if (r.held) return r;
  r.bu = p.bt / r.rho;
  r.s = p.gt / r.rho;
  set_tangent_norms(c, p, r);
  return r;
}

// gamma, from ||M|| and ||P(g)||; advances the average of the latter.
RODE_HOST_DEVICE inline double rode_damping(const RodeConstants& c, double m_norm, double pg_norm,
                                            float* snr_norm) {
  if (!c.snr) return 1;
  const double v = c.momentum * static_cast<double>(*snr_norm) + pg_norm + c.eps;
  *snr_norm = static_cast<float>(v);
  const double ratio = m_norm / v;
  return ratio < c.snr_min ? c.snr_min : (ratio > 1 ? 1 : ratio);
}

// Whether the start, of squared norm `start`, is a direction; bb and gg are those of the products.
RODE_HOST_DEVICE inline bool rode_has_direction(const RodeConstants& c, double start, double bb,
                                                double gg) {
  const double beta = c.momentum;
  // A start below 2^-23 of its terms is the rounding error of a gradient along W (the sums are
  // accurate to about 2^-50): such a gradient rotates nothing.
  const bool noise = start <= 0x1.0p-46 * (beta * beta * bb + gg);
  return std::sqrt(at_least_zero(start)) > c.eps_ns && !noise && turns(c);
}

// X_0 from the momentum and the gradient, of norm 1 where `start` is its squared norm before.
RODE_HOST_DEVICE inline void set_start(const RodeConstants& c, double start, RodeScalars& r) {
  const double norm = std::sqrt(start);
  r.start_b = (c.nesterov ? c.momentum : 1) / norm;
  r.start_g = (c.nesterov ? 1 : 0) / norm;
}

// A matrix without a direction: what it takes to give it one, where it may have one. The state of
// the radius stays: there is none to step yet.
RODE_HOST_DEVICE inline void begin_at_zero(const RodeConstants& c, const MatrixProducts& p,
                                           const RodeScalarState& state, RodeScalars& r) {
  if (state.start_norm != nullptr) r.start_norm = static_cast<double>(*state.start_norm);
  if (!(r.start_norm > 0)) return;
  RodeTangent whole{};
  set_tangent_norms(c, p, whole);
  r.starts = r.direction = rode_has_direction(c, whole.start, p.bb, p.gg);
  if (!r.starts) return;
  r.held = false;
  r.m_norm = std::sqrt(at_least_zero(whole.mm));
  r.gamma = rode_damping(c, r.m_norm, std::sqrt(whole.pg_pg), state.snr_norm);
  set_start(c, whole.start, r);
}

// Everything known before Newton-Schulz; the third array of the products is W. Advances the scalar
// state.
RODE_HOST_DEVICE inline RodeScalars rode_scalars(const RodeConstants& c, double multiplier,
                                                 const RadiusTarget& target,
                                                 const MatrixProducts& p, RodeScalarState state) {
  RodeScalars r{};
  const RodeTangent tangent = rode_tangent(c, p);
  r.rho = r.rho_next = tangent.rho;
  r.gamma = 1;
  r.held = tangent.held;
  if (r.held) {  // buffer_w = 0: B' = momentum * B + g, unprojected
    begin_at_zero(c, p, state, r);
    return r;
  }
  r.s = tangent.s;
  r.m_norm = std::sqrt(at_least_zero(tangent.mm));
  r.gamma = rode_damping(c, r.m_norm, std::sqrt(tangent.pg_pg), state.snr_norm);
  r.direction = rode_has_direction(c, tangent.start, p.bb, p.gg);
  const double t = c.radius == Radius::adaptive ? static_cast<double>(++*state.step) : 0;
  // A matrix that began at zero has the norm that it learns.
  const bool began = state.start_norm != nullptr && *state.start_norm > 0;
  const double rate = r.direction && !began ? multiplier * c.lr * r.gamma : 0;
  const double pull = radius_pull(c, rate, target, r.rho);
  r.rho_next = next_radius(c, multiplier, r.rho, r.s, t, pull, state);

  r.buffer_w = -c.momentum * tangent.bu / r.rho;
  if (!r.direction) return r;
  set_start(c, tangent.start, r);
  r.start_w = -(r.start_b + r.start_g) * r.s / r.rho;
  return r;
}

// Of U = W / rho; 0 where there is no U. A start is not projected: it has no direction yet.
RODE_HOST_DEVICE inline double inverse_norm(const RodeScalars& r) {
  return r.held || r.starts ? 0 : 1 / r.rho;
}
// rho, where W is divided by it: U = W / inf = 0 where there is none.
inline double direction_norm(const RodeScalars& r) {
  return inverse_norm(r) > 0 ? r.rho : std::numeric_limits<double>::infinity();
}

// The angle per lr and norm of the iterate. A row has 1/sqrt(fan-out) of the norm of a matrix of
// equal rows; the factor makes lr mean the same for both.
RODE_HOST_DEVICE inline double rode_scale(const RodeConstants& c, std::int64_t fan_out,
                                          std::int64_t fan_in) {
  const double m = static_cast<double>(fan_out), n = static_cast<double>(fan_in);
  const double rows = c.radius_scope == RadiusScope::rows ? std::sqrt(m) : 1;
  if (c.scale == RodeScale::kernel) return rows;
  return rows / std::sqrt(m < n ? m : n);
}

// The write-back W' = w * W + x * X, where X is the last iterate before its projection:
// Q = X - t U, q = ||Q||. U' has norm 1 by construction because rho, t and xx are measured on the
// very numbers that are combined (except U, which half-precision products on CUDA round to fp16
// for t).
RODE_HOST_DEVICE inline MatrixWrite rode_write(const RodeConstants& c, double multiplier,
                                               double scale, const RodeScalars& r,
                                               const IterateSums& x) {
  if (r.held) return {};
  MatrixWrite out{r.starts ? 1 : r.rho_next / r.rho, 0, 0, 0};
  if (!r.direction) return out;
  out.q = std::sqrt(at_least_zero(x.xx - x.t * x.t));
  if (!(out.q > 0)) {
    out.q = 0;
    return out;
  }
  out.theta = multiplier * c.lr * scale * r.gamma * out.q;
  if (r.starts) {  // W' = -theta N X / ||X||
    out.w = 0;
    out.x = -out.theta * r.start_norm / out.q;
    return out;
  }
  double along_u = std::cos(out.theta), along_d = std::sin(out.theta);
  if (c.direction == Direction::retraction) {
    along_u = 1 / std::sqrt(1 + out.theta * out.theta);
    along_d = out.theta * along_u;
  }
  out.x = -r.rho_next * along_d / out.q;
  out.w = (r.rho_next * along_u - out.x * x.t) / r.rho;
  return out;
}

// The sums of what is written. O' stands in place of the iterate: it is projected once more.
RODE_HOST_DEVICE inline IterateSums written_sums(const RodeConstants& c, const RodeScalars& r,
                                                 const KnownIterate& iterate) {
  if (!iterate.moves) return {};
  if (iterate.rows != nullptr) {
    return {r.starts ? 0 : iterate.rows->ow / r.rho, iterate.rows->oo};
  }
  if (!iterates(c)) return unconditioned_sums();
  return {r.starts ? 0 : iterate.measured.t, iterate.measured.xx};  // a start is not projected
}

// rho' as a step reports it.
RODE_HOST_DEVICE inline double written_radius(const RodeScalars& r, const MatrixWrite& write) {
  return r.starts ? -write.x * write.q : r.rho_next;
}

RODE_HOST_DEVICE inline MatrixWrite write_back(const RodeConstants& c, double multiplier,
                                               double scale, const RodeScalars& r,
                                               const KnownIterate& iterate) {
  return of_iterate(rode_write(c, multiplier, scale, r, written_sums(c, r, iterate)), iterate);
}

// The two element-wise equations. T is double if the start may be a small difference of large terms
// (a gradient that is nearly radial), float if the caller can afford it.
template <class T>
RODE_HOST_DEVICE inline T rode_buffer(T b, T g, T w, T beta, T buffer_w) {
  return beta * b + g + buffer_w * w;
}

template <class T>
RODE_HOST_DEVICE inline T rode_start(T b_next, T g, T w, T start_b, T start_g, T start_w) {
  return start_b * b_next + start_g * g + start_w * w;
}

}  // namespace rode::rules
