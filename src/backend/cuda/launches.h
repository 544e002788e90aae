// SPDX-License-Identifier: Apache-2.0
// The kernels of a step as host functions, in the order in which a step calls them.
//
// None of them reads a value on the host, and their launch shapes depend on the jobs' shapes
// alone: a sequence of them can be captured once and replayed.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/cuda/newton_schulz.h"
#include "backend/cuda/tables.h"

namespace rode::cuda {

// Every table of a step, in device memory.
struct StepView {
  Control* control;
  const JobEntry* jobs;
  const MatrixEntry* matrices;
  const ElementEntry* elements;
  MatrixStep* matrix_steps;
  ElementStep* element_steps;
  JobResult* results;
  std::int32_t* live;           // over jobs
  std::int32_t* bad_parameter;  // over parameters: scratch of the gate
  double* totals;               // six a job: what measure's partial sums add up to
  double* measured;             // six a chunk
  double* formed;               // one a chunk: ||start||^2
  double* moved;                // two a chunk: ||W' - W||^2, ||W||^2
  std::int32_t job_count, matrix_count, element_from, element_count;
};

// Part of a table of chunks, or of one of matrices.
struct ChunkRange {
  const ChunkEntry* chunks;
  std::int64_t count;
};
struct MatrixRange {
  const std::int32_t* matrices;
  std::int64_t count;
};

// control.cu: what the driver sets between steps.
void launch_set_wishes(Control* control, double multiplier, bool refuse_all, cudaStream_t stream);
void launch_set_step(Control* control, std::int64_t step, cudaStream_t stream);

// measure.cu
void launch_measure(const StepView& view, ChunkRange range, cudaStream_t stream);
// settle.cu: sums, gate, scalars, step counters.
void launch_settle(const StepView& view, cudaStream_t stream);
// form.cu: buffers and starts of the matrices of a Newton-Schulz chunk.
void launch_form(const StepView& view, ChunkRange range, cudaStream_t stream);
// rates.cu: what brings their starts to the wanted norm.
void launch_start_scale(const StepView& view, MatrixRange range, float* start_scale,
                        cudaStream_t stream);
// rates.cu: the coefficients of their write-back.
void launch_rates(const StepView& view, MatrixRange range, const float* start_scale,
                  const NsSums* sums, cudaStream_t stream);
// write.cu
void launch_write(const StepView& view, ChunkRange range, cudaStream_t stream);
// element.cu: `range` holds chunks of element jobs.
void launch_element(const StepView& view, ChunkRange range, cudaStream_t stream);
// rates.cu: results of matrices and element jobs.
void launch_finish(const StepView& view, cudaStream_t stream);

// norm.cu: *square = ||W||^2 and, where `norm` is not null, *norm = ||W||.
// `partial` has room for kNormBlocks doubles.
inline constexpr int kNormBlocks = 528;
struct NormArgs {
  WeightView weight;
  std::int64_t rows, cols, stride;
  double* partial;
  double* square;
  float* norm;
};
void launch_norm(const NormArgs& args, cudaStream_t stream);

}  // namespace rode::cuda
