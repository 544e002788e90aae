// SPDX-License-Identifier: Apache-2.0
// The product kernel for compute capability 9.0a: persistent, three warpgroups per CTA.
//
// One thread of warpgroup 0 is the producer: it loads operands by TMA into a ring of shared memory.
// The two other warpgroups are consumers and take items in turn (ping-pong), so that one multiplies
// while the other is in its epilogue. 128 x 128 tiles: 128 accumulators per thread leave room for
// the epilogue; every load brings 24 KB to an SM for 2.1 MFLOP.
//
// The inner product with U that a reprojection needs is taken in the epilogue, from the tile
// as rounded: U's tile has been on its way while the product was made. Three warps of warpgroup 0
// reproject tiles: before they are stored where they can be held until then (held.cuh), else in
// device memory (behind.cuh).
#pragma once

#include "backend/cuda/newton_schulz/hopper/behind.cuh"
#include "backend/cuda/newton_schulz/hopper/epilogue.cuh"
#include "backend/cuda/newton_schulz/hopper/held.cuh"
#include "backend/cuda/newton_schulz/hopper/ptx.cuh"
#include "backend/cuda/newton_schulz/hopper/ring.cuh"
#include "backend/cuda/newton_schulz/hopper/shared.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "backend/cuda/newton_schulz/schatten.cuh"

namespace rode::cuda::hopper {

template <ProductKind kKind>
inline constexpr TileSums kTileSums = kKind == ProductKind::measured ? TileSums::t_and_xx
                                      : kKind == ProductKind::behind ? TileSums::t
                                                                     : TileSums::none;

// A consumer: every other item of the cluster's list. Its cursor passes over the stages of the
// items between, which the other consumer reads.
template <class Element, ProductKind kKind, bool kSchatten>
__device__ __forceinline__ void consume(const ProductArgs& args, Shared& shared, int first,
                                        int last, int rank, int warp) {
  constexpr bool kSymmetric = kKind == ProductKind::symmetric;
  constexpr bool kHold = kKind == ProductKind::held;
  constexpr bool kBehind = kKind == ProductKind::behind;
  constexpr TileSums kSums = kTileSums<kKind>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int consumer = warp / 4 - 1;
  Consumer me{consumer, warp % 4, lane, shared_address(shared.tile[consumer]),
              shared_address(&shared.loaded[consumer])};
  Cursor at;
  constexpr int kMore = kHold ? 1 : 0;  // loads of an item beyond its operands
  if (consumer == 1 && first < last) at.advance(uniform(args.items[first].depth) + kMore);
  int i = first + consumer;
  ProductItem next = first < last ? args.items[min(i, last - 1)] : ProductItem{};
  wait_for_previous_launch();
  while (i < last) {
    const ProductItem item = next;
    const ProductTile tile = tile_of(item, rank);
    // On their way while this item is multiplied: the other consumer's depth, the own next item.
    const int skipped = i + 1 < last ? args.items[i + 1].depth : 0;
    next = args.items[min(i + 2, last - 1)];
    const NamedBarrier turn = i + 1 < last ? turn_barrier(1 - consumer) : NamedBarrier::none;
    const int depth = uniform(item.depth);
    const Phase& phase = args.phases[kSymmetric ? uniform(item.phase) : 0];
    const bool blended = kSymmetric && phase.blends != nullptr;
    const Blend blend = blended ? phase.blends[tile.matrix] : Blend{};
    if (blended || kSums != TileSums::none) {
      if (me.leads()) {
        if constexpr (kSymmetric) {
          wait_written(args, item, tile);
          if (kSchatten && phase.squares != nullptr) {
            const int n = args.operands[item.bucket * kRoles + phase.d].rows;
            shared.blend[consumer] = of_squares(blend, phase.squares + tile.matrix, n);
          }
        }
        const CUtensorMap* map = args.maps + item.bucket * kRoles + (kSymmetric ? phase.c : kRoleU);
        me.load_tile(map, tile.row * kTileSide, item.col_tile * kTileSide, tile.in_bucket);
      }
    }
    if (i > first) sync<2 * kWarpgroup>(turn_barrier(consumer));
    float d[2][64];
    if (uniform(item.order == OperandOrder::k_k ? 1 : 0) != 0) {
      multiply<Element, false, false, kHold>(d, shared, at, depth, turn);
    } else {
      multiply<Element, kSymmetric, true, kHold>(d, shared, at, depth, turn);
    }
    if constexpr (kSymmetric) {
      if (blended) {
        epilogue_symmetric<Element, true, kSchatten>(args, item, tile, blend, me, shared, d);
      } else {
        epilogue_symmetric<Element, false, kSchatten>(args, item, tile, blend, me, shared, d);
      }
    } else if constexpr (kHold) {
      hold<Element>(args, tile, me, shared, at, d);
    } else {
      epilogue_apply<Element, kSums>(
          args, item, rank, me, shared, d, [&](const ProductTile& own, const PartialSums& sums) {
            if constexpr (kBehind) {
              tma_store_wait();  // the other consumer multiplies meanwhile
              add_to_word<true>(args.words + own.matrix, sums.t);
            } else {
              args.partials[item.partial + rank] = sums;
            }
          });
    }
    at.advance(uniform(skipped) + kMore);
    i += 2;
  }
  if constexpr (!kHold) {
    if (me.leads()) tma_store_wait();
  }
  if constexpr (kBehind) {
    const Team<kWarpgroup> team{static_cast<int>(threadIdx.x) % kWarpgroup,
                                consumer_barrier(consumer), consumer};
    reproject_behind<Element>(args, shared, first, last, rank, team);
  }
}

// kSchatten: a symmetric product with phases that sum squares or read those sums. A kernel of its
// own: the others are up to 1.5 % faster without that code.
template <class Element, ProductKind kKind, bool kSchatten = false>
__global__ void __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ ProductArgs args) {
  constexpr bool kSymmetric = kKind == ProductKind::symmetric;
  constexpr bool kHold = kKind == ProductKind::held;
  constexpr bool kBehind = kKind == ProductKind::behind;
  extern __shared__ unsigned char raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw + ((1024 - (shared_address(raw) & 1023)) & 1023));
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int rank = uniform(static_cast<int>(cluster_rank()));
  if (warp == 0 && elect_one()) {
    shared.next_behind = 0;
    init_barriers(shared);
  }
  __syncthreads();
  cluster_sync();
  allow_next_launch();

  // Lists and items never change: they are read while the launch before comes to its end. Each
  // role waits for that one before it touches anything else.
  const int cluster = static_cast<int>(blockIdx.x) / kClusterSize;
  const int first = uniform(args.lists[cluster]), last = uniform(args.lists[cluster + 1]);
  if (warp < 4) {
    // The three warpgroups share 504 registers per thread.
    decrease_registers<kHold || kBehind ? 88 : kSymmetric ? 56 : 40>();
    if (warp == 0) {
      if (elect_one()) produce<kSymmetric, kHold>(args, shared, first, last, rank);
    } else if constexpr (kHold) {
      reproject_held<Element>(args, shared, first, last, rank);
    } else if constexpr (kBehind) {
      wait_for_previous_launch();
      const Team<kReprojectors> team{static_cast<int>(threadIdx.x) - 32, NamedBarrier::reprojectors,
                                     kConsumers};
      reproject_behind<Element>(args, shared, first, last, rank, team);
    }
  } else {
    increase_registers<kHold || kBehind ? 208 : kSymmetric ? 224 : 232>();
    consume<Element, kKind, kSchatten>(args, shared, first, last, rank, warp);
  }
  // No CTA may leave while its neighbour can still write into it.
  __syncwarp();
  cluster_sync();
}

template <class Element, ProductKind kKind, bool kSchatten = false>
cudaError_t launch(const ProductArgs& args, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  // Who reprojects a tile, or multiplies what the phase before has written, waits for other CTAs:
  // all of them run, or none.
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(kClusterSize * args.clusters));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  const bool waits = kKind == ProductKind::held || kKind == ProductKind::behind;
  config.numAttrs = waits || args.phase_count > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, product_kernel<Element, kKind, kSchatten>, args);
}

template <class Element, ProductKind kKind, bool kSchatten = false>
cudaError_t allow_shared() {
  return cudaFuncSetAttribute(product_kernel<Element, kKind, kSchatten>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}

// Once per device: lets the kernels have their shared memory, and says how many clusters fit.
template <class Element>
cudaError_t prepare(int* clusters) {
  for (const cudaError_t error :
       {allow_shared<Element, ProductKind::symmetric>(),
        allow_shared<Element, ProductKind::symmetric, true>(),
        allow_shared<Element, ProductKind::apply>(), allow_shared<Element, ProductKind::measured>(),
        allow_shared<Element, ProductKind::held>(), allow_shared<Element, ProductKind::behind>()}) {
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kClusterSize);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  return cudaOccupancyMaxActiveClusters(clusters, product_kernel<Element, ProductKind::measured>,
                                        &config);
}

inline bool has_squares(const ProductArgs& args) {
  for (int i = 0; i < args.phase_count; ++i) {
    if (args.phases[i].squares != nullptr) return true;
  }
  return false;
}

template <class Element>
cudaError_t launch(const ProductArgs& args, ProductKind kind, cudaStream_t stream) {
  switch (kind) {
    case ProductKind::symmetric:
      return has_squares(args) ? launch<Element, ProductKind::symmetric, true>(args, stream)
                               : launch<Element, ProductKind::symmetric>(args, stream);
    case ProductKind::apply: return launch<Element, ProductKind::apply>(args, stream);
    case ProductKind::measured: return launch<Element, ProductKind::measured>(args, stream);
    case ProductKind::held: return launch<Element, ProductKind::held>(args, stream);
    case ProductKind::behind: break;
  }
  return launch<Element, ProductKind::behind>(args, stream);
}

}  // namespace rode::cuda::hopper
