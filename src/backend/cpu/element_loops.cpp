// SPDX-License-Identifier: Apache-2.0
// The loops of the element rules and of int8 state; each is compiled once per instruction set.
//
// Compiled without contraction to fused operations (CMakeLists.txt): a compiler contracts in the
// body of a loop and not in its remainder, and then an element's result depends on its place. A
// part of a tensor, such as one process of several has, must give the bits of the whole.
#include <cstddef>
#include <utility>

#include "backend/cpu/loops.h"
#include "backend/cpu/versions.h"

namespace rode::cpu {
namespace {

// Inlined into every version of its caller. The moments of an element are spelled out, not looped
// over, so that they are registers before the loop is vectorised.
template <class Rule, std::size_t... I>
[[gnu::always_inline]] inline void element_loop(const typename Rule::Coefficients& c,
                                                const float* w, const float* g,
                                                float* const* moments, float* out, std::int64_t n,
                                                std::index_sequence<I...>) {
  const typename Rule::Coefficients k = c;
  float* const arrays[] = {moments[I]...};
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    float own[] = {arrays[I][i]...};
    out[i] = Rule::element(k, w[i], g[i], own);
    ((arrays[I][i] = own[I]), ...);
  }
}

}  // namespace

// One overload per rule, not a template: a template cannot have versions.
#define RODE_DEFINE_RUN(Rule)                                                           \
  RODE_VERSIONS                                                                         \
  void run_elements(const rules::Rule::Coefficients& c, const float* w, const float* g, \
                    float* const* moments, float* out, std::int64_t n) {                \
    element_loop<rules::Rule>(c, w, g, moments, out, n,                                 \
                              std::make_index_sequence<rules::Rule::kMoments>());       \
  }
RODE_FOR_EACH_ELEMENT_RULE(RODE_DEFINE_RUN)
#undef RODE_DEFINE_RUN

namespace {

// A maximum of integers: exact in any order, so a compiler may make vectors of it.
[[gnu::always_inline]] inline rules::BlockScale scale_of(const float* x, std::int64_t n) {
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t own = rules::magnitude_bits(x[i]);
    most = own > most ? own : most;
  }
  return rules::block_scale(rules::magnitude(most));
}

}  // namespace

RODE_VERSIONS
void dequantize(const std::int8_t* q, float scale, float* out, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) out[i] = rules::int8_value(q[i], scale);
}

RODE_VERSIONS
float quantize(const float* x, std::int8_t* q, std::int64_t n) {
  const rules::BlockScale block = scale_of(x, n);
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) q[i] = rules::int8_nearest(x[i], block.inverse);
  return block.scale;
}

RODE_VERSIONS
float quantize_stochastic(const float* x, std::int8_t* q, std::int64_t n, std::uint64_t sequence,
                          std::int64_t index) {
  const rules::BlockScale block = scale_of(x, n);
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = rules::random_bits(
        sequence, static_cast<std::uint64_t>(index) + static_cast<std::uint64_t>(i));
    q[i] = rules::int8_stochastic(x[i], block.inverse, bits);
  }
  return block.scale;
}

}  // namespace rode::cpu
