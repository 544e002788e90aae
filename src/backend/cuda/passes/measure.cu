// SPDX-License-Identifier: Apache-2.0
// The inner products from which every scalar of a step is computed, and the gate decides.
//
//   RODE: <W,W>, <B,W>, <g,W>, <B,B>, <B,g>, <g,g>;  Muon: <B,B>, <B,g>, <g,g>;  MARS-M: all
//   six with the previous gradient in W's place;  constrained Muon: all six;  others: <g,g>.
//
// Reads 12, 8 or 4 bytes per element (fp32; 3 less where the momentum is int8) and writes 48 per
// slice of 16384. Products of two floats are exact in double, so that a sum of any length is good
// to fp32; each value is converted once, for conversions are what is scarce (16 per clock on an SM;
// the pass needs 4.5). One block of 256 threads per slice; a thread asks for four runs of 16 bytes
// of every array before it uses the first; three blocks share an SM.
#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/int8.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/passes/launches.h"

namespace rode::cuda {
namespace {

struct Args {
  StepView view;
  const SliceEntry* slices;
};

template <int kArrays>
__device__ void add(float t, float b, float g, rules::MatrixProducts& sums) {
  const double z = static_cast<double>(g);
  sums.gg += z * z;
  if constexpr (kArrays >= 2) {
    const double y = static_cast<double>(b);
    sums.bb += y * y;
    sums.bg += y * z;
    if constexpr (kArrays >= 3) {
      const double x = static_cast<double>(t);
      sums.tt += x * x;
      sums.bt += y * x;
      sums.gt += z * x;
    }
  }
}

// The scale of the run that begins with element `i` of the slice. Where rows are whole blocks, and
// all of the job's, no row has to be found.
__device__ inline float scale_of(const JobEntry& job, const Walk& slice, int i) {
  if (slice.cols == job.scale_stride * kBlockElements) {
    return __ldg(job.scales + (static_cast<std::uint64_t>(slice.first + i) / kBlockElements));
  }
  const Walk::Place place = slice.place(i);
  return __ldg(job.scales + place.row * job.scale_stride + place.col / kBlockElements);
}

template <int kArrays, bool kInt8>
__device__ void measure_slice(const JobEntry& job, const Walk& slice, rules::MatrixProducts& sums) {
  constexpr int kRuns = 4;
  walk<kRuns>(slice.count, job.vector != 0,
              [&]<int kWidth, int kCount>(const Runs<kWidth, kCount>& runs) {
                std::int64_t at[kCount];
#pragma unroll
                for (int u = 0; u < kCount; ++u) at[u] = slice.at(runs.element(u), job.stride);
                Bits<kWidth> t_bits[kCount], b_bits[kCount], g_bits[kCount];
                load(job.grad, runs, at, g_bits);
                [[maybe_unused]] float scale[kCount] = {};
                if constexpr (kInt8) {
                  load_int8(job.moments[0].data, runs, at, b_bits);
#pragma unroll
                  for (int u = 0; u < kCount; ++u) {
                    if (runs.valid(u)) scale[u] = scale_of(job, slice, runs.element(u));
                  }
                } else if constexpr (kArrays >= 2) {
                  load(job.moments[0], runs, at, b_bits);
                }
                if constexpr (kArrays >= 3) load(job.third, runs, at, t_bits);
#pragma unroll
                for (int u = 0; u < kCount; ++u) {
                  float t[kWidth] = {}, b[kWidth] = {}, g[kWidth];
                  decode(g_bits[u], job.grad.bf16 != 0, g);
                  if constexpr (kInt8) {
                    decode_int8(b_bits[u], scale[u], b);
                  } else if constexpr (kArrays >= 2) {
                    decode(b_bits[u], job.moments[0].bf16 != 0, b);
                  }
                  if constexpr (kArrays >= 3) decode(t_bits[u], job.third.bf16 != 0, t);
#pragma unroll
                  for (int i = 0; i < kWidth; ++i) add<kArrays>(t[i], b[i], g[i], sums);
                }
              });
}

// kInt8: some momentum is.
template <bool kInt8>
__global__ void __launch_bounds__(kSliceThreads, 3) measure(Args args) {
  const SliceEntry entry = args.slices[blockIdx.x];
  const JobEntry job = args.view.jobs[entry.job];
  follow();
  if (job.active == 0) return;
  const Walk slice(job.rows, job.cols, entry.index);
  rules::MatrixProducts sums;
  if (job.measure == Measure::gradient) {
    measure_slice<1, false>(job, slice, sums);
  } else if (kInt8 && job.scales != nullptr) {
    if constexpr (kInt8) {
      if (job.measure == Measure::buffer) {
        measure_slice<2, true>(job, slice, sums);
      } else {
        measure_slice<3, true>(job, slice, sums);
      }
    }
  } else if (job.measure == Measure::buffer) {
    measure_slice<2, false>(job, slice, sums);
  } else {
    measure_slice<3, false>(job, slice, sums);
  }
  block_sums<kSliceThreads>(sums);
  if (threadIdx.x == 0) args.view.measured[job.first_slice + entry.index] = sums;
}

}  // namespace

void launch_measure(const StepView& view, SliceRange range, cudaStream_t stream) {
  if (range.count == 0) return;
  // Not close behind (device/dependent_launch.cuh): what is before it, the tables' upload and the
  // caller's kernels, must have ended, for later kernels read the tables before they wait.
  const auto kernel = view.int8_matrices != 0 ? measure<true> : measure<false>;
  kernel<<<static_cast<unsigned>(range.count), kSliceThreads, 0, stream>>>({view, range.slices});
  RODE_CUDA_CHECK_LAUNCH(stream, "measure");
}

}  // namespace rode::cuda
