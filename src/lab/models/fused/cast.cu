// SPDX-License-Identifier: Apache-2.0
// Copies many arrays into another type by one launch: the weights, once per step.
//
// The table travels as the kernel's argument (below the 4 KB that every chip takes), so nothing is
// copied to the device first. A block has 8192 elements of one array. 6 bytes per element from fp32
// to bf16.
#include <algorithm>

#include "lab/models/fused/elements.cuh"
#include "lab/models/fused/kernels.h"
#include "lab/models/fused/launch.h"

namespace rode::lab::fused {
namespace {

constexpr int kItems = 96;
constexpr int kThreads = 256;
constexpr std::int64_t kChunk = 8192;

struct Table {
  CastItem items[kItems];
  unsigned first_block[kItems + 1];  // of each item; then their number
  int count;
};
static_assert(sizeof(Table) <= 4000);

template <class From, class To>
__global__ void cast_kernel(Table table) {
  int item = 0;
  while (blockIdx.x >= table.first_block[item + 1]) ++item;
  const CastItem job = table.items[item];
  const auto* const from = static_cast<const From*>(job.source);
  auto* const to = static_cast<To*>(job.target);
  const std::int64_t begin = (blockIdx.x - table.first_block[item]) * kChunk;
  const std::int64_t end = begin + kChunk < job.count ? begin + kChunk : job.count;
  const bool eights =
      (reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % 16 == 0;
  const std::int64_t whole = eights ? begin + (end - begin) / 8 * 8 : begin;
  for (std::int64_t i = begin + threadIdx.x * 8; i < whole; i += kThreads * 8) {
    float x[8];
    load(from + i, x);
    store(to + i, x);
  }
  for (std::int64_t i = whole + threadIdx.x; i < end; i += kThreads) {
    float x[1];
    load(from + i, x);
    store(to + i, x);
  }
}

void launch(const Table& table, Type from, Type to, cudaStream_t stream) {
  const unsigned grid = table.first_block[table.count];
  if (grid == 0) return;
  if (from == Type::bf16) {
    cast_kernel<Bf16, Bf16><<<grid, kThreads, 0, stream>>>(table);
  } else if (to == Type::bf16) {
    cast_kernel<float, Bf16><<<grid, kThreads, 0, stream>>>(table);
  } else {
    cast_kernel<float, float><<<grid, kThreads, 0, stream>>>(table);
  }
  check_launch("cast");
}

}  // namespace

bool has_kernels(Device device) { return device == Device::cuda; }

void cast(const CastItem* items, std::int64_t count, Type from, Type to, void* cuda_stream) {
  if (from == Type::bf16 && to == Type::f32) {
    throw Error(ErrorKind::unsupported, "fused", "a cast from bf16 to fp32");
  }
  for (std::int64_t begin = 0; begin < count; begin += kItems) {
    Table table{};
    table.count = static_cast<int>(std::min<std::int64_t>(kItems, count - begin));
    for (int i = 0; i < table.count; ++i) {
      table.items[i] = items[begin + i];
      table.first_block[i + 1] =
          blocks(table.first_block[i] + ceil_div(items[begin + i].count, kChunk));
    }
    launch(table, from, to, static_cast<cudaStream_t>(cuda_stream));
  }
}

}  // namespace rode::lab::fused
