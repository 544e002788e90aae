// SPDX-License-Identifier: Apache-2.0
// Launches the products of a batch, and what is between them.
#include "backend/cuda/device/check.h"
#include "backend/cuda/newton_schulz/impl.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda {
namespace {

ProductKind kind_of(const Product& product, ProductKind guarded) {
  if (product.kind == Product::Kind::symmetric) return ProductKind::symmetric;
  switch (product.projection) {
    case Projection::none: return ProductKind::apply;
    case Projection::guarded: return guarded;
    default: return ProductKind::measured;  // unguarded, t has no bound that a word could rely on
  }
}

// A pass behind the product reprojects.
bool has_pass(const Product& product, ProductKind kind, NsDType dtype) {
  const bool reprojects =
      product.projection == Projection::every || product.projection == Projection::guarded;
  return reprojects && kind == ProductKind::measured && dtype != NsDType::fp8;
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

}  // namespace

ProductArgs NewtonSchulz::Impl::arguments(const Batch& batch, const DeviceBatch& device,
                                          const Launch& launch) const {
  const DeviceList& list = device.lists[static_cast<std::size_t>(launch.list)];
  const Program& program = batch.program;
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
    phase = {product.a, product.b, product.c, product.d, nullptr, nullptr, nullptr};
    if (product.blend >= 0)
      phase.blends = blends.as<Blend>() + std::ptrdiff_t{product.blend} * matrices;
    if (p + 1 < launch.count) phase.written = written.as<int>() + std::ptrdiff_t{index} * matrices;
    if (rules::schatten_start(program.coefficients) && (index == 0 || product.blend == 0)) {
      phase.squares = squares.as<long long>();
    }
    if (program.dtype == NsDType::fp8) {
      phase.scales = rules::split_scales(program.coefficients, product.iteration, 1);
      if (rules::schatten_start(program.coefficients) && product.iteration == 0) {
        phase.squares = squares.as<long long>();
      }
    }
  }
  args.start_scale = start_scale.as<float>();
  const Product& product = batch.products[static_cast<std::size_t>(launch.first)];
  args.projection = product.projection;
  args.guard =
      rules::ns_guard(program.coefficients, product.iteration, program.steps, program.dtype);
  args.partials = partials.as<PartialSums>();
  args.tiles = tiles.as<TileRange>();
  args.words = words.as<long long>() + std::ptrdiff_t{product.iteration} * matrices;
  args.corrections = corrections.as<Correction>();
  args.promote = product.iteration < rules::kPromotedIterations;
  return args;
}

void NewtonSchulz::Impl::enqueue(const Batch& batch, const DeviceBatch& device, ProductKind kind,
                                 const ProductArgs& args, cudaStream_t stream) const {
  const NsDType dtype = batch.program.dtype;
  if (device.kernels == Kernels::plain) {
    RODE_CUDA_CHECK(launch_plain(args, dtype, kind == ProductKind::symmetric, stream));
  } else if (device.kernels == Kernels::tensor_cores) {
    RODE_CUDA_CHECK(launch_tensor_cores(args, dtype, kind == ProductKind::symmetric, stream));
  } else if (dtype == NsDType::fp8) {
    RODE_CUDA_CHECK(launch_hopper_fp8(args, kind, stream));
  } else if (dtype == NsDType::fp16) {
    RODE_CUDA_CHECK(launch_hopper_fp16(args, kind, stream));
  } else {
    RODE_CUDA_CHECK(launch_hopper_bf16(args, kind, stream));
  }
}

// Before iteration k, from what the product before it has left.
void NewtonSchulz::Impl::quantize(const Batch& batch, const DeviceBatch& device, int k,
                                  cudaStream_t stream) const {
  const Program& program = batch.program;
  const DeviceList& list = device.lists[kApplyList];
  QuantizeArgs args;
  args.operands = device.operands.as<PlainOperand>();
  args.members = device.members.as<int>();
  args.count = static_cast<int>(batch.members.size());
  args.items = list.items.as<ProductItem>();
  args.lists = list.lists.as<int>();
  args.clusters = list.clusters;
  args.longest = list.longest;
  if (k > 0) {
    args.projection = batch.products[static_cast<std::size_t>(3 * k - 1)].projection;
    args.guard = rules::ns_guard(program.coefficients, k - 1, program.steps, program.dtype);
  }
  args.partials = partials.as<PartialSums>();
  args.tiles = tiles.as<TileRange>();
  args.corrections = corrections.as<Correction>();
  args.first_strip = first_strip.as<int>();
  args.arrived = arrived.as<int>();
  args.scale = rules::split_scales(program.coefficients, k, 1).x;
  RODE_CUDA_CHECK(launch_quantize(args, stream));
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
       self.words.as<long long>(), self.squares.as<long long>(), self.written.as<int>(),
       static_cast<int>(batch.products.size())},
      stream));
  RODE_CUDA_CHECK_LAUNCH(stream, "blends");
  for (const Launch& launch : device.launches) {
    const Product& product = batch.products[static_cast<std::size_t>(launch.first)];
    const ProductArgs args = self.arguments(batch, device, launch);
    const ProductKind kind = kind_of(product, device.guarded);
    const char* name = name_of(product, launch.count, kind);
    if (batch.program.dtype == NsDType::fp8 && product.list == kGramList) {
      self.quantize(batch, device, product.iteration, stream);
      RODE_CUDA_CHECK_LAUNCH(stream, "quantize");
      if (after) after("quantize");
    }
    self.enqueue(batch, device, kind, args, stream);
    RODE_CUDA_CHECK_LAUNCH(stream, name);
    if (after) after(name);
    if (has_pass(product, kind, batch.program.dtype)) {
      RODE_CUDA_CHECK(launch_projection(args, batch.program.dtype, stream));
      RODE_CUDA_CHECK_LAUNCH(stream, "projection");
      if (after) after("projection");
    }
  }
  if (batch.program.sphere) {
    RODE_CUDA_CHECK(
        launch_sums({device.members.as<int>(), count, self.tiles.as<TileRange>(),
                     self.partials.as<PartialSums>(), self.sums.as<rules::IterateSums>()},
                    stream));
    RODE_CUDA_CHECK_LAUNCH(stream, "sums");
  }
}

}  // namespace rode::cuda
