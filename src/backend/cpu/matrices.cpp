// SPDX-License-Identifier: Apache-2.0
// RODE, Muon and MARS-M on one matrix: one pass measures, one forms momentum and start,
// Newton-Schulz runs in cache, one pass writes the weights.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/row_radius.h"
#include "rules/matrix_step.h"
#include "rules/rounding.h"
#include "rules/row_rule.h"

namespace rode::cpu {
namespace {

// The iterate that is written: X without gaps, null where there is none, and the factors of its
// rows, null where rows are not normalised.
struct WrittenIterate {
  const float* x = nullptr;
  const float* factors = nullptr;
  bool columns = false;  // the factors are those of columns
};

rules::KnownIterate known(const NsResult& result, const WrittenIterate& written,
                          const rules::NormalizedRows& rows) {
  return {result.iterate != nullptr, result.sums, written.factors != nullptr ? &rows : nullptr};
}

// Calls f(stored, n, mix) for the runs of a slice, where mix(w, out) forms their new weights.
template <class F>
void for_mixed(const Geometry& geometry, const rules::MatrixWrite& write,
               const WrittenIterate& iterate, std::int64_t slice, F&& f) {
  const auto on_w = static_cast<float>(write.w), on_x = static_cast<float>(write.x);
  const float* x = iterate.x;
  const auto sum = write.cautious ? combine_cautious : combine;
  if (x == nullptr || iterate.factors == nullptr) {
    for_tiles(geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      f(stored, n, [&](const float* w, float* out) {
        sum(out, on_w, w, x == nullptr ? 0.0F : on_x, x == nullptr ? w : x + tight, n);
      });
    });
    return;
  }
  for_row_tiles(geometry, slice,
                [&](std::int64_t tight, std::int64_t stored, std::int64_t n, std::int64_t row,
                    std::int64_t col) {
                  f(stored, n, [&](const float* w, float* out) {
                    if (iterate.columns && write.cautious) {
                      combine_scaled_cautious(out, on_w, w, on_x, x + tight, iterate.factors + col,
                                              n);
                      return;
                    }
                    if (iterate.columns) {
                      combine_scaled(out, on_w, static_cast<float>(write.u), w, on_x, x + tight,
                                     iterate.factors + col, n);
                      return;
                    }
                    const auto factor = static_cast<double>(iterate.factors[row]);
                    const auto own = rules::row_write(write.w, write.u, write.x, factor);
                    sum(out, static_cast<float>(own.w), w, static_cast<float>(own.x), x + tight, n);
                  });
                });
}

// W' = w W + x X, or with factors W' = w W + F (x X + u W); without an iterate W' = w W. Sets the
// job's dd, and its ww unless that is `measured`. `partial` has room for 2 * slice_count(elements)
// doubles.
void write_back(Team& team, JobBase& job, const Geometry& geometry, const rules::MatrixWrite& write,
                const WrittenIterate& iterate, bool measured, std::int64_t step, double* partial) {
  const std::uint64_t sequence = rules::step_sequence(job.weight.sequence, step);
  const std::int64_t slices = slice_count(geometry.numel());
  double* squares = partial + slices;
  team.run(slices, [&](std::int64_t slice) {
    float w_tile[kTile], fresh[kTile];
    Moved moved;
    for_mixed(
        geometry, write, iterate, slice, [&](std::int64_t stored, std::int64_t n, const auto& mix) {
          const float* w = read(job.weight, stored, n, w_tile);
          mix(w, fresh);
          moved += write_weights(job.weight, sequence, job.place() + stored, stored, n, w, fresh);
        });
    partial[slice] = moved.dd;
    squares[slice] = moved.ww;
  });
  double dd = 0, ww = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    dd += partial[slice];
    ww += squares[slice];
  }
  job.sums.dd = dd;
  if (!measured) job.sums.ww = ww;
}

// The write of a step that is made in phases comes later: keeps what it needs.
void hold(Team& team, const Geometry& geometry, const rules::MatrixWrite& write,
          const WrittenIterate& iterate, bool measured, HeldWrite& held) {
  held.write = write;
  held.writes = true;
  held.measured = measured;
  held.iterate = iterate.x != nullptr;
  held.scaled = held.iterate && iterate.factors != nullptr;
  held.columns = iterate.columns;
  if (!held.iterate) return;
  const std::int64_t count = geometry.numel();
  team.run(slice_count(count), [&](std::int64_t slice) {
    const std::int64_t begin = slice * kSlice;
    std::copy_n(iterate.x + begin, std::min(kSlice, count - begin), held.x + begin);
  });
  if (!held.scaled) return;
  std::copy_n(iterate.factors, rules::row_count(geometry, iterate.columns), held.factors);
}

template <class Job>
void end_update(Team& team, Job& job, const rules::MatrixWrite& write,
                const WrittenIterate& iterate, std::int64_t step, Scratch scratch) {
  const bool measured = reports_measured_norm(job);
  if (scratch.held != nullptr) {
    hold(team, job.geometry, write, iterate, measured, *scratch.held);
  } else {
    write_back(team, job, job.geometry, write, iterate, measured, step, scratch.partial);
  }
}

// B <- B' and X_0 at `x`. The predicted norm of the start comes from inner products; where
// the start is a small difference of large terms the prediction is off, so the norm that
// was really reached is returned for correction.
double form(const RodeJob& job, double target, std::int64_t step, Team& team, float* x,
            double* partial) {
  const rules::RodeScalars& r = job.scalars;
  const FormCoefficients c{job.constants->momentum, r.buffer_w, r.start_b * target,
                           r.start_g * target, r.start_w * target};
  const StateDraws draws = state_draws(job, step);
  const std::int64_t slices = slice_count(job.geometry.numel());
  team.run(slices, [&](std::int64_t slice) {
    float w_tile[kTile], g_tile[kTile], b_tile[kTile], x_tile[kTile];
    double sum = 0;
    for_state_tiles(job.momentum, job.geometry, slice, [&](const StateTile& tile) {
      const float* w = read(job.weight, tile.stored, tile.n, w_tile);
      const float* g = read(job.grad, tile.stored, tile.n, g_tile);
      float* b = read(job.momentum, tile, b_tile);
      sum += rode_form(c, b, g, w, b, x == nullptr ? x_tile : x + tile.tight, tile.n);
      write(job.momentum, tile, b, draws);
    });
    partial[slice] = sum;
  });
  double xx = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) xx += partial[slice];
  return std::sqrt(xx);
}

double form(const MuonJob& job, const rules::MuonScalars& r, double target, std::int64_t step,
            Team& team, float* x, double* partial) {
  const MuonCoefficients c{static_cast<float>(r.buffer_b), static_cast<float>(r.buffer_g),
                           static_cast<float>(r.buffer_p), static_cast<float>(r.start_b * target),
                           static_cast<float>(r.start_g * target)};
  const StateDraws draws = state_draws(job, step);
  const bool mars = job.constants->mars;
  const std::int64_t slices = slice_count(job.geometry.numel());
  team.run(slices, [&](std::int64_t slice) {
    float g_tile[kTile], b_tile[kTile], p_tile[kTile];
    double sum = 0;
    for_state_tiles(job.momentum, job.geometry, slice, [&](const StateTile& tile) {
      const float* g = read(job.grad, tile.stored, tile.n, g_tile);
      float* b = read(job.momentum, tile, b_tile);
      // Without a previous gradient its coefficient is 0 and any finite array will do.
      const float* p = mars ? read(job.previous, tile.stored, tile.n, p_tile) : b;
      sum += muon_form(c, b, g, p, b, x + tile.tight, tile.n);
      write(job.momentum, tile, b, draws);
      if (mars) write(job.previous, tile.stored, tile.n, g);
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
  return plan_newton_schulz(job.geometry.rows, job.geometry.cols, rules::iterations(c),
                            c.coefficients, c.ns_dtype, c.ns_form, batched, c.reproject);
}

void measure_slice(const RodeJob& job, std::int64_t slice, rules::MatrixProducts& out) {
  float w_tile[kTile], g_tile[kTile], b_tile[kTile];
  for_state_tiles(job.momentum, job.geometry, slice, [&](const StateTile& tile) {
    add_products(read(job.weight, tile.stored, tile.n, w_tile), read(job.momentum, tile, b_tile),
                 read(job.grad, tile.stored, tile.n, g_tile), tile.n, out);
  });
}

void update(RodeJob& job, const NsPlan& plan, Team& team, Scratch scratch,
            const StepContext& context) {
  if (has_row_radius(job)) {
    update_rows(job, plan, team, scratch, context);
    return;
  }
  const rules::RodeConstants& c = *job.constants;
  job.scalars = rules::rode_scalars(c, context.multiplier, job.target, job.products, job.state);
  const rules::RodeScalars& r = job.scalars;
  const bool iterates = rules::iterates(c);
  float* x = r.direction ? scratch.floats : nullptr;

  const double target = rules::start_target(c.coefficients, iterates);
  const double reached = form(job, target, context.step, team, x, scratch.partial);

  NsResult result;
  if (rules::start_moves(r.direction, reached)) {
    correct_start(team, rules::start_correction(rules::start_norm(c), target, reached), x,
                  job.geometry.numel());
    result.iterate = x;
    if (iterates) {
      const Sphere sphere{&job.weight, job.geometry, rules::direction_norm(r)};
      const bool summed = rules::sphere_plan(c, job.rows.avg_sq != nullptr).summed;
      result = newton_schulz(team, plan, &sphere, scratch.floats, scratch.partial, summed);
    }
  }
  WrittenIterate iterate{result.iterate};
  rules::NormalizedRows rows;
  if (job.rows.avg_sq != nullptr && result.iterate != nullptr) {
    rows = normalize_rows(team, job.rows, rules::row_plan(c, r.starts), result.iterate, job.weight,
                          job.geometry, scratch.rows);
    iterate = {result.iterate, scratch.rows.factors, job.rows.columns};
  }
  job.write = rules::write_back(c, context.multiplier, job.scale, r, known(result, iterate, rows));
  job.sums.dd = 0;
  if (!rules::writes_weights(true, r.held)) return;
  end_update(team, job, job.write, iterate, context.step, scratch);
}

NsPlan plan(const MuonJob& job, bool batched) {
  const rules::MuonConstants& c = *job.constants;
  return plan_newton_schulz(job.geometry.rows, job.geometry.cols, rules::iterations(c),
                            c.coefficients, c.ns_dtype, c.ns_form, batched, Reproject::final);
}

void measure_slice(const MuonJob& job, std::int64_t slice, rules::MatrixProducts& out) {
  const rules::Third third = rules::third_of(*job.constants);
  float t_tile[kTile], g_tile[kTile], b_tile[kTile];
  for_state_tiles(job.momentum, job.geometry, slice, [&](const StateTile& tile) {
    const std::int64_t stored = tile.stored, n = tile.n;
    const float* b = read(job.momentum, tile, b_tile);
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
  if (has_row_radius(job)) {
    update_rows(job, plan, team, scratch, context);
    return;
  }
  const rules::MuonConstants& c = *job.constants;
  const rules::MuonScalars r = rules::muon_scalars(c, job.products);
  const double target = rules::start_target(c.coefficients, rules::iterates(c));
  float* x = scratch.floats;
  const double reached = form(job, r, target, context.step, team, x, scratch.partial);

  NsResult result;
  if (rules::start_moves(r.direction, reached)) {
    correct_start(team, rules::start_correction(rules::start_norm(c), target, reached), x,
                  job.geometry.numel());
    const Sphere sphere{&job.weight, job.geometry, 1.0};
    const bool summed = rules::sphere_plan(c, job.rows.avg_sq != nullptr).summed;
    result = newton_schulz(team, plan, &sphere, scratch.floats, scratch.partial, summed);
  }
  WrittenIterate iterate{result.iterate};
  rules::NormalizedRows rows;
  if (job.rows.avg_sq != nullptr && result.iterate != nullptr) {
    rows = normalize_rows(team, job.rows, rules::row_plan(c), result.iterate, job.weight,
                          job.geometry, scratch.rows);
    iterate = {result.iterate, scratch.rows.factors, job.rows.columns};
  }

  const double radius = rules::stored_radius(job.radius);
  job.held = rules::muon_held(c, radius);
  const rules::MatrixWrite write = rules::write_back(
      c, context.multiplier, job.scale, job.products.tt, radius, known(result, iterate, rows));
  end_update(team, job, write, iterate, context.step, scratch);
}

void write_held(JobBase& job, const Geometry& geometry, const HeldWrite& held, Team& team,
                double* partial, const StepContext& context) {
  if (!held.writes) return;
  const WrittenIterate iterate{held.iterate ? held.x : nullptr,
                               held.scaled ? held.factors : nullptr, held.columns};
  write_back(team, job, geometry, held.write, iterate, held.measured, context.step, partial);
}

}  // namespace rode::cpu
