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
//
// Where rows have radii, all six are needed of every row of the fan-out, and `measure_rows` takes
// the place of `measure`: the same bytes, and 48 written per row. A warp per row, eight rows per
// block; where the rows are the columns of the matrix as stored, a block takes 32 columns, its
// warps every eighth row. Sums are in an order that the shape alone decides.
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
                slice.places(runs, job.stride, at);
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

// Two runs, for with their places four would be spilled; three blocks per SM.
constexpr int kWarps = kSliceThreads / kWarp, kRuns = 2;
static_assert(kWarps == kRowsPerBlock && kWarp == kColumnsPerBlock);

// Adds runs that lie at `at`; `scale` belongs to those of int8 momentum.
template <bool kInt8, int kWidth, int kThreads>
__device__ void add_runs(const JobEntry& job, const Runs<kWidth, kRuns, kThreads>& runs,
                         const std::int64_t (&at)[kRuns], const float (&scale)[kRuns],
                         rules::MatrixProducts& sums) {
  Bits<kWidth> t_bits[kRuns], b_bits[kRuns], g_bits[kRuns];
  load(job.grad, runs, at, g_bits);
  if constexpr (kInt8) {
    load_int8(job.moments[0].data, runs, at, b_bits);
  } else {
    load(job.moments[0], runs, at, b_bits);
  }
  load(job.third, runs, at, t_bits);
#pragma unroll
  for (int u = 0; u < kRuns; ++u) {
    float t[kWidth], b[kWidth], g[kWidth];
    decode(g_bits[u], job.grad.bf16 != 0, g);
    if constexpr (kInt8) {
      decode_int8(b_bits[u], scale[u], b);
    } else {
      decode(b_bits[u], job.moments[0].bf16 != 0, b);
    }
    decode(t_bits[u], job.third.bf16 != 0, t);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) add<3>(t[i], b[i], g[i], sums);
  }
}

template <bool kInt8>
__device__ float scale_at(const JobEntry& job, std::int64_t row, std::int64_t col) {
  if constexpr (!kInt8) return 0;
  return __ldg(job.scales + row * job.scale_stride + col / kBlockElements);
}

// The warp's part of a row: columns from `begin` to `end`.
template <bool kInt8, int kWidth>
__device__ void measure_row(const JobEntry& job, std::int64_t row, std::int64_t begin,
                            std::int64_t end, rules::MatrixProducts& sums) {
  using Own = Runs<kWidth, kRuns, kWarp>;
  constexpr int kAll = kRuns * Own::kStep;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t col = begin + kWidth * lane; col < end; col += kAll) {
    const Own runs{0, static_cast<int>(end - col < kAll ? end - col : kAll)};
    std::int64_t at[kRuns];
    float scale[kRuns] = {};
#pragma unroll
    for (int u = 0; u < kRuns; ++u) {
      at[u] = row * job.stride + col + runs.element(u);
      if (runs.valid(u)) scale[u] = scale_at<kInt8>(job, row, col + runs.element(u));
    }
    add_runs<kInt8>(job, runs, at, scale, sums);
  }
}

// The warp's part of a column of the matrix as stored: every eighth row.
template <bool kInt8>
__device__ void measure_column(const JobEntry& job, std::int64_t col, rules::MatrixProducts& sums) {
  using Own = Runs<1, kRuns, kWarps>;
  constexpr int kAll = kRuns * Own::kStep;
  for (std::int64_t row = threadIdx.x / kWarp; row < job.rows; row += kAll) {
    const Own runs{0, static_cast<int>(job.rows - row < kAll ? job.rows - row : kAll)};
    std::int64_t at[kRuns];
    float scale[kRuns] = {};
#pragma unroll
    for (int u = 0; u < kRuns; ++u) {
      at[u] = (row + runs.element(u)) * job.stride + col;
      if (runs.valid(u)) scale[u] = scale_at<kInt8>(job, row + runs.element(u), col);
    }
    add_runs<kInt8>(job, runs, at, scale, sums);
  }
}

// Of the block's rows, each by one warp.
template <bool kInt8>
__device__ void measure_block_of_rows(const JobEntry& job, std::int64_t first,
                                      rules::MatrixProducts* out) {
  const std::int64_t row = first + threadIdx.x / kWarp;
  if (row >= job.rows) return;  // the whole warp
  rules::MatrixProducts sums;
  std::int64_t done = 0;
  if (job.vector != 0 && fours_stay_in_rows(job)) {
    done = job.cols & ~std::int64_t{3};
    measure_row<kInt8, 4>(job, row, 0, done, sums);
  }
  measure_row<kInt8, 1>(job, row, done, job.cols, sums);
  sums = {warp_sum(sums.tt), warp_sum(sums.bt), warp_sum(sums.gt),
          warp_sum(sums.bb), warp_sum(sums.bg), warp_sum(sums.gg)};
  if (threadIdx.x % kWarp == 0) out[row] = sums;
}

// Adds what the block's warps have of the same columns; warp 0 gets the sums.
__device__ inline rules::MatrixProducts sum_over_warps(const rules::MatrixProducts& own) {
  __shared__ double parts[6][kWarps][kColumnsPerBlock];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double values[6] = {own.tt, own.bt, own.gt, own.bb, own.bg, own.gg};
#pragma unroll
  for (int i = 0; i < 6; ++i) parts[i][warp][lane] = values[i];
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      for (int w = 1; w < kWarps; ++w) values[i] += parts[i][w][lane];
    }
  }
  return {values[0], values[1], values[2], values[3], values[4], values[5]};
}

// Of the block's columns, each by one lane of every warp.
template <bool kInt8>
__device__ void measure_block_of_columns(const JobEntry& job, std::int64_t first,
                                         rules::MatrixProducts* out) {
  const std::int64_t col = first + threadIdx.x % kWarp;
  rules::MatrixProducts sums;
  if (col < job.cols) measure_column<kInt8>(job, col, sums);
  sums = sum_over_warps(sums);
  if (threadIdx.x < kWarp && col < job.cols) out[col] = sums;
}

// kInt8: some momentum is.
template <bool kInt8>
__global__ void __launch_bounds__(kSliceThreads, 3)
    measure_rows(StepView view, const RowEntry* rows) {
  const RowEntry entry = rows[blockIdx.x];
  const JobEntry job = view.jobs[entry.job];
  const bool columns = view.matrices[entry.job].row_columns != 0;
  follow();
  if (job.active == 0) return;
  rules::MatrixProducts* out = view.measured + job.first_sum;
  const auto measure_block = [&]<bool kOwn>() {
    if (columns) {
      measure_block_of_columns<kOwn>(job, entry.first, out);
    } else {
      measure_block_of_rows<kOwn>(job, entry.first, out);
    }
  };
  if (kInt8 && job.scales != nullptr) {
    measure_block.template operator()<kInt8>();
  } else {
    measure_block.template operator()<false>();
  }
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

void launch_measure_rows(const StepView& view, RowRange rows, cudaStream_t stream) {
  if (rows.count == 0) return;
  // Not close behind either: where all matrices have radii, it is the first.
  const auto kernel = view.int8_matrices != 0 ? measure_rows<true> : measure_rows<false>;
  kernel<<<static_cast<unsigned>(rows.count), kSliceThreads, 0, stream>>>(view, rows.rows);
  RODE_CUDA_CHECK_LAUNCH(stream, "measure_rows");
}

}  // namespace rode::cuda
