// SPDX-License-Identifier: Apache-2.0
// Muon and MARS-M on one matrix.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/tiles.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cpu {
namespace {

double form(const MuonJob& job, const rules::MuonScalars& r, double start_scale, Team& team,
            float* x, double* partial) {
  const MuonCoefficients c{static_cast<float>(r.buffer_b), static_cast<float>(r.buffer_g),
                           static_cast<float>(r.buffer_p),
                           static_cast<float>(r.start_b * start_scale),
                           static_cast<float>(r.start_g * start_scale)};
  const bool mars = job.constants->mars;
  const std::int64_t chunks = chunk_count(job.geometry.numel());
  team.run(chunks, [&](std::int64_t chunk) {
    float g_tile[kTile], b_tile[kTile], p_tile[kTile];
    double sum = 0;
    for_tiles(job.geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      const float* g = read(job.grad, stored, n, g_tile);
      float* b = read(job.momentum, stored, n, b_tile);
      // Without a previous gradient its coefficient is 0 and any finite array will do.
      const float* p = mars ? read(job.previous, stored, n, p_tile) : b;
      sum += muon_form(c, b, g, p, b, x + tight, n);
      write(job.momentum, stored, n, b);
      if (mars) write(job.previous, stored, n, g);
    });
    partial[chunk] = sum;
  });
  double xx = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) xx += partial[chunk];
  return std::sqrt(xx);
}

}  // namespace

NsPlan plan(const MuonJob& job, bool batched) {
  const rules::MuonConstants& c = *job.constants;
  return plan_newton_schulz(job.geometry.rows, job.geometry.cols, c.ns_steps, c.coefficients,
                            c.ns_dtype, c.ns_form, batched, Reproject::final);
}

void measure_chunk(const MuonJob& job, std::int64_t chunk, double* out) {
  const bool mars = job.constants->mars;
  const bool constrained = job.constants->constraint != MuonConstraint::none;
  float p_tile[kTile], g_tile[kTile], b_tile[kTile];
  for_tiles(job.geometry, chunk, [&](std::int64_t, std::int64_t stored, std::int64_t n) {
    const float* b = read(job.momentum, stored, n, b_tile);
    const float* g = read(job.grad, stored, n, g_tile);
    if (mars) {
      add_products(read(job.previous, stored, n, p_tile), b, g, n, out);
    } else if (constrained) {
      add_products(read(job.weight, stored, n, p_tile), b, g, n, out);
    } else {
      out[3] += sum_of_squares(b, n);
      out[4] += dot(b, g, n);
      out[5] += sum_of_squares(g, n);
    }
  });
}

void update(MuonJob& job, const NsPlan& plan, Team& team, Scratch scratch,
            const StepContext& context) {
  const rules::MuonConstants& c = *job.constants;
  const rules::MuonScalars r = rules::muon_scalars(c, job.products);
  const double margin = 1 / rules::ns_margin(c.coefficients);
  float* x = scratch.floats;
  const double reached = form(job, r, margin, team, x, scratch.partial);

  NsResult kernel;
  const bool constrained = c.constraint != MuonConstraint::none;
  const Sphere sphere{&job.weight, job.geometry, 1.0};
  if (r.direction && reached > 0) {
    // Cancellation can leave the start longer than predicted; the iteration needs <= 1.
    if (reached > margin * (1 + 1e-6)) {
      const auto correction = static_cast<float>(margin / reached);
      team.run(chunk_count(job.geometry.numel()), [&](std::int64_t chunk) {
        const std::int64_t begin = chunk * kChunk;
        scale(x + begin, correction, std::min(kChunk, job.geometry.numel() - begin));
      });
    }
    kernel = newton_schulz(team, plan, nullptr, scratch.floats, scratch.partial);
  }
  double wo = 0, oo = 0;
  if (constrained && kernel.kernel != nullptr) {
    wo = inner_product(team, kernel.kernel, sphere, scratch.partial, &oo);
  }

  const std::int64_t chunks = chunk_count(job.geometry.numel());
  double* squares = scratch.partial + chunks;
  double ww = constrained ? job.products.pp : 0;  // measured in p's place
  const double radius = job.radius != nullptr ? static_cast<double>(*job.radius) : 0;
  job.held = constrained && !(radius > 0);
  const rules::MuonWrite out =
      rules::muon_write(c, context.multiplier, job.scale, ww, wo, oo, radius);

  const auto on_w = static_cast<float>(out.w);
  const auto on_x = kernel.kernel != nullptr ? static_cast<float>(out.x) : 0.0F;
  const std::uint64_t stream = step_stream(job.weight, context.step);
  team.run(chunks, [&](std::int64_t chunk) {
    float w_tile[kTile], fresh[kTile];
    double moved = 0, own = 0;
    for_tiles(job.geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      const float* w = read(job.weight, stored, n, w_tile);
      own += sum_of_squares(w, n);
      combine(fresh, on_w, w, on_x, kernel.kernel != nullptr ? kernel.kernel + tight : w, n);
      moved += write_weights(job.weight, stream, job.offset + stored, stored, n, w, fresh);
    });
    scratch.partial[chunk] = moved;
    squares[chunk] = own;
  });
  job.sums.dd = ww = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    job.sums.dd += scratch.partial[chunk];
    ww += squares[chunk];
  }
  job.sums.ww = ww;
}

}  // namespace rode::cpu
