// SPDX-License-Identifier: Apache-2.0
// Translates jobs into rows of the device's tables.
#include "backend/cuda/tables/fill.h"

#include <variant>

namespace rode::cuda {
namespace {

ArrayView view_of(const Moments& moments) {
  return {moments.data, moments.dtype == DType::bf16 ? 1 : 0};
}

ArrayView view_of(const Grads& grad) {
  // Read only: the table has one kind of pointer.
  return {const_cast<void*>(grad.data), grad.dtype == DType::bf16 ? 1 : 0};
}

void fill_base(JobEntry& entry, const JobBase& job, const Geometry& geometry) {
  entry.weight = rode::cuda::view_of(job.weight);
  entry.grad = view_of(job.grad);
  entry.rows = geometry.rows;
  entry.cols = geometry.cols;
  entry.stride = geometry.stride;
  entry.offset = job.place();
  entry.scales = nullptr;
  entry.scale_stride = 0;
  entry.stochastic_state = job.state_rounding == StateRounding::stochastic ? 1 : 0;
  entry.step = nullptr;
  entry.most_gg = job.most_gg;
  entry.parameter = static_cast<std::int32_t>(job.parameter);
  entry.active = job.active ? 1 : 0;
  entry.measure = Measure::gradient;
}

// The one that may be int8.
void fill_momentum(JobEntry& entry, const Moments& moments) {
  entry.moments[0] = view_of(moments);
  if (moments.dtype != DType::i8) return;
  entry.scales = moments.scales;
  entry.scale_stride = moments.scale_stride;
}

// After all arrays are known.
void fill_vector(JobEntry& entry) {
  bool fours = fours_fit(entry.rows, entry.cols, entry.stride) && aligned_in_fours(entry.weight) &&
               aligned_in_fours(entry.grad) && aligned_in_fours(entry.third);
  const bool int8 = entry.scales != nullptr;
  for (const ArrayView& array : entry.moments) {
    fours = fours && (int8 && &array == entry.moments ? aligned_in_fours(array.data, 1)
                                                      : aligned_in_fours(array));
  }
  // Blocks begin where rows do.
  entry.vector = fours && (!int8 || fours_stay_in_rows(entry)) ? 1 : 0;
}

void fill_rows(MatrixEntry& entry, const RowAverages& rows) {
  entry.row_avg_sq = rows.avg_sq;
  entry.row_columns = rows.columns ? 1 : 0;
}

}  // namespace

WeightView view_of(const Weights& weight) {
  return {weight.data, weight.low_bits, weight.sequence, weight.dtype == DType::bf16 ? 1 : 0,
          weight.rounding};
}

void fill(JobEntry& entry, const RodeJob& job) {
  fill_base(entry, job, job.geometry);
  fill_momentum(entry, job.momentum);
  entry.third = entry.weight;
  entry.measure = Measure::three;
  fill_vector(entry);
}

void fill(JobEntry& entry, const MuonJob& job) {
  fill_base(entry, job, job.geometry);
  fill_momentum(entry, job.momentum);
  entry.moments[1] = view_of(job.previous);
  entry.measure = Measure::buffer;
  const rules::Third third = rules::third_of(*job.constants);
  if (third == rules::Third::previous) {
    entry.third = {job.previous.data, nullptr, 0, entry.moments[1].bf16, Rounding::nearest};
    entry.measure = Measure::three;
  } else if (third == rules::Third::weight) {
    entry.third = entry.weight;
    entry.measure = Measure::three;
  }
  fill_vector(entry);
}

void fill(JobEntry& entry, const SoapJob& job) {
  fill_base(entry, job, geometry_of(job));
  fill_vector(entry);
}

void fill(JobEntry& entry, const AdafactorJob& job) {
  fill_base(entry, job, geometry_of(job));
  entry.step = job.step;
  fill_vector(entry);
}

void fill(JobEntry& entry, const ElementJob& job) {
  // Its rows matter to int8 state alone; without gaps, elements have the same places either way.
  fill_base(entry, job, job.state[0].dtype == DType::i8 ? job.geometry : geometry_of(job));
  fill_momentum(entry, job.state[0]);
  for (int i = 1; i < rules::kMostMoments; ++i) entry.moments[i] = view_of(job.state[i]);
  entry.step = job.step;
  fill_vector(entry);
}

void fill(MatrixEntry& entry, const RodeJob& job) {
  const rules::RodeConstants& c = *job.constants;
  entry.muon = 0;
  entry.rode = c;
  entry.state = job.state;
  entry.target = job.target;
  entry.scale = job.scale;
  entry.iterates = rules::iterates(c) ? 1 : 0;
  entry.radii = has_row_radius(job) ? 1 : 0;
  fill_rows(entry, job.rows);
}

void fill(MatrixEntry& entry, const MuonJob& job) {
  entry.muon = 1;
  const rules::MuonConstants& c = *job.constants;
  entry.muon_constants = c;
  entry.radius = job.radius;
  entry.scale = job.scale;
  entry.iterates = rules::iterates(c) ? 1 : 0;
  entry.own = job.own;
  entry.radii = has_row_radius(job) ? 1 : 0;
  fill_rows(entry, job.rows);
}

void fill(ElementEntry& entry, const ElementJob& job) {
  entry.rule = static_cast<std::int32_t>(job.constants.index());
  const auto copy = [&]<class Rule>(const rules::ElementConstants<Rule>& constants) {
    entry.constants.as<typename Rule::Constants>() = *constants.values;
  };
  std::visit(copy, job.constants);
}

bool slot_in_fours(const JobEntry& job, const MatrixEntry& matrix) {
  if (matrix.ns < 0) return job.vector != 0;
  const std::size_t bytes = matrix.slot_dtype == NsDType::fp32 ? 4 : 2;
  return job.vector != 0 && fours_fit(job.rows, job.cols, matrix.slot_stride) &&
         aligned_in_fours(matrix.start, bytes) && aligned_in_fours(matrix.direction, bytes) &&
         aligned_in_fours(matrix.iterate, bytes);
}

}  // namespace rode::cuda
