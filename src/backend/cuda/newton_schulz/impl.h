// SPDX-License-Identifier: Apache-2.0
// What a NewtonSchulz holds: the plan, and its memory and tables on the device.
#pragma once

#include <vector>

#include "backend/cuda/device/buffer.h"
#include "backend/cuda/newton_schulz/newton_schulz.h"
#include "backend/cuda/newton_schulz/products.h"

namespace rode::cuda {

enum class Kernels { plain, tensor_cores, hopper };

struct DeviceList {
  DeviceBuffer items, lists;
  int clusters = 0, count = 0, longest = 0;
};

struct DeviceBatch {
  std::vector<DeviceList> lists;
  DeviceBuffer maps;      // CUtensorMap [bucket][role], on Hopper
  DeviceBuffer operands;  // PlainOperand [bucket][role]
  DeviceBuffer members;
  Kernels kernels = Kernels::plain;
  ProductKind guarded = ProductKind::measured;  // how guarded reprojections are made: by a pass
  std::vector<Launch> launches;
};

struct NewtonSchulz::Impl {
  std::vector<Batch> plan;
  std::vector<std::vector<int>> members;
  std::vector<NsSlot> slots;
  std::vector<DeviceBatch> batches;
  int matrices = 0;
  DeviceBuffer workspace, start_scale, sums, partials, tiles, blends, words, squares, written;
  DeviceBuffer corrections, first_strip, arrived;  // of the split form

  void build_tables(const Batch& batch, Kernels best);
  void build_slots(const Batch& batch);
  ProductArgs arguments(const Batch& batch, const DeviceBatch& device, const Launch& launch) const;
  void enqueue(const Batch& batch, const DeviceBatch& device, ProductKind kind,
               const ProductArgs& args, cudaStream_t stream) const;
  void quantize(const Batch& batch, const DeviceBatch& device, int k, cudaStream_t stream) const;
};

}  // namespace rode::cuda
