// SPDX-License-Identifier: Apache-2.0
// RODE on one matrix: one pass measures, one forms buffer and start, Newton-Schulz runs
// in cache, one pass writes the weights.
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/matrix_passes.h"
#include "backend/cpu/tiles.h"
#include "rules/matrix_step.h"
#include "rules/row_rule.h"

namespace rode::cpu {
namespace {

// B <- B' and X_0 at `x`. The predicted norm of the start comes from inner products; where
// the start is a small difference of large terms the prediction is off, so the norm that
// was really reached is returned for correction.
double form(const RodeJob& job, double target, Team& team, float* x, double* partial) {
  const rules::RodeScalars& r = job.scalars;
  const FormCoefficients c{job.constants->momentum, r.buffer_w, r.start_b * target,
                           r.start_g * target, r.start_w * target};
  const std::int64_t slices = slice_count(job.geometry.numel());
  team.run(slices, [&](std::int64_t slice) {
    float w_tile[kTile], g_tile[kTile], b_tile[kTile], x_tile[kTile];
    double sum = 0;
    for_tiles(job.geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      const float* w = read(job.weight, stored, n, w_tile);
      const float* g = read(job.grad, stored, n, g_tile);
      float* b = read(job.momentum, stored, n, b_tile);
      sum += rode_form(c, b, g, w, b, x == nullptr ? x_tile : x + tight, n);
      write(job.momentum, stored, n, b);
    });
    partial[slice] = sum;
  });
  double xx = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) xx += partial[slice];
  return std::sqrt(xx);
}

}  // namespace

NsPlan plan(const RodeJob& job, bool batched) {
  const rules::RodeConstants& c = *job.constants;
  return plan_newton_schulz(job.geometry.rows, job.geometry.cols,
                            rules::iterates(c) ? c.ns_steps : 0, c.coefficients, c.ns_dtype,
                            c.ns_form, batched, c.reproject);
}

void measure_slice(const RodeJob& job, std::int64_t slice, rules::MatrixProducts& out) {
  float w_tile[kTile], g_tile[kTile], b_tile[kTile];
  for_tiles(job.geometry, slice, [&](std::int64_t, std::int64_t stored, std::int64_t n) {
    add_products(read(job.weight, stored, n, w_tile), read(job.momentum, stored, n, b_tile),
                 read(job.grad, stored, n, g_tile), n, out);
  });
}

void update(RodeJob& job, const NsPlan& plan, Team& team, Scratch scratch,
            const StepContext& context) {
  const rules::RodeConstants& c = *job.constants;
  job.scalars = rules::rode_scalars(c, context.multiplier, job.products, job.state);
  const rules::RodeScalars& r = job.scalars;
  const bool iterates = rules::iterates(c);
  float* x = r.direction ? scratch.floats : nullptr;

  const double target = rules::start_target(c.coefficients, iterates);
  const double reached = form(job, target, team, x, scratch.partial);

  NsResult result;
  if (rules::start_moves(r.direction, reached)) {
    correct_start(team, rules::start_correction(rules::StartNorm::exact, target, reached), x,
                  job.geometry.numel());
    if (iterates) {
      const Sphere sphere{&job.weight, job.geometry, r.rho};
      result = newton_schulz(team, plan, &sphere, scratch.floats, scratch.partial);
    } else {
      result = {x, rules::unconditioned_sums()};
    }
  }
  WrittenIterate iterate{result.iterate};
  rules::NormalizedRows rows;
  if (job.rows.avg_sq != nullptr && result.iterate != nullptr) {
    rows = normalize_rows(team, job.rows, rules::row_plan(c), result.iterate, job.weight,
                          job.geometry, scratch.rows);
    result.sums = rules::iterate_sums(rows, r.rho);
    iterate = {result.iterate, scratch.rows.factors, job.rows.columns};
  }
  job.write = rules::with_rows(rules::rode_write(c, context.multiplier, r, result.sums), rows);
  job.sums.dd = 0;
  if (r.held) return;  // its weights are not even rounded
  write_back(team, job, job.geometry, job.write, iterate, false, context.step, scratch.partial);
}

}  // namespace rode::cpu
