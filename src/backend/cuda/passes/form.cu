// SPDX-License-Identifier: Apache-2.0
// Advances the momentum and forms what Newton-Schulz starts from.
//
//   RODE:  B' = beta B + g + buffer_w W;  X_0 = start_b B' + start_g g + start_w W, in double
//          (of a nearly radial gradient the start keeps a small difference);  U = W / ||W||
//   Muon:  B' = buffer_b B + buffer_g g + buffer_p p;  X_0 = start_b B' + start_g g, in fp32;
//          U where the rule is constrained; p, the previous gradient of MARS-M, becomes g
//   rows with radii: as RODE, with coefficients of each row (rules/row_radius_rule.h) and no U
//
// Bytes per element with fp32 arrays and bf16 iterates: RODE reads 12 and writes 8, Muon 8 and
// 6, MARS-M 12 and 10, rows with radii 12 and 6; int8 momentum takes 3 off either. The coefficients
// of a row, 48 bytes, come from L1, once per run of four; where the fan-out's rows are columns of
// the matrix as stored, once per element. ||X_0||^2, of the fp32 numbers, is left per slice. One
// block of 256 threads per slice, six blocks per SM; a thread has one run of 16 bytes of every
// array on its way (two of them leave registers for four blocks, which are 4 % slower). A job that
// does not live is not touched; one without a direction starts from zeros.
#include <cmath>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/dependent_launch.cuh"
#include "backend/cuda/device/int8.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/passes/launches.h"
#include "rules/matrix_step.h"

namespace rode::cuda {
namespace {

constexpr int kRuns = 1;

// What the kernel reads, not the whole view of a step: with that, it has too few registers.
struct Args {
  const SliceEntry* slices;
  const JobEntry* jobs;
  const std::int32_t* live;
  const MatrixEntry* matrices;
  const MatrixStep* matrix_steps;
  double* formed;
  const rules::RowForm* row_forms;
};

// Writes into the slot of a matrix (newton_schulz.h).
struct SlotWriter {
  void* start;
  void* direction;
  std::int64_t stride;
  NsDType dtype;
  float inverse_norm;

  template <int kWidth>
  __device__ void store_start(std::int64_t at, const float (&x)[kWidth]) const {
    if (start != nullptr) store_slot(start, dtype, at, x);
  }
  template <int kWidth>
  __device__ void store_direction(std::int64_t at, const float (&w)[kWidth]) const {
    if (direction == nullptr) return;
    float u[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      u[i] = inverse_norm * w[i];
    }
    // In fp16 whatever the start's type: U is no operand of a product, its elements are small,
    // and t is to be good to 2^-11 of them.
    store_slot(direction, dtype == NsDType::fp32 ? NsDType::fp32 : NsDType::fp16, at, u);
  }
};

template <int kWidth>
__device__ double squares(const float (&x)[kWidth]) {
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

// An element's buffer and start. of_run() gives the coefficients of the run that begins with an
// element of the slice.
struct RodeForm {
  double beta, buffer_w, start_b, start_g, start_w;
  __device__ RodeForm(const MatrixEntry& matrix, const MatrixStep& step)
      : beta(matrix.rode.momentum),
        buffer_w(step.rode.buffer_w),
        start_b(step.rode.start_b * step.target),
        start_g(step.rode.start_g * step.target),
        start_w(step.rode.start_w * step.target) {}
  __device__ const RodeForm& of_run(const Walk&, int) const { return *this; }
  __device__ void operator()(int, float& b, float g, float w, float& x) const {
    const double gradient = static_cast<double>(g), weight = static_cast<double>(w);
    const double next =
        rules::rode_buffer(static_cast<double>(b), gradient, weight, beta, buffer_w);
    x = static_cast<float>(rules::rode_start(next, gradient, weight, start_b, start_g, start_w));
    b = static_cast<float>(next);
  }
};

// `third` is the previous gradient of MARS-M; elsewhere its coefficient is 0.
struct MuonForm {
  float buffer_b, buffer_g, buffer_p, start_b, start_g;
  bool mars;
  __device__ MuonForm(const MatrixEntry& matrix, const MatrixStep& step)
      : buffer_b(static_cast<float>(step.muon.buffer_b)),
        buffer_g(static_cast<float>(step.muon.buffer_g)),
        buffer_p(static_cast<float>(step.muon.buffer_p)),
        start_b(static_cast<float>(step.muon.start_b * step.target)),
        start_g(static_cast<float>(step.muon.start_g * step.target)),
        mars(matrix.muon_constants.mars) {}
  __device__ const MuonForm& of_run(const Walk&, int) const { return *this; }
  __device__ void operator()(int, float& b, float g, float third, float& x) const {
    b = rules::muon_buffer(b, g, mars ? third : 0.0F, buffer_b, buffer_g, buffer_p);
    x = rules::muon_start(b, g, start_b, start_g);
  }
};

// kColumns: the fan-out's rows are the columns of the matrix as stored. A run stays in one row.
template <bool kColumns>
struct RadiiForm {
  const rules::RowForm* rows;

  struct OfRun {
    const rules::RowForm* first;
    __device__ void operator()(int i, float& b, float g, float w, float& x) const {
      const rules::RowForm own = first[kColumns ? i : 0];
      const double gradient = static_cast<double>(g), weight = static_cast<double>(w);
      const double next = rules::row_buffer(own, static_cast<double>(b), gradient, weight);
      x = static_cast<float>(rules::row_start(own, next, gradient, weight));
      b = static_cast<float>(next);
    }
  };
  __device__ OfRun of_run(const Walk& slice, int i) const {
    const Walk::Place place = slice.place(i);
    return {rows + (kColumns ? place.col : place.row)};
  }
};

// `third`: whether job.third is read. Returns the thread's part of ||X_0||^2.
template <class Form>
__device__ double form_slice(const JobEntry& job, const SlotWriter& slot, bool vector,
                             const Walk& slice, const Form& form, bool third, bool keep_gradient) {
  double sum = 0;
  walk<kRuns>(slice.count, vector, [&]<int kWidth, int kCount>(const Runs<kWidth, kCount>& runs) {
    std::int64_t at[kCount];
    slice.places(runs, job.stride, at);
    Bits<kWidth> t_bits[kCount], b_bits[kCount], g_bits[kCount];
    load(job.moments[0], runs, at, b_bits);
    load(job.grad, runs, at, g_bits);
    if (third) {
      load(job.third, runs, at, t_bits);
    } else {
#pragma unroll
      for (int u = 0; u < kCount; ++u) clear(t_bits[u]);
    }
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if (!runs.valid(u)) continue;
      float t[kWidth], b[kWidth], g[kWidth], x[kWidth];
      decode(t_bits[u], job.third.bf16 != 0, t);
      decode(b_bits[u], job.moments[0].bf16 != 0, b);
      decode(g_bits[u], job.grad.bf16 != 0, g);
      const auto& own = form.of_run(slice, runs.element(u));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) own(i, b[i], g[i], t[i], x[i]);
      sum += squares(x);
      store(job.moments[0], at[u], b);
      if (keep_gradient) store(job.moments[1], at[u], g);
      const std::int64_t place = slice.at(runs.element(u), slot.stride);
      slot.store_start(place, x);
      slot.store_direction(place, t);
    }
  });
  return sum;
}

// The same with the momentum in int8, block by block.
template <class Form>
__device__ double form_blocks(const JobEntry& job, const SlotWriter& slot, bool vector,
                              const Walk& slice, const Form& form, bool third, bool keep_gradient,
                              const QuantizedState& state) {
  double sum = 0;
  update_blocks(slice, state, vector,
                [&]<int kWidth, int kCount>(const Runs<kWidth, kCount, kWarp>& runs,
                                            const std::int64_t(&at)[kCount], float scale,
                                            float(&b)[kCount][kWidth]) {
                  Bits<kWidth> t_bits[kCount], b_bits[kCount], g_bits[kCount];
                  load_int8(state.data, runs, at, b_bits);
                  load(job.grad, runs, at, g_bits);
                  if (third) {
                    load(job.third, runs, at, t_bits);
                  } else {
#pragma unroll
                    for (int u = 0; u < kCount; ++u) clear(t_bits[u]);
                  }
#pragma unroll
                  for (int u = 0; u < kCount; ++u) {
                    float t[kWidth], g[kWidth], x[kWidth];
                    decode(t_bits[u], job.third.bf16 != 0, t);
                    decode_int8(b_bits[u], scale, b[u]);
                    decode(g_bits[u], job.grad.bf16 != 0, g);
                    const auto& own = form.of_run(slice, runs.element(u));
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) own(i, b[u][i], g[i], t[i], x[i]);
                    sum += squares(x);
                    if (keep_gradient) store(job.moments[1], at[u], g);
                    const std::int64_t place = slice.at(runs.element(u), slot.stride);
                    slot.store_start(place, x);
                    slot.store_direction(place, t);
                  }
                });
  return sum;
}

// kInt8: some momentum is. A block of it in registers: fewer threads with more on their way.
// kRadii: the rows of all matrices of the range have radii, and coefficients that need registers.
constexpr int blocks_per_sm(bool int8, bool radii) {
  if (radii) return int8 ? 2 : 4;
  return int8 ? 4 : 6;
}

template <bool kInt8, bool kRadii>
__global__ void __launch_bounds__(kSliceThreads, blocks_per_sm(kInt8, kRadii)) form(Args args) {
  // Backwards: what was measured last may still be in L2.
  const SliceEntry entry = args.slices[gridDim.x - 1 - blockIdx.x];
  const JobEntry job = args.jobs[entry.job];
  follow();
  if (args.live[entry.job] == 0) return;
  const MatrixEntry& matrix = args.matrices[entry.job];
  const MatrixStep& step = args.matrix_steps[entry.job];
  const SlotWriter slot{matrix.start, matrix.direction, matrix.slot_stride, matrix.slot_dtype,
                        static_cast<float>(step.inverse_norm)};
  const Walk slice(job.rows, job.cols, entry.index);
  const bool vector = job.slot_vector != 0 && (!kRadii || fours_stay_in_rows(job));
  const auto form_with = [&](const auto& rule, bool third, bool keep_gradient) {
    if constexpr (kInt8) {
      if (job.scales != nullptr) {
        const QuantizedState state{static_cast<std::int8_t*>(job.moments[0].data),
                                   job.scales,
                                   job.stride,
                                   job.scale_stride,
                                   job.offset,
                                   step.state_draws,
                                   job.stochastic_state != 0};
        return form_blocks(in_shared(job), in_shared(slot), vector, in_shared(slice),
                           in_shared(rule), third, keep_gradient, in_shared(state));
      }
    }
    return form_slice(job, slot, vector, slice, rule, third, keep_gradient);
  };
  double sum = 0;
  if constexpr (kRadii) {
    const rules::RowForm* rows = args.row_forms + matrix.first_row;
    sum = matrix.row_columns != 0 ? form_with(RadiiForm<true>{rows}, true, false)
                                  : form_with(RadiiForm<false>{rows}, true, false);
  } else if (matrix.muon == 0) {
    sum = form_with(RodeForm(matrix, step), true, false);
  } else {
    const MuonForm rule(matrix, step);
    sum = form_with(rule, job.measure == Measure::three, rule.mars);
  }
  sum = block_sum<kSliceThreads>(sum);
  if (threadIdx.x == 0) args.formed[job.first_slice + entry.index] = sum;
}

// Brings the starts of Newton-Schulz to the norm they should have.
//
// One block per matrix adds the partial sums that the kernels above left: 8 bytes per slice, so a
// launch costs its latency.
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    start_scale_of(StepView view, const std::int32_t* matrices, float* start_scale) {
  follow();
  const int index = matrices[blockIdx.x];
  const MatrixEntry& matrix = view.matrices[index];
  const JobEntry& job = view.jobs[index];
  MatrixStep& step = view.matrix_steps[index];
  const bool live = view.live[index] != 0;
  const bool direction = live && (matrix.muon != 0 ? step.muon.direction : step.rode.direction);
  double reached = 0;
  if (direction)
    reached = std::sqrt(strided_sum<kThreads>(view.formed + job.first_slice, job.slices, 1));
  if (threadIdx.x != 0) return;
  const bool moves = rules::start_moves(direction, reached);
  if (live) step.moves = moves ? 1 : 0;
  const auto wanted =
      matrix.muon != 0 ? rules::start_norm(matrix.muon_constants) : rules::start_norm(matrix.rode);
  const double correction = rules::start_correction(wanted, step.target, reached);
  start_scale[matrix.ns] = moves ? static_cast<float>(correction) : 1.0F;
}

void launch(void (*kernel)(Args), const StepView& view, SliceRange range, const char* name,
            cudaStream_t stream) {
  if (range.count == 0) return;
  launch_following(kernel, static_cast<unsigned>(range.count), kSliceThreads, stream,
                   Args{range.slices, view.jobs, view.live, view.matrices, view.matrix_steps,
                        view.formed, view.row_forms});
  RODE_CUDA_CHECK_LAUNCH(stream, name);
}

}  // namespace

void launch_form(const StepView& view, SliceRange range, cudaStream_t stream) {
  launch(view.int8_matrices != 0 ? form<true, false> : form<false, false>, view, range, "form",
         stream);
}

void launch_form_radii(const StepView& view, SliceRange range, cudaStream_t stream) {
  launch(view.int8_matrices != 0 ? form<true, true> : form<false, true>, view, range, "form_radii",
         stream);
}

void launch_start_scale(const StepView& view, MatrixRange range, float* start_scale,
                        cudaStream_t stream) {
  if (range.count == 0) return;
  launch_following(start_scale_of, static_cast<unsigned>(range.count), kThreads, stream, view,
                   range.matrices, start_scale);
  RODE_CUDA_CHECK_LAUNCH(stream, "start_scale");
}

}  // namespace rode::cuda
