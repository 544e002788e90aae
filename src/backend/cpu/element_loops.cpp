// SPDX-License-Identifier: Apache-2.0
// The loops of the element rules; each is compiled once per instruction set.
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

}  // namespace rode::cpu
