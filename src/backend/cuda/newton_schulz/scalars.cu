// SPDX-License-Identifier: Apache-2.0
// The scalars around a Newton-Schulz run: polynomials before it, sums after it.
//
// One thread per matrix before, one warp per matrix after; both read and write less than a
// kilobyte per matrix, so a launch costs its latency alone.
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/newton_schulz/products.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda {
namespace {

// P = a I + b A + c A^2 of X, alpha = c, beta = b, gamma = a; the first one takes the start's
// scale.
__global__ void blend_kernel(const BlendArgs args) {
  follow();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= args.count) return;
  const int matrix = args.members[i];
  for (int step = 0; step < args.steps; ++step) {
    rules::NsTriple p = rules::ns_triple(args.coefficients, step);
    if (step == 0) p = rules::of_scaled(p, static_cast<double>(args.start_scale[matrix]));
    const int at = step * args.matrices + matrix;
    args.blends[at] = {static_cast<float>(p.c), static_cast<float>(p.b), static_cast<float>(p.a),
                       0};
    args.words[at] = 0;
  }
  args.squares[matrix] = 0;
  for (int k = 0; k < args.products; ++k) args.written[k * args.matrices + matrix] = 0;
}

__global__ void sum_kernel(const SumArgs args) {
  follow();
  const int matrix = args.members[blockIdx.x];
  const TileRange range = args.tiles[matrix];
  double t = 0, xx = 0;
  for (int i = static_cast<int>(threadIdx.x); i < range.count; i += 32) {
    t += args.partials[range.first + i].t;
    xx += args.partials[range.first + i].xx;
  }
  for (int offset = 16; offset > 0; offset >>= 1) {
    t += __shfl_down_sync(0xffffffffU, t, offset);
    xx += __shfl_down_sync(0xffffffffU, xx, offset);
  }
  if (threadIdx.x == 0) args.sums[matrix] = {t, xx};
}

}  // namespace

cudaError_t launch_blends(const BlendArgs& args, cudaStream_t stream) {
  constexpr int kBlock = 64;
  launch_following(blend_kernel, static_cast<unsigned>((args.count + kBlock - 1) / kBlock), kBlock,
                   stream, args);
  return cudaGetLastError();
}

cudaError_t launch_sums(const SumArgs& args, cudaStream_t stream) {
  launch_following(sum_kernel, static_cast<unsigned>(args.count), 32, stream, args);
  return cudaGetLastError();
}

}  // namespace rode::cuda
