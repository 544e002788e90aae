// SPDX-License-Identifier: Apache-2.0
// Scales starts and writes weights back, chunk by chunk.
#include "backend/cpu/matrix_passes.h"

#include <algorithm>

#include "backend/cpu/kernels.h"
#include "backend/cpu/tiles.h"
#include "rules/rounding.h"

namespace rode::cpu {

void correct_start(Team& team, double correction, float* x, std::int64_t count) {
  if (correction == 1) return;
  const auto factor = static_cast<float>(correction);
  team.run(chunk_count(count), [&](std::int64_t chunk) {
    const std::int64_t begin = chunk * kChunk;
    scale(x + begin, factor, std::min(kChunk, count - begin));
  });
}

void write_back(Team& team, JobBase& job, const Geometry& geometry, const rules::MatrixWrite& write,
                const float* x, bool measure, std::int64_t step, double* partial) {
  const auto on_w = static_cast<float>(write.w), on_x = static_cast<float>(write.x);
  const std::uint64_t sequence = rules::step_sequence(job.weight.sequence, step);
  const std::int64_t chunks = chunk_count(geometry.numel());
  double* squares = partial + chunks;
  team.run(chunks, [&](std::int64_t chunk) {
    float w_tile[kTile], fresh[kTile];
    double moved = 0, own = 0;
    for_tiles(geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      const float* w = read(job.weight, stored, n, w_tile);
      if (measure) own += sum_of_squares(w, n);
      combine(fresh, on_w, w, x == nullptr ? 0.0F : on_x, x == nullptr ? w : x + tight, n);
      moved += write_weights(job.weight, sequence, job.offset + stored, stored, n, w, fresh);
    });
    partial[chunk] = moved;
    squares[chunk] = own;
  });
  double dd = 0, ww = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    dd += partial[chunk];
    ww += squares[chunk];
  }
  job.sums.dd = dd;
  if (measure) job.sums.ww = ww;
}

}  // namespace rode::cpu
