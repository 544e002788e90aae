// SPDX-License-Identifier: Apache-2.0
// The element rules: one pass over every array of a parameter.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/loops.h"
#include "rules/rounding.h"

namespace rode::cpu {
namespace {

// Nothing has to be widened or rounded: a slice is one run over the arrays as they are stored.
bool all_fp32(const ElementJob& job, int moments) {
  bool all = job.weight.dtype == DType::f32 && job.grad.dtype == DType::f32;
  for (int i = 0; i < moments; ++i) all = all && job.state[i].dtype == DType::f32;
  return all;
}

}  // namespace

// Adds the slice's squares to `out`. `step` has not advanced yet: every slice of a parameter
// computes the same coefficients for gradient step + 1.
void update_slice(const ElementJob& job, std::int64_t slice, const StepContext& context,
                  Moved& out) {
  const std::int64_t t = job.step != nullptr ? *job.step + 1 : 0;
  const std::uint64_t sequence = rules::step_sequence(job.weight.sequence, context.step);

  const StateDraws draws = state_draws(job, context.step);
  const int quantized = job.state[0].dtype == DType::i8 ? 1 : 0;  // moments; only the first may be

  const auto pass = [&]<class Rule>(const rules::ElementConstants<Rule>& constants) {
    const auto c = Rule::coefficients(*constants.values, context.multiplier, t);
    if (all_fp32(job, Rule::kMoments)) {
      const std::int64_t begin = slice * kSlice;
      float* state[Rule::kMoments];
      for (int i = 0; i < Rule::kMoments; ++i) {
        state[i] = static_cast<float*>(job.state[i].data) + begin;
      }
      out += move_elements(c, static_cast<float*>(job.weight.data) + begin,
                           static_cast<const float*>(job.grad.data) + begin, state,
                           std::min(kSlice, job.geometry.numel() - begin));
      return;
    }
    for_state_tiles(job.state[0], job.geometry, slice, [&](const StateTile& tile) {
      const std::int64_t at = tile.tight, n = tile.n;
      float w_tile[kTile], g_tile[kTile], fresh[kTile], state_tile[Rule::kMoments][kTile];
      float* state[Rule::kMoments];
      const float* w = read(job.weight, at, n, w_tile);
      const float* g = read(job.grad, at, n, g_tile);
      for (int i = quantized; i < Rule::kMoments; ++i) {
        state[i] = read(job.state[i], tile, state_tile[i]);
      }
      if constexpr (Rule::kQuantizesFirst) {
        if (quantized == 1) {
          const Moments& first = job.state[0];
          const auto* q = static_cast<const std::int8_t*>(first.data) + tile.stored;
          state[0] = state_tile[0];
          const std::int32_t most =
              run_quantized(c, w, g, q, first.scales[tile.scale], state, fresh, n);
          write_block(first, tile, state[0], most, draws);
        }
      }
      if (quantized == 0) run_elements(c, w, g, state, fresh, n);
      for (int i = quantized; i < Rule::kMoments; ++i) write(job.state[i], tile, state[i], draws);
      out += write_weights(job.weight, sequence, job.place() + at, at, n, w, fresh);
    });
  };
  std::visit(pass, job.constants);
}

}  // namespace rode::cpu
