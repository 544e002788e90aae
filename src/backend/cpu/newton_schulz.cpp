// SPDX-License-Identifier: Apache-2.0
// Standard and Gram form of Newton-Schulz in fp32.
#include "backend/cpu/newton_schulz.h"

#include <algorithm>
#include <utility>

#include "backend/cpu/loops.h"
#include "backend/cpu/products.h"
#include "rules/cost.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cpu {
namespace {

// Commuting products skip most, not all, of the lower triangle: blocks of 256 (products.cpp) on
// sides of about 1000.
constexpr double kCommutingCost = 11.0 / 9;

// The margin is for the Gram form's smaller products, which run below the BLAS's best speed.
bool gram_is_cheaper(const NsPlan& plan) {
  const auto n = static_cast<double>(std::max<std::int64_t>(1, plan.short_side()));
  const double r = static_cast<double>(plan.long_side()) / n;
  return rules::gram_form_cost(r, plan.coefficients, plan.steps, kCommutingCost) <
         0.9 * rules::standard_form_cost(r, plan.steps);
}

struct Space {
  float *x, *y, *a, *p;
};

Space carve(const NsPlan& plan, float* workspace) {
  const std::int64_t mn = plan.rows * plan.cols, nn = plan.short_side() * plan.short_side();
  return {workspace, workspace + mn, workspace + 2 * mn, workspace + 2 * mn + nn};
}

// X <- X P with P = a + b A + c A^2, A = X^T X.
class StandardForm {
 public:
  StandardForm(Team& team, const NsPlan& plan, float* workspace, double* partial)
      : team_(team), plan_(plan), space_(carve(plan, workspace)), partial_(partial) {}

  void gram(int) { cpu::gram(team_, space_.x, plan_.rows, plan_.cols, plan_.symmetric, space_.a); }
  double gram_squares() { return symmetric_squares(team_, space_.a, plan_.short_side(), partial_); }
  void advance(int, const rules::NsTriple& c) {
    const std::int64_t n = plan_.short_side();
    // A^2 lands in Y, which is free until the product below and at least as large.
    square(team_, space_.a, n, plan_.symmetric, space_.y);
    polynomial(team_, space_.a, space_.y, n, c.a, c.b, c.c, space_.p);
    apply(team_, space_.x, space_.p, plan_.rows, plan_.cols, space_.y);
    std::swap(space_.x, space_.y);
  }
  double along(const Sphere& sphere) {
    return inner_product(team_, space_.x, sphere, partial_, nullptr);
  }
  void project(const Sphere& sphere, double t, double factor) {
    reproject(team_, space_.x, sphere, t, factor);
  }
  void keep(bool) {}
  float* iterate() const { return space_.x; }

 private:
  Team& team_;
  const NsPlan& plan_;
  Space space_;
  double* partial_;
};

// X <- X Q where Q = product of (a + b R + c R^2) over a segment, R = X^T X carried along:
// R <- T R T with T = a + b R + c R^2. All of these are polynomials of one symmetric
// matrix, so they commute and stay symmetric.
class GramForm {
 public:
  GramForm(Team& team, const NsPlan& plan, float* workspace, double* partial)
      : team_(team), plan_(plan), space_(carve(plan, workspace)), partial_(partial) {
    const std::int64_t nn = plan.short_side() * plan.short_side();
    r_ = space_.a;
    t_ = space_.p;
    q_ = space_.p + nn;
    u_ = space_.p + 2 * nn;
    v_ = space_.p + 3 * nn;
  }

  void gram(int k) {
    first_ = k == end_;
    if (!first_) return;
    end_ = rules::gram_segment_end(plan_.coefficients, k, plan_.steps);
    cpu::gram(team_, space_.x, plan_.rows, plan_.cols, true, r_);
  }
  double gram_squares() { return symmetric_squares(team_, r_, plan_.short_side(), partial_); }
  void advance(int k, const rules::NsTriple& c) {
    const std::int64_t n = plan_.short_side(), nn = n * n;
    square(team_, r_, n, true, u_);
    polynomial(team_, r_, u_, n, c.a, c.b, c.c, t_);
    if (first_) {
      std::copy(t_, t_ + nn, q_);
    } else {
      commuting_product(team_, q_, t_, n, u_);
      std::swap(q_, u_);
    }
    if (k + 1 < end_) {
      commuting_product(team_, t_, r_, n, u_);
      commuting_product(team_, u_, t_, n, v_);
      std::swap(r_, v_);
      return;
    }
    apply(team_, space_.x, q_, plan_.rows, plan_.cols, space_.y);
    std::swap(space_.x, space_.y);
  }
  // Plans take this form only where nothing is projected inside the iteration.
  double along(const Sphere&) { return 0; }
  void project(const Sphere&, double, double) {}
  void keep(bool) {}
  float* iterate() const { return space_.x; }

 private:
  Team& team_;
  const NsPlan& plan_;
  Space space_;
  double* partial_;
  float *r_, *t_, *q_, *u_, *v_;
  int end_ = 0;         // of the segment: the iteration behind its last
  bool first_ = false;  // of the segment
};

float* run_form(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                double* partial) {
  if (plan.dtype == NsDType::bf16) {
    return newton_schulz_bf16(team, plan, sphere, workspace, partial);
  }
  if (plan.dtype == NsDType::fp8) {
    return newton_schulz_fp8(team, plan, sphere, workspace, partial);
  }
  if (plan.form == NsForm::gram) {
    GramForm form(team, plan, workspace, partial);
    iterate(plan, sphere, form);
    return form.iterate();
  }
  StandardForm form(team, plan, workspace, partial);
  iterate(plan, sphere, form);
  return form.iterate();
}

}  // namespace

NsPlan plan_newton_schulz(std::int64_t rows, std::int64_t cols, int steps,
                          Coefficients coefficients, NsDType dtype, NsForm form, bool symmetric,
                          Reproject reproject) {
  NsPlan plan;
  plan.rows = rows;
  plan.cols = cols;
  plan.steps = steps;
  plan.coefficients = coefficients;
  plan.dtype = rules::products_dtype(dtype, false, steps, plan.short_side());
  plan.symmetric = symmetric;
  plan.reproject_each = reproject != Reproject::final;
  plan.guarded = reproject == Reproject::guarded;
  // bf16 keeps the standard form: its Gram matrix would lose what the products gain.
  const bool gram =
      plan.dtype == NsDType::fp32 &&
      rules::takes_gram_form(form, steps, reproject, symmetric, gram_is_cheaper(plan));
  plan.form = gram ? NsForm::gram : NsForm::standard;
  return plan;
}

std::size_t ns_workspace_floats(const NsPlan& plan) {
  if (plan.dtype == NsDType::bf16) return ns_bf16_workspace_floats(plan);
  if (plan.dtype == NsDType::fp8) return ns_fp8_workspace_floats(plan);
  const auto mn = static_cast<std::size_t>(plan.rows * plan.cols);
  const auto n = static_cast<std::size_t>(plan.short_side());
  return 2 * mn + (plan.form == NsForm::gram ? 5 : 2) * n * n;
}

double inner_product(Team& team, const float* x, const Sphere& sphere, double* partial,
                     double* xx) {
  const std::int64_t slices = slice_count(sphere.geometry.numel());
  double* squares = partial + slices;
  team.run(slices, [&](std::int64_t slice) {
    float scratch[kTile];
    double sum = 0, own = 0;
    for_tiles(sphere.geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      sum += dot(x + tight, read(*sphere.weight, stored, n, scratch), n);
      if (xx != nullptr) own += sum_of_squares(x + tight, n);
    });
    partial[slice] = sum;
    squares[slice] = own;
  });
  double t = 0, total = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    t += partial[slice];
    total += squares[slice];
  }
  if (xx != nullptr) *xx = total;
  return t / sphere.rho;
}

void reproject(Team& team, float* x, const Sphere& sphere, double t, double factor) {
  const auto along = static_cast<float>(t / sphere.rho), times = static_cast<float>(factor);
  team.run(slice_count(sphere.geometry.numel()), [&](std::int64_t slice) {
    float scratch[kTile];
    for_tiles(sphere.geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      project(x + tight, read(*sphere.weight, stored, n, scratch), along, times, n);
    });
  });
}

void correct_start(Team& team, double correction, float* x, std::int64_t count) {
  if (correction == 1) return;
  const auto factor = static_cast<float>(correction);
  team.run(slice_count(count), [&](std::int64_t slice) {
    const std::int64_t begin = slice * kSlice;
    scale(x + begin, factor, std::min(kSlice, count - begin));
  });
}

NsResult newton_schulz(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                       double* partial, bool summed) {
  NsResult result{run_form(team, plan, sphere, workspace, partial), {}};
  // The last projection joins the write-back: only its two numbers are needed here.
  if (sphere != nullptr && summed) {
    result.sums.t = inner_product(team, result.iterate, *sphere, partial, &result.sums.xx);
  }
  return result;
}

}  // namespace rode::cpu
