// SPDX-License-Identifier: Apache-2.0
// The Newton-Schulz polynomials, their start, the guard that keeps RODE's iteration bounded, and
// the order of the iterations.
#pragma once

#include <cmath>
#include <cstdint>

#include "rode/optim/common.h"
#include "rules/host_device.h"

namespace rode::rules {

// One iteration maps a singular value x to a x + b x^3 + c x^5.
struct NsTriple {
  double a, b, c;
};

// How many iterations a set takes where none are asked for. That of four takes no other number: its
// polynomials were fitted together.
constexpr int own_ns_steps(Coefficients set) { return set == Coefficients::four ? 4 : 5; }

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
  constexpr NsTriple four[4] = {{8.05794, -22.05219, 15.54071},
                                {3.92635, -2.75379, 0.49735},
                                {3.45447, -2.48755, 0.47751},
                                {2.51153, -1.85245, 0.43883}};
  const int last = k < 4 ? k : 4;
  switch (set) {
    case Coefficients::polar_express: return polar_express[last];
    case Coefficients::you: return you[last];
    case Coefficients::four: return four[k < 3 ? k : 3];
    case Coefficients::jordan: break;
  }
  return jordan;
}

// The start is divided by margin * norm: Polar Express needs singular values below 1/1.02. The set
// of four takes them up to 1.02 and needs no margin.
RODE_HOST_DEVICE inline double ns_margin(Coefficients set) {
  return set == Coefficients::polar_express ? 1.02 : 1.0;
}

// Whether the start is divided by its Schatten-4 norm as well, sqrt(||G||_F) for G = X_0^T X_0: at
// least its largest singular value, and much less than ||X_0||_F where many are alike.
constexpr bool schatten_start(Coefficients set) { return set == Coefficients::four; }

// The factor of that division, from ||G||_F^2 and the short side n. A start of norm 1 has
// ||G||_F^2 >= 1/n: the bound acts only where Muon's eps keeps a start short, which then stays so.
RODE_HOST_DEVICE inline double schatten_scale(double gram_squares, double n) {
  return 1 / std::sqrt(std::sqrt(gram_squares * n > 1 ? gram_squares : 1 / n));
}

// The polynomial of s x: the factor of a start joins its first iteration.
RODE_HOST_DEVICE inline NsTriple of_scaled(const NsTriple& p, double s) {
  const double s3 = s * s * s;
  return {s * p.a, s3 * p.b, s3 * s * s * p.c};
}

// The Gram form rebuilds its matrix from X where a segment begins. Carrying it along multiplies the
// rounding of its small eigenvalues by a^2 per iteration, 12 for the paper's polynomial and up to
// 67 for the others. With these segments the result is as close to the exact one as the
// standard form's (docs/numerics.md has the measurements). Returns the iteration behind the last of
// the segment that begins with `first`.
inline int gram_segment_end(Coefficients set, int first, int steps) {
  int length = first == 0 ? 1 : 2;
  if (set == Coefficients::jordan) length = 3;
  if (set == Coefficients::four) length = 2;
  return first + length < steps ? first + length : steps;
}

// Whether products in half precision pay: for a smaller side they save no time, and their rounding
// does not average out.
inline bool half_pays(std::int64_t short_side) { return short_side >= 64; }

// The type of the products' operands. Automatic is bf16 on a GPU and fp32 on a CPU, which has no
// products in fp16 either.
inline NsDType products_dtype(NsDType asked, bool gpu, int steps, std::int64_t short_side) {
  if (steps == 0 || !half_pays(short_side)) return NsDType::fp32;
  if (asked == NsDType::automatic) return gpu ? NsDType::bf16 : NsDType::fp32;
  return asked == NsDType::fp16 && !gpu ? NsDType::fp32 : asked;
}

// Iteration k maps [0, input] into [0, output]. Beyond `input` its polynomial grows without bound
// (docs/numerics.md says how the numbers were found, tests/unit/ns_rule_test.cpp checks them).
struct NsRange {
  double input, output;
};

RODE_HOST_DEVICE inline NsRange ns_range(Coefficients set, int k) {
  constexpr NsRange polar_express[5] = {
      {1.02, 1.9917}, {2.0316, 1.9664}, {2.0063, 1.8693}, {1.9092, 1.5756}, {1.5836, 1.1412}};
  constexpr NsRange you[5] = {
      {1.3207, 1.2732}, {1.3182, 1.2700}, {1.3130, 1.2473}, {1.2543, 1.1468}, {1.2121, 1.1451}};
  constexpr NsRange four[4] = {
      {1.02, 1.9754}, {2.0148, 1.9013}, {1.9393, 1.6548}, {1.6547, 1.2070}};
  const int last = k < 4 ? k : 4;
  switch (set) {
    case Coefficients::polar_express: return polar_express[last];
    case Coefficients::you: return you[last];
    case Coefficients::four: return four[k < 3 ? k : 3];
    case Coefficients::jordan: break;
  }
  return {1.25, 1.2024};
}

// By how much rounded operands may raise a singular value above what the polynomial makes of it: a
// unit in the last place; with e4m3 1.25 to 4 %, found by adversarial matrices (docs/numerics.md).
// The published polynomial keeps its guard in the other types: 1.25 is 1.1 % below where it begins
// to diverge.
RODE_HOST_DEVICE inline double guard_margin(Coefficients set, NsDType dtype) {
  const bool published = set == Coefficients::jordan;
  if (dtype == NsDType::fp8) return published ? 0.02 : set == Coefficients::four ? 0.0125 : 0.04;
  if (published) return 0;
  return dtype == NsDType::bf16 ? 0x1p-8 : dtype == NsDType::fp16 ? 0x1p-11 : 0;
}

// What the guard after iteration k brings every singular value below, and what it may be before the
// projection. Before the last of all `steps` there is no margin: what enters it a little beyond its
// range leaves it a little beyond its output, and nothing follows.
struct NsGuard {
  double next_input, output;
};

RODE_HOST_DEVICE inline NsGuard ns_guard(Coefficients set, int k, int steps, NsDType dtype) {
  const double margin = k + 2 < steps ? guard_margin(set, dtype) : 0;
  return {ns_range(set, k + 1).input / (1 + margin), ns_range(set, k).output};
}

// Subtracting t U moves a singular value by at most |t| (||U||_2 <= ||U||_F = 1), so scaling by
// this factor keeps every one within the next iteration's range: none can leave the basin.
RODE_HOST_DEVICE inline double guard_factor(const NsGuard& guard, double t) {
  const double bound = guard.output + (t < 0 ? -t : t);
  return bound > guard.next_input ? guard.next_input / bound : 1.0;
}

// An element of the reprojected iterate, t_w = t / rho.
RODE_HOST_DEVICE inline float ns_project(float x, float w, float t_w, float factor) {
  return factor * (x - t_w * w);
}

// The iterations in their order, on the host; CUDA's plan has the same order. Form has
//   void gram(int k)                          G = X^T X, where iteration k needs it from X
//   double gram_squares()                     ||G||_F^2 of the first one
//   void advance(int k, const NsTriple& c)    X <- a X + b X^3 + c X^5
//   double along(const Sphere&)               t = <X,U>
//   void project(const Sphere&, double t, double factor)    X <- factor (X - t U)
//   void keep(bool last)                      instead of project: X stays as it is
// Without a sphere nothing is projected. The last iterate never is: that joins the write-back.
// `short_side` is X's, `dtype` that of the products' operands.
template <class Sphere, class Form>
void run_iterations(Coefficients set, int steps, std::int64_t short_side, NsDType dtype,
                    bool guarded, const Sphere* sphere, Form& form) {
  for (int k = 0; k < steps; ++k) {
    form.gram(k);
    NsTriple p = ns_triple(set, k);
    if (k == 0 && schatten_start(set)) {
      p = of_scaled(p, schatten_scale(form.gram_squares(), static_cast<double>(short_side)));
    }
    form.advance(k, p);
    const bool last = k + 1 == steps;
    if (last || sphere == nullptr) {
      form.keep(last);
      continue;
    }
    const double t = form.along(*sphere);
    form.project(*sphere, t, guarded ? guard_factor(ns_guard(set, k, steps, dtype), t) : 1.0);
  }
}

}  // namespace rode::rules
