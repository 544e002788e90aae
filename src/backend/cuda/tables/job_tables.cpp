// SPDX-License-Identifier: Apache-2.0
// Plans the memory of the tables, and moves them between host and device.
#include "backend/cuda/tables/job_tables.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "backend/cuda/device/check.h"
#include "backend/cuda/tables/fill.h"

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

template <class T>
std::size_t bytes_of(const std::vector<T>& rows) {
  return rows.size() * sizeof(T);
}

}  // namespace

JobTables::JobTables(const JobList& jobs, const NsRequest& request, const NewtonSchulz* ns,
                     cudaStream_t stream) {
  matrices_.resize(jobs.rode.size() + jobs.muon.size());
  elements_.resize(jobs.element.size());
  jobs_.resize(matrices_.size() + jobs.soap.size() + jobs.adafactor.size() + elements_.size());
  soap_from_ = static_cast<std::int32_t>(matrices_.size());
  adafactor_from_ = soap_from_ + static_cast<std::int32_t>(jobs.soap.size());
  plan_slices(jobs, stream);
  refresh(jobs);  // shapes, and who has what of its rows; slots follow
  plan_batches(request, ns, stream);
  place(stream);
  refresh(jobs);
  upload(stream);
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
  const auto with_radius = static_cast<std::size_t>(radius_count_);
  Carver scratch;
  const std::size_t steps = scratch.take<ElementStep>(elements_.size());
  const std::size_t live = scratch.take<std::int32_t>(jobs_.size());
  const std::size_t bad = scratch.take<std::int32_t>(static_cast<std::size_t>(parameter_count_));
  const std::size_t totals = scratch.take<rules::MatrixProducts>(jobs_.size());
  const std::size_t measured = scratch.take<rules::MatrixProducts>(slices + with_radius);
  const std::size_t formed = scratch.take<double>(slices);
  const std::size_t moved = scratch.take<double>(2 * slices);
  const auto rows = static_cast<std::size_t>(row_count_);
  const std::size_t row_sums = scratch.take<rules::RowSums>(rows);
  const std::size_t factors = scratch.take<float>(rows);
  const std::size_t radii = scratch.take<RowRadius>(with_radius);
  const std::size_t forms = scratch.take<rules::RowForm>(with_radius);
  const std::size_t writes = scratch.take<rules::RowWrite<float>>(with_radius);
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
  view_.row_radii = part<RowRadius>(scratch_, radii);
  view_.row_forms = part<rules::RowForm>(scratch_, forms);
  view_.row_writes = part<rules::RowWrite<float>>(scratch_, writes);
  view_.job_count = static_cast<std::int32_t>(jobs_.size());
  view_.matrix_count = static_cast<std::int32_t>(matrices_.size());
  view_.element_count = static_cast<std::int32_t>(elements_.size());
  view_.element_from = view_.job_count - view_.element_count;
  const auto int8 = [](const JobEntry& job) { return job.scales != nullptr; };
  const auto matrices_end = jobs_.begin() + view_.matrix_count;
  view_.int8_matrices = std::any_of(jobs_.begin(), matrices_end, int8) ? 1 : 0;
  view_.int8_elements = std::any_of(matrices_end, jobs_.end(), int8) ? 1 : 0;
  for (const ElementEntry& element : elements_) view_.element_rules |= 1U << element.rule;
  const auto cautious = [](const MatrixEntry& matrix) {
    return matrix.muon != 0 && matrix.muon_constants.cautious;
  };
  view_.cautious_matrices = std::any_of(matrices_.begin(), matrices_.end(), cautious) ? 1 : 0;
}

void JobTables::refresh(const JobList& jobs) {
  std::size_t at = 0;
  jobs.for_each([&](const auto& job) { fill(jobs_[at++], job); });
  at = 0;
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
