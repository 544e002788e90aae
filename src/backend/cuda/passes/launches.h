// SPDX-License-Identifier: Apache-2.0
// The passes of a step as host functions, in the order in which a step calls them.
//
// None of them reads a value on the host, and their launch shapes depend on the jobs' shapes
// alone: a sequence of them can be captured once and replayed.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/cuda/newton_schulz/newton_schulz.h"
#include "backend/cuda/tables/entries.h"

namespace rode::cuda {

// measure.cu; the second for matrices whose rows have radii.
void launch_measure(const StepView& view, SliceRange range, cudaStream_t stream);
void launch_measure_rows(const StepView& view, RowRange rows, cudaStream_t stream);
// gate.cu: sums of jobs.
void launch_total(const StepView& view, cudaStream_t stream);
// gate.cu: the gate, scalars, step counters.
void launch_gate(const StepView& view, cudaStream_t stream);
// radii.cu: the scalars of matrices whose rows have radii, which the gate leaves alone, and what
// every row needs for its start.
void launch_radii(const StepView& view, MatrixRange range, cudaStream_t stream);
// form.cu: buffers and starts of the matrices of a Newton-Schulz batch; the second where rows have
// radii.
void launch_form(const StepView& view, SliceRange range, cudaStream_t stream);
void launch_form_radii(const StepView& view, SliceRange range, cudaStream_t stream);
// form.cu: what brings their starts to the wanted norm.
void launch_start_scale(const StepView& view, MatrixRange range, float* start_scale,
                        cudaStream_t stream);
// rows.cu: sums of the iterates' rows; averages and factors of those that are normalised.
void launch_row_sums(const StepView& view, RowRange rows, cudaStream_t stream);
void launch_row_factors(const StepView& view, MatrixRange matrices, const float* start_scale,
                        cudaStream_t stream);
// radii.cu: the coefficients of the write-back where rows have radii.
void launch_row_coefficients(const StepView& view, MatrixRange range, const float* start_scale,
                             cudaStream_t stream);
// coefficients.cu: those of the others.
void launch_coefficients(const StepView& view, MatrixRange range, const float* start_scale,
                         const rules::IterateSums* sums, cudaStream_t stream);
// write.cu; the second for matrices whose rows are normalised, the third where rows have radii.
void launch_write(const StepView& view, SliceRange range, cudaStream_t stream);
void launch_write_rows(const StepView& view, SliceRange range, cudaStream_t stream);
void launch_write_radii(const StepView& view, SliceRange range, cudaStream_t stream);
// element.cu: `range` holds slices of element jobs.
void launch_element(const StepView& view, SliceRange range, cudaStream_t stream);
// write.cu: results of matrices and element jobs.
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
