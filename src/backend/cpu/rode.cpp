// SPDX-License-Identifier: Apache-2.0
// RODE on one matrix: one pass measures, one forms buffer and start, Newton-Schulz runs
// in cache, one pass writes the weights.
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/tiles.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cpu {
namespace {

bool iterates(const RodeJob& job) {
  return job.constants->conditioner == Conditioner::newton_schulz &&
         job.constants->direction != Direction::fixed;
}

// B <- B' and X_0 at `x`. The predicted norm of the start comes from inner products; where
// the start is a small difference of large terms the prediction is off, so the norm that
// was really reached is returned for correction.
double form(const RodeJob& job, double start_scale, Team& team, float* x, double* partial) {
  const rules::RodeScalars& r = job.scalars;
  const FormCoefficients c{job.constants->momentum, r.buffer_w, r.start_b * start_scale,
                           r.start_g * start_scale, r.start_w * start_scale};
  const std::int64_t chunks = chunk_count(job.geometry.numel());
  team.run(chunks, [&](std::int64_t chunk) {
    float w_tile[kTile], g_tile[kTile], b_tile[kTile], x_tile[kTile];
    double sum = 0;
    for_tiles(job.geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      const float* w = read(job.weight, stored, n, w_tile);
      const float* g = read(job.grad, stored, n, g_tile);
      float* b = read(job.momentum, stored, n, b_tile);
      sum += rode_form(c, b, g, w, b, x == nullptr ? x_tile : x + tight, n);
      write(job.momentum, stored, n, b);
    });
    partial[chunk] = sum;
  });
  double xx = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) xx += partial[chunk];
  return std::sqrt(xx);
}

double write_back(const RodeJob& job, const float* x, Team& team, double* partial,
                  const StepContext& context) {
  const auto on_w = static_cast<float>(job.write.w), on_x = static_cast<float>(job.write.x);
  const std::uint64_t stream = step_stream(job.weight, context.step);
  const std::int64_t chunks = chunk_count(job.geometry.numel());
  team.run(chunks, [&](std::int64_t chunk) {
    float w_tile[kTile], fresh[kTile];
    double moved = 0;
    for_tiles(job.geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      const float* w = read(job.weight, stored, n, w_tile);
      combine(fresh, on_w, w, on_x, x == nullptr ? w : x + tight, n);
      moved += write_weights(job.weight, stream, job.offset + stored, stored, n, w, fresh);
    });
    partial[chunk] = moved;
  });
  double moved = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) moved += partial[chunk];
  return moved;
}

}  // namespace

NsPlan plan(const RodeJob& job, bool batched) {
  const rules::RodeConstants& c = *job.constants;
  return plan_newton_schulz(job.geometry.rows, job.geometry.cols, iterates(job) ? c.ns_steps : 0,
                            c.coefficients, c.ns_dtype, c.ns_form, batched, c.reproject);
}

void measure_chunk(const RodeJob& job, std::int64_t chunk, double* out) {
  float w_tile[kTile], g_tile[kTile], b_tile[kTile];
  for_tiles(job.geometry, chunk, [&](std::int64_t, std::int64_t stored, std::int64_t n) {
    add_products(read(job.weight, stored, n, w_tile), read(job.momentum, stored, n, b_tile),
                 read(job.grad, stored, n, g_tile), n, out);
  });
}

void update(RodeJob& job, const NsPlan& plan, Team& team, Scratch scratch,
            const StepContext& context) {
  const rules::RodeConstants& c = *job.constants;
  job.scalars = rules::rode_scalars(c, context.multiplier, job.products, job.state);
  const rules::RodeScalars& r = job.scalars;
  const bool conditioned = iterates(job);
  float* x = r.direction ? scratch.floats : nullptr;

  const double target = conditioned ? 1 / rules::ns_margin(c.coefficients) : 1.0;
  const double reached = form(job, target, team, x, scratch.partial);
  if (r.held) {
    job.write = {1, 0, 0, 0};
    job.sums.dd = 0;
    return;
  }

  NsResult kernel;
  if (r.direction && reached > 0) {
    const Sphere sphere{&job.weight, job.geometry, r.rho};
    // Beyond rounding the start was not of norm 1: put it there before it is iterated.
    if (std::abs(reached / target - 1) > 1e-6) {
      const auto correction = static_cast<float>(target / reached);
      team.run(chunk_count(job.geometry.numel()), [&](std::int64_t chunk) {
        const std::int64_t begin = chunk * kChunk;
        scale(x + begin, correction, std::min(kChunk, job.geometry.numel() - begin));
      });
    }
    if (conditioned) {
      kernel = newton_schulz(team, plan, &sphere, scratch.floats, scratch.partial);
    } else {
      // Q = X_0 exactly: already tangent, of norm 1.
      kernel = {x, 0, 1};
    }
  }
  job.write = rules::rode_write(c, context.multiplier, r, kernel.t, kernel.xx);
  job.sums.dd = write_back(job, kernel.kernel, team, scratch.partial, context);
}

}  // namespace rode::cpu
