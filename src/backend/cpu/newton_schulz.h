// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz on one matrix that stays in cache, with RODE's tangent reprojection.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/thread_pool.h"
#include "backend/jobs.h"
#include "rode/optim/rode.h"
#include "rules/matrix_step.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cpu {

// Chosen once, from shape and options.
struct NsPlan {
  std::int64_t rows = 0, cols = 0;
  int steps = 0;
  Coefficients coefficients = Coefficients::jordan;
  NsForm form = NsForm::standard;  // standard or gram
  NsDType dtype = NsDType::fp32;   // fp32, bf16 or fp8
  bool symmetric = true;           // use the symmetry of X^T X and of its square
  bool reproject_each = false;     // after every iteration, not only after the last
  bool guarded = false;

  bool tall() const { return rows >= cols; }
  std::int64_t long_side() const { return tall() ? rows : cols; }
  std::int64_t short_side() const { return tall() ? cols : rows; }
};

struct Sphere;

// The iterations of a plan on a form of the products (rules::run_iterations).
template <class Form>
void iterate(const NsPlan& plan, const Sphere* sphere, Form& form) {
  rules::run_iterations(plan.coefficients, plan.steps, plan.short_side(), plan.dtype, plan.guarded,
                        plan.reproject_each ? sphere : nullptr, form);
}

NsPlan plan_newton_schulz(std::int64_t rows, std::int64_t cols, int steps,
                          Coefficients coefficients, NsDType dtype, NsForm form, bool symmetric,
                          Reproject reproject);

// Multiplies a start of `count` elements, without gaps, by rules::start_correction.
void correct_start(Team& team, double correction, float* x, std::int64_t count);

// Floats that newton_schulz() needs at `workspace`, the start X_0 included (it comes first,
// rows x cols without gaps, and is overwritten).
std::size_t ns_workspace_floats(const NsPlan& plan);

// What U = W / rho is made of.
struct Sphere {
  const Weights* weight = nullptr;
  Geometry geometry;
  double rho = 1;
};

struct NsResult {
  float* iterate = nullptr;  // the last one, before its projection
  rules::IterateSums sums;
};

// `sphere` may be null: no reprojection, and the sums stay 0; they do as well where not `summed`.
// `partial` has room for 2 * slice_count(rows * cols) doubles.
NsResult newton_schulz(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                       double* partial, bool summed = true);

// <X,U> and ||X||^2 of an iterate without gaps; xx may be null.
double inner_product(Team& team, const float* x, const Sphere& sphere, double* partial, double* xx);

// The same iteration with bf16 operands and fp32 sums (newton_schulz_bf16.cpp); returns the last
// iterate.
float* newton_schulz_bf16(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                          double* partial);
std::size_t ns_bf16_workspace_floats(const NsPlan& plan);

// The split form with e4m3 operands (newton_schulz_fp8.cpp).
float* newton_schulz_fp8(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                         double* partial);
std::size_t ns_fp8_workspace_floats(const NsPlan& plan);

// X <- factor (X - t U), slice by slice.
void reproject(Team& team, float* x, const Sphere& sphere, double t, double factor);

}  // namespace rode::cpu
