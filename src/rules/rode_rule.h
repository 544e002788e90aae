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

#include "rode/optim/rode.h"
#include "rules/host_device.h"
#include "rules/matrix_step.h"

namespace rode::rules {

struct RodeConstants {
  double lr, lr_rho, momentum, snr_min, floor, eps, eps_ns;
  int ns_steps;
  Radius radius;
  Direction direction;
  Conditioner conditioner;
  Reproject reproject;
  Coefficients coefficients;
  NsDType ns_dtype;
  NsForm ns_form;
  bool nesterov, snr;
  double row_beta, radius_brake;
  RodeScale scale;
};

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

// One-element state; null if the option that needs it is off.
struct RodeScalarState {
  float* snr_norm = nullptr;
  float* radius = nullptr;
  float* radius_avg = nullptr;
  float* radius_avg_sq = nullptr;
  std::int64_t* step = nullptr;
};

struct RodeScalars {
  double rho, rho_next, s, m_norm, gamma;
  bool held;       // ||W|| <= eps
  bool direction;  // a direction exists and is not fixed
  // B' = momentum * B + g + buffer_w * W
  double buffer_w;
  // X_0 = start_b * B' + start_g * g + start_w * W, of norm 1
  double start_b, start_g, start_w;
};

// A step of the radius, or of its logarithm: one that lengthens it is multiplied by the brake.
RODE_HOST_DEVICE inline double braked(const RodeConstants& c, double step) {
  return step > 0 ? c.radius_brake * step : step;
}

RODE_HOST_DEVICE inline double at_least_zero(double x) { return x > 0 ? x : 0; }

// Everything known before Newton-Schulz; the third array of the products is W. Advances the scalar
// state.
RODE_HOST_DEVICE inline RodeScalars rode_scalars(const RodeConstants& c, double multiplier,
                                                 const MatrixProducts& p, RodeScalarState state) {
  RodeScalars r{};
  const double beta = c.momentum;
  r.rho = std::sqrt(p.tt);
  r.rho_next = r.rho;
  r.gamma = 1;
  r.held = !(r.rho > c.eps);
  if (r.held) return r;  // buffer_w = 0: B' = momentum * B + g, unprojected

  const double bu = p.bt / r.rho;
  r.s = p.gt / r.rho;
  const double pb_pb = at_least_zero(p.bb - bu * bu);
  const double pb_pg = p.bg - bu * r.s;
  const double pg_pg = at_least_zero(p.gg - r.s * r.s);
  const double mm = beta * beta * pb_pb + 2 * beta * pb_pg + pg_pg;
  r.m_norm = std::sqrt(at_least_zero(mm));

  if (c.snr) {
    const double v = beta * static_cast<double>(*state.snr_norm) + std::sqrt(pg_pg) + c.eps;
    *state.snr_norm = static_cast<float>(v);
    const double ratio = r.m_norm / v;
    r.gamma = ratio < c.snr_min ? c.snr_min : (ratio > 1 ? 1 : ratio);
  }

  const double lr_rho = multiplier * c.lr_rho;
  switch (c.radius) {
    case Radius::learned: r.rho_next = r.rho + braked(c, -lr_rho * r.s); break;
    case Radius::adaptive: {
      const double t = static_cast<double>(++*state.step);
      const double a = 0.9 * static_cast<double>(*state.radius_avg) + 0.1 * r.s;
      const double b = 0.95 * static_cast<double>(*state.radius_avg_sq) + 0.05 * r.s * r.s;
      *state.radius_avg = static_cast<float>(a);
      *state.radius_avg_sq = static_cast<float>(b);
      const double a_hat = a / (1 - std::pow(0.9, t));
      const double b_hat = b / (1 - std::pow(0.95, t));
      r.rho_next = r.rho * std::exp(braked(c, -lr_rho * a_hat / (std::sqrt(b_hat) + c.eps)));
      break;
    }
    case Radius::fixed:
      // A matrix that was zero at construction gets its radius once it is non-zero.
      if (!(static_cast<double>(*state.radius) > c.eps)) *state.radius = static_cast<float>(r.rho);
      r.rho_next = static_cast<double>(*state.radius);
      break;
  }
  if (c.radius != Radius::fixed && r.rho_next < c.floor * r.rho) r.rho_next = c.floor * r.rho;

  r.buffer_w = -beta * bu / r.rho;
  // M = B' - s U; with Nesterov the start is beta M + P(g) = beta^2 P(B) + (1 + beta) P(g).
  const double start = c.nesterov ? beta * beta * (beta * beta * pb_pb + 2 * (1 + beta) * pb_pg) +
                                        (1 + beta) * (1 + beta) * pg_pg
                                  : mm;
  const double norm = std::sqrt(at_least_zero(start));
  // A start below 2^-23 of its terms is the rounding error of a gradient along W (the sums above
  // are accurate to about 2^-50): such a gradient rotates nothing.
  const bool noise = start <= 0x1.0p-46 * (beta * beta * p.bb + p.gg);
  r.direction = norm > c.eps_ns && !noise && turns(c);
  if (!r.direction) return r;
  r.start_b = (c.nesterov ? beta : 1) / norm;
  r.start_g = (c.nesterov ? 1 : 0) / norm;
  r.start_w = -(r.start_b + r.start_g) * r.s / r.rho;
  return r;
}

// The angle per lr and norm of the iterate.
RODE_HOST_DEVICE inline double rode_scale(const RodeConstants& c, double fan_out, double fan_in) {
  if (c.scale == RodeScale::kernel) return 1;
  return 1 / std::sqrt(fan_out < fan_in ? fan_out : fan_in);
}

// The write-back W' = w * W + x * X, where X is the last iterate before its projection:
// Q = X - t U, q = ||Q||. U' has norm 1 by construction because rho, t and xx are measured on the
// very numbers that are combined (except U, which half-precision products on CUDA round to fp16
// for t).
RODE_HOST_DEVICE inline MatrixWrite rode_write(const RodeConstants& c, double multiplier,
                                               double scale, const RodeScalars& r,
                                               const IterateSums& x) {
  if (r.held) return {};
  MatrixWrite out{r.rho_next / r.rho, 0, 0, 0};
  if (!r.direction) return out;
  out.q = std::sqrt(at_least_zero(x.xx - x.t * x.t));
  if (!(out.q > 0)) {
    out.q = 0;
    return out;
  }
  out.theta = multiplier * c.lr * scale * r.gamma * out.q;
  double along_u = std::cos(out.theta), along_d = std::sin(out.theta);
  if (c.direction == Direction::retraction) {
    along_u = 1 / std::sqrt(1 + out.theta * out.theta);
    along_d = out.theta * along_u;
  }
  out.x = -r.rho_next * along_d / out.q;
  out.w = (r.rho_next * along_u - out.x * x.t) / r.rho;
  return out;
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
