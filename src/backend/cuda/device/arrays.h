// SPDX-License-Identifier: Apache-2.0
// Arrays as kernels see them, and the slices in which blocks walk them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rode/optim/common.h"

namespace rode::cuda {

// Elements of a slice: what one block works on and leaves one partial sum of. 16384 keep the
// partial sums and tables of a whole model below 0.2 % of its weights.
inline constexpr int kSlice = 16384;
inline constexpr int kSliceThreads = 256;  // of the blocks that walk one

inline std::int64_t slice_count(std::int64_t elements) { return (elements + kSlice - 1) / kSlice; }

// f32, or bf16.
struct ArrayView {
  void* data;
  std::int32_t bf16;
};

struct WeightView {
  void* data;
  std::uint16_t* low_bits;  // rounding = exact; null elsewhere
  std::uint64_t sequence;   // of random bits: seed and parameter name
  std::int32_t bf16;
  Rounding rounding;
};

// Whether four elements that begin at a multiple of four are aligned as one access needs it.
inline bool aligned_in_fours(const void* data, std::size_t element_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % (4 * element_bytes) == 0;
}
inline bool aligned_in_fours(const ArrayView& array) {
  return aligned_in_fours(array.data, array.bf16 != 0 ? 2 : 4);
}
inline bool aligned_in_fours(const WeightView& weight) {
  return aligned_in_fours(weight.data, weight.bf16 != 0 ? 2 : 4) &&
         aligned_in_fours(weight.low_bits, 2);
}
// Whether runs of four elements, counted without gaps, stay in one row and aligned.
inline bool fours_fit(std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  return stride == cols || rows <= 1 || (cols % 4 == 0 && stride % 4 == 0);
}

}  // namespace rode::cuda
