// SPDX-License-Identifier: Apache-2.0
// The loops over contiguous fp32 runs, compiled for several instruction sets.
//
// Sums are kept in double: a product of two floats is exact there, so an inner product
// of any length is good to fp32 and its order of summation is fixed by n alone.
#pragma once

#include <cstdint>

#include "rules/element_rules.h"
#include "rules/matrix_step.h"

namespace rode::cpu {

// Adds the products of a run; t is the third array.
void add_products(const float* t, const float* b, const float* g, std::int64_t n,
                  rules::MatrixProducts& out);
double dot(const float* x, const float* y, std::int64_t n);
double sum_of_squares(const float* x, std::int64_t n);
double squared_distance(const float* x, const float* y, std::int64_t n);

// b_out = beta b + g + buffer_w w;  x = start_b b_out + start_g g + start_w w; returns ||x||^2.
// In double: of a nearly radial gradient the start keeps a small difference.
struct FormCoefficients {
  double beta, buffer_w, start_b, start_g, start_w;
};
double rode_form(const FormCoefficients& c, const float* b, const float* g, const float* w,
                 float* b_out, float* x, std::int64_t n);

// b_out = buffer_b b + buffer_g g + buffer_p p;  x = start_b b_out + start_g g; returns ||x||^2
struct MuonCoefficients {
  float buffer_b, buffer_g, buffer_p, start_b, start_g;
};
double muon_form(const MuonCoefficients& c, const float* b, const float* g, const float* p,
                 float* b_out, float* x, std::int64_t n);

// x <- factor (x - t w)
void project(float* x, const float* w, float t, float factor, std::int64_t n);
void scale(float* x, float factor, std::int64_t n);
// out = a x + b y
void combine(float* out, float a, const float* x, float b, const float* y, std::int64_t n);

// sums[i] += x[i] y[i]
void add_products_apart(const float* x, const float* y, double* sums, std::int64_t n);
// out[i] = (a + u f[i]) x[i] + b f[i] y[i]
void combine_scaled(float* out, float a, float u, const float* x, float b, const float* y,
                    const float* f, std::int64_t n);

// One overload per element rule: `out` receives the new weights, the moments advance in place.
#define RODE_DECLARE_RUN(Rule)                                                          \
  void run_elements(const rules::Rule::Coefficients& c, const float* w, const float* g, \
                    float* const* moments, float* out, std::int64_t n);
RODE_FOR_EACH_ELEMENT_RULE(RODE_DECLARE_RUN)
#undef RODE_DECLARE_RUN

void widen(const std::uint16_t* half, float* out, std::int64_t n);  // bf16 -> fp32
void join(const std::uint16_t* high, const std::uint16_t* low, float* out, std::int64_t n);
void narrow_nearest(const float* x, std::uint16_t* half, std::int64_t n);

}  // namespace rode::cpu
