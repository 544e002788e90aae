// SPDX-License-Identifier: Apache-2.0
// The fp32 loops; each is compiled once per instruction set.
#include "backend/cpu/kernels.h"

#include "backend/cpu/versions.h"
#include "rules/muon_rule.h"
#include "rules/newton_schulz_rule.h"
#include "rules/rode_rule.h"
#include "rules/rounding.h"

namespace rode::cpu {
namespace {

constexpr std::int64_t kLanes = 8;
using FloatLanes __attribute__((vector_size(kLanes * sizeof(float)))) = float;
using DoubleLanes __attribute__((vector_size(kLanes * sizeof(double)))) = double;

// Macros rather than functions: each version above must compile its own copy, and vector
// types in a signature would change its ABI from version to version.
#define RODE_LOAD(name, pointer)                                    \
  FloatLanes name##_narrow;                                         \
  __builtin_memcpy(&name##_narrow, pointer, sizeof(name##_narrow)); \
  const DoubleLanes name = __builtin_convertvector(name##_narrow, DoubleLanes)

#define RODE_SUM(lanes)                                      \
  ((((lanes)[0] + (lanes)[4]) + ((lanes)[1] + (lanes)[5])) + \
   (((lanes)[2] + (lanes)[6]) + ((lanes)[3] + (lanes)[7])))

}  // namespace

RODE_VERSIONS
void add_products(const float* t, const float* b, const float* g, std::int64_t n,
                  rules::MatrixProducts& out) {
  DoubleLanes tt{}, bt{}, gt{}, bb{}, bg{}, gg{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    RODE_LOAD(x, t + i);
    RODE_LOAD(y, b + i);
    RODE_LOAD(z, g + i);
    tt += x * x;
    bt += y * x;
    gt += z * x;
    bb += y * y;
    bg += y * z;
    gg += z * z;
  }
  rules::MatrixProducts tail;
  for (; i < n; ++i) {
    const double x = static_cast<double>(t[i]), y = static_cast<double>(b[i]),
                 z = static_cast<double>(g[i]);
    tail.tt += x * x;
    tail.bt += y * x;
    tail.gt += z * x;
    tail.bb += y * y;
    tail.bg += y * z;
    tail.gg += z * z;
  }
  out.tt += RODE_SUM(tt) + tail.tt;
  out.bt += RODE_SUM(bt) + tail.bt;
  out.gt += RODE_SUM(gt) + tail.gt;
  out.bb += RODE_SUM(bb) + tail.bb;
  out.bg += RODE_SUM(bg) + tail.bg;
  out.gg += RODE_SUM(gg) + tail.gg;
}

RODE_VERSIONS
double dot(const float* x, const float* y, std::int64_t n) {
  DoubleLanes even{}, odd{};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    RODE_LOAD(a, x + i);
    RODE_LOAD(b, y + i);
    RODE_LOAD(c, x + i + kLanes);
    RODE_LOAD(d, y + i + kLanes);
    even += a * b;
    odd += c * d;
  }
  double tail = 0;
  for (; i < n; ++i) tail += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  even += odd;
  return RODE_SUM(even) + tail;
}

RODE_VERSIONS
double sum_of_squares(const float* x, std::int64_t n) {
  DoubleLanes even{}, odd{};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    RODE_LOAD(a, x + i);
    RODE_LOAD(b, x + i + kLanes);
    even += a * a;
    odd += b * b;
  }
  double tail = 0;
  for (; i < n; ++i) tail += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  even += odd;
  return RODE_SUM(even) + tail;
}

RODE_VERSIONS
double squared_distance(const float* x, const float* y, std::int64_t n) {
  DoubleLanes sum{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    RODE_LOAD(a, x + i);
    RODE_LOAD(b, y + i);
    const DoubleLanes d = a - b;
    sum += d * d;
  }
  double tail = 0;
  for (; i < n; ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    tail += d * d;
  }
  return RODE_SUM(sum) + tail;
}

RODE_VERSIONS
double rode_form(const FormCoefficients& c, const float* b, const float* g, const float* w,
                 float* b_out, float* x, std::int64_t n) {
  const FormCoefficients k = c;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const double gradient = static_cast<double>(g[i]), weight = static_cast<double>(w[i]);
    const double next =
        rules::rode_buffer(static_cast<double>(b[i]), gradient, weight, k.beta, k.buffer_w);
    x[i] = static_cast<float>(
        rules::rode_start(next, gradient, weight, k.start_b, k.start_g, k.start_w));
    b_out[i] = static_cast<float>(next);
  }
  DoubleLanes sum{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    RODE_LOAD(a, x + i);
    sum += a * a;
  }
  double tail = 0;
  for (; i < n; ++i) tail += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return RODE_SUM(sum) + tail;
}

RODE_VERSIONS
double muon_form(const MuonCoefficients& c, const float* b, const float* g, const float* p,
                 float* b_out, float* x, std::int64_t n) {
  const MuonCoefficients k = c;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float next = rules::muon_buffer(b[i], g[i], p[i], k.buffer_b, k.buffer_g, k.buffer_p);
    x[i] = rules::muon_start(next, g[i], k.start_b, k.start_g);
    b_out[i] = next;
  }
  DoubleLanes sum{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    RODE_LOAD(a, x + i);
    sum += a * a;
  }
  double tail = 0;
  for (; i < n; ++i) tail += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return RODE_SUM(sum) + tail;
}

RODE_VERSIONS
void project(float* x, const float* w, float t, float factor, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = rules::ns_project(x[i], w[i], t, factor);
}

RODE_VERSIONS
void scale(float* x, float factor, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

RODE_VERSIONS
void combine(float* out, float a, const float* x, float b, const float* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = a * x[i] + b * y[i];
}

RODE_VERSIONS
void add_products_apart(const float* x, const float* y, double* sums, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    sums[i] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  }
}

RODE_VERSIONS
void combine_scaled(float* out, float a, float u, const float* x, float b, const float* y,
                    const float* f, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = (a + u * f[i]) * x[i] + b * f[i] * y[i];
}

RODE_VERSIONS
void widen(const std::uint16_t* half, float* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = rules::bf16_to_float(half[i]);
}

RODE_VERSIONS
void join(const std::uint16_t* high, const std::uint16_t* low, float* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = rules::join_halves(high[i], low[i]);
}

RODE_VERSIONS
void narrow_nearest(const float* x, std::uint16_t* half, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) half[i] = rules::bf16_nearest(x[i]);
}

}  // namespace rode::cpu
