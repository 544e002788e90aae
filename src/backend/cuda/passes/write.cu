// SPDX-License-Identifier: Apache-2.0
// Writes the weights of matrices: W' = on_w W + on_x X, X the iterate that Newton-Schulz leaves.
//
// Projection, rotation and rescaling are in the two coefficients. Where rows are normalised, row i
// has a factor of its own: W' = on_w W + F_i (on_x X + on_u W); where rows have radii, it has both
// coefficients for itself. These are kernels by themselves, so that they cost nothing elsewhere; so
// is cautious decay (rules/cautious_decay.h). Bytes per element with fp32 weights and a bf16
// iterate: reads 6, writes 4. ||W' - W||^2, of the weights as stored, and ||W||^2 are left per
// slice; the last kernel of this file adds them up. One block of 256 threads per slice, six blocks
// per SM; a thread asks for two runs of both arrays before it uses the first.
#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/passes/launches.h"
#include "backend/cuda/tables/control.h"
#include "rules/cautious_decay.h"
#include "rules/row_rule.h"

namespace rode::cuda {
namespace {

constexpr int kRuns = 2;

struct Args {
  StepView view;
  const SliceEntry* slices;
};

// Where the iterate lies; null: W' = on_w W.
struct Iterate {
  const void* data;
  std::int64_t stride;
  NsDType dtype;
};

// What a row of the fan-out has for itself.
enum class OfRows { nothing, factors, coefficients };

struct Mix {
  float on_w, on_x, on_u;
  std::uint64_t sequence;
  const float* factors;                        // of rows, or of columns; null: there is no iterate
  const rules::RowWrite<float>* coefficients;  // the same; there always
  bool columns;
  bool cautious;
};

// One new weight. kCautious: some matrix has cautious decay, and `cautious` says whether this one.
template <bool kCautious>
__device__ float mixed(bool cautious, float on_w, float w, float on_x, float x) {
  if constexpr (kCautious) {
    if (cautious) return rules::cautious_sum(on_w, w, on_x * x);
  }
  return on_w * w + on_x * x;
}

// The factors of the run that begins with element `i` of the slice: all in one row.
template <int kWidth>
__device__ void load_factors(const Mix& c, const Walk& slice, int i, float (&f)[kWidth]) {
#pragma unroll
  for (int k = 0; k < kWidth; ++k) f[k] = 0;
  if (c.factors == nullptr) return;
  const Walk::Place place = slice.place(i);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) f[k] = c.factors[c.columns ? place.col + k : place.row];
}

template <OfRows kRows, bool kCautious>
__device__ Moved write_slice(const JobEntry& job, const Iterate& iterate, const Mix& c, bool vector,
                             const Walk& slice) {
  Moved moved;
  walk<kRuns>(slice.count, vector, [&]<int kWidth, int kCount>(const Runs<kWidth, kCount>& runs) {
    std::int64_t at[kCount], place[kCount];
    slice.places(runs, job.stride, at);
    slice.places(runs, iterate.stride, place);
    Bits<kWidth> w_bits[kCount], x_bits[kCount];
    load(job.weight, runs, at, w_bits);
    if (iterate.data != nullptr) {
      load(iterate.data, iterate.dtype != NsDType::fp32, runs, place, x_bits);
    } else {
#pragma unroll
      for (int u = 0; u < kCount; ++u) clear(x_bits[u]);
    }
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if (!runs.valid(u)) continue;
      float w[kWidth], x[kWidth], fresh[kWidth];
      decode(w_bits[u], job.weight.bf16 != 0, w);
      decode_slot(x_bits[u], iterate.dtype, x);
      if constexpr (kRows == OfRows::coefficients) {
        const Walk::Place row = slice.place(runs.element(u));
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const auto own = c.coefficients[c.columns ? row.col + i : row.row];
          fresh[i] = mixed<false>(false, own.w, w[i], own.x, x[i]);
        }
      } else if constexpr (kRows == OfRows::factors) {
        float f[kWidth];
        load_factors(c, slice, runs.element(u), f);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const auto own = rules::row_write(c.on_w, c.on_u, c.on_x, f[i]);
          fresh[i] = mixed<kCautious>(c.cautious, own.w, w[i], own.x, x[i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          fresh[i] = mixed<kCautious>(c.cautious, c.on_w, w[i], c.on_x, x[i]);
        }
      }
      store_weights(job.weight, c.sequence, job.offset + at[u], at[u], fresh);
      moved.add(w, fresh);
    }
  });
  return moved;
}

// Coefficients of rows need registers.
constexpr int blocks_per_sm(OfRows rows) { return rows == OfRows::coefficients ? 5 : 6; }

template <OfRows kRows, bool kCautious>
__global__ void __launch_bounds__(kSliceThreads, blocks_per_sm(kRows)) write(Args args) {
  const StepView& view = args.view;
  const SliceEntry entry = args.slices[blockIdx.x];
  const JobEntry job = view.jobs[entry.job];
  follow();
  if (view.live[entry.job] == 0) return;
  const MatrixEntry& matrix = view.matrices[entry.job];
  const MatrixStep& step = view.matrix_steps[entry.job];
  Moved moved;
  // RODE holds a matrix of ||W|| <= eps: its weights are not even rounded.
  if (rules::writes_weights(matrix.muon == 0, step.held != 0)) {
    const bool moves = step.moves != 0;
    const Iterate x{moves ? matrix.iterate : nullptr, moves ? matrix.slot_stride : job.stride,
                    matrix.slot_dtype};
    Mix mix{step.on_w, moves ? step.on_x : 0.0F, 0.0F, step.sequence, nullptr, nullptr, false,
            false};
    bool vector = job.slot_vector != 0;
    if constexpr (kRows == OfRows::factors) {
      mix.on_u = step.on_u;
      mix.factors = moves ? view.row_factors + matrix.first_row : nullptr;
    }
    if constexpr (kRows == OfRows::coefficients) {
      mix.coefficients = view.row_writes + matrix.first_row;
    }
    if constexpr (kRows != OfRows::nothing) {
      mix.columns = matrix.row_columns != 0;
      vector = vector && fours_stay_in_rows(job);
    }
    if constexpr (kCautious) mix.cautious = step.cautious != 0;
    moved =
        write_slice<kRows, kCautious>(job, x, mix, vector, Walk(job.rows, job.cols, entry.index));
  }
  double sums[2] = {moved.dd, moved.ww};
  block_sums<kSliceThreads>(sums);
  if (threadIdx.x != 0) return;
  double* out = view.moved + 2 * (job.first_slice + entry.index);
  out[0] = sums[0];
  out[1] = sums[1];
}

// What a step reports of matrices and element jobs: squared norms of weights and moves.
//
// One block per job adds its partial sums, 16 bytes per slice.
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) finish(StepView view) {
  const int block = static_cast<int>(blockIdx.x);
  const int index =
      block < view.matrix_count ? block : view.element_from + (block - view.matrix_count);
  if (view.live[index] == 0) return;
  const JobEntry& job = view.jobs[index];
  const double* parts = view.moved + 2 * job.first_slice;
  const double dd = strided_sum<kThreads>(parts, job.slices, 2),
               ww = strided_sum<kThreads>(parts + 1, job.slices, 2);
  if (threadIdx.x != 0) return;
  view.results[index].dd = dd;
  // RODE's was measured.
  const bool rode = index < view.matrix_count && view.matrices[index].muon == 0;
  if (!rode) view.results[index].ww = ww;
  note_end(*view.control, job.parameter, ww, dd);
}

}  // namespace

void launch_write(const StepView& view, SliceRange range, cudaStream_t stream) {
  if (range.count == 0) return;
  const auto kernel =
      view.cautious_matrices != 0 ? write<OfRows::nothing, true> : write<OfRows::nothing, false>;
  launch_following(kernel, static_cast<unsigned>(range.count), kSliceThreads, stream,
                   Args{view, range.slices});
  RODE_CUDA_CHECK_LAUNCH(stream, "write");
}

void launch_write_rows(const StepView& view, SliceRange range, cudaStream_t stream) {
  if (range.count == 0) return;
  const auto kernel =
      view.cautious_matrices != 0 ? write<OfRows::factors, true> : write<OfRows::factors, false>;
  launch_following(kernel, static_cast<unsigned>(range.count), kSliceThreads, stream,
                   Args{view, range.slices});
  RODE_CUDA_CHECK_LAUNCH(stream, "write_rows");
}

void launch_write_radii(const StepView& view, SliceRange range, cudaStream_t stream) {
  if (range.count == 0) return;
  launch_following(write<OfRows::coefficients, false>, static_cast<unsigned>(range.count),
                   kSliceThreads, stream, Args{view, range.slices});
  RODE_CUDA_CHECK_LAUNCH(stream, "write_radii");
}

void launch_finish(const StepView& view, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(view.matrix_count + view.element_count);
  if (blocks == 0) return;
  // A full barrier, and no early word to what follows: the caller's kernels find the step done.
  finish<<<blocks, kThreads, 0, stream>>>(view);
  RODE_CUDA_CHECK_LAUNCH(stream, "finish");
}

}  // namespace rode::cuda
