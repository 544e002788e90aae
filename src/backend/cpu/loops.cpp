// SPDX-License-Identifier: Apache-2.0
// The fp32 loops, each compiled once per instruction set, and the conversions between stored
// arrays and fp32 tiles.
#include "backend/cpu/loops.h"

#include <cstring>

#include "backend/cpu/versions.h"
#include "rules/cautious_decay.h"
#include "rules/muon_rule.h"
#include "rules/newton_schulz_rule.h"
#include "rules/rode_rule.h"
#include "rules/rounding.h"
#include "rules/row_rule.h"

namespace rode::cpu {
namespace {

// Partial sums side by side, two vectors of AVX-512: as many as the registers of every instruction
// set hold well. Arrays and plain loops, from which a compiler makes vectors of the width that it
// has; vector types of one width are taken apart, element by element, where the registers are
// narrower.
template <class T>
inline constexpr int kLanes = 128 / sizeof(T);

// The sum of term(i) for i < n. Inlined into every version of its caller.
template <class T, class F>
[[gnu::always_inline]] inline T sum_of(std::int64_t n, F&& term) {
  constexpr int kCount = kLanes<T>, kParts = kCount / 4;
  T sum = 0;
  std::int64_t i = 0;
  if (n >= kCount) {
    // The first terms, not zeros: setting memory takes as long as a small tile.
    T lanes[kCount];
#pragma GCC unroll 32
    for (int lane = 0; lane < kCount; ++lane) lanes[lane] = term(lane);
    for (i = kCount; i + kCount <= n; i += kCount) {
#pragma GCC unroll 32
      for (int lane = 0; lane < kCount; ++lane) lanes[lane] += term(i + lane);
    }
    // In few additions one after the other.
    T parts[kParts];
#pragma GCC unroll 8
    for (int q = 0; q < kParts; ++q) {
      parts[q] = (lanes[q] + lanes[q + kParts]) + (lanes[q + 2 * kParts] + lanes[q + 3 * kParts]);
    }
#pragma GCC unroll 4
    for (int q = 0; q < kParts; q += 2) sum += parts[q] + parts[q + 1];
  }
  for (; i < n; ++i) sum += term(i);
  return sum;
}

double exact(float x) { return static_cast<double>(x); }

// Six sums from three loads need every register: vectors, of the width that the caller's
// instruction set has.
struct TwoWide {
  using Floats __attribute__((vector_size(8))) = float;
  using Doubles __attribute__((vector_size(16))) = double;
};
struct FourWide {
  using Floats __attribute__((vector_size(16))) = float;
  using Doubles __attribute__((vector_size(32))) = double;
};
struct EightWide {
  using Floats __attribute__((vector_size(32))) = float;
  using Doubles __attribute__((vector_size(64))) = double;
};

template <class Width>
[[gnu::always_inline]] inline void products_of(const float* t, const float* b, const float* g,
                                               std::int64_t n, rules::MatrixProducts& out) {
  using Floats = typename Width::Floats;
  using Doubles = typename Width::Doubles;
  constexpr int kWidth = sizeof(Floats) / sizeof(float);
  Doubles tt{}, bt{}, gt{}, bb{}, bg{}, gg{};
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Floats narrow[3];
    __builtin_memcpy(&narrow[0], t + i, sizeof(Floats));
    __builtin_memcpy(&narrow[1], b + i, sizeof(Floats));
    __builtin_memcpy(&narrow[2], g + i, sizeof(Floats));
    const Doubles x = __builtin_convertvector(narrow[0], Doubles);
    const Doubles y = __builtin_convertvector(narrow[1], Doubles);
    const Doubles z = __builtin_convertvector(narrow[2], Doubles);
    tt += x * x;
    bt += y * x;
    gt += z * x;
    bb += y * y;
    bg += y * z;
    gg += z * z;
  }
  for (; i < n; ++i) {
    const double x = exact(t[i]), y = exact(b[i]), z = exact(g[i]);
    tt[0] += x * x;
    bt[0] += y * x;
    gt[0] += z * x;
    bb[0] += y * y;
    bg[0] += y * z;
    gg[0] += z * z;
  }
  for (int lane = 0; lane < kWidth; ++lane) {
    out.tt += tt[lane];
    out.bt += bt[lane];
    out.gt += gt[lane];
    out.bb += bb[lane];
    out.bg += bg[lane];
    out.gg += gg[lane];
  }
}

}  // namespace

#if defined(__x86_64__) && !defined(RODE_SANITIZED)
namespace {

__attribute__((target("avx512f"))) void products_avx512(const float* t, const float* b,
                                                        const float* g, std::int64_t n,
                                                        rules::MatrixProducts& out) {
  products_of<EightWide>(t, b, g, n, out);
}

__attribute__((target("avx2"))) void products_avx2(const float* t, const float* b, const float* g,
                                                   std::int64_t n, rules::MatrixProducts& out) {
  products_of<FourWide>(t, b, g, n, out);
}

void products_baseline(const float* t, const float* b, const float* g, std::int64_t n,
                       rules::MatrixProducts& out) {
  products_of<TwoWide>(t, b, g, n, out);
}

}  // namespace

void add_products(const float* t, const float* b, const float* g, std::int64_t n,
                  rules::MatrixProducts& out) {
  static const auto chosen = __builtin_cpu_supports("avx512f") != 0 ? products_avx512
                             : __builtin_cpu_supports("avx2") != 0  ? products_avx2
                                                                    : products_baseline;
  chosen(t, b, g, n, out);
}
#else
void add_products(const float* t, const float* b, const float* g, std::int64_t n,
                  rules::MatrixProducts& out) {
  products_of<FourWide>(t, b, g, n, out);
}
#endif

RODE_VERSIONS
double dot(const float* x, const float* y, std::int64_t n) {
  return sum_of<double>(n, [&](std::int64_t i) { return exact(x[i]) * exact(y[i]); });
}

RODE_VERSIONS
double sum_of_squares(const float* x, std::int64_t n) {
  return sum_of<double>(n, [&](std::int64_t i) { return exact(x[i]) * exact(x[i]); });
}

// One place alone does not use all of the memory's bandwidth, and what the processor prefetches by
// itself ends with the page: eight places, each asked for 1 KB ahead.
RODE_VERSIONS
double sum_of_slice_squares(const float* x, std::int64_t n) {
  constexpr std::int64_t kPlaces = 8, kRun = 64, kAhead = 256;
  const auto square = [&](std::int64_t i) { return exact(x[i]) * exact(x[i]); };
  const std::int64_t q = n / kPlaces;
  double sum = 0;
  for (std::int64_t at = 0; at < q; at += kRun) {
    for (std::int64_t place = 0; place < kPlaces; ++place) {
      const std::int64_t next = at + kAhead;
      for (std::int64_t i = next; i < std::min(next + kRun, q); i += kLine) {
        __builtin_prefetch(x + place * q + i);
      }
    }
    const auto squares = [&](std::int64_t k) {
      const std::int64_t i = at + k;
      return ((square(i) + square(i + q)) + (square(i + 2 * q) + square(i + 3 * q))) +
             ((square(i + 4 * q) + square(i + 5 * q)) + (square(i + 6 * q) + square(i + 7 * q)));
    };
    sum += at + kRun <= q ? sum_of<double>(kRun, squares) : sum_of<double>(q - at, squares);
  }
  for (std::int64_t i = kPlaces * q; i < n; ++i) sum += square(i);
  return sum;
}

// In fp32, since a tile is short: eight terms per lane. Nothing that a step depends on is made of
// these sums, and in double they took a fifth of AdamW's time.
RODE_VERSIONS
Moved squares_of_move(const float* w, const float* fresh, std::int64_t n) {
  const auto ww = sum_of<float>(n, [&](std::int64_t i) { return w[i] * w[i]; });
  const auto dd = sum_of<float>(n, [&](std::int64_t i) {
    const float d = fresh[i] - w[i];
    return d * d;
  });
  if (fp32_holds(ww) && fp32_holds(dd)) return {exact(ww), exact(dd)};
  return {sum_of<double>(n, [&](std::int64_t i) { return exact(w[i]) * exact(w[i]); }),
          sum_of<double>(n, [&](std::int64_t i) {
            const double d = exact(fresh[i]) - exact(w[i]);
            return d * d;
          })};
}

RODE_VERSIONS
double rode_form(const FormCoefficients& c, const float* b, const float* g, const float* w,
                 float* b_out, float* x, std::int64_t n) {
  const FormCoefficients k = c;
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const double gradient = static_cast<double>(g[i]), weight = static_cast<double>(w[i]);
    const double next =
        rules::rode_buffer(static_cast<double>(b[i]), gradient, weight, k.beta, k.buffer_w);
    x[i] = static_cast<float>(
        rules::rode_start(next, gradient, weight, k.start_b, k.start_g, k.start_w));
    b_out[i] = static_cast<float>(next);
  }
  return sum_of<double>(n, [&](std::int64_t i) { return exact(x[i]) * exact(x[i]); });
}

RODE_VERSIONS
double muon_form(const MuonCoefficients& c, const float* b, const float* g, const float* p,
                 float* b_out, float* x, std::int64_t n) {
  const MuonCoefficients k = c;
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const float next = rules::muon_buffer(b[i], g[i], p[i], k.buffer_b, k.buffer_g, k.buffer_p);
    x[i] = rules::muon_start(next, g[i], k.start_b, k.start_g);
    b_out[i] = next;
  }
  return sum_of<double>(n, [&](std::int64_t i) { return exact(x[i]) * exact(x[i]); });
}

RODE_VERSIONS
void project(float* x, const float* w, float t, float factor, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) x[i] = rules::ns_project(x[i], w[i], t, factor);
}

RODE_VERSIONS
void scale(float* x, float factor, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

RODE_VERSIONS
void combine(float* out, float a, const float* x, float b, const float* y, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) out[i] = a * x[i] + b * y[i];
}

RODE_VERSIONS
void add_products_apart(const float* x, const float* y, double* sums, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    sums[i] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  }
}

RODE_VERSIONS
void combine_scaled(float* out, float a, float u, const float* x, float b, const float* y,
                    const float* f, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const auto own = rules::row_write(a, u, b, f[i]);
    out[i] = own.w * x[i] + own.x * y[i];
  }
}

RODE_VERSIONS
void combine_cautious(float* out, float a, const float* x, float b, const float* y,
                      std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) out[i] = rules::cautious_sum(a, x[i], b * y[i]);
}

RODE_VERSIONS
void combine_scaled_cautious(float* out, float a, const float* x, float b, const float* y,
                             const float* f, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const auto own = rules::row_write(a, 0.0F, b, f[i]);
    out[i] = rules::cautious_sum(own.w, x[i], own.x * y[i]);
  }
}

RODE_VERSIONS
void widen(const std::uint16_t* half, float* out, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) out[i] = rules::bf16_to_float(half[i]);
}

RODE_VERSIONS
void join(const std::uint16_t* high, const std::uint16_t* low, float* out, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) out[i] = rules::join_halves(high[i], low[i]);
}

RODE_VERSIONS
void narrow_nearest(const float* x, std::uint16_t* half, std::int64_t n) {
  RODE_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) half[i] = rules::bf16_nearest(x[i]);
}

const float* read(const Grads& grad, std::int64_t at, std::int64_t n, float* scratch) {
  if (grad.dtype == DType::f32) return static_cast<const float*>(grad.data) + at;
  widen(static_cast<const std::uint16_t*>(grad.data) + at, scratch, n);
  return scratch;
}

const float* read(const Weights& weight, std::int64_t at, std::int64_t n, float* scratch) {
  if (weight.dtype == DType::f32) return static_cast<const float*>(weight.data) + at;
  const auto* half = static_cast<const std::uint16_t*>(weight.data) + at;
  if (weight.low_bits != nullptr) {
    join(half, weight.low_bits + at, scratch, n);
  } else {
    widen(half, scratch, n);
  }
  return scratch;
}

float* read(const Moments& moments, std::int64_t at, std::int64_t n, float* scratch) {
  if (moments.dtype == DType::f32) return static_cast<float*>(moments.data) + at;
  widen(static_cast<const std::uint16_t*>(moments.data) + at, scratch, n);
  return scratch;
}

void write(const Moments& moments, std::int64_t at, std::int64_t n, const float* values) {
  if (moments.dtype == DType::f32) {
    float* stored = static_cast<float*>(moments.data) + at;
    if (stored != values) std::memcpy(stored, values, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  narrow_nearest(values, static_cast<std::uint16_t*>(moments.data) + at, n);
}

float* read(const Moments& moments, const StateTile& tile, float* scratch) {
  if (moments.dtype != DType::i8) return read(moments, tile.stored, tile.n, scratch);
  dequantize(static_cast<const std::int8_t*>(moments.data) + tile.stored,
             moments.scales[tile.scale], scratch, tile.n);
  return scratch;
}

StateDraws state_draws(const JobBase& job, std::int64_t step) {
  return {job.state_rounding,
          rules::step_sequence(rules::state_sequence(job.weight.sequence), step), job.place()};
}

void write(const Moments& moments, const StateTile& tile, const float* values,
           const StateDraws& draws) {
  if (moments.dtype != DType::i8) {
    write(moments, tile.stored, tile.n, values);
    return;
  }
  write_block(moments, tile, values, largest_magnitude(values, tile.n), draws);
}

void write_block(const Moments& moments, const StateTile& tile, const float* values,
                 std::int32_t most, const StateDraws& draws) {
  const rules::BlockScale block = rules::block_scale(rules::magnitude(most));
  moments.scales[tile.scale] = block.scale;
  std::int8_t* q = static_cast<std::int8_t*>(moments.data) + tile.stored;
  if (draws.rounding == StateRounding::nearest) {
    round_nearest(values, q, block.inverse, tile.n);
  } else {
    round_stochastic(values, q, block.inverse, draws.sequence, draws.offset + tile.stored, tile.n);
  }
}

Moved write_weights(const Weights& weight, std::uint64_t sequence, std::int64_t index,
                    std::int64_t at, std::int64_t n, const float* w, float* fresh) {
  if (weight.dtype == DType::f32) {
    const Moved moved = squares_of_move(w, fresh, n);
    std::memcpy(static_cast<float*>(weight.data) + at, fresh,
                static_cast<std::size_t>(n) * sizeof(float));
    return moved;
  }
  auto* half = static_cast<std::uint16_t*>(weight.data) + at;
  switch (weight.rounding) {
    case Rounding::nearest:
      narrow_nearest(fresh, half, n);
      widen(half, fresh, n);
      break;
    case Rounding::stochastic:
      for (std::int64_t i = 0; i < n; ++i) {
        const auto position = static_cast<std::uint64_t>(index + i);
        half[i] = rules::bf16_stochastic(fresh[i], rules::random_bits(sequence, position));
      }
      widen(half, fresh, n);
      break;
    case Rounding::exact:
      for (std::int64_t i = 0; i < n; ++i) {
        const rules::Halves halves = rules::split_halves(fresh[i]);
        half[i] = halves.high;
        weight.low_bits[at + i] = halves.low;
      }
      break;
  }
  return squares_of_move(w, fresh, n);
}

}  // namespace rode::cpu
