// SPDX-License-Identifier: Apache-2.0
// Plans slices and memory of the tables, and moves them between host and device.
#include "backend/cuda/tables/job_tables.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "backend/cuda/device/check.h"
#include "backend/cuda/tables/fill.h"
#include "rules/row_rule.h"

namespace rode::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Hands out parts of a buffer whose size is known only afterwards.
class Carver {
 public:
  template <class T>
  std::size_t take(std::size_t count) {
    const std::size_t at = bytes_;
    bytes_ += aligned(count * sizeof(T));
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

template <class T>
T* part(const DeviceBuffer& buffer, std::size_t at) {
  return reinterpret_cast<T*>(buffer.as<std::byte>() + at);
}

// Calls f(index, job) for all jobs in the order of JobList::for_each.
template <class F>
void for_each_indexed(const JobList& jobs, F&& f) {
  std::size_t index = 0;
  jobs.for_each([&](const auto& job) { f(index++, job); });
}

template <class T>
std::size_t bytes_of(const std::vector<T>& rows) {
  return rows.size() * sizeof(T);
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
    matrix.sphere = rules::iterates(c);
    add(job.geometry, rules::turns(c), matrix);
  }
  for (const MuonJob& job : jobs.muon) {
    const rules::MuonConstants& c = *job.constants;
    NsMatrix matrix;
    matrix.steps = c.ns_steps;
    matrix.coefficients = c.coefficients;
    matrix.dtype = c.ns_dtype;
    matrix.form = c.ns_form;
    matrix.sphere = rules::constrained(c);
    add(job.geometry, true, matrix);
  }
  return request;
}

JobTables::JobTables(const JobList& jobs, const NsRequest& request, const NewtonSchulz* ns,
                     cudaStream_t stream) {
  matrices_.resize(jobs.rode.size() + jobs.muon.size());
  elements_.resize(jobs.element.size());
  jobs_.resize(matrices_.size() + jobs.soap.size() + jobs.adafactor.size() + elements_.size());
  soap_from_ = static_cast<std::int32_t>(matrices_.size());
  adafactor_from_ = soap_from_ + static_cast<std::int32_t>(jobs.soap.size());
  plan_slices(jobs, stream);
  refresh(jobs);  // shapes, and whose rows are normalised; slots follow
  plan_batches(request, ns, stream);
  place(stream);
  refresh(jobs);
  upload(stream);
}

void JobTables::plan_slices(const JobList& jobs, cudaStream_t stream) {
  std::vector<SliceEntry> table;
  for_each_indexed(jobs, [&](std::size_t index, const auto& job) {
    JobEntry& entry = jobs_[index];
    entry.first_slice = static_cast<std::int64_t>(table.size());
    entry.slices = slice_count(geometry_of(job).numel());
    for (std::int64_t i = 0; i < entry.slices; ++i) {
      table.push_back({static_cast<std::int32_t>(index), static_cast<std::int32_t>(i)});
    }
    parameter_count_ = std::max(parameter_count_, static_cast<std::int32_t>(job.parameter) + 1);
  });
  slice_count_ = static_cast<std::int64_t>(table.size());
  slice_table_ = upload_table(table, stream);
  const auto* slices = slice_table_.as<SliceEntry>();
  all_ = {slices, slice_count_};
  const std::int64_t first =
      elements_.empty() ? slice_count_ : jobs_[jobs_.size() - elements_.size()].first_slice;
  element_ = {slices + first, slice_count_ - first};
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
  const auto add = [&](std::int32_t job) {
    matrices.push_back(job);
    const std::int64_t count = jobs_[static_cast<std::size_t>(job)].slices;
    for (std::int64_t i = 0; i < count; ++i) slices.push_back({job, static_cast<std::int32_t>(i)});
  };
  const auto add_rows = [&](std::int32_t job) {
    MatrixEntry& matrix = matrices_[static_cast<std::size_t>(job)];
    const JobEntry& entry = jobs_[static_cast<std::size_t>(job)];
    const bool columns = matrix.row_columns != 0;
    const std::int64_t count = rules::row_count(entry, columns);
    matrix.first_row = row_count_;
    row_count_ += count;
    for (std::int64_t i = 0; i < count; i += columns ? kColumnsPerBlock : kRowsPerBlock) {
      rows.push_back({job, static_cast<std::int32_t>(i)});
    }
  };
  // Where each table stands; addresses are known when all are complete.
  struct Mark {
    std::int64_t slice, matrix, row;
  };
  const auto mark = [&] {
    return Mark{static_cast<std::int64_t>(slices.size()),
                static_cast<std::int64_t>(matrices.size()), static_cast<std::int64_t>(rows.size())};
  };
  std::vector<Mark> begins;
  const auto add_batch = [&](std::int64_t ns_batch, const std::vector<std::int32_t>& members) {
    const Mark begin = mark();
    const auto normalized = [&](std::int32_t job) {
      return ns_batch >= 0 && matrices_[static_cast<std::size_t>(job)].row_avg_sq != nullptr;
    };
    for (const std::int32_t job : members) {
      if (!normalized(job)) add(job);
    }
    const Mark plain = mark();
    for (const std::int32_t job : members) {
      if (!normalized(job)) continue;
      add(job);
      add_rows(job);
    }
    const Mark end = mark();
    begins.push_back(begin);
    batches_.push_back({ns_batch,
                        {nullptr, end.slice - begin.slice},
                        {nullptr, end.matrix - begin.matrix},
                        plain.slice - begin.slice,
                        plain.matrix - begin.matrix,
                        {nullptr, end.row - begin.row}});
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

  matrix_slice_table_ = upload_table(slices, stream);
  matrix_table_ = upload_table(matrices, stream);
  row_table_ = upload_table(rows, stream);
  for (std::size_t b = 0; b < batches_.size(); ++b) {
    batches_[b].slices.slices = matrix_slice_table_.as<SliceEntry>() + begins[b].slice;
    batches_[b].matrices.matrices = matrix_table_.as<std::int32_t>() + begins[b].matrix;
    batches_[b].rows.rows = row_table_.as<RowEntry>() + begins[b].row;
  }
}

void JobTables::place(cudaStream_t stream) {
  Carver entries;
  entries.take<JobEntry>(jobs_.size());
  matrices_at_ = entries.take<MatrixEntry>(matrices_.size());
  elements_at_ = entries.take<ElementEntry>(elements_.size());
  entries_ = DeviceBuffer(entries.bytes());
  uploads_ = TableUploads(entries.bytes());

  Carver reported;
  reported.take<Control>(1);
  results_at_ = reported.take<JobResult>(jobs_.size());
  steps_at_ = reported.take<MatrixStep>(matrices_.size());
  reported_ = DeviceBuffer(reported.bytes());
  reported_.clear(stream);
  read_back_ = PinnedBuffer(reported.bytes());
  Control initial{};
  initial.multiplier = 1;
  initial.refuse_all = 1;
  initial.refused_parameter = -1;
  initial.spoiled_parameter = -1;
  initial.spoiled = kNoParameter;
  reported_.upload(&initial, sizeof(initial), stream);

  const auto slices = static_cast<std::size_t>(slice_count_);
  Carver scratch;
  const std::size_t steps = scratch.take<ElementStep>(elements_.size());
  const std::size_t live = scratch.take<std::int32_t>(jobs_.size());
  const std::size_t bad = scratch.take<std::int32_t>(static_cast<std::size_t>(parameter_count_));
  const std::size_t totals = scratch.take<rules::MatrixProducts>(jobs_.size());
  const std::size_t measured = scratch.take<rules::MatrixProducts>(slices);
  const std::size_t formed = scratch.take<double>(slices);
  const std::size_t moved = scratch.take<double>(2 * slices);
  const std::size_t row_sums = scratch.take<rules::RowSums>(static_cast<std::size_t>(row_count_));
  const std::size_t factors = scratch.take<float>(static_cast<std::size_t>(row_count_));
  scratch_ = DeviceBuffer(scratch.bytes());
  scratch_.clear(stream);

  view_.control = part<Control>(reported_, 0);
  view_.results = part<JobResult>(reported_, results_at_);
  view_.matrix_steps = part<MatrixStep>(reported_, steps_at_);
  view_.jobs = part<JobEntry>(entries_, 0);
  view_.matrices = part<MatrixEntry>(entries_, matrices_at_);
  view_.elements = part<ElementEntry>(entries_, elements_at_);
  view_.element_steps = part<ElementStep>(scratch_, steps);
  view_.live = part<std::int32_t>(scratch_, live);
  view_.bad_parameter = part<std::int32_t>(scratch_, bad);
  view_.totals = part<rules::MatrixProducts>(scratch_, totals);
  view_.measured = part<rules::MatrixProducts>(scratch_, measured);
  view_.formed = part<double>(scratch_, formed);
  view_.moved = part<double>(scratch_, moved);
  view_.row_sums = part<rules::RowSums>(scratch_, row_sums);
  view_.row_factors = part<float>(scratch_, factors);
  view_.job_count = static_cast<std::int32_t>(jobs_.size());
  view_.matrix_count = static_cast<std::int32_t>(matrices_.size());
  view_.element_count = static_cast<std::int32_t>(elements_.size());
  view_.element_from = view_.job_count - view_.element_count;
  const auto int8 = [](const JobEntry& job) { return job.scales != nullptr; };
  const auto matrices_end = jobs_.begin() + view_.matrix_count;
  view_.int8_matrices = std::any_of(jobs_.begin(), matrices_end, int8) ? 1 : 0;
  view_.int8_elements = std::any_of(matrices_end, jobs_.end(), int8) ? 1 : 0;
  const auto cautious = [](const MatrixEntry& matrix) {
    return matrix.muon != 0 && matrix.muon_constants.cautious;
  };
  view_.cautious_matrices = std::any_of(matrices_.begin(), matrices_.end(), cautious) ? 1 : 0;
}

void JobTables::refresh(const JobList& jobs) {
  for_each_indexed(jobs, [&](std::size_t index, const auto& job) { fill(jobs_[index], job); });
  std::size_t at = 0;
  for (const RodeJob& job : jobs.rode) fill(matrices_[at++], job);
  for (const MuonJob& job : jobs.muon) fill(matrices_[at++], job);
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    jobs_[i].slot_vector = slot_in_fours(jobs_[i], matrices_[i]) ? 1 : 0;
  }
  at = 0;
  for (const ElementJob& job : jobs.element) fill(elements_[at++], job);
  changed_ = true;
}

void JobTables::upload(cudaStream_t stream) {
  if (!changed_) return;
  std::byte* image = uploads_.next();
  const auto copy = [&](std::size_t at, const auto& rows) {
    if (!rows.empty()) std::memcpy(image + at, rows.data(), bytes_of(rows));
  };
  copy(0, jobs_);
  copy(matrices_at_, matrices_);
  copy(elements_at_, elements_);
  uploads_.send(entries_, stream);
  changed_ = false;
}

StepView JobTables::frozen(cudaStream_t stream) {
  frozen_.push_back(upload_table(jobs_, stream));
  StepView view = view_;
  view.jobs = frozen_.back().as<JobEntry>();
  return view;
}

JobTables::Report JobTables::report(cudaStream_t stream) {
  RODE_CUDA_CHECK(cudaMemcpyAsync(read_back_.data(), reported_.data(), reported_.bytes(),
                                  cudaMemcpyDeviceToHost, stream));
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
  return report_in(read_back_.as<std::byte>());
}

void JobTables::keep(std::size_t steps) {
  if (steps > std::numeric_limits<std::size_t>::max() / std::max<std::size_t>(1, reported_.bytes()))
    throw std::bad_alloc();
  kept_ = steps > 0 ? PinnedBuffer(steps * reported_.bytes()) : PinnedBuffer();
  kept_ring_ = Ring(steps);
}

void JobTables::keep_report(cudaStream_t stream) {
  if (kept_ring_.places() == 0) return;
  std::byte* image = kept_.as<std::byte>() + kept_ring_.push() * reported_.bytes();
  RODE_CUDA_CHECK(
      cudaMemcpyAsync(image, reported_.data(), reported_.bytes(), cudaMemcpyDeviceToHost, stream));
}

JobTables::Report JobTables::kept_report(std::size_t i) const {
  return report_in(kept_.as<std::byte>() + kept_ring_.at(i) * reported_.bytes());
}

JobTables::Report JobTables::report_in(const std::byte* image) const {
  return {reinterpret_cast<const Control*>(image),
          reinterpret_cast<const JobResult*>(image + results_at_),
          reinterpret_cast<const MatrixStep*>(image + steps_at_)};
}

std::size_t JobTables::bytes() const {
  std::size_t bytes = slice_table_.bytes() + matrix_slice_table_.bytes() + matrix_table_.bytes() +
                      row_table_.bytes() + entries_.bytes() + reported_.bytes() + scratch_.bytes();
  for (const DeviceBuffer& jobs : frozen_) bytes += jobs.bytes();
  return bytes;
}

}  // namespace rode::cuda
