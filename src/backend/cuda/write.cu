// SPDX-License-Identifier: Apache-2.0
// Writes the weights of matrices: W' = on_w W + on_x X, X the kernel of Newton-Schulz.
//
// Projection, rotation and rescaling are in the two coefficients. Bytes an element with fp32
// weights and a bf16 kernel: reads 6, writes 4. ||W' - W||^2, of the weights as stored, and
// ||W||^2 are left by chunk. One block of 256 threads a chunk, six blocks an SM; a thread asks for
// two runs of both arrays before it uses the first.
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/chain.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/slot.cuh"
#include "backend/cuda/device/weights.cuh"
#include "backend/cuda/launches.h"

namespace rode::cuda {
namespace {

constexpr int kRuns = 2;

struct Args {
  StepView view;
  const ChunkEntry* chunks;
};

// Where the kernel lies; null: W' = on_w W.
struct Kernel {
  const void* data;
  std::int64_t stride;
  NsDType dtype;
};

struct Mix {
  float on_w, on_x;
  std::uint64_t stream;
};

__device__ Moved write_chunk(const JobEntry& job, const Kernel& kernel, const Mix& c, bool vector,
                             const Walk& chunk) {
  Moved moved;
  walk<kRuns>(chunk.count, vector, [&]<int kWidth, int kCount>(const Runs<kWidth, kCount>& runs) {
    std::int64_t at[kCount], place[kCount];
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      at[u] = chunk.at(runs.element(u), job.stride);
      place[u] = chunk.at(runs.element(u), kernel.stride);
    }
    Bits<kWidth> w_bits[kCount], x_bits[kCount];
    load(job.weight, runs, at, w_bits);
    if (kernel.data != nullptr) {
      load(kernel.data, kernel.dtype != NsDType::fp32, runs, place, x_bits);
    } else {
#pragma unroll
      for (int u = 0; u < kCount; ++u) clear(x_bits[u]);
    }
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if (!runs.valid(u)) continue;
      float w[kWidth], x[kWidth], fresh[kWidth];
      decode(w_bits[u], job.weight.bf16 != 0, w);
      decode_slot(x_bits[u], kernel.dtype, x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) fresh[i] = c.on_w * w[i] + c.on_x * x[i];
      store_weights(job.weight, c.stream, job.offset + at[u], at[u], fresh);
      moved.add(w, fresh);
    }
  });
  return moved;
}

__global__ void __launch_bounds__(kChunkThreads, 6) write(Args args) {
  const StepView& view = args.view;
  const ChunkEntry entry = args.chunks[blockIdx.x];
  const JobEntry job = view.jobs[entry.job];
  follow();
  if (view.live[entry.job] == 0) return;
  const MatrixEntry& matrix = view.matrices[entry.job];
  const MatrixStep& step = view.matrix_steps[entry.job];
  Moved moved;
  // A matrix without a direction to turn from is held: its weights are not even rounded.
  if (matrix.muon != 0 || step.held == 0) {
    const bool kernel = step.kernel != 0;
    const Kernel x{kernel ? matrix.kernel : nullptr, kernel ? matrix.slot_stride : job.stride,
                   matrix.slot_dtype};
    moved = write_chunk(job, x, {step.on_w, kernel ? step.on_x : 0.0F, step.stream},
                        job.slot_vector != 0, Walk(job.rows, job.cols, entry.index));
  }
  double sums[2] = {moved.dd, moved.ww};
  block_sums<kChunkThreads>(sums);
  if (threadIdx.x != 0) return;
  double* out = view.moved + 2 * (job.first_chunk + entry.index);
  out[0] = sums[0];
  out[1] = sums[1];
}

}  // namespace

void launch_write(const StepView& view, ChunkRange range, cudaStream_t stream) {
  if (range.count == 0) return;
  launch_following(write, static_cast<unsigned>(range.count), kChunkThreads, stream,
                   Args{view, range.chunks});
  RODE_CUDA_CHECK_LAUNCH(stream, "write");
}

}  // namespace rode::cuda
