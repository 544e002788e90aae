// SPDX-License-Identifier: Apache-2.0
// The Newton-Schulz polynomials, the guard that keeps RODE's iteration bounded, and the order of
// the iterations.
#pragma once

#include <cstdint>

#include "rode/optim/common.h"
#include "rules/host_device.h"

namespace rode::rules {

// One iteration maps a singular value x to a x + b x^3 + c x^5.
struct NsTriple {
  double a, b, c;
};

// Iteration k of a coefficient set; past the last triple of a set the last one repeats.
RODE_HOST_DEVICE inline NsTriple ns_triple(Coefficients set, int k) {
  constexpr NsTriple jordan{3.4445, -4.7750, 2.0315};
  constexpr NsTriple polar_express[5] = {{8.15655, -22.48329, 15.87877},
                                         {4.04293, -2.80892, 0.50002},
                                         {3.89167, -2.77248, 0.50606},
                                         {3.28575, -2.36813, 0.46449},
                                         {2.34654, -1.70978, 0.42324}};
  constexpr NsTriple you[5] = {{4.0848, -6.8946, 2.9270},
                               {3.9505, -6.3029, 2.6377},
                               {3.7418, -5.5913, 2.3037},
                               {2.8769, -3.1427, 1.2046},
                               {2.8366, -3.0525, 1.2012}};
  const int last = k < 4 ? k : 4;
  switch (set) {
    case Coefficients::polar_express: return polar_express[last];
    case Coefficients::you: return you[last];
    case Coefficients::jordan: break;
  }
  return jordan;
}

// The start is divided by margin * norm: Polar Express needs singular values below 1/1.02.
RODE_HOST_DEVICE inline double ns_margin(Coefficients set) {
  return set == Coefficients::polar_express ? 1.02 : 1.0;
}

// Iterations between two rebuilds of the Gram matrix from X. Carrying it along multiplies the
// rounding of its small eigenvalues by a^2 per iteration, 12 for the paper's polynomial and up to
// 67 for the others. With these segments the result is as close to the exact one as the
// standard form's (docs/numerics.md has the measurements).
inline int gram_segment(Coefficients set, int k) {
  if (set == Coefficients::jordan) return 3;
  return k == 0 ? 1 : 2;
}

// Whether products in half precision pay: for a smaller side they save no time, and their rounding
// does not average out.
inline bool half_pays(std::int64_t short_side) { return short_side >= 64; }

// The paper's quintic stays below 1.2024 on [0, 1.25] and has an unstable fixed point at
// 1.2637. Subtracting t U moves a singular value by at most |t| (||U||_2 <= ||U||_F = 1),
// so scaling by this factor keeps every one <= 1.25: no iteration can leave the basin.
RODE_HOST_DEVICE inline double guard_factor(double t) {
  const double bound = 1.2024 + (t < 0 ? -t : t);
  return bound > 1.25 ? 1.25 / bound : 1.0;
}

// An element of the reprojected iterate, t_w = t / rho.
RODE_HOST_DEVICE inline float ns_project(float x, float w, float t_w, float factor) {
  return factor * (x - t_w * w);
}

// The iterations in their order, on the host; CUDA's plan has the same order. Form has
//   void advance(int k, const NsTriple& c)    X <- a X + b X^3 + c X^5
//   double along(const Sphere&)               t = <X,U>
//   void project(const Sphere&, double t, double factor)    X <- factor (X - t U)
//   void keep(bool last)                      instead of project: X stays as it is
// Without a sphere nothing is projected. The last iterate never is: that joins the write-back.
template <class Sphere, class Form>
void run_iterations(Coefficients set, int steps, bool guarded, const Sphere* sphere, Form& form) {
  for (int k = 0; k < steps; ++k) {
    form.advance(k, ns_triple(set, k));
    const bool last = k + 1 == steps;
    if (last || sphere == nullptr) {
      form.keep(last);
      continue;
    }
    const double t = form.along(*sphere);
    form.project(*sphere, t, guarded ? guard_factor(t) : 1.0);
  }
}

}  // namespace rode::rules
