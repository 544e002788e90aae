// SPDX-License-Identifier: Apache-2.0
// Standard and Gram form of Newton-Schulz in fp32.
#include "backend/cpu/newton_schulz.h"

#include <algorithm>

#include "backend/cpu/kernels.h"
#include "backend/cpu/products.h"
#include "backend/cpu/tiles.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cpu {
namespace {

// FLOPs in units of n^3 for r = long/short and five steps (docs/numerics.md). The margin
// is for the Gram form's smaller products, which run below the BLAS's best speed.
bool gram_is_cheaper(const NsPlan& plan) {
  const auto n = static_cast<double>(std::max<std::int64_t>(1, plan.short_side()));
  const double r = static_cast<double>(plan.long_side()) / n;
  const double gram = plan.coefficients == Coefficients::jordan ? 6 * r + 16 : 9 * r + 12;
  return gram < 0.9 * (15 * r + 5);
}

struct Space {
  float *x, *y, *a, *p;
};

Space carve(const NsPlan& plan, float* workspace) {
  const std::int64_t mn = plan.rows * plan.cols, nn = plan.short_side() * plan.short_side();
  return {workspace, workspace + mn, workspace + 2 * mn, workspace + 2 * mn + nn};
}

NsResult standard_form(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                       double* partial) {
  Space space = carve(plan, workspace);
  const std::int64_t n = plan.short_side();
  NsResult result;
  for (int k = 0; k < plan.steps; ++k) {
    const rules::NsTriple c = rules::ns_triple(plan.coefficients, k);
    gram(team, space.x, plan.rows, plan.cols, plan.symmetric, space.a);
    // A^2 lands in Y, which is free until the product below and at least as large.
    square(team, space.a, n, plan.symmetric, space.y);
    polynomial(team, space.a, space.y, n, c.a, c.b, c.c, space.p);
    apply(team, space.x, space.p, plan.rows, plan.cols, space.y);
    std::swap(space.x, space.y);
    if (sphere != nullptr && plan.reproject_each && k + 1 < plan.steps) {
      const double t = inner_product(team, space.x, *sphere, partial, nullptr);
      reproject(team, space.x, *sphere, t, plan.guarded ? rules::guard_factor(t) : 1.0);
    }
  }
  result.kernel = space.x;
  return result;
}

// X <- X Q where Q = product of (a + b R + c R^2) over a segment, R = X^T X carried along:
// R <- T R T with T = a + b R + c R^2. All of these are polynomials of one symmetric
// matrix, so they commute and stay symmetric.
NsResult gram_form(Team& team, const NsPlan& plan, float* workspace) {
  Space space = carve(plan, workspace);
  const std::int64_t n = plan.short_side(), nn = n * n;
  float* r = space.a;
  float* t = space.p;
  float* q = space.p + nn;
  float* u = space.p + 2 * nn;
  float* v = space.p + 3 * nn;
  for (int k = 0; k < plan.steps;) {
    const int end = std::min(plan.steps, k + rules::gram_segment(plan.coefficients, k));
    gram(team, space.x, plan.rows, plan.cols, true, r);
    for (bool first = true; k < end; ++k, first = false) {
      const rules::NsTriple c = rules::ns_triple(plan.coefficients, k);
      square(team, r, n, true, u);
      polynomial(team, r, u, n, c.a, c.b, c.c, t);
      if (first) {
        std::copy(t, t + nn, q);
      } else {
        commuting_product(team, q, t, n, u);
        std::swap(q, u);
      }
      if (k + 1 < end) {
        commuting_product(team, t, r, n, u);
        commuting_product(team, u, t, n, v);
        std::swap(r, v);
      }
    }
    apply(team, space.x, q, plan.rows, plan.cols, space.y);
    std::swap(space.x, space.y);
  }
  NsResult result;
  result.kernel = space.x;
  return result;
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
  plan.dtype = dtype == NsDType::bf16 && plan.short_side() >= rules::kSmallestHalfSide
                   ? NsDType::bf16
                   : NsDType::fp32;
  plan.symmetric = symmetric;
  plan.reproject_each = reproject != Reproject::final;
  plan.guarded = reproject == Reproject::guarded;
  // bf16 keeps the standard form: its Gram matrix would lose what the products gain.
  const bool eligible = !plan.reproject_each && symmetric && plan.dtype == NsDType::fp32;
  const bool wanted = form == NsForm::gram || (form == NsForm::automatic && gram_is_cheaper(plan));
  plan.form = eligible && wanted && steps > 0 ? NsForm::gram : NsForm::standard;
  return plan;
}

std::size_t ns_workspace_floats(const NsPlan& plan) {
  if (plan.dtype == NsDType::bf16) return ns_bf16_workspace_floats(plan);
  const auto mn = static_cast<std::size_t>(plan.rows * plan.cols);
  const auto n = static_cast<std::size_t>(plan.short_side());
  return 2 * mn + (plan.form == NsForm::gram ? 5 : 2) * n * n;
}

double inner_product(Team& team, const float* x, const Sphere& sphere, double* partial,
                     double* xx) {
  const std::int64_t chunks = chunk_count(sphere.geometry.numel());
  double* squares = partial + chunks;
  team.run(chunks, [&](std::int64_t chunk) {
    float scratch[kTile];
    double sum = 0, own = 0;
    for_tiles(sphere.geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      sum += dot(x + tight, read(*sphere.weight, stored, n, scratch), n);
      if (xx != nullptr) own += sum_of_squares(x + tight, n);
    });
    partial[chunk] = sum;
    squares[chunk] = own;
  });
  double t = 0, total = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    t += partial[chunk];
    total += squares[chunk];
  }
  if (xx != nullptr) *xx = total;
  return t / sphere.rho;
}

void reproject(Team& team, float* x, const Sphere& sphere, double t, double factor) {
  const auto along = static_cast<float>(t / sphere.rho), times = static_cast<float>(factor);
  team.run(chunk_count(sphere.geometry.numel()), [&](std::int64_t chunk) {
    float scratch[kTile];
    for_tiles(sphere.geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      project(x + tight, read(*sphere.weight, stored, n, scratch), along, times, n);
    });
  });
}

NsResult newton_schulz(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                       double* partial) {
  NsResult result =
      plan.dtype == NsDType::bf16 ? newton_schulz_bf16(team, plan, sphere, workspace, partial)
      : plan.form == NsForm::gram ? gram_form(team, plan, workspace)
                                  : standard_form(team, plan, sphere, workspace, partial);
  // The last projection joins the write-back: only its two numbers are needed here.
  if (sphere != nullptr) {
    result.t = inner_product(team, result.kernel, *sphere, partial, &result.xx);
  }
  return result;
}

}  // namespace rode::cpu
