// SPDX-License-Identifier: Apache-2.0
// The loops of the element rules and of int8 state; each is compiled once per instruction set.
//
// Compiled without contraction to fused operations (CMakeLists.txt): a compiler contracts in the
// body of a loop and not in its remainder, and then an element's result depends on its place. A
// part of a tensor, such as one process of several has, must give the bits of the whole.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
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

RODE_BYTE_VERSIONS
std::int32_t run_quantized(const rules::AdamW::Coefficients& c, const float* w, const float* g,
                           const std::int8_t* q, float scale, float* const* moments, float* out,
                           std::int64_t n) {
  const rules::AdamW::Coefficients k = c;
  float *first = moments[0], *second = moments[1];
  std::int32_t most = 0;
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    float own[] = {rules::int8_value(q[i], scale), second[i]};
    out[i] = rules::AdamW::element(k, w[i], g[i], own);
    first[i] = own[0];
    second[i] = own[1];
    most = std::max(most, rules::magnitude_bits(own[0]));
  }
  return most;
}

RODE_BYTE_VERSIONS
void dequantize(const std::int8_t* q, float scale, float* out, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) out[i] = rules::int8_value(q[i], scale);
}

// A maximum of integers: exact in any order, so a compiler may make vectors of it.
RODE_BYTE_VERSIONS
std::int32_t largest_magnitude(const float* x, std::int64_t n) {
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, rules::magnitude_bits(x[i]));
  return most;
}

RODE_BYTE_VERSIONS
void round_nearest(const float* x, std::int8_t* q, float inverse, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) q[i] = rules::int8_nearest(x[i], inverse);
}

RODE_BYTE_VERSIONS
void round_stochastic(const float* x, std::int8_t* q, float inverse, std::uint64_t sequence,
                      std::int64_t index, std::int64_t n) {
  std::uint64_t words[kTile / rules::kDrawsPerWord];
  std::uint16_t draws[kTile];
  const auto first = static_cast<std::uint64_t>(index);
  RODE_INDEPENDENT
  for (std::uint64_t k = 0; k < kTile / rules::kDrawsPerWord; ++k) {
    words[k] = rules::random_word(sequence, first + k);
  }
  static_assert(std::endian::native == std::endian::little, "the lowest bits are the first");
  std::memcpy(draws, words, sizeof(draws));
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) q[i] = rules::int8_stochastic(x[i], inverse, draws[i]);
}

}  // namespace rode::cpu
