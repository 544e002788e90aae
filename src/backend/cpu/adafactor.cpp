// SPDX-License-Identifier: Apache-2.0
// Adafactor: factored second moments of the last two dimensions of a tensor.
//
// The update u is never stored: one pass sums its squares, the next computes it again and
// writes the weights. A tensor is cut in one of two ways, chosen by shape: many planes go
// whole to the tasks, few planes are cut into rows, columns and slices of their own.
#include <algorithm>
#include <cstdint>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/versions.h"
#include "rules/rounding.h"

namespace rode::cpu {
namespace {

// From this many planes on, whole planes are work enough for every thread.
constexpr std::int64_t kManyPlanes = 64;
// Columns that one task sums: their sums stay in L1 beside a tile of the gradient.
constexpr std::int64_t kColumns = 256;

// u = g * on_row / sqrt(col)
RODE_VERSIONS
void factored_run(const float* g, float on_row, const float* col, float* u, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) u[i] = rules::adafactor_factored(g[i], on_row, col[i]);
}

RODE_VERSIONS
void average_run(float decay, float rest, float eps, const float* g, float* v, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) v[i] = rules::adafactor_second(decay, rest, eps, g[i], v[i]);
}

RODE_VERSIONS
void add_squares(const float* g, double* sum, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const double wide = static_cast<double>(g[i]);
    sum[i] += wide * wide;
  }
}

struct Averager {
  double decay, eps;
  float operator()(float old, double sum, std::int64_t count) const {
    return rules::adafactor_mean(decay, eps, old, sum, count);
  }
};

// One plane (rows x cols) of the tensor; `first` is its first element.
struct Plane {
  const AdafactorJob* job;
  float *row, *col;
  std::int64_t first;
  Plane(const AdafactorJob& owner, std::int64_t index)
      : job(&owner),
        row(owner.row + index * owner.rows),
        col(owner.col + index * owner.cols),
        first(index * owner.rows * owner.cols) {}
};

void average_rows(const Plane& plane, std::int64_t begin, std::int64_t end, Averager average) {
  float g_tile[kTile];
  const std::int64_t cols = plane.job->cols;
  for (std::int64_t i = begin; i < end; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < cols; j += kTile) {
      const std::int64_t n = std::min(kTile, cols - j);
      sum += sum_of_squares(read(plane.job->grad, plane.first + i * cols + j, n, g_tile), n);
    }
    plane.row[i] = average(plane.row[i], sum, cols);
  }
}

void average_cols(const Plane& plane, std::int64_t begin, std::int64_t end, Averager average) {
  float g_tile[kColumns];
  const std::int64_t rows = plane.job->rows, cols = plane.job->cols;
  for (std::int64_t j = begin; j < end; j += kColumns) {
    const std::int64_t n = std::min(kColumns, end - j);
    double sum[kColumns];
    std::fill(sum, sum + n, 0.0);
    for (std::int64_t i = 0; i < rows; ++i) {
      add_squares(read(plane.job->grad, plane.first + i * cols + j, n, g_tile), sum, n);
    }
    for (std::int64_t l = 0; l < n; ++l) {
      plane.col[j + l] = average(plane.col[j + l], sum[l], rows);
    }
  }
}

double mean_row(const Plane& plane) {
  double sum = 0;
  for (std::int64_t i = 0; i < plane.job->rows; ++i) sum += static_cast<double>(plane.row[i]);
  return sum / static_cast<double>(plane.job->rows);
}

// (row / mean(row))^-1/2
float row_factor(const Plane& plane, std::int64_t i, double mean) {
  return rules::adafactor_on_row(plane.row[i], mean);
}

// Calls f(at, u, n) for the runs of elements begin .. end-1 of the plane.
template <class F>
void for_updates(const Plane& plane, double mean, std::int64_t begin, std::int64_t end, F&& f) {
  float g_tile[kTile], u[kTile];
  const std::int64_t cols = plane.job->cols;
  std::int64_t i = begin / cols, j = begin % cols;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t n = std::min({kTile, end - at, cols - j});
    const float on_row = row_factor(plane, i, mean);
    const float* g = read(plane.job->grad, plane.first + at, n, g_tile);
    factored_run(g, on_row, plane.col + j, u, n);
    f(plane.first + at, static_cast<const float*>(u), n);
    at += n;
    j += n;
    if (j == cols) {
      j = 0;
      ++i;
    }
  }
}

// The updates of `count` planes of at most kTile elements together, into `u`; `fresh`
// advances row and col first. Plain loops: calls a row of three elements cost more.
void small_planes(const AdafactorJob& job, std::int64_t index, std::int64_t count, bool fresh,
                  Averager average, float* u) {
  float g_tile[kTile];
  const std::int64_t rows = job.rows, cols = job.cols, size = rows * cols;
  const float* g = read(job.grad, index * size, count * size, g_tile);
  for (std::int64_t p = 0; p < count; ++p, g += size, u += size) {
    const Plane plane(job, index + p);
    const auto square = [&](std::int64_t at) {
      return static_cast<double>(g[at]) * static_cast<double>(g[at]);
    };
    for (std::int64_t i = 0; fresh && i < rows; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < cols; ++j) sum += square(i * cols + j);
      plane.row[i] = average(plane.row[i], sum, cols);
    }
    for (std::int64_t j = 0; fresh && j < cols; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < rows; ++i) sum += square(i * cols + j);
      plane.col[j] = average(plane.col[j], sum, rows);
    }
    const double mean = mean_row(plane);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float on_row = row_factor(plane, i, mean);
      for (std::int64_t j = 0; j < cols; ++j) {
        u[i * cols + j] = rules::adafactor_factored(g[i * cols + j], on_row, plane.col[j]);
      }
    }
  }
}

struct Pair {
  double first = 0, second = 0;
};

// What a pass does with the updates. Every task fills a copy of its own.
struct Squares {
  double sum = 0;
  void operator()(std::int64_t, const float* u, std::int64_t n) { sum += sum_of_squares(u, n); }
  Pair sums() const { return {sum, 0}; }
};

// W <- keep W - scale u, with the sums that the step reports.
struct Writer {
  const AdafactorJob* job;
  rules::AdafactorWrite coefficients;
  std::uint64_t sequence;
  Moved moved = {};

  void operator()(std::int64_t at, const float* u, std::int64_t n) {
    float w_tile[kTile], fresh[kTile];
    const float* w = read(job->weight, at, n, w_tile);
    combine(fresh, coefficients.keep, w, -coefficients.scale, u, n);
    moved += write_weights(job->weight, sequence, job->place() + at, at, n, w, fresh);
  }
  Pair sums() const { return {moved.ww, moved.dd}; }
};

// Runs f(task, sink) with a copy of `sink` each; adds the sums in the order of the tasks.
template <class Sink, class F>
void run_in_order(Team& team, std::int64_t tasks, double* partial, const Sink& sink, Pair& total,
                  F&& f) {
  team.run(tasks, [&](std::int64_t task) {
    Sink own = sink;
    f(task, own);
    partial[2 * task] = own.sums().first;
    partial[2 * task + 1] = own.sums().second;
  });
  for (std::int64_t task = 0; task < tasks; ++task) {
    total.first += partial[2 * task];
    total.second += partial[2 * task + 1];
  }
}

// Rank < 2: a whole second moment, u = g / sqrt(v).
template <class Sink>
Pair whole_pass(const AdafactorJob& job, Team& team, double* partial, bool fresh, Averager average,
                const Sink& sink) {
  const auto decay = static_cast<float>(average.decay),
             rest = static_cast<float>(1 - average.decay), eps = static_cast<float>(average.eps);
  Pair total;
  run_in_order(
      team, slice_count(job.cols), partial, sink, total, [&](std::int64_t slice, Sink& own) {
        float g_tile[kTile], v_tile[kTile], u[kTile];
        for_tiles(flat(job.cols), slice, [&](std::int64_t at, std::int64_t, std::int64_t n) {
          const float* g = read(job.grad, at, n, g_tile);
          float* v = read(job.exp_avg_sq, at, n, v_tile);
          if (fresh) {
            average_run(decay, rest, eps, g, v, n);
            write(job.exp_avg_sq, at, n, v);
            // As stored, like the pass that writes: the clipped RMS is that of the update.
            v = read(job.exp_avg_sq, at, n, v_tile);
          }
          factored_run(g, 1.0F, v, u, n);
          own(at, u, n);
        });
      });
  return total;
}

// Advances row and col of one large plane. They are independent: one round of tasks.
void average_shared(const AdafactorJob& job, Team& team, const Plane& plane, Averager average) {
  const std::int64_t height = std::max<std::int64_t>(1, kSlice / job.cols);
  const std::int64_t strips = (job.rows + height - 1) / height;
  const std::int64_t blocks = (job.cols + kColumns - 1) / kColumns;
  team.run(strips + blocks, [&](std::int64_t task) {
    if (task < strips) {
      average_rows(plane, task * height, std::min(job.rows, (task + 1) * height), average);
    } else {
      const std::int64_t begin = (task - strips) * kColumns;
      average_cols(plane, begin, std::min(job.cols, begin + kColumns), average);
    }
  });
}

// Rank >= 2: u = g (row / mean(row))^-1/2 col^-1/2, plane by plane.
template <class Sink>
Pair factored_pass(const AdafactorJob& job, Team& team, double* partial, bool fresh,
                   Averager average, const Sink& sink) {
  const std::int64_t size = job.rows * job.cols;
  Pair total;
  if (job.planes < kManyPlanes && size > kSlice) {
    for (std::int64_t i = 0; i < job.planes; ++i) {
      const Plane plane(job, i);
      if (fresh) average_shared(job, team, plane, average);
      const double mean = mean_row(plane);
      run_in_order(
          team, slice_count(size), partial, sink, total, [&](std::int64_t slice, Sink& own) {
            for_updates(plane, mean, slice * kSlice, std::min(size, (slice + 1) * kSlice), own);
          });
    }
    return total;
  }
  // A task takes the planes that begin within its slice.
  const auto plane_at = [&](std::int64_t element) {
    return std::min(job.planes, (element + size - 1) / size);
  };
  const std::int64_t together = kTile / size;
  run_in_order(team, slice_count(job.planes * size), partial, sink, total,
               [&](std::int64_t slice, Sink& own) {
                 const std::int64_t end = plane_at((slice + 1) * kSlice);
                 for (std::int64_t i = plane_at(slice * kSlice); i < end;) {
                   if (together > 0) {
                     float u[kTile];
                     const std::int64_t count = std::min(together, end - i);
                     small_planes(job, i, count, fresh, average, u);
                     own(i * size, u, count * size);
                     i += count;
                     continue;
                   }
                   const Plane plane(job, i++);
                   if (fresh) {
                     average_rows(plane, 0, job.rows, average);
                     average_cols(plane, 0, job.cols, average);
                   }
                   for_updates(plane, mean_row(plane), 0, size, own);
                 }
               });
  return total;
}

}  // namespace

// `partial` has room for 2 * slice_count(elements) doubles.
void update(AdafactorJob& job, Team& team, double* partial, const StepContext& context) {
  const rules::AdafactorConstants& c = *job.constants;
  const std::int64_t count = job.planes * job.rows * job.cols;
  const Averager average{rules::adafactor_decay(c, *job.step + 1), c.eps};
  const auto pass = [&](bool fresh, const auto& sink) {
    return job.row == nullptr ? whole_pass(job, team, partial, fresh, average, sink)
                              : factored_pass(job, team, partial, fresh, average, sink);
  };
  Pair sums;
  if (count > 0) {
    const double mean_square = pass(true, Squares{}).first / static_cast<double>(count);
    sums = pass(false, Writer{&job, rules::adafactor_write(c, context.multiplier, mean_square),
                              rules::step_sequence(job.weight.sequence, context.step)});
  }
  job.sums.ww = sums.first;
  job.sums.dd = sums.second;
  ++*job.step;
}

}  // namespace rode::cpu
