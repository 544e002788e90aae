// SPDX-License-Identifier: Apache-2.0
// Makes the memory and the tables of a plan; run.cpp launches it.
#include "backend/cuda/newton_schulz/newton_schulz.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cuda/device/check.h"
#include "backend/cuda/newton_schulz/impl.h"
#include "backend/cuda/newton_schulz/tensor_map.h"
#include "rode/error.h"

namespace rode::cuda {
namespace {

// The fastest kernels of a chip, by its compute capability alone. Those of 9.0a run on 9.0 alone.
Kernels kernels_of(int major, CudaProducts products) {
  if (products == CudaProducts::plain || major < 8) return Kernels::plain;
  if (products == CudaProducts::automatic && major == 9) {
    return Kernels::hopper;
  }
  return Kernels::tensor_cores;
}

// Where tensor maps may begin.
std::size_t aligned(std::size_t bytes) { return (bytes + 1023) / 1024 * 1024; }

Error no_fp8() {
  return {
      ErrorKind::unsupported, "cuda",
      "option 'ns_dtype' = 'fp8'; e4m3 products exist for Hopper (compute capability 9.0) only, "
      "with products = auto; use bf16 or fp16 on this device"};
}

std::size_t bytes_of(const DeviceBatch& batch) {
  std::size_t bytes = batch.maps.bytes() + batch.operands.bytes() + batch.members.bytes();
  for (const DeviceList& list : batch.lists) bytes += list.items.bytes() + list.lists.bytes();
  return bytes;
}

}  // namespace

void NewtonSchulz::Impl::build_tables(const Batch& batch, Kernels best) {
  DeviceBatch device;
  device.kernels = batch.program.dtype == NsDType::fp32 ? Kernels::plain : best;
  const bool hopper = device.kernels == Kernels::hopper;
  if (batch.program.dtype == NsDType::fp8) {
    // The pass that makes the next operands reprojects.
    if (!hopper) throw no_fp8();
  } else if (hopper && batch.hold) {
    device.guarded = ProductKind::held;
  } else if (hopper && batch.counted) {
    device.guarded = ProductKind::behind;
  }
  device.launches = batch.launches;
  if (!hopper) {
    device.launches.clear();
    for (int i = 0; i < static_cast<int>(batch.products.size()); ++i) {
      device.launches.push_back({i, 1, batch.products[static_cast<std::size_t>(i)].list});
    }
  }
  for (const WorkList& list : batch.lists) {
    DeviceList& own = device.lists.emplace_back();
    own.items = upload_table(list.items, nullptr);
    own.lists = upload_table(list.lists, nullptr);
    own.clusters = list.clusters();
    own.count = static_cast<int>(list.items.size());
    for (int c = 0; c < own.clusters; ++c) {
      const auto at = static_cast<std::size_t>(c);
      own.longest = std::max(own.longest, list.lists[at + 1] - list.lists[at]);
    }
  }
  device.members = upload_table(batch.members, nullptr);
  std::vector<CUtensorMap> maps;
  std::vector<PlainOperand> operands;
  for (const Bucket& bucket : batch.buckets) {
    for (const RoleMemory& memory : bucket.memory) {
      std::byte* at = workspace.as<std::byte>() + memory.offset;
      operands.push_back({at, memory.stride, memory.matrix_stride, static_cast<int>(memory.rows),
                          static_cast<int>(memory.cols)});
      if (!hopper) continue;
      const bool mapped = memory.used && memory.bytes <= 2;
      maps.push_back(mapped ? make_tensor_map(at, memory, bucket.count, batch.program.dtype)
                            : CUtensorMap{});
    }
  }
  device.maps = upload_table(maps, nullptr);
  device.operands = upload_table(operands, nullptr);
  batches.push_back(std::move(device));
}

void NewtonSchulz::Impl::build_slots(const Batch& batch) {
  for (std::size_t i = 0; i < batch.members.size(); ++i) {
    const auto [bucket_index, in_bucket] = batch.position[i];
    const Bucket& bucket = batch.buckets[static_cast<std::size_t>(bucket_index)];
    const auto address = [&](Role role) -> void* {
      const RoleMemory& memory = bucket.memory[role];
      if (!memory.used) return nullptr;
      return workspace.as<std::byte>() + memory.offset +
             static_cast<std::size_t>(in_bucket * memory.matrix_stride) *
                 element_bytes(batch.program.dtype);
    };
    slots[static_cast<std::size_t>(batch.members[i])] = {
        address(kRoleX),
        address(kRoleU),
        address(batch.result),
        address(bucket.memory[kRoleY].used ? kRoleY : kRoleX),
        bucket.memory[kRoleX].stride,
        iterate_dtype(batch.program.dtype)};
  }
}

NewtonSchulz::NewtonSchulz(const std::vector<NsMatrix>& given, std::size_t workspace_limit,
                           bool symmetric, CudaProducts products, bool keep)
    : impl_(std::make_unique<Impl>()) {
  Impl& self = *impl_;
  int device = 0, major = 0, processors = 0;
  RODE_CUDA_CHECK(cudaGetDevice(&device));
  RODE_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  RODE_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const Kernels best = kernels_of(major, products);

  int clusters = processors / kClusterSize;
  if (best == Kernels::hopper) {
    RODE_CUDA_CHECK(prepare_hopper_fp16(&clusters));
    RODE_CUDA_CHECK(prepare_hopper_bf16(&clusters));
    RODE_CUDA_CHECK(prepare_hopper_fp8());
  } else if (best == Kernels::tensor_cores) {
    RODE_CUDA_CHECK(prepare_tensor_cores());
  }
  self.plan = plan_batches(given, {workspace_limit, std::max(1, clusters), symmetric});
  self.matrices = static_cast<int>(given.size());
  std::size_t bytes = 0, partials = 0, most_steps = 0, most_products = 0;
  std::vector<TileRange> tiles(given.size());
  for (Batch& batch : self.plan) {
    if (keep) {
      for (Bucket& bucket : batch.buckets) {
        for (RoleMemory& memory : bucket.memory) memory.offset += bytes;
      }
    }
    bytes = keep ? bytes + aligned(batch.bytes) : std::max(bytes, batch.bytes);
    partials = std::max(partials, static_cast<std::size_t>(batch.partials));
    most_steps = std::max(most_steps, static_cast<std::size_t>(batch.program.steps));
    most_products = std::max(most_products, batch.products.size());
    for (std::size_t i = 0; i < batch.tiles.size(); ++i) {
      tiles[static_cast<std::size_t>(batch.members[i])] = batch.tiles[i];
    }
    self.members.push_back(batch.members);
  }
  self.workspace = DeviceBuffer(bytes);
  self.workspace.clear(nullptr);
  self.start_scale = DeviceBuffer(given.size() * sizeof(float));
  self.sums = DeviceBuffer(given.size() * sizeof(rules::IterateSums));
  self.sums.clear(nullptr);
  self.partials = DeviceBuffer(partials * sizeof(PartialSums));
  self.tiles = upload_table(tiles, nullptr);
  self.blends = DeviceBuffer(most_steps * given.size() * sizeof(Blend));
  self.words = DeviceBuffer(most_steps * given.size() * sizeof(long long));
  self.squares = DeviceBuffer(given.size() * sizeof(long long));
  self.written = DeviceBuffer(most_products * given.size() * sizeof(int));
  std::vector<int> first_strip(given.size());
  int strips = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    first_strip[i] = strips;
    if (program_of(given[i], symmetric).dtype != NsDType::fp8) continue;
    strips +=
        static_cast<int>((std::min(given[i].rows, given[i].cols) + kTileSide - 1) / kTileSide);
  }
  if (strips > 0) {
    self.corrections = DeviceBuffer(given.size() * sizeof(Correction));
    self.first_strip = upload_table(first_strip, nullptr);
    self.arrived = DeviceBuffer(static_cast<std::size_t>(strips) * sizeof(int));
    self.arrived.clear(nullptr);
  }
  self.slots.resize(given.size());
  for (const Batch& batch : self.plan) {
    self.build_tables(batch, best);
    self.build_slots(batch);
  }
  // Tables were uploaded on the default stream; the caller's need not wait for it.
  RODE_CUDA_CHECK(cudaDeviceSynchronize());
}

NewtonSchulz::~NewtonSchulz() = default;
NewtonSchulz::NewtonSchulz(NewtonSchulz&&) noexcept = default;
NewtonSchulz& NewtonSchulz::operator=(NewtonSchulz&&) noexcept = default;

const std::vector<std::vector<int>>& NewtonSchulz::batches() const { return impl_->members; }

const NsSlot& NewtonSchulz::slot(int matrix) const {
  return impl_->slots[static_cast<std::size_t>(matrix)];
}

float* NewtonSchulz::start_scale() const { return impl_->start_scale.as<float>(); }

const rules::IterateSums* NewtonSchulz::sums() const {
  return impl_->sums.as<rules::IterateSums>();
}

std::size_t NewtonSchulz::workspace_bytes() const {
  const Impl& self = *impl_;
  std::size_t bytes = 0;
  for (const DeviceBuffer* buffer :
       {&self.workspace, &self.start_scale, &self.sums, &self.partials, &self.tiles, &self.blends,
        &self.words, &self.squares, &self.written, &self.corrections, &self.first_strip,
        &self.arrived}) {
    bytes += buffer->bytes();
  }
  for (const DeviceBatch& batch : self.batches) bytes += bytes_of(batch);
  return bytes;
}

}  // namespace rode::cuda
