// SPDX-License-Identifier: Apache-2.0
// Scales starts and writes weights back, slice by slice.
#include "backend/cpu/matrix_passes.h"

#include <algorithm>

#include "backend/cpu/kernels.h"
#include "backend/cpu/tiles.h"
#include "rules/rounding.h"
#include "rules/row_rule.h"

namespace rode::cpu {

void correct_start(Team& team, double correction, float* x, std::int64_t count) {
  if (correction == 1) return;
  const auto factor = static_cast<float>(correction);
  team.run(slice_count(count), [&](std::int64_t slice) {
    const std::int64_t begin = slice * kSlice;
    scale(x + begin, factor, std::min(kSlice, count - begin));
  });
}

namespace {

// Calls f(stored, n, mix) for the runs of a slice, where mix(w, out) forms their new weights.
template <class F>
void for_mixed(const Geometry& geometry, const rules::MatrixWrite& write,
               const WrittenIterate& iterate, std::int64_t slice, F&& f) {
  const auto on_w = static_cast<float>(write.w), on_x = static_cast<float>(write.x);
  const float* x = iterate.x;
  if (x == nullptr || iterate.factors == nullptr) {
    for_tiles(geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      f(stored, n, [&](const float* w, float* out) {
        combine(out, on_w, w, x == nullptr ? 0.0F : on_x, x == nullptr ? w : x + tight, n);
      });
    });
    return;
  }
  for_row_tiles(geometry, slice,
                [&](std::int64_t tight, std::int64_t stored, std::int64_t n, std::int64_t row,
                    std::int64_t col) {
                  f(stored, n, [&](const float* w, float* out) {
                    if (iterate.columns) {
                      combine_scaled(out, on_w, static_cast<float>(write.u), w, on_x, x + tight,
                                     iterate.factors + col, n);
                      return;
                    }
                    const auto factor = static_cast<double>(iterate.factors[row]);
                    const auto own = rules::row_write(write.w, write.u, write.x, factor);
                    combine(out, static_cast<float>(own.w), w, static_cast<float>(own.x), x + tight,
                            n);
                  });
                });
}

}  // namespace

void write_back(Team& team, JobBase& job, const Geometry& geometry, const rules::MatrixWrite& write,
                const WrittenIterate& iterate, bool measure, std::int64_t step, double* partial) {
  const std::uint64_t sequence = rules::step_sequence(job.weight.sequence, step);
  const std::int64_t slices = slice_count(geometry.numel());
  double* squares = partial + slices;
  team.run(slices, [&](std::int64_t slice) {
    float w_tile[kTile], fresh[kTile];
    double moved = 0, own = 0;
    for_mixed(
        geometry, write, iterate, slice, [&](std::int64_t stored, std::int64_t n, const auto& mix) {
          const float* w = read(job.weight, stored, n, w_tile);
          if (measure) own += sum_of_squares(w, n);
          mix(w, fresh);
          moved += write_weights(job.weight, sequence, job.offset + stored, stored, n, w, fresh);
        });
    partial[slice] = moved;
    squares[slice] = own;
  });
  double dd = 0, ww = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    dd += partial[slice];
    ww += squares[slice];
  }
  job.sums.dd = dd;
  if (measure) job.sums.ww = ww;
}

}  // namespace rode::cpu
