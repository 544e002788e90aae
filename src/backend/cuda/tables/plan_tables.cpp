// SPDX-License-Identifier: Apache-2.0
// Which blocks and batches a step is cut into: the tables that never change.
#include <algorithm>
#include <utility>

#include "backend/cuda/tables/job_tables.h"
#include "rules/row_rule.h"

namespace rode::cuda {
namespace {

RowKind row_kind(const MatrixEntry& matrix, bool iterate) {
  if (matrix.radii != 0) return kRadiiOfRows;
  return iterate && matrix.row_avg_sq != nullptr ? kNormalizedRows : kPlainRows;
}

// What one block each sums of a matrix's rows.
void add_row_blocks(const JobEntry& job, const MatrixEntry& matrix, std::int32_t index,
                    std::vector<RowEntry>& blocks) {
  const bool columns = matrix.row_columns != 0;
  const std::int64_t count = rules::row_count(job, columns);
  for (std::int64_t i = 0; i < count; i += columns ? kColumnsPerBlock : kRowsPerBlock) {
    blocks.push_back({index, static_cast<std::int32_t>(i)});
  }
}

}  // namespace

NsRequest request_newton_schulz(const JobList& jobs) {
  NsRequest request;
  const auto add = [&](const Geometry& geometry, bool wanted, NsMatrix matrix) {
    if (!wanted || geometry.numel() == 0) {
      request.index.push_back(-1);
      return;
    }
    matrix.rows = geometry.rows;
    matrix.cols = geometry.cols;
    request.index.push_back(static_cast<std::int32_t>(request.matrices.size()));
    request.matrices.push_back(matrix);
  };
  for (const RodeJob& job : jobs.rode) {
    const rules::RodeConstants& c = *job.constants;
    NsMatrix matrix;
    matrix.steps = rules::iterations(c);
    matrix.coefficients = c.coefficients;
    matrix.dtype = c.ns_dtype;
    matrix.form = c.ns_form;
    matrix.reproject = c.reproject;
    matrix.sphere = rules::sphere_plan(c, job.rows.avg_sq != nullptr).given;
    add(job.geometry, rules::turns(c), matrix);
  }
  for (const MuonJob& job : jobs.muon) {
    const rules::MuonConstants& c = *job.constants;
    NsMatrix matrix;
    matrix.steps = rules::iterations(c);
    matrix.coefficients = c.coefficients;
    matrix.dtype = c.ns_dtype;
    matrix.form = c.ns_form;
    matrix.sphere = rules::sphere_plan(c, job.rows.avg_sq != nullptr).given;
    add(job.geometry, rules::turns(c), matrix);
  }
  return request;
}

void JobTables::plan_slices(const JobList& jobs, cudaStream_t stream) {
  std::vector<SliceEntry> table;
  std::size_t at = 0;
  jobs.for_each([&](const auto& job) {
    const auto index = static_cast<std::int32_t>(at);
    JobEntry& entry = jobs_[at++];
    entry.first_slice = entry.first_sum = slice_count_;
    entry.slices = entry.sums = slice_count(geometry_of(job).numel());
    slice_count_ += entry.slices;
    parameter_count_ = std::max(parameter_count_, static_cast<std::int32_t>(job.parameter) + 1);
    if (has_row_radius(job)) return;  // measured row by row
    for (std::int64_t i = 0; i < entry.slices; ++i) {
      table.push_back({index, static_cast<std::int32_t>(i)});
    }
  });
  slice_table_ = upload_table(table, stream);
  const auto* slices = slice_table_.as<SliceEntry>();
  const auto measured = static_cast<std::int64_t>(table.size());
  measured_ = {slices, measured};
  const std::int64_t count =
      elements_.empty() ? 0 : slice_count_ - jobs_[jobs_.size() - elements_.size()].first_slice;
  element_ = {slices + (measured - count), count};  // they come last
}

// Gives rows their places and returns what one block each measures of those with a radius.
std::vector<RowEntry> JobTables::plan_rows(const NsRequest& request) {
  std::vector<RowEntry> blocks;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    if (matrices_[i].radii == 0) continue;
    JobEntry& job = jobs_[i];
    const std::int64_t count = rules::row_count(job, matrices_[i].row_columns != 0);
    matrices_[i].first_row = row_count_;
    job.first_sum = slice_count_ + row_count_;
    job.sums = count;
    row_count_ += count;
    add_row_blocks(job, matrices_[i], static_cast<std::int32_t>(i), blocks);
  }
  radius_count_ = row_count_;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    if (row_kind(matrices_[i], request.index[i] >= 0) != kNormalizedRows) continue;
    matrices_[i].first_row = row_count_;
    row_count_ += rules::row_count(jobs_[i], matrices_[i].row_columns != 0);
  }
  return blocks;
}

void JobTables::plan_batches(const NsRequest& request, const NewtonSchulz* ns,
                             cudaStream_t stream) {
  // Job of each Newton-Schulz matrix, and the jobs that have none.
  std::vector<std::int32_t> owner(request.matrices.size()), without;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    MatrixEntry& entry = matrices_[i];
    entry.ns = request.index[i];
    entry.slot_dtype = NsDType::fp32;
    if (entry.ns < 0) {
      without.push_back(static_cast<std::int32_t>(i));
      continue;
    }
    owner[static_cast<std::size_t>(entry.ns)] = static_cast<std::int32_t>(i);
    const NsSlot& slot = ns->slot(entry.ns);
    entry.start = slot.start;
    entry.direction = slot.direction;
    entry.iterate = slot.iterate;
    entry.slot_stride = slot.stride;
    entry.slot_dtype = slot.dtype;
  }

  std::vector<SliceEntry> slices;
  std::vector<std::int32_t> matrices;
  std::vector<RowEntry> rows;
  const auto add_batch = [&](std::int64_t ns_batch, const std::vector<std::int32_t>& members) {
    MatrixBatch batch;
    batch.ns_batch = ns_batch;
    for (int kind = 0; kind < kRowKinds; ++kind) {
      for (const std::int32_t job : members) {
        const MatrixEntry& matrix = matrices_[static_cast<std::size_t>(job)];
        const JobEntry& entry = jobs_[static_cast<std::size_t>(job)];
        if (row_kind(matrix, ns_batch >= 0) != kind) continue;
        matrices.push_back(job);
        ++batch.matrices[kind].count;
        for (std::int64_t i = 0; i < entry.slices; ++i) {
          slices.push_back({job, static_cast<std::int32_t>(i)});
        }
        batch.slices[kind].count += entry.slices;
        if (kind == kPlainRows || ns_batch < 0) continue;
        const std::size_t before = rows.size();
        add_row_blocks(entry, matrix, job, rows);
        batch.rows.count += static_cast<std::int64_t>(rows.size() - before);
      }
    }
    batches_.push_back(batch);
  };
  const std::size_t ns_batches = ns != nullptr ? ns->batches().size() : 0;
  for (std::size_t c = 0; c < ns_batches; ++c) {
    std::vector<std::int32_t> members;
    for (const int member : ns->batches()[c]) {
      members.push_back(owner[static_cast<std::size_t>(member)]);
    }
    add_batch(static_cast<std::int64_t>(c), members);
  }
  if (!without.empty()) add_batch(-1, without);
  // Behind the batches: what the whole step has of rows with a radius.
  with_radii_.count = 0;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    if (matrices_[i].radii == 0) continue;
    matrices.push_back(static_cast<std::int32_t>(i));
    ++with_radii_.count;
  }
  const std::vector<RowEntry> measured = plan_rows(request);
  measured_rows_.count = static_cast<std::int64_t>(measured.size());
  rows.insert(rows.end(), measured.begin(), measured.end());

  matrix_slice_table_ = upload_table(slices, stream);
  matrix_table_ = upload_table(matrices, stream);
  row_table_ = upload_table(rows, stream);
  // In the order in which they were added.
  const auto* slice = matrix_slice_table_.as<SliceEntry>();
  const auto* matrix = matrix_table_.as<std::int32_t>();
  const auto* row = row_table_.as<RowEntry>();
  for (MatrixBatch& batch : batches_) {
    for (int kind = 0; kind < kRowKinds; ++kind) {
      batch.slices[kind].slices = std::exchange(slice, slice + batch.slices[kind].count);
      batch.matrices[kind].matrices = std::exchange(matrix, matrix + batch.matrices[kind].count);
    }
    batch.rows.rows = std::exchange(row, row + batch.rows.count);
  }
  with_radii_.matrices = matrix;
  measured_rows_.rows = row;
}

}  // namespace rode::cuda
