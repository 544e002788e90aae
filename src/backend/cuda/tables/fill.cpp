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
  entry.offset = job.offset;
  entry.step = nullptr;
  entry.most_gg = job.most_gg;
  entry.parameter = static_cast<std::int32_t>(job.parameter);
  entry.active = job.active ? 1 : 0;
  entry.measure = Measure::gradient;
}

// After all arrays are known.
void fill_vector(JobEntry& entry) {
  bool fours = fours_fit(entry.rows, entry.cols, entry.stride) && aligned_in_fours(entry.weight) &&
               aligned_in_fours(entry.grad) && aligned_in_fours(entry.third);
  for (const ArrayView& array : entry.moments) fours = fours && aligned_in_fours(array);
  entry.vector = fours ? 1 : 0;
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
  entry.moments[0] = view_of(job.momentum);
  entry.third = entry.weight;
  entry.measure = Measure::three;
  fill_vector(entry);
}

void fill(JobEntry& entry, const MuonJob& job) {
  fill_base(entry, job, job.geometry);
  entry.moments[0] = view_of(job.momentum);
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
  fill_base(entry, job, geometry_of(job));
  for (int i = 0; i < rules::kMostMoments; ++i) entry.moments[i] = view_of(job.state[i]);
  entry.step = job.step;
  fill_vector(entry);
}

void fill(MatrixEntry& entry, const RodeJob& job) {
  const rules::RodeConstants& c = *job.constants;
  entry.muon = 0;
  entry.rode = c;
  entry.state = job.state;
  entry.scale = job.scale;
  entry.iterates = rules::iterates(c) ? 1 : 0;
  fill_rows(entry, job.rows);
}

void fill(MatrixEntry& entry, const MuonJob& job) {
  entry.muon = 1;
  entry.muon_constants = *job.constants;
  entry.radius = job.radius;
  entry.scale = job.scale;
  entry.iterates = 1;
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
