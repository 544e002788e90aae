// SPDX-License-Identifier: Apache-2.0
// How RODE's radius changes in a step (recurrence: rode/optim/rode.h), and what all of its rules
// share: constants and scalar state.
#pragma once

#include <cmath>
#include <cstdint>

#include "rode/optim/rode.h"
#include "rules/host_device.h"

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
  double row_beta, radius_brake, radius_pull;
  RodeScale scale;
  RadiusScope radius_scope;
};

// One-element state; null if the option that needs it is off.
struct RodeScalarState {
  float* snr_norm = nullptr;
  float* radius = nullptr;
  float* radius_avg = nullptr;
  float* radius_avg_sq = nullptr;
  std::int64_t* step = nullptr;
  const float* start_norm = nullptr;  // on_zero = start; 0 where W was not zero at first
};

// A step of the radius, or of its logarithm: one that lengthens it is multiplied by the brake.
RODE_HOST_DEVICE inline double braked(const RodeConstants& c, double step) {
  return step > 0 ? c.radius_brake * step : step;
}

// Where a short radius is pulled to, by fan-out and fan-in.
struct RadiusTarget {
  double norm = 0;   // 0: it is not
  double angle = 0;  // of a step, per lr and gamma, as it would be with every singular value at 1
};

// The norm at which elements have root mean square 1/sqrt(fan-in), so that a matrix keeps the size
// of its input; of a row, with radius_scope = rows.
RODE_HOST_DEVICE inline RadiusTarget radius_target(const RodeConstants& c, std::int64_t fan_out,
                                                   std::int64_t fan_in) {
  const double m = static_cast<double>(fan_out), n = static_cast<double>(fan_in);
  return {c.radius_scope == RadiusScope::rows ? 1 : std::sqrt(m),
          c.scale == RodeScale::kernel ? std::sqrt(m < n ? m : n) : 1};
}

// What the logarithm of an adaptive radius gains beside its own step, while the direction turns;
// `rate` is the directional one of the step, times gamma.
RODE_HOST_DEVICE inline double radius_pull(const RodeConstants& c, double rate,
                                           const RadiusTarget& target, double rho) {
  // With lr_rho = 0 a user wants a radius that stays.
  if (!(target.norm > rho) || !(c.lr_rho > 0)) return 0;
  const double part = c.radius_pull * rate * target.angle;
  return (part < 1 ? part : 1) * std::log(target.norm / rho);
}

// rho' of a radius that is not zero; t counts its steps from 1, `pull` is radius_pull(). Advances
// the state of this radius.
RODE_HOST_DEVICE inline double next_radius(const RodeConstants& c, double multiplier, double rho,
                                           double s, double t, double pull,
                                           const RodeScalarState& state) {
  const double lr_rho = multiplier * c.lr_rho;
  double next = rho;
  switch (c.radius) {
    case Radius::learned: next = rho + braked(c, -lr_rho * s); break;
    case Radius::adaptive: {
      const double a = 0.9 * static_cast<double>(*state.radius_avg) + 0.1 * s;
      const double b = 0.95 * static_cast<double>(*state.radius_avg_sq) + 0.05 * s * s;
      *state.radius_avg = static_cast<float>(a);
      *state.radius_avg_sq = static_cast<float>(b);
      const double a_hat = a / (1 - std::pow(0.9, t));
      const double b_hat = b / (1 - std::pow(0.95, t));
      next = rho * std::exp(braked(c, pull - lr_rho * a_hat / (std::sqrt(b_hat) + c.eps)));
      break;
    }
    case Radius::fixed:
      // What was zero at construction gets its radius once it is non-zero.
      if (!(static_cast<double>(*state.radius) > c.eps)) *state.radius = static_cast<float>(rho);
      return static_cast<double>(*state.radius);
  }
  return next < c.floor * rho ? c.floor * rho : next;
}

}  // namespace rode::rules
