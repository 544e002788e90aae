// SPDX-License-Identifier: Apache-2.0
// The Hopper product kernels of the split form: e4m3 operands, the iterate in fp16.
//
// Roles, ring and turns are those of kernel.cuh; a stage holds 128 of K in the same 128 bytes per
// row. An item's epilogue is one of split.cuh.
#include "backend/cuda/newton_schulz/hopper/reproject.cuh"
#include "backend/cuda/newton_schulz/hopper/ring.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"
#include "backend/cuda/newton_schulz/hopper/split.cuh"
#include "backend/cuda/newton_schulz/products.h"

namespace rode::cuda {
namespace hopper {
namespace {

// Every other item of the cluster's list, as consume() of kernel.cuh. kPromote: sums of 128 of K
// are added in fp32.
template <ProductKind kKind, bool kPromote>
__device__ __forceinline__ void consume(const ProductArgs& args, Shared& shared, int first,
                                        int last, int rank, int warp) {
  constexpr bool kSymmetric = kKind == ProductKind::symmetric;
  constexpr bool kWithU = kKind == ProductKind::measured;
  const int consumer = warp / 4 - 1;
  Consumer me{consumer, warp % 4, static_cast<int>(threadIdx.x) % 32,
              shared_address(shared.tile[consumer]), shared_address(&shared.loaded[consumer])};
  Cursor at;
  if (consumer == 1 && first < last) at.advance(uniform(args.items[first].depth));
  int i = first + consumer;
  ProductItem next = first < last ? args.items[min(i, last - 1)] : ProductItem{};
  wait_for_previous_launch();
  while (i < last) {
    const ProductItem item = next;
    const ProductTile tile = tile_of(item, rank);
    const int skipped = i + 1 < last ? args.items[i + 1].depth : 0;
    next = args.items[min(i + 2, last - 1)];
    const NamedBarrier turn = i + 1 < last ? turn_barrier(1 - consumer) : NamedBarrier::none;
    const int depth = uniform(item.depth);
    const Phase& phase = args.phases[kSymmetric ? uniform(item.phase) : 0];
    const bool blended = kSymmetric && phase.blends != nullptr;
    const Blend blend = blended ? phase.blends[tile.matrix] : Blend{};
    if (me.leads()) {
      const CUtensorMap* map = args.maps + item.bucket * kRoles + phase.c;
      const int row = tile.row * kTileSide, column = item.col_tile * kTileSide;
      if constexpr (!kSymmetric) {
        me.load_tile(map, row, column, tile.in_bucket);
        // U's follows in the same place: it will come from L2.
        if constexpr (kWithU) {
          const CUtensorMap* direction = args.maps + item.bucket * kRoles + kRoleU;
#pragma unroll
          for (int box = 0; box < 4; ++box) {
            tma_prefetch(direction, column + (box >> 1) * kBoxSide, row + (box & 1) * kBoxSide,
                         tile.in_bucket);
          }
        }
      } else if (blended) {
        wait_written(args, item, tile);
        if (phase.squares != nullptr) {
          const int n = args.operands[item.bucket * kRoles + phase.d].rows;
          shared.blend[consumer] = of_squares(blend, phase.squares + tile.matrix, n);
        }
        load_bytes(me, map, row, column, tile.in_bucket);
      }
    }
    const PlainOperand* operands = args.operands + item.bucket * kRoles;
    const float* vector = vector_of(operands[kSymmetric ? kRoleD : kRoleF], tile.in_bucket);
    const bool of_rows = !kSymmetric && item.order == OperandOrder::k_n;
    VectorParts parts(me, shared, vector, (of_rows ? tile.row : item.col_tile) * kTileSide,
                      operands[kRoleP].rows);
    if constexpr (kSymmetric) {
      const bool diagonal = tile.row == item.col_tile;
      if (blended ? tile.row != kNoTile : diagonal && phase.squares != nullptr) {
        parts.load_rows(me, vector, tile.row * kTileSide);
      }
    }
    if (i > first) sync<2 * kWarpgroup>(turn_barrier(consumer));
    float d[2][64];
    if constexpr (kPromote) {
      multiply_promoted(d, shared, at, depth, turn);
    } else {
      multiply<E4m3, false, false, false>(d, shared, at, depth, turn);
    }
    if constexpr (!kSymmetric) {
      epilogue_split_apply<kWithU>(args, item, tile, rank, me, shared, d);
    } else if (blended) {
      epilogue_split<true>(args, item, tile, blend, parts, me, shared, d);
    } else {
      epilogue_split<false>(args, item, tile, blend, parts, me, shared, d);
    }
    at.advance(uniform(skipped));
    i += 2;
  }
  if (me.leads()) tma_store_wait();
}

template <ProductKind kKind, bool kPromote>
__global__ void __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kThreads, 1)
    split_kernel(const __grid_constant__ ProductArgs args) {
  constexpr bool kSymmetric = kKind == ProductKind::symmetric;
  extern __shared__ unsigned char raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw + ((1024 - (shared_address(raw) & 1023)) & 1023));
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int rank = uniform(static_cast<int>(cluster_rank()));
  if (warp == 0 && elect_one()) init_barriers(shared);
  __syncthreads();
  cluster_sync();
  allow_next_launch();
  const int cluster = static_cast<int>(blockIdx.x) / kClusterSize;
  const int first = uniform(args.lists[cluster]), last = uniform(args.lists[cluster + 1]);
  if (warp < 4) {
    decrease_registers<kKind == ProductKind::apply ? 40 : 56>();
    if (warp == 0 && elect_one()) {
      produce<kSymmetric, false, true>(args, shared, first, last, rank);
    }
  } else {
    increase_registers<kKind == ProductKind::apply ? 232 : 224>();
    consume<kKind, kPromote>(args, shared, first, last, rank, warp);
  }
  // No CTA may leave while its neighbour can still write into it.
  __syncwarp();
  cluster_sync();
}

template <ProductKind kKind, bool kPromote = false>
cudaError_t launch_split(const ProductArgs& args, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;  // phases wait for each other
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(kClusterSize * args.clusters));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = args.phase_count > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, split_kernel<kKind, kPromote>, args);
}

}  // namespace
}  // namespace hopper

cudaError_t prepare_hopper_fp8() {
  for (const auto kernel : {hopper::split_kernel<ProductKind::symmetric, false>,
                            hopper::split_kernel<ProductKind::apply, false>,
                            hopper::split_kernel<ProductKind::apply, true>,
                            hopper::split_kernel<ProductKind::measured, false>,
                            hopper::split_kernel<ProductKind::measured, true>}) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, hopper::kSharedBytes);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_hopper_fp8(const ProductArgs& args, ProductKind kind, cudaStream_t stream) {
  using hopper::launch_split;
  if (kind == ProductKind::symmetric) return launch_split<ProductKind::symmetric>(args, stream);
  if (kind == ProductKind::apply) {
    return args.promote ? launch_split<ProductKind::apply, true>(args, stream)
                        : launch_split<ProductKind::apply>(args, stream);
  }
  return args.promote ? launch_split<ProductKind::measured, true>(args, stream)
                      : launch_split<ProductKind::measured>(args, stream);
}

}  // namespace rode::cuda
