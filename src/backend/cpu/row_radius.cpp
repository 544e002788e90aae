// SPDX-License-Identifier: Apache-2.0
// RODE with a radius per row, and Muown: products of every row, momentum and start with
// coefficients per row, Newton-Schulz, sums of every row, and a write-back with coefficients per
// row.
#include "backend/cpu/row_radius.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/rows.h"
#include "rules/matrix_step.h"
#include "rules/rounding.h"
#include "rules/row_radius_rule.h"

namespace rode::cpu {
namespace {

// Coefficients of a run: of its row, or one after the other where the fan-out's rows are columns.
// Plain loops: a step is mostly Newton-Schulz.
double form_run(const rules::RowForm* c, bool apart, const float* b, const float* g, const float* w,
                float* b_out, float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const rules::RowForm& own = c[apart ? i : 0];
    const double gradient = static_cast<double>(g[i]), weight = static_cast<double>(w[i]);
    const double next = rules::row_buffer(own, static_cast<double>(b[i]), gradient, weight);
    x[i] = static_cast<float>(rules::row_start(own, next, gradient, weight));
    b_out[i] = static_cast<float>(next);
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

void mix_run(const rules::RowWrite<double>* c, bool apart, const float* w, const float* x,
             float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const rules::RowWrite<double>& own = c[apart ? i : 0];
    out[i] = static_cast<float>(own.w) * w[i] + static_cast<float>(own.x) * x[i];
  }
}

// Calls f(tile, row, col) for the runs of a slice, each within one row of the stored matrix.
template <class F>
void for_state_rows(const Moments& moments, const Geometry& geometry, std::int64_t slice, F&& f) {
  if (moments.dtype == DType::i8) {
    for_state_tiles(moments, geometry, slice, [&](const StateTile& tile) {
      f(tile, tile.tight / geometry.cols, tile.tight % geometry.cols);
    });
    return;
  }
  for_row_tiles(geometry, slice,
                [&](std::int64_t tight, std::int64_t stored, std::int64_t n, std::int64_t row,
                    std::int64_t col) { f(StateTile{tight, stored, n, 0}, row, col); });
}

// A job with what its rows need; `work` has one entry per row of the fan-out.
template <class Job>
struct RowStep {
  Job& job;
  Team& team;
  const Scratch& scratch;
  std::int64_t step;

  const Geometry& geometry() const { return job.geometry; }
  bool columns() const { return job.rows.columns; }
  std::int64_t count() const { return rules::row_count(job.geometry, columns()); }
  RowWork* work() const { return scratch.rows.work; }

  StateTile tile(std::int64_t i, std::int64_t j, std::int64_t n) const {
    const Geometry& g = job.geometry;
    return {i * g.cols + j, i * g.stride + j, n, i * job.momentum.scale_stride + j / kTile};
  }

  // The six products of every row.
  void measure() {
    if (columns()) {
      measure_columns();
    } else {
      measure_rows();
    }
  }

  // Momentum and start; returns ||X_0||.
  double form(float* x) {
    const StateDraws draws = state_draws(job, step);
    const std::int64_t slices = slice_count(geometry().numel());
    double* partial = scratch.partial;
    team.run(slices, [&](std::int64_t slice) {
      float w_tile[kTile], g_tile[kTile], b_tile[kTile], x_tile[kTile];
      double sum = 0;
      for_state_rows(job.momentum, geometry(), slice,
                     [&](const StateTile& at, std::int64_t row, std::int64_t col) {
                       const float* w = read(job.weight, at.stored, at.n, w_tile);
                       const float* g = read(job.grad, at.stored, at.n, g_tile);
                       float* b = read(job.momentum, at, b_tile);
                       rules::RowForm own[kTile];
                       const std::int64_t first = columns() ? col : row;
                       const std::int64_t forms = columns() ? at.n : 1;
                       for (std::int64_t k = 0; k < forms; ++k) own[k] = work()[first + k].form;
                       sum += form_run(own, columns(), b, g, w, b,
                                       x == nullptr ? x_tile : x + at.tight, at.n);
                       write(job.momentum, at, b, draws);
                     });
      partial[slice] = sum;
    });
    double xx = 0;
    for (std::int64_t slice = 0; slice < slices; ++slice) xx += partial[slice];
    return std::sqrt(xx);
  }

  // W'_i = w W_i + x X_i. Sets the job's dd, and its ww unless that is measured.
  void write_weights_of(const float* x) {
    const std::uint64_t sequence = rules::step_sequence(job.weight.sequence, step);
    const std::int64_t slices = slice_count(geometry().numel());
    double *moves = scratch.partial, *squares = scratch.partial + slices;
    team.run(slices, [&](std::int64_t slice) {
      float w_tile[kTile], fresh[kTile];
      Moved moved;
      for_row_tiles(geometry(), slice,
                    [&](std::int64_t tight, std::int64_t stored, std::int64_t n, std::int64_t row,
                        std::int64_t col) {
                      const float* w = read(job.weight, stored, n, w_tile);
                      rules::RowWrite<double> own[kTile];
                      const std::int64_t first = columns() ? col : row;
                      const std::int64_t writes = columns() ? n : 1;
                      for (std::int64_t k = 0; k < writes; ++k) own[k] = work()[first + k].write;
                      mix_run(own, columns(), w, x == nullptr ? w : x + tight, fresh, n);
                      moved += write_weights(job.weight, sequence, job.place() + stored, stored, n,
                                             w, fresh);
                    });
      moves[slice] = moved.dd;
      squares[slice] = moved.ww;
    });
    double dd = 0, ww = 0;
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      dd += moves[slice];
      ww += squares[slice];
    }
    job.sums.dd = dd;
    if (!reports_measured_norm(job)) job.sums.ww = ww;
  }

  // The iterate after Newton-Schulz, its rows summed; null where the start does not move.
  float* iterate(const NsPlan& plan, bool direction, bool iterates, double target, double reached,
                 rules::StartNorm wanted, float* x) {
    if (!rules::start_moves(direction, reached)) return nullptr;
    correct_start(team, rules::start_correction(wanted, target, reached), x, geometry().numel());
    float* last =
        iterates ? newton_schulz(team, plan, nullptr, scratch.floats, scratch.partial).iterate : x;
    sum_iterate(team, last, job.weight, geometry(), columns(), true, scratch.rows.sums);
    return last;
  }

 private:
  void measure_rows() {
    const Geometry& g = geometry();
    const std::int64_t height = std::max<std::int64_t>(1, kSlice / g.cols);
    team.run((g.rows + height - 1) / height, [&](std::int64_t task) {
      float w_tile[kTile], g_tile[kTile], b_tile[kTile];
      const std::int64_t end = std::min(g.rows, (task + 1) * height);
      for (std::int64_t i = task * height; i < end; ++i) {
        rules::MatrixProducts sum;
        for (std::int64_t j = 0; j < g.cols; j += kTile) {
          const StateTile at = tile(i, j, std::min(kTile, g.cols - j));
          add_products(read(job.weight, at.stored, at.n, w_tile), read(job.momentum, at, b_tile),
                       read(job.grad, at.stored, at.n, g_tile), at.n, sum);
        }
        work()[i].products = sum;
      }
    });
  }

  void measure_columns() {
    const Geometry& g = geometry();
    team.run((g.cols + kTile - 1) / kTile, [&](std::int64_t task) {
      const std::int64_t first = task * kTile, n = std::min(kTile, g.cols - first);
      float w_tile[kTile], g_tile[kTile], b_tile[kTile];
      double tt[kTile] = {}, bt[kTile] = {}, gt[kTile] = {}, bb[kTile] = {}, bg[kTile] = {},
             gg[kTile] = {};
      for (std::int64_t i = 0; i < g.rows; ++i) {
        const StateTile at = tile(i, first, n);
        const float* w = read(job.weight, at.stored, n, w_tile);
        const float* grad = read(job.grad, at.stored, n, g_tile);
        const float* b = read(job.momentum, at, b_tile);
        add_products_apart(w, w, tt, n);
        add_products_apart(b, w, bt, n);
        add_products_apart(grad, w, gt, n);
        add_products_apart(b, b, bb, n);
        add_products_apart(b, grad, bg, n);
        add_products_apart(grad, grad, gg, n);
      }
      for (std::int64_t j = 0; j < n; ++j) {
        work()[first + j].products = {tt[j], bt[j], gt[j], bb[j], bg[j], gg[j]};
      }
    });
  }
};

// The factors F of normalize = rows.
void normalize(const RodeJob& job, std::int64_t count, const RowScratch& scratch) {
  const auto length = static_cast<double>(rules::row_length(job.geometry, job.rows.columns));
  rules::RowTotals totals;
  for (std::int64_t i = 0; i < count; ++i) {
    const rules::RowSums& sums = scratch.sums[i];
    scratch.factors[i] =
        rules::advance_row(job.constants->row_beta, sums, rules::row_tangent_factor(sums), length,
                           job.rows.avg_sq[i], totals);
  }
  const double scale = rules::row_scale(totals);
  for (std::int64_t i = 0; i < count; ++i) {
    scratch.factors[i] = rules::normalized_factor(scale, scratch.factors[i]);
  }
}

}  // namespace

void update_rows(RodeJob& job, const NsPlan& plan, Team& team, const Scratch& scratch,
                 const StepContext& context) {
  const rules::RodeConstants& c = *job.constants;
  RowStep<RodeJob> rows{job, team, scratch, context.step};
  const std::int64_t count = rows.count();
  RowWork* work = rows.work();
  rows.measure();
  rules::RodeRowTotals totals;
  for (std::int64_t i = 0; i < count; ++i) {
    work[i].tangent = rules::rode_tangent(c, work[i].products);
    rules::add_row(totals, work[i].tangent);
  }
  rules::RodeScalars& whole = job.scalars;
  whole = rules::rode_row_scalars(c, job.products, totals, job.state.snr_norm);

  const double t = rules::rode_row_step(c, whole, job.state.step);
  double next_squared = 0;
  const double target = rules::start_target(c.coefficients, rules::iterates(c));
  for (std::int64_t i = 0; i < count; ++i) {
    const rules::RodeTangent& row = work[i].tangent;
    work[i].next = rules::rode_row_radius(c, context.multiplier, whole, job.target, row, t,
                                          rules::row_state(job.state, i));
    next_squared += work[i].next * work[i].next;
    work[i].form = rules::rode_row_form(c, whole, row, target);
  }
  if (!whole.held) whole.rho_next = std::sqrt(next_squared);

  float* x = whole.direction ? scratch.floats : nullptr;
  const double reached = rows.form(x);
  const float* iterate = rows.iterate(plan, whole.direction, rules::iterates(c), target, reached,
                                      rules::start_norm(c), x);
  job.write = {};
  job.sums.dd = 0;
  if (!rules::writes_weights(true, whole.held)) return;
  const bool normalizes = job.rows.avg_sq != nullptr && iterate != nullptr;
  if (normalizes) normalize(job, count, scratch.rows);
  double qq = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const rules::RowSums sums = iterate == nullptr ? rules::RowSums{} : scratch.rows.sums[i];
    const double f = normalizes ? static_cast<double>(scratch.rows.factors[i]) : 1;
    work[i].write = rules::rode_row_write(c, context.multiplier, job.scale, whole, work[i].tangent,
                                          work[i].next, sums, f, qq);
  }
  job.write = rules::rode_rows_written(c, context.multiplier, job.scale, whole, qq, count);
  rows.write_weights_of(iterate);
}

void update_rows(MuonJob& job, const NsPlan& plan, Team& team, const Scratch& scratch,
                 const StepContext& context) {
  const rules::MuonConstants& c = *job.constants;
  RowStep<MuonJob> rows{job, team, scratch, context.step};
  const std::int64_t count = rows.count();
  RowWork* work = rows.work();
  rows.measure();
  const auto t = static_cast<double>(++*job.own.step);
  double start = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    work[i].muown = rules::muown_row(c, context.multiplier, t, work[i].products, job.own, i);
    start += work[i].muown.start;
  }
  const double target = rules::start_target(c.coefficients, rules::iterates(c));
  const double divisor = rules::muown_divisor(c, start, target);
  for (std::int64_t i = 0; i < count; ++i) {
    work[i].form = rules::muown_row_form(c, work[i].muown, divisor);
  }
  const bool direction = divisor > 0;
  float* x = direction ? scratch.floats : nullptr;
  const double reached = rows.form(x);
  const float* iterate =
      rows.iterate(plan, direction, rules::iterates(c), target, reached, rules::start_norm(c), x);
  for (std::int64_t i = 0; i < count; ++i) {
    const rules::RowSums sums = iterate == nullptr ? rules::RowSums{} : scratch.rows.sums[i];
    work[i].write = rules::muown_row_write(c, context.multiplier, job.scale, work[i].muown,
                                           work[i].products.tt, sums, job.own, i);
  }
  job.held = false;
  rows.write_weights_of(iterate);
}

}  // namespace rode::cpu
