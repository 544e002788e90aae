// SPDX-License-Identifier: Apache-2.0
// Muon and MARS-M on one matrix.
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/matrix_passes.h"
#include "backend/cpu/tiles.h"
#include "rules/matrix_step.h"
#include "rules/row_rule.h"

namespace rode::cpu {
namespace {

double form(const MuonJob& job, const rules::MuonScalars& r, double target, Team& team, float* x,
            double* partial) {
  const MuonCoefficients c{static_cast<float>(r.buffer_b), static_cast<float>(r.buffer_g),
                           static_cast<float>(r.buffer_p), static_cast<float>(r.start_b * target),
                           static_cast<float>(r.start_g * target)};
  const bool mars = job.constants->mars;
  const std::int64_t slices = slice_count(job.geometry.numel());
  team.run(slices, [&](std::int64_t slice) {
    float g_tile[kTile], b_tile[kTile], p_tile[kTile];
    double sum = 0;
    for_tiles(job.geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      const float* g = read(job.grad, stored, n, g_tile);
      float* b = read(job.momentum, stored, n, b_tile);
      // Without a previous gradient its coefficient is 0 and any finite array will do.
      const float* p = mars ? read(job.previous, stored, n, p_tile) : b;
      sum += muon_form(c, b, g, p, b, x + tight, n);
      write(job.momentum, stored, n, b);
      if (mars) write(job.previous, stored, n, g);
    });
    partial[slice] = sum;
  });
  double xx = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) xx += partial[slice];
  return std::sqrt(xx);
}

}  // namespace

NsPlan plan(const MuonJob& job, bool batched) {
  const rules::MuonConstants& c = *job.constants;
  return plan_newton_schulz(job.geometry.rows, job.geometry.cols, c.ns_steps, c.coefficients,
                            c.ns_dtype, c.ns_form, batched, Reproject::final);
}

void measure_slice(const MuonJob& job, std::int64_t slice, rules::MatrixProducts& out) {
  const rules::Third third = rules::third_of(*job.constants);
  float t_tile[kTile], g_tile[kTile], b_tile[kTile];
  for_tiles(job.geometry, slice, [&](std::int64_t, std::int64_t stored, std::int64_t n) {
    const float* b = read(job.momentum, stored, n, b_tile);
    const float* g = read(job.grad, stored, n, g_tile);
    if (third == rules::Third::previous) {
      add_products(read(job.previous, stored, n, t_tile), b, g, n, out);
    } else if (third == rules::Third::weight) {
      add_products(read(job.weight, stored, n, t_tile), b, g, n, out);
    } else {
      out.bb += sum_of_squares(b, n);
      out.bg += dot(b, g, n);
      out.gg += sum_of_squares(g, n);
    }
  });
}

void update(MuonJob& job, const NsPlan& plan, Team& team, Scratch scratch,
            const StepContext& context) {
  const rules::MuonConstants& c = *job.constants;
  const rules::MuonScalars r = rules::muon_scalars(c, job.products);
  const double target = rules::start_target(c.coefficients, true);
  float* x = scratch.floats;
  const double reached = form(job, r, target, team, x, scratch.partial);

  NsResult result;
  if (rules::start_moves(r.direction, reached)) {
    correct_start(team, rules::start_correction(rules::StartNorm::at_most, target, reached), x,
                  job.geometry.numel());
    result = newton_schulz(team, plan, nullptr, scratch.floats, scratch.partial);
  }
  const bool constrained = rules::constrained(c);
  double wo = 0, oo = 0;
  WrittenIterate iterate{result.iterate};
  rules::NormalizedRows rows;
  if (job.rows.avg_sq != nullptr && result.iterate != nullptr) {
    rows = normalize_rows(team, job.rows, rules::row_plan(c), result.iterate, job.weight,
                          job.geometry, scratch.rows);
    wo = rows.ow;
    oo = rows.oo;
    iterate = {result.iterate, scratch.rows.factors, job.rows.columns};
  } else if (constrained && result.iterate != nullptr) {
    const Sphere sphere{&job.weight, job.geometry, 1.0};
    wo = inner_product(team, result.iterate, sphere, scratch.partial, &oo);
  }

  const double ww = constrained ? job.products.tt : 0;
  const double radius = job.radius != nullptr ? static_cast<double>(*job.radius) : 0;
  job.held = rules::muon_held(c, radius);
  const rules::MatrixWrite write = rules::with_rows(
      rules::muon_write(c, context.multiplier, job.scale, ww, wo, oo, radius), rows);
  write_back(team, job, job.geometry, write, iterate, true, context.step, scratch.partial);
}

}  // namespace rode::cpu
