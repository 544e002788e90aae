// SPDX-License-Identifier: Apache-2.0
// The loops over contiguous fp32 runs, compiled for several instruction sets (loops.cpp), and the
// walk over stored arrays of any type and geometry as such runs: every loop is written once.
//
// Sums are kept in double: a product of two floats is exact there, so an inner product
// of any length is good to fp32 and its order of summation is fixed by n alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/jobs.h"
#include "rules/element_rules.h"
#include "rules/int8_state.h"
#include "rules/matrix_step.h"

namespace rode::cpu {

// A slice is one task and one partial sum: cut by size alone, whatever the threads.
inline constexpr std::int64_t kSlice = 65536;
// A tile is what a loop sees at a time: five arrays of 1 KiB are still in L1 when the sums over
// them follow. A block of int8 state is one tile.
inline constexpr std::int64_t kTile = rules::kScaleBlock;

// Elements of fp32 in a line of the processor's caches: what is asked for ahead is asked for in
// lines.
inline constexpr std::int64_t kLine = 16;

inline std::int64_t slice_count(std::int64_t elements) { return (elements + kSlice - 1) / kSlice; }

// Calls f(tight, stored, n, row, col) for the runs of slice `slice`, each within one row: n <=
// kTile elements that start at `tight` in row-major order without gaps and at `stored` in the
// strided array.
template <class F>
void for_row_tiles(const Geometry& geometry, std::int64_t slice, F&& f) {
  const std::int64_t end = std::min(geometry.numel(), (slice + 1) * kSlice);
  std::int64_t i = slice * kSlice;
  std::int64_t row = i / geometry.cols, col = i % geometry.cols;
  while (i < end) {
    const std::int64_t n = std::min({kTile, end - i, geometry.cols - col});
    f(i, row * geometry.stride + col, n, row, col);
    i += n;
    col += n;
    if (col == geometry.cols) {
      col = 0;
      ++row;
    }
  }
}

// The same without regard to rows where the array has no gaps: f(tight, stored, n).
template <class F>
void for_tiles(const Geometry& geometry, std::int64_t slice, F&& f) {
  if (!geometry.contiguous()) {
    for_row_tiles(geometry, slice,
                  [&](std::int64_t tight, std::int64_t stored, std::int64_t n, std::int64_t,
                      std::int64_t) { f(tight, stored, n); });
    return;
  }
  const std::int64_t end = std::min(geometry.numel(), (slice + 1) * kSlice);
  for (std::int64_t i = slice * kSlice; i < end; i += kTile) f(i, i, std::min(kTile, end - i));
}

// A tile of a job whose state may be int8: `scale` is the index among the state's scales.
struct StateTile {
  std::int64_t tight, stored, n, scale;
};

// The tiles of a slice as they suit `moments`: without regard to rows, or block by block where it
// is int8. A block belongs to the slice in which it begins: one thread finds its scale.
template <class F>
void for_state_tiles(const Moments& moments, const Geometry& geometry, std::int64_t slice, F&& f) {
  if (moments.dtype != DType::i8) {
    for_tiles(geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      f(StateTile{tight, stored, n, 0});
    });
    return;
  }
  const std::int64_t begin = slice * kSlice, cols = geometry.cols;
  const std::int64_t end = std::min(geometry.numel(), begin + kSlice);
  std::int64_t row = begin / cols;
  std::int64_t col = (begin % cols + kTile - 1) / kTile * kTile;
  for (; row * cols < end; ++row, col = 0) {
    for (; col < cols && row * cols + col < end; col += kTile) {
      f(StateTile{row * cols + col, row * geometry.stride + col, std::min(kTile, cols - col),
                  row * moments.scale_stride + col / kTile});
    }
  }
}

inline Geometry flat(std::int64_t count) { return {1, count, count}; }

// Readers return the array itself where it is fp32, else a widened copy in `scratch`.
const float* read(const Grads& grad, std::int64_t at, std::int64_t n, float* scratch);
const float* read(const Weights& weight, std::int64_t at, std::int64_t n, float* scratch);
float* read(const Moments& moments, std::int64_t at, std::int64_t n, float* scratch);
float* read(const Moments& moments, const StateTile& tile, float* scratch);
// Stores what a loop left at `values`; nothing to do where that is the array itself.
void write(const Moments& moments, std::int64_t at, std::int64_t n, const float* values);

// How a job's int8 state is rounded in one step; `offset` is that of the job within the whole
// tensor.
struct StateDraws {
  StateRounding rounding;
  std::uint64_t sequence;
  std::int64_t offset;
};
StateDraws state_draws(const JobBase& job, std::int64_t step);
void write(const Moments& moments, const StateTile& tile, const float* values,
           const StateDraws& draws);
// A block of int8 state whose largest magnitude is known.
void write_block(const Moments& moments, const StateTile& tile, const float* values,
                 std::int32_t most, const StateDraws& draws);

// Adds the products of a run; t is the third array.
void add_products(const float* t, const float* b, const float* g, std::int64_t n,
                  rules::MatrixProducts& out);
double dot(const float* x, const float* y, std::int64_t n);
double sum_of_squares(const float* x, std::int64_t n);
// The same of arrays that come from memory: read at four places at once.
double sum_of_slice_squares(const float* x, std::int64_t n);

// What a step reports of weights w that became `fresh`: ||w||^2 and ||fresh - w||^2.
struct Moved {
  double ww = 0, dd = 0;

  Moved& operator+=(const Moved& other) {
    ww += other.ww;
    dd += other.dd;
    return *this;
  }
};
// Sums of squares over a tile are made in fp32 first, good to 1e-6; where it does not hold them,
// being too large or below its range, they are taken in double.
inline bool fp32_holds(float squares) { return squares >= 1e-28F && squares <= 1e38F; }
Moved squares_of_move(const float* w, const float* fresh, std::int64_t n);
// Rounds `fresh` as the weights are stored, writes it, and returns squares_of_move of what is
// stored. `sequence` is that of the step (rules::step_sequence); `index` is the element's position
// within the parameter.
Moved write_weights(const Weights& weight, std::uint64_t sequence, std::int64_t index,
                    std::int64_t at, std::int64_t n, const float* w, float* fresh);

// b_out = beta b + g + buffer_w w;  x = start_b b_out + start_g g + start_w w; returns ||x||^2.
// In double: of a nearly radial gradient the start keeps a small difference.
struct FormCoefficients {
  double beta, buffer_w, start_b, start_g, start_w;
};
double rode_form(const FormCoefficients& c, const float* b, const float* g, const float* w,
                 float* b_out, float* x, std::int64_t n);

// b_out = buffer_b b + buffer_g g + buffer_p p;  x = start_b b_out + start_g g; returns ||x||^2
struct MuonCoefficients {
  float buffer_b, buffer_g, buffer_p, start_b, start_g;
};
double muon_form(const MuonCoefficients& c, const float* b, const float* g, const float* p,
                 float* b_out, float* x, std::int64_t n);

// x <- factor (x - t w)
void project(float* x, const float* w, float t, float factor, std::int64_t n);
void scale(float* x, float factor, std::int64_t n);
// out = a x + b y
void combine(float* out, float a, const float* x, float b, const float* y, std::int64_t n);

// sums[i] += x[i] y[i]
void add_products_apart(const float* x, const float* y, double* sums, std::int64_t n);
// out[i] = (a + u f[i]) x[i] + b f[i] y[i]
void combine_scaled(float* out, float a, float u, const float* x, float b, const float* y,
                    const float* f, std::int64_t n);

// The same sums as these two with cautious decay: x and y are the weights and the iterate.
void combine_cautious(float* out, float a, const float* x, float b, const float* y, std::int64_t n);
void combine_scaled_cautious(float* out, float a, const float* x, float b, const float* y,
                             const float* f, std::int64_t n);

// One overload per element rule: `out` receives the new weights, the moments advance in place.
#define RODE_DECLARE_RUN(Rule)                                                          \
  void run_elements(const rules::Rule::Coefficients& c, const float* w, const float* g, \
                    float* const* moments, float* out, std::int64_t n);
RODE_FOR_EACH_ELEMENT_RULE(RODE_DECLARE_RUN)
// The same with the weights in place, for any n.
#define RODE_DECLARE_MOVE(Rule)                                                     \
  Moved move_elements(const rules::Rule::Coefficients& c, float* w, const float* g, \
                      float* const* moments, std::int64_t n);
RODE_FOR_EACH_ELEMENT_RULE(RODE_DECLARE_MOVE)
// The same with the first moment in int8: moments[0] receives the new one, widened, whose largest
// magnitude is returned (rules::magnitude_bits). Of rules with kQuantizesFirst; others do nothing.
#define RODE_DECLARE_QUANTIZED(Rule)                                                               \
  std::int32_t run_quantized(const rules::Rule::Coefficients& c, const float* w, const float* g,   \
                             const std::int8_t* q, float scale, float* const* moments, float* out, \
                             std::int64_t n);
RODE_FOR_EACH_ELEMENT_RULE(RODE_DECLARE_QUANTIZED)
#undef RODE_DECLARE_QUANTIZED
#undef RODE_DECLARE_MOVE
#undef RODE_DECLARE_RUN

// One block of int8 state; `index` is that of its first element within the parameter.
void dequantize(const std::int8_t* q, float scale, float* out, std::int64_t n);
std::int32_t largest_magnitude(const float* x, std::int64_t n);
void round_nearest(const float* x, std::int8_t* q, float inverse, std::int64_t n);
void round_stochastic(const float* x, std::int8_t* q, float inverse, std::uint64_t sequence,
                      std::int64_t index, std::int64_t n);

void widen(const std::uint16_t* half, float* out, std::int64_t n);  // bf16 -> fp32
void join(const std::uint16_t* high, const std::uint16_t* low, float* out, std::int64_t n);
void narrow_nearest(const float* x, std::uint16_t* half, std::int64_t n);

}  // namespace rode::cpu
