// SPDX-License-Identifier: Apache-2.0
// AdamW, AdEMAMix and SGD: one pass over every array of a parameter.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/tiles.h"

namespace rode::cpu {
namespace {

template <class... F>
struct Overload : F... {
  using F::operator()...;
};
// clang 16 does not deduce aggregates by itself.
template <class... F>
Overload(F...) -> Overload<F...>;

}  // namespace

// Adds ||w||^2 and ||w' - w||^2 of the chunk to out[0], out[1]. `step` has not advanced
// yet: every chunk of a parameter computes the same coefficients for gradient step + 1.
void update_chunk(const ElementJob& job, std::int64_t chunk, const StepContext& context,
                  double* out) {
  const std::int64_t t = job.step != nullptr ? *job.step + 1 : 0;
  const std::uint64_t stream = step_stream(job.weight, context.step);

  const auto pass = [&](int moments, auto&& rule) {
    for_tiles(flat(job.count), chunk, [&](std::int64_t at, std::int64_t, std::int64_t n) {
      float w_tile[kTile], g_tile[kTile], fresh[kTile], state_tile[3][kTile];
      float* state[3] = {};
      const float* w = read(job.weight, at, n, w_tile);
      const float* g = read(job.grad, at, n, g_tile);
      for (int i = 0; i < moments; ++i) state[i] = read(job.state[i], at, n, state_tile[i]);
      rule(w, g, state, fresh, n);
      for (int i = 0; i < moments; ++i) write(job.state[i], at, n, state[i]);
      out[0] += sum_of_squares(w, n);
      out[1] += write_weights(job.weight, stream, job.offset + at, at, n, w, fresh);
    });
  };

  std::visit(Overload{
                 [&](const rules::AdamWConstants* c) {
                   const auto k = rules::adamw_coefficients(*c, context.multiplier, t);
                   pass(2, [&](const float* w, const float* g, float** s, float* fresh,
                               std::int64_t n) { adamw_run(k, w, g, s[0], s[1], fresh, n); });
                 },
                 [&](const rules::AdEMAMixConstants* c) {
                   const auto k = rules::ademamix_coefficients(*c, context.multiplier, t);
                   pass(3,
                        [&](const float* w, const float* g, float** s, float* fresh,
                            std::int64_t n) { ademamix_run(k, w, g, s[0], s[1], s[2], fresh, n); });
                 },
                 [&](const rules::SgdConstants* c) {
                   const auto k = rules::sgd_coefficients(*c, context.multiplier);
                   pass(1, [&](const float* w, const float* g, float** s, float* fresh,
                               std::int64_t n) { sgd_run(k, w, g, s[0], fresh, n); });
                 },
             },
             job.constants);
}

}  // namespace rode::cpu
