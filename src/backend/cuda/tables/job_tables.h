// SPDX-License-Identifier: Apache-2.0
// The tables of a step: built from the jobs once, kept up to date, read back when asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/device/buffer.h"
#include "backend/cuda/newton_schulz/newton_schulz.h"
#include "backend/cuda/tables/entries.h"
#include "backend/jobs.h"
#include "core/ring.h"

namespace rode::cuda {

// Newton-Schulz as the matrix jobs want it: rode, then muon, without those whose direction is
// fixed.
struct NsRequest {
  std::vector<NsMatrix> matrices;
  std::vector<std::int32_t> index;  // over matrix jobs: into `matrices`, or -1
};
NsRequest request_newton_schulz(const JobList& jobs);

// What a step knows of the rows of a matrix: nothing, their factors (normalize = rows), or a radius
// of each. Each has kernels of its own.
enum RowKind { kPlainRows, kNormalizedRows, kRadiiOfRows, kRowKinds };

// The matrices of one Newton-Schulz batch, or (ns_batch < 0) those without an iterate; kind by
// kind, one behind the other.
struct MatrixBatch {
  std::int64_t ns_batch = -1;
  SliceRange slices[kRowKinds] = {};
  MatrixRange matrices[kRowKinds] = {};
  RowRange rows = {};  // of all kinds, where there is an iterate to sum

  SliceRange slices_without_radii() const {
    return {slices[0].slices, slices[kPlainRows].count + slices[kNormalizedRows].count};
  }
  MatrixRange matrices_without_radii() const {
    return {matrices[0].matrices, matrices[kPlainRows].count + matrices[kNormalizedRows].count};
  }
  MatrixRange all_matrices() const {
    const MatrixRange others = matrices_without_radii();
    return {others.matrices, others.count + matrices[kRadiiOfRows].count};
  }
};

class JobTables {
 public:
  // `ns` may be null where no matrix has an iterate.
  JobTables(const JobList& jobs, const NsRequest& request, const NewtonSchulz* ns,
            cudaStream_t stream);

  // Takes pointers, types, constants and flags of the jobs over; the device sees them after
  // the next upload.
  void refresh(const JobList& jobs);
  // Uploads where something has changed, in the order of the stream.
  void upload(cudaStream_t stream);

  // A view with a table of jobs of its own: its tensors stay the ones bound now, for a graph
  // that the caller captures. Allocates, and waits for the stream.
  StepView frozen(cudaStream_t stream);

  // What the last step left: waits for the stream. Valid until the next call.
  struct Report {
    const Control* control;
    const JobResult* results;  // over jobs
    const MatrixStep* matrices;
  };
  Report report(cudaStream_t stream);

  // Keeps what the last `steps` steps left, each copied by keep_report(), which does not wait.
  // Read only behind a wait for their stream, the oldest first.
  void keep(std::size_t steps);
  void keep_report(cudaStream_t stream);
  std::size_t kept_count() const { return kept_ring_.size(); }
  Report kept_report(std::size_t i) const;
  void forget_kept() { kept_ring_.clear(); }

  const StepView& view() const { return view_; }
  // What is measured: slices, and rows of the matrices whose rows have radii.
  SliceRange measured_slices() const { return measured_; }
  RowRange measured_rows() const { return measured_rows_; }
  MatrixRange matrices_with_radii() const { return with_radii_; }
  SliceRange element_slices() const { return element_; }
  const std::vector<MatrixBatch>& batches() const { return batches_; }
  std::int32_t soap_from() const { return soap_from_; }
  std::int32_t adafactor_from() const { return adafactor_from_; }
  std::size_t bytes() const;

 private:
  void plan_slices(const JobList& jobs, cudaStream_t stream);
  std::vector<RowEntry> plan_rows(const NsRequest& request);
  void plan_batches(const NsRequest& request, const NewtonSchulz* ns, cudaStream_t stream);
  void place(cudaStream_t stream);
  Report report_in(const std::byte* image) const;

  std::vector<JobEntry> jobs_;
  std::vector<MatrixEntry> matrices_;
  std::vector<ElementEntry> elements_;
  std::int64_t slice_count_ = 0;
  std::int64_t radius_count_ = 0;  // of rows with a radius
  std::int64_t row_count_ = 0;     // and of rows that are normalised
  std::int32_t soap_from_ = 0, adafactor_from_ = 0, parameter_count_ = 0;

  DeviceBuffer slice_table_, matrix_slice_table_, matrix_table_, row_table_;  // never change
  DeviceBuffer entries_;   // jobs, matrices, elements
  DeviceBuffer reported_;  // control, results, steps of matrices
  DeviceBuffer scratch_;
  std::vector<DeviceBuffer> frozen_;               // job tables of the caller's graphs
  std::size_t matrices_at_ = 0, elements_at_ = 0;  // within entries_
  std::size_t results_at_ = 0, steps_at_ = 0;      // within reported_

  TableUploads uploads_;  // of entries_
  bool changed_ = true;
  PinnedBuffer read_back_;
  PinnedBuffer kept_;  // images of reported_, by the places of the ring
  Ring kept_ring_;

  StepView view_{};
  SliceRange measured_{}, element_{};
  RowRange measured_rows_{};
  MatrixRange with_radii_{};
  std::vector<MatrixBatch> batches_;
};

}  // namespace rode::cuda
