// SPDX-License-Identifier: Apache-2.0
// Holds the memory and tables of a plan, and launches it.
#include "backend/cuda/newton_schulz/newton_schulz.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cuda/device/buffer.h"
#include "backend/cuda/device/check.h"
#include "backend/cuda/newton_schulz/products.h"
#include "backend/cuda/newton_schulz/tensor_map.h"

namespace rode::cuda {
namespace {

static_assert(sizeof(NsSums) == sizeof(PartialSums));

enum class Kernels { plain, tensor_cores, hopper };

// The fastest kernels of a chip, by its compute capability alone. Those of 9.0a run on 9.0 alone.
Kernels kernels_of(int major, CudaProducts products) {
  if (products == CudaProducts::plain || major < 8) return Kernels::plain;
  if (products == CudaProducts::automatic && major == 9) {
    return Kernels::hopper;
  }
  return Kernels::tensor_cores;
}

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

ProductKind kind_of(const Product& product, ProductKind guarded) {
  if (product.kind == Product::Kind::symmetric) return ProductKind::symmetric;
  switch (product.projection) {
    case Projection::none: return ProductKind::apply;
    case Projection::guarded: return guarded;
    default: return ProductKind::measured;  // unguarded, t has no bound that a word could rely on
  }
}

// A pass behind the product reprojects.
bool has_pass(const Product& product, ProductKind kind) {
  const bool reprojects =
      product.projection == Projection::every || product.projection == Projection::guarded;
  return reprojects && kind == ProductKind::measured;
}

const char* name_of(const Product& product, int phases, ProductKind kind) {
  switch (kind) {
    case ProductKind::symmetric:
      if (phases > 1) return phases == 2 ? "gram, polynomial" : "gram and factors";
      return product.list == kGramList ? "gram" : product.blend >= 0 ? "polynomial" : "factor";
    case ProductKind::apply: return "apply";
    case ProductKind::held: return "apply, projected";
    case ProductKind::behind: return "apply, projected behind";
    case ProductKind::measured: break;
  }
  return "apply, measured";
}

std::size_t bytes_of(const DeviceBatch& batch) {
  std::size_t bytes = batch.maps.bytes() + batch.operands.bytes() + batch.members.bytes();
  for (const DeviceList& list : batch.lists) bytes += list.items.bytes() + list.lists.bytes();
  return bytes;
}

}  // namespace

struct NewtonSchulz::Impl {
  std::vector<Batch> plan;
  std::vector<std::vector<int>> members;
  std::vector<NsSlot> slots;
  std::vector<DeviceBatch> batches;
  int matrices = 0;
  DeviceBuffer workspace, start_scale, sums, partials, tiles, blends, words, written;

  void build_tables(const Batch& batch, Kernels best);
  void build_slots(const Batch& batch);
  ProductArgs arguments(const Batch& batch, const DeviceBatch& device, const Launch& launch) const;
  void enqueue(const Batch& batch, const DeviceBatch& device, ProductKind kind,
               const ProductArgs& args, cudaStream_t stream) const;
};

void NewtonSchulz::Impl::build_tables(const Batch& batch, Kernels best) {
  DeviceBatch device;
  device.kernels = batch.program.dtype == NsDType::fp32 ? Kernels::plain : best;
  const bool hopper = device.kernels == Kernels::hopper;
  if (hopper && batch.hold) {
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
      maps.push_back(memory.used ? make_tensor_map(at, memory, bucket.count, batch.program.dtype)
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
        address(kRoleX), address(kRoleU), address(batch.result), bucket.memory[kRoleX].stride,
        batch.program.dtype};
  }
}

NewtonSchulz::NewtonSchulz(const std::vector<NsMatrix>& given, std::size_t workspace_limit,
                           bool symmetric, CudaProducts products)
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
  } else if (best == Kernels::tensor_cores) {
    RODE_CUDA_CHECK(prepare_tensor_cores());
  }
  self.plan = plan_batches(given, {workspace_limit, std::max(1, clusters), symmetric});
  self.matrices = static_cast<int>(given.size());
  std::size_t bytes = 0, partials = 0, most_steps = 0, most_products = 0;
  std::vector<TileRange> tiles(given.size());
  for (const Batch& batch : self.plan) {
    bytes = std::max(bytes, batch.bytes);
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
  self.sums = DeviceBuffer(given.size() * sizeof(NsSums));
  self.sums.clear(nullptr);
  self.partials = DeviceBuffer(partials * sizeof(PartialSums));
  self.tiles = upload_table(tiles, nullptr);
  self.blends = DeviceBuffer(most_steps * given.size() * sizeof(Blend));
  self.words = DeviceBuffer(most_steps * given.size() * sizeof(long long));
  self.written = DeviceBuffer(most_products * given.size() * sizeof(int));
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

const NsSums* NewtonSchulz::sums() const { return impl_->sums.as<NsSums>(); }

ProductArgs NewtonSchulz::Impl::arguments(const Batch& batch, const DeviceBatch& device,
                                          const Launch& launch) const {
  const DeviceList& list = device.lists[static_cast<std::size_t>(launch.list)];
  ProductArgs args;
  args.maps = device.maps.as<CUtensorMap>();
  args.operands = device.operands.as<PlainOperand>();
  args.items = list.items.as<ProductItem>();
  args.lists = list.lists.as<int>();
  args.clusters = list.clusters;
  args.count = list.count;
  args.longest = list.longest;
  args.phase_count = launch.count;
  for (int p = 0; p < launch.count; ++p) {
    const int index = launch.first + p;
    const Product& product = batch.products[static_cast<std::size_t>(index)];
    Phase& phase = args.phases[p];
    phase = {product.a, product.b, product.c, product.d, nullptr, nullptr};
    if (product.blend >= 0)
      phase.blends = blends.as<Blend>() + std::ptrdiff_t{product.blend} * matrices;
    if (p + 1 < launch.count) phase.written = written.as<int>() + std::ptrdiff_t{index} * matrices;
  }
  const Product& product = batch.products[static_cast<std::size_t>(launch.first)];
  args.projection = product.projection;
  args.partials = partials.as<PartialSums>();
  args.tiles = tiles.as<TileRange>();
  args.words = words.as<long long>() + std::ptrdiff_t{product.iteration} * matrices;
  return args;
}

void NewtonSchulz::Impl::enqueue(const Batch& batch, const DeviceBatch& device, ProductKind kind,
                                 const ProductArgs& args, cudaStream_t stream) const {
  const NsDType dtype = batch.program.dtype;
  if (device.kernels == Kernels::plain) {
    RODE_CUDA_CHECK(launch_plain(args, dtype, kind == ProductKind::symmetric, stream));
  } else if (device.kernels == Kernels::tensor_cores) {
    RODE_CUDA_CHECK(launch_tensor_cores(args, dtype, kind == ProductKind::symmetric, stream));
  } else if (dtype == NsDType::fp16) {
    RODE_CUDA_CHECK(launch_hopper_fp16(args, kind, stream));
  } else {
    RODE_CUDA_CHECK(launch_hopper_bf16(args, kind, stream));
  }
}

void NewtonSchulz::run(std::size_t index, cudaStream_t stream,
                       const std::function<void(const char*)>& after) const {
  const Impl& self = *impl_;
  const Batch& batch = self.plan[index];
  if (batch.program.steps == 0) return;
  const DeviceBatch& device = self.batches[index];
  const auto count = static_cast<int>(batch.members.size());
  RODE_CUDA_CHECK(launch_blends(
      {device.members.as<int>(), count, batch.program.steps, self.matrices,
       batch.program.coefficients, self.start_scale.as<float>(), self.blends.as<Blend>(),
       self.words.as<long long>(), self.written.as<int>(), static_cast<int>(batch.products.size())},
      stream));
  RODE_CUDA_CHECK_LAUNCH(stream, "blends");
  for (const Launch& launch : device.launches) {
    const Product& product = batch.products[static_cast<std::size_t>(launch.first)];
    const ProductArgs args = self.arguments(batch, device, launch);
    const ProductKind kind = kind_of(product, device.guarded);
    const char* name = name_of(product, launch.count, kind);
    self.enqueue(batch, device, kind, args, stream);
    RODE_CUDA_CHECK_LAUNCH(stream, name);
    if (after) after(name);
    if (has_pass(product, kind)) {
      RODE_CUDA_CHECK(launch_projection(args, batch.program.dtype, stream));
      RODE_CUDA_CHECK_LAUNCH(stream, "projection");
      if (after) after("projection");
    }
  }
  if (batch.program.sphere) {
    RODE_CUDA_CHECK(launch_sums({device.members.as<int>(), count, self.tiles.as<TileRange>(),
                                 self.partials.as<PartialSums>(), self.sums.as<PartialSums>()},
                                stream));
    RODE_CUDA_CHECK_LAUNCH(stream, "sums");
  }
}

std::size_t NewtonSchulz::workspace_bytes() const {
  const Impl& self = *impl_;
  std::size_t bytes = 0;
  for (const DeviceBuffer* buffer : {&self.workspace, &self.start_scale, &self.sums, &self.partials,
                                     &self.tiles, &self.blends, &self.words, &self.written}) {
    bytes += buffer->bytes();
  }
  for (const DeviceBatch& batch : self.batches) bytes += bytes_of(batch);
  return bytes;
}

}  // namespace rode::cuda
