// SPDX-License-Identifier: Apache-2.0
// Scalars and element-wise equations of Muon and MARS-M
// (recurrences: rode/optim/muon.h, rode/optim/mars_m.h), and the constants of Muown.
//
// Both form a buffer and a start from (buffer, g, previous g), orthogonalise, and write
// W' = w * W + x * O; only the coefficients differ.
#pragma once

#include <cmath>
#include <cstdint>

#include "rode/optim/muon.h"
#include "rules/host_device.h"
#include "rules/matrix_step.h"

namespace rode::rules {

// Of Muown: how Adam moves the radius of a row (row_radius_rule.h).
struct MuownConstants {
  bool on = false;
  double lr_rho = 0, beta1 = 0, beta2 = 0, eps = 0;
};

struct MuonConstants {
  double lr, weight_decay, momentum, eps;
  bool nesterov;
  MuonScale scale;
  MuonConstraint constraint;
  bool mars;  // MARS-M: gamma is used, nesterov is not
  double gamma;
  int ns_steps;
  Coefficients coefficients;
  NsDType ns_dtype;
  NsForm ns_form;
  double row_beta;
  MuownConstants muown = {};
  bool cautious = false;  // decay; only of matrices whose norm is free
};

// As RODE's of these names (rode_rule.h): every direction of Muon is conditioned.
RODE_HOST_DEVICE inline bool turns(const MuonConstants&) { return true; }
RODE_HOST_DEVICE inline bool iterates(const MuonConstants&) { return true; }
RODE_HOST_DEVICE inline int iterations(const MuonConstants& c) { return c.ns_steps; }

// eps makes a start shorter, nothing makes it longer.
RODE_HOST_DEVICE inline StartNorm start_norm(const MuonConstants&) { return StartNorm::at_most; }

// Whether the norm of the matrix is kept, so that W is measured too.
RODE_HOST_DEVICE inline bool constrained(const MuonConstants& c) {
  return c.constraint != MuonConstraint::none;
}

// Muon's U is W itself.
inline SpherePlan sphere_plan(const MuonConstants& c, bool normalized) {
  return {constrained(c), constrained(c) && !normalized};
}

// T of the six products.
enum class Third { none, weight, previous };
RODE_HOST_DEVICE inline Third third_of(const MuonConstants& c) {
  if (c.mars) return Third::previous;
  return constrained(c) || c.muown.on ? Third::weight : Third::none;
}

struct MuonScalars {
  bool direction;
  // B' = buffer_b * B + buffer_g * g + buffer_p * p
  double buffer_b, buffer_g, buffer_p;
  // X_0 = start_b * B' + start_g * g
  double start_b, start_g;
};

// Below fp32's smallest normal number the coefficients of a start would exceed its range.
inline constexpr double kLeastDivisor = 1.2e-38;

RODE_HOST_DEVICE inline MuonScalars muon_scalars(const MuonConstants& c, const MatrixProducts& p) {
  MuonScalars r{};
  const double mu = c.momentum;
  r.buffer_b = mu;
  r.buffer_g = 1 - mu;
  if (c.mars) {
    // C = (1 + k) g - k p, clipped to norm 1; the third array is the previous gradient p.
    const double k = c.gamma * mu / (1 - mu);
    const double cc = (1 + k) * (1 + k) * p.gg - 2 * k * (1 + k) * p.gt + k * k * p.tt;
    const double clip = cc > 1 ? 1 / std::sqrt(cc) : 1;
    r.buffer_g = (1 - mu) * clip * (1 + k);
    r.buffer_p = -(1 - mu) * clip * k;
  }
  // Coefficients of the start on (B, g, p), for its norm.
  const bool look_ahead = c.nesterov && !c.mars;
  const double ahead = look_ahead ? mu : 1;
  const double on_b = ahead * r.buffer_b;
  const double on_g = ahead * r.buffer_g + (look_ahead ? 1 - mu : 0);
  const double on_p = ahead * r.buffer_p;
  const double norm2 = on_b * on_b * p.bb + on_g * on_g * p.gg + on_p * on_p * p.tt +
                       2 * (on_b * on_g * p.bg + on_b * on_p * p.bt + on_g * on_p * p.gt);
  const double norm = std::sqrt(norm2 > 0 ? norm2 : 0);
  const double divisor = c.mars ? norm + c.eps : (norm > c.eps ? norm : c.eps);
  r.direction = norm > 0 && divisor > kLeastDivisor;
  if (!r.direction) return r;
  r.start_b = ahead / divisor;
  r.start_g = (look_ahead ? 1 - mu : 0) / divisor;
  return r;
}

// The element-wise lines; p is the previous gradient of MARS-M.
RODE_HOST_DEVICE inline float muon_buffer(float b, float g, float p, float on_b, float on_g,
                                          float on_p) {
  return on_b * b + on_g * g + on_p * p;
}

RODE_HOST_DEVICE inline float muon_start(float b_next, float g, float start_b, float start_g) {
  return start_b * b_next + start_g * g;
}

RODE_HOST_DEVICE inline double muon_scale(const MuonConstants& c, std::int64_t fan_out,
                                          std::int64_t fan_in) {
  const double m = static_cast<double>(fan_out), n = static_cast<double>(fan_in);
  if (c.mars || c.scale == MuonScale::rms) return 0.2 * std::sqrt(m > n ? m : n);
  return std::sqrt(m > n ? m / n : 1.0);
}

RODE_HOST_DEVICE inline bool muon_held(const MuonConstants& c, double radius) {
  return constrained(c) && !(radius > 0);
}

// Its norm at construction, where that is kept: as stored, 0 elsewhere.
inline double stored_radius(const float* radius) {
  return radius != nullptr ? static_cast<double>(*radius) : 0;
}

// ww = ||W||^2, wo = <W,O>, oo = ||O||^2; radius: the norm at construction.
RODE_HOST_DEVICE inline MatrixWrite muon_write(const MuonConstants& c, double multiplier,
                                               double scale, double ww, double wo, double oo,
                                               double radius) {
  const double lr = multiplier * c.lr;
  MatrixWrite out{1 - lr * c.weight_decay, -lr * scale};
  if (!constrained(c)) {
    out.cautious = c.cautious;
    return out;
  }
  if (muon_held(c, radius)) return {};
  if (c.constraint == MuonConstraint::hyperball) {
    out = {1, oo > 0 ? -lr * radius / std::sqrt(oo) : 0};
  }
  const double norm2 = out.w * out.w * ww + 2 * out.w * out.x * wo + out.x * out.x * oo;
  if (!(norm2 > 0)) return {};
  const double back = radius / std::sqrt(norm2);
  return {out.w * back, out.x * back};
}

// ww and the sums matter only where the norm is kept.
RODE_HOST_DEVICE inline MatrixWrite write_back(const MuonConstants& c, double multiplier,
                                               double scale, double ww, double radius,
                                               const KnownIterate& iterate) {
  IterateSums o;
  if (iterate.moves) o = iterate.measured;
  if (iterate.rows != nullptr) o = {iterate.rows->ow, iterate.rows->oo};
  return of_iterate(muon_write(c, multiplier, scale, ww, o.t, o.xx, radius), iterate);
}

}  // namespace rode::rules
