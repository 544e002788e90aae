// SPDX-License-Identifier: Apache-2.0
// int8 state on the device (rules/int8_state.h): whole numbers with one scale per block of 256
// neighbours in a row.
//
// A pass that writes it must have seen a whole block before it writes any of it. So a warp has one
// block at a time: in registers, both runs of four of a lane on their way before the first is used;
// of a short block (the last of a row, or one whose fours are not aligned) one element after the
// other, and what becomes of them waits in shared memory. A block belongs to the slice in which it
// begins.
#pragma once

#include <cstdint>
#include <new>

#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/device/walk.cuh"
#include "rules/int8_state.h"

namespace rode::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kBlockElements = static_cast<int>(rules::kScaleBlock);

// Within a row, so that its elements are neighbours in every array.
struct StateBlock {
  int first;           // element of the slice
  int count;           // of elements
  std::int64_t scale;  // index among the scales
};

// Four numbers in the lowest word, or one in its lowest byte.
__device__ inline void load_int8(const void* data, std::int64_t at, Bits<4>& bits) {
  bits.word.x =
      __ldg(reinterpret_cast<const std::uint32_t*>(static_cast<const std::int8_t*>(data) + at));
}
__device__ inline void load_int8(const void* data, std::int64_t at, Bits<1>& bits) {
  bits.word = __ldg(static_cast<const std::uint8_t*>(data) + at);
}
template <int kWidth, int kCount, int kThreads>
__device__ void load_int8(const void* data, const Runs<kWidth, kCount, kThreads>& runs,
                          const std::int64_t (&at)[kCount], Bits<kWidth> (&bits)[kCount]) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    clear(bits[u]);
    if (runs.valid(u)) load_int8(data, at[u], bits[u]);
  }
}

// rules::int8_value without a conversion, of which an SM makes few: the byte becomes the lowest of
// 2^23 + 128 + q.
__device__ inline float int8_value(std::uint32_t word, int byte, float scale) {
  const std::uint32_t bits =
      __byte_perm(word ^ 0x80808080U, 0x4b000000U, 0x7540U | static_cast<std::uint32_t>(byte));
  return __fmul_rn(__uint_as_float(bits) - 8388736.0F, scale);
}
__device__ inline void decode_int8(const Bits<4>& bits, float scale, float (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = int8_value(bits.word.x, i, scale);
}
__device__ inline void decode_int8(const Bits<1>& bits, float scale, float (&x)[1]) {
  x[0] = int8_value(bits.word, 0, scale);
}

__device__ inline void store_int8(void* data, std::int64_t at, const std::int8_t (&q)[4]) {
  std::uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    word |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(q[i])) << 8 * i;
  *reinterpret_cast<std::uint32_t*>(static_cast<std::int8_t*>(data) + at) = word;
}
__device__ inline void store_int8(void* data, std::int64_t at, const std::int8_t (&q)[1]) {
  static_cast<std::int8_t*>(data)[at] = q[0];
}

// The first thread's `value` in shared memory, for all threads of the block: what a pass reads
// there again for each block of state takes no registers while its arrays are on their way. One
// place per type, so once per kernel.
template <class T>
__device__ const T& in_shared(const T& value) {
  __shared__ __align__(16) unsigned char place[sizeof(T)];
  if (threadIdx.x == 0) new (place) T(value);
  __syncthreads();
  return *reinterpret_cast<const T*>(place);
}

// int8 state of a job, and how it is rounded in this step.
struct QuantizedState {
  std::int8_t* data;
  float* scales;
  std::int64_t stride;        // elements from row to row
  std::int64_t scale_stride;  // scales from row to row
  std::int64_t offset;        // of the job within the whole tensor
  std::uint64_t sequence;     // of random bits
  bool stochastic;
};

// Rounds a run that begins with element `place` of a block stored at `stored`.
template <int kWidth>
__device__ void round_run(const QuantizedState& state, std::int64_t stored, int place,
                          float inverse, const float (&b)[kWidth]) {
  constexpr int kPerWord = static_cast<int>(rules::kDrawsPerWord);
  std::int8_t q[kWidth];
  if (state.stochastic) {
    const auto index = static_cast<std::uint64_t>(state.offset + stored + place / kPerWord);
    const std::uint64_t word = rules::random_word(state.sequence, index);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const auto draw = static_cast<std::uint16_t>(word >> 16 * ((place + i) % kPerWord));
      q[i] = rules::int8_stochastic(b[i], inverse, draw);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) q[i] = rules::int8_nearest(b[i], inverse);
  }
  store_int8(state.data, stored + place, q);
}

// What the elements of a block that a lane has seen tell of its scale, of all lanes.
__device__ inline rules::BlockScale scale_of_warp(std::int32_t most) {
  return rules::block_scale(rules::magnitude(__reduce_max_sync(0xffffffffU, most)));
}

// body(Runs, at, scale, b) is given a lane's runs, where they lie, and the block's scale, and
// leaves in b what the state becomes. All lanes have read the old scale before one writes the new:
// they have taken part in the maximum.
template <class Body>
__device__ void update_whole_block(const QuantizedState& state, const StateBlock& block,
                                   std::int64_t stored, Body&& body) {
  constexpr int kWidth = 4, kCount = kBlockElements / (kWidth * kWarp);
  using Own = Runs<kWidth, kCount, kWarp>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::int64_t at[kCount];
#pragma unroll
  for (int u = 0; u < kCount; ++u) at[u] = stored + kWidth * lane + u * Own::kStep;
  float b[kCount][kWidth];
  body(Own{block.first + kWidth * lane, block.first + block.count}, at, state.scales[block.scale],
       b);
  std::int32_t most = 0;
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) most = max(most, rules::magnitude_bits(b[u][k]));
  }
  const rules::BlockScale own = scale_of_warp(most);
  if (lane == 0) state.scales[block.scale] = own.scale;
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    round_run(state, stored, kWidth * lane + u * Own::kStep, own.inverse, b[u]);
  }
}

template <class Body>
__device__ void update_short_block(const QuantizedState& state, const StateBlock& block,
                                   std::int64_t stored, float* staged, Body&& body) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float scale = state.scales[block.scale];
  std::int32_t most = 0;
#pragma unroll 1
  for (int i = lane; i < block.count; i += kWarp) {
    const std::int64_t at[1] = {stored + i};
    float b[1][1];
    body(Runs<1, 1, kWarp>{block.first + i, block.first + block.count}, at, scale, b);
    most = max(most, rules::magnitude_bits(b[0][0]));
    staged[i] = b[0][0];
  }
  const rules::BlockScale own = scale_of_warp(most);
  if (lane == 0) state.scales[block.scale] = own.scale;
#pragma unroll 1
  for (int i = lane; i < block.count; i += kWarp) {
    const float b[1] = {staged[i]};  // its own
    round_run(state, stored, i, own.inverse, b);
  }
}

// What the warp's block becomes. A function: all passes of a kernel share the memory.
__device__ inline float* staged_block() {
  __shared__ __align__(16) float blocks[kSliceThreads / kWarp][kBlockElements];
  return blocks[threadIdx.x / kWarp];
}

// Every block that begins in the slice. `vector`: runs of four are aligned where rows begin.
template <class Body>
__device__ void update_blocks(const Walk& slice, const QuantizedState& state, bool vector,
                              Body&& body) {
  float* const staged = staged_block();
  const auto per_row = static_cast<std::uint32_t>(rules::scales_per_row(slice.cols));
  const auto before = [](std::int64_t col) {  // blocks of a row that begin left of `col`
    return static_cast<std::uint32_t>((col + kBlockElements - 1) / kBlockElements);
  };
  const std::int64_t right = slice.col + slice.count, down = slice.rows_to(right);
  const std::uint32_t end =
      static_cast<std::uint32_t>(down) * per_row + before(right - down * slice.cols);
  const std::uint32_t warp = threadIdx.x / kWarp;
  for (std::uint32_t j = before(slice.col) + warp; j < end; j += kSliceThreads / kWarp) {
    const std::uint32_t row = j / per_row, in_row = j - row * per_row;
    const std::int64_t col = std::int64_t{in_row} * kBlockElements;
    const std::int64_t left = slice.cols - col;
    const StateBlock block{static_cast<int>(row * slice.cols + col - slice.col),
                           static_cast<int>(left < kBlockElements ? left : kBlockElements),
                           (slice.row + row) * state.scale_stride + in_row};
    const std::int64_t stored = (slice.row + row) * state.stride + col;
    if (vector && block.count == kBlockElements) {
      update_whole_block(state, block, stored, body);
    } else {
      update_short_block(state, block, stored, staged, body);
    }
  }
}

}  // namespace rode::cuda
