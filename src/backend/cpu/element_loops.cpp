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

// One element. A function, so that its array becomes registers: `omp simd` keeps the arrays of a
// loop's own body in memory.
template <class Rule, std::size_t... I>
[[gnu::always_inline]] inline float step_element(const typename Rule::Coefficients& k, float w,
                                                 float g, float* const* arrays, std::int64_t i,
                                                 std::index_sequence<I...>) {
  float own[] = {arrays[I][i]...};
  const float fresh = Rule::element(k, w, g, own);
  ((arrays[I][i] = own[I]), ...);
  return fresh;
}

// A page of memory ends every 1024 elements, and there the processor's own prefetching ends too. A
// core that asks for the lines itself, 2.3 KB ahead, spends a tenth less time on arrays beyond its
// caches; a tile at once would be more requests than it can hold.
constexpr std::int64_t kRun = 64, kAhead = 576;

template <std::size_t... I>
[[gnu::always_inline]] inline void ask_for(const float* w, const float* g, float* const* moments,
                                           std::int64_t at, std::index_sequence<I...>) {
  for (std::int64_t i = at; i < at + kRun; i += kLine) {
    __builtin_prefetch(w + i, 1);
    __builtin_prefetch(g + i);
    (__builtin_prefetch(moments[I] + i, 1), ...);
  }
}

// Steps `count` elements, and keeps the weights that were.
template <class Rule, std::size_t... I>
[[gnu::always_inline]] inline void move_run(const typename Rule::Coefficients& k, float* w,
                                            const float* g, float* const* arrays, float* before,
                                            std::int64_t count, float& ww, float& dd,
                                            std::index_sequence<I...> all) {
  float run_ww = 0, run_dd = 0;
#pragma omp simd reduction(+ : run_ww, run_dd)
  for (std::int64_t i = 0; i < count; ++i) {
    const float old = w[i];
    const float fresh = step_element<Rule>(k, old, g[i], arrays, i, all);
    const float d = fresh - old;
    before[i] = old;
    w[i] = fresh;
    run_ww += old * old;
    run_dd += d * d;
  }
  ww += run_ww;
  dd += run_dd;
}

// Every array is passed over once, and what a step reports of its move is summed on the way. The
// weights that were are kept for a tile: sums that fp32 does not hold are taken from them again.
template <class Rule, std::size_t... I>
[[gnu::always_inline]] inline Moved move_loop(const typename Rule::Coefficients& c, float* w,
                                              const float* g, float* const* moments, std::int64_t n,
                                              std::index_sequence<I...> all) {
  const typename Rule::Coefficients k = c;
  float before[kTile];
  Moved moved;
  for (std::int64_t begin = 0; begin < n; begin += kTile) {
    const std::int64_t end = std::min(begin + kTile, n);
    float ww = 0, dd = 0;
    for (std::int64_t at = begin; at < end; at += kRun) {
      if (at + kAhead + kRun <= n) ask_for(w, g, moments, at + kAhead, all);
      float* const arrays[] = {moments[I] + at...};
      float* const kept = before + (at - begin);
      // A count that the compiler knows, in every run except the last.
      if (at + kRun <= end) {
        move_run<Rule>(k, w + at, g + at, arrays, kept, kRun, ww, dd, all);
      } else {
        move_run<Rule>(k, w + at, g + at, arrays, kept, end - at, ww, dd, all);
      }
    }
    moved += fp32_holds(ww) && fp32_holds(dd)
                 ? Moved{static_cast<double>(ww), static_cast<double>(dd)}
                 : squares_of_move(before, w + begin, end - begin);
  }
  return moved;
}

// The same with the first moment in int8; I are the others.
template <class Rule, std::size_t... I>
[[gnu::always_inline]] inline std::int32_t quantized_loop(
    const typename Rule::Coefficients& c, const float* w, const float* g, const std::int8_t* q,
    float scale, float* const* moments, float* out, std::int64_t n, std::index_sequence<0, I...>) {
  const typename Rule::Coefficients k = c;
  float* const arrays[] = {moments[0], moments[I]...};
  std::int32_t most = 0;
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    float own[] = {rules::int8_value(q[i], scale), arrays[I][i]...};
    out[i] = Rule::element(k, w[i], g[i], own);
    arrays[0][i] = own[0];
    ((arrays[I][i] = own[I]), ...);
    most = std::max(most, rules::magnitude_bits(own[0]));
  }
  return most;
}

template <class Rule>
[[gnu::always_inline]] inline std::int32_t quantized(const typename Rule::Coefficients& c,
                                                     const float* w, const float* g,
                                                     const std::int8_t* q, float scale,
                                                     float* const* moments, float* out,
                                                     std::int64_t n) {
  if constexpr (Rule::kQuantizesFirst) {
    return quantized_loop<Rule>(c, w, g, q, scale, moments, out, n,
                                std::make_index_sequence<Rule::kMoments>());
  } else {
    return 0;  // never called
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

#define RODE_DEFINE_MOVE(Rule)                                                        \
  RODE_VERSIONS                                                                       \
  Moved move_elements(const rules::Rule::Coefficients& c, float* w, const float* g,   \
                      float* const* moments, std::int64_t n) {                        \
    return move_loop<rules::Rule>(c, w, g, moments, n,                                \
                                  std::make_index_sequence<rules::Rule::kMoments>()); \
  }
RODE_FOR_EACH_ELEMENT_RULE(RODE_DEFINE_MOVE)
#undef RODE_DEFINE_MOVE

#define RODE_DEFINE_QUANTIZED(Rule)                                                                \
  RODE_BYTE_VERSIONS                                                                               \
  std::int32_t run_quantized(const rules::Rule::Coefficients& c, const float* w, const float* g,   \
                             const std::int8_t* q, float scale, float* const* moments, float* out, \
                             std::int64_t n) {                                                     \
    return quantized<rules::Rule>(c, w, g, q, scale, moments, out, n);                             \
  }
RODE_FOR_EACH_ELEMENT_RULE(RODE_DEFINE_QUANTIZED)
#undef RODE_DEFINE_QUANTIZED

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
