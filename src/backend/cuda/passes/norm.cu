// SPDX-License-Identifier: Apache-2.0
// ||W||^2 of one matrix, for state that starts from the weights and for diagnostics.
//
// Reads 4 bytes per element (fp32). At most 528 blocks of 256 threads (four per SM of a large
// chip) take slices in turn, then one block adds what they left: the order of the sum depends
// on the shape alone.
#include <cmath>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/passes/launches.h"

namespace rode::cuda {
namespace {

constexpr int kRuns = 4;

__global__ void __launch_bounds__(kSliceThreads)
    sum_slices(NormArgs args, bool vector, std::int64_t slices) {
  double sum = 0;
  for (std::int64_t c = blockIdx.x; c < slices; c += gridDim.x) {
    const Walk slice(args.rows, args.cols, c);
    walk<kRuns>(slice.count, vector, [&]<int kWidth, int kCount>(const Runs<kWidth, kCount>& runs) {
      std::int64_t at[kCount];
      slice.places(runs, args.stride, at);
      Bits<kWidth> bits[kCount];
      load(args.weight, runs, at, bits);
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        float w[kWidth];
        decode(bits[u], args.weight.bf16 != 0, w);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const double wide = static_cast<double>(w[i]);
          sum += wide * wide;
        }
      }
    });
  }
  sum = block_sum<kSliceThreads>(sum);
  if (threadIdx.x == 0) args.partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSliceThreads) add_blocks(NormArgs args, int blocks) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kSliceThreads) {
    sum += args.partial[i];
  }
  sum = block_sum<kSliceThreads>(sum);
  if (threadIdx.x != 0) return;
  *args.square = sum;
  if (args.norm != nullptr) *args.norm = static_cast<float>(std::sqrt(sum));
}

}  // namespace

void launch_norm(const NormArgs& args, cudaStream_t stream) {
  const std::int64_t slices = slice_count(args.rows * args.cols);
  const int blocks = static_cast<int>(slices < kNormBlocks ? slices : kNormBlocks);
  if (blocks > 0) {
    const bool vector =
        aligned_in_fours(args.weight) && fours_fit(args.rows, args.cols, args.stride);
    sum_slices<<<static_cast<unsigned>(blocks), kSliceThreads, 0, stream>>>(args, vector, slices);
    RODE_CUDA_CHECK_LAUNCH(stream, "sum_slices");
  }
  add_blocks<<<1, kSliceThreads, 0, stream>>>(args, blocks);
  RODE_CUDA_CHECK_LAUNCH(stream, "add_blocks");
}

}  // namespace rode::cuda
