// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz with e4m3 products: what is large and known is split off and kept exact.
//
// With G = X^T X = D + O, D its diagonal (the columns' sums of squares, from X itself), only O is
// rounded. P' = b G + c G^2 has, since G^2 = D^2 + D O + O D + O^2,
//   off the diagonal  b O + c (D_i O + O D_j + O^2),
//   on it             b D + c (D^2 + sum_j O_ij^2);
// and X <- X (a + diag P')[column] + X off(P'). O^2 and X off(P') are the products of rounded
// operands. For a wide X the same with rows for columns.
#pragma once

#include <cstdint>

#include "rode/optim/common.h"
#include "rules/host_device.h"
#include "rules/newton_schulz_rule.h"
#include "rules/rounding.h"

namespace rode::rules {

// The largest number of e4m3: 4 bits of exponent, 3 of mantissa, no infinity.
inline constexpr float kLargestE4m3 = 448.0F;

// Rounds to e4m3: nearest, ties to even; steps of 2^-9 below 2^-6; larger numbers become the
// largest one. NaN stays NaN.
RODE_HOST_DEVICE inline float e4m3_nearest(float x) {
  const std::uint32_t bits = float_bits(x), sign = bits & 0x80000000U;
  const float size = bits_float(bits ^ sign);
  if (size != size) return x;
  if (size >= kLargestE4m3) return bits_float(float_bits(kLargestE4m3) | sign);
  if (size < 0x1p-6F) {
    // Beside 2^14 a float's step is 2^-9.
    return bits_float(float_bits((size + 0x1p14F) - 0x1p14F) | sign);
  }
  const std::uint32_t rounded = (bits ^ sign) + 0x7ffffU + (((bits ^ sign) >> 20) & 1U);
  return bits_float((rounded & ~0xfffffU) | sign);
}

// Rounds to fp16, which the iterate is kept in: nearest, ties to even; steps of 2^-24 below 2^-14.
// Its elements are at most 2 (ns_range()).
RODE_HOST_DEVICE inline float fp16_nearest(float x) {
  const std::uint32_t bits = float_bits(x), sign = bits & 0x80000000U;
  const float size = bits_float(bits ^ sign);
  if (!(size < 65536.0F)) return x;
  if (size < 0x1p-14F) return bits_float(float_bits((size + 0.5F) - 0.5F) | sign);
  const std::uint32_t rounded = (bits ^ sign) + 0xfffU + (((bits ^ sign) >> 13) & 1U);
  return bits_float((rounded & ~0x1fffU) | sign);
}

// Powers of two that X, O and off(P') are multiplied with before they are rounded: the largest that
// keep every element below 448. Elements of X are at most its largest singular value, u. Off the
// diagonal a symmetric matrix's elements are at most half the spread of its eigenvalues: those of G
// lie in [0, u^2], those of P' between 0 and the least value of b y + c y^2 on it (or the value at
// its end, where that is above 0).
struct SplitScales {
  float x, o, p;
};

// The largest power of two p with p * most <= 448.
RODE_HOST_DEVICE constexpr float scale_for(double most) {
  double p = 0x1p30;
  while (p * most > static_cast<double>(kLargestE4m3)) p *= 0.5;
  return static_cast<float>(p);
}

// The polynomial of a start that is divided by its Schatten-4 norm takes the factor in
// (of_scaled()), P' is then up to n^(1/4) times as large: 2^e with 16^e >= n.
RODE_HOST_DEVICE constexpr float schatten_room(std::int64_t n) {
  float room = 1;
  for (std::int64_t reached = 1; reached < n; reached *= 16) room *= 2;
  return room;
}

inline SplitScales split_scales(Coefficients set, int k, std::int64_t n) {
  const double u = ns_range(set, k).input, top = u * u;
  const NsTriple p = ns_triple(set, k);
  const double lowest = -p.b / (2 * p.c) < top ? -p.b / (2 * p.c) : top;
  const double low = p.b * lowest + p.c * lowest * lowest, end = p.b * top + p.c * top * top;
  SplitScales scales{scale_for(u), scale_for(top / 2), scale_for(((end > 0 ? end : 0) - low) / 2)};
  if (k == 0 && schatten_start(set)) scales.p /= schatten_room(n);
  return scales;
}

// The tensor cores add up products of e4m3 with 14 bits. In the first iterations, whose errors the
// later ones amplify where the momentum has next to nothing, X off(P') takes more
// (docs/numerics.md).
inline constexpr int kPromotedIterations = 2;

// An element of off(P'), and of a + diag P': `square` is that of O^2.
RODE_HOST_DEVICE inline float split_off(float b, float c, float d_i, float d_j, float o,
                                        float square) {
  return (b + c * (d_i + d_j)) * o + c * square;
}
RODE_HOST_DEVICE inline float split_diagonal(float a, float b, float c, float d, float square) {
  return a + d * (b + c * d) + c * square;
}

}  // namespace rode::rules
