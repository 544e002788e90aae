// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: a step is one captured graph over tables in device memory.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/cuda/adafactor/adafactor_steps.h"
#include "backend/cuda/device/buffer.h"
#include "backend/cuda/newton_schulz/newton_schulz.h"
#include "backend/cuda/soap/soap_steps.h"
#include "backend/cuda/tables/job_tables.h"

namespace rode::cuda {

// Bytes that Newton-Schulz takes before it opens another batch. A tenth of the fp32 weights of
// a model of 1.4 G parameters is 555 MB: what is left pays for the tables. A model that fits
// into a quarter more is not cut (newton_schulz/plan/plan.h).
inline constexpr std::size_t kWorkspaceLimit = std::size_t{512} << 20;

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::unique_ptr<Buffer> allocate(std::size_t bytes) override;
  std::unique_ptr<Buffer> adopt(void* memory, std::size_t bytes) override;
  void store_norm(const Weights& weight, const Geometry& geometry, float* out) override;
  double squared_norm(const Weights& weight, const Geometry& geometry) override;
  void prepare(JobList& jobs) override;
  std::size_t workspace_bytes() const override;
  void refresh(JobList& jobs) override;
  void step(JobList& jobs, const StepContext& context) override;
  void measure(JobList& jobs) override;
  void fetch_measured(JobList& jobs) override;
  void compute(JobList& jobs, const StepContext& context) override;
  void apply(JobList& jobs, const StepContext& context) override;
  Fetched fetch(JobList& jobs) override;
  void keep_results(std::size_t steps) override;
  void visit_kept(JobList& jobs, const std::function<void(const Fetched&)>& visit) override;
  bool deferred() const override { return true; }
  void set_stream(void* stream) override;
  bool capturing() const override { return capturing(stream_); }
  void set_multiplier(double multiplier) override;
  void set_step(std::int64_t step) override;

 private:
  static bool capturing(cudaStream_t stream);
  void check_memory(const JobList& jobs);
  void check_memory(const void* data, std::string_view kind, std::optional<std::size_t> parameter);
  Fetched take_over(JobList& jobs, const JobTables::Report& report) const;
  void send_wishes(double multiplier, bool refuse_all);
  void send_tables(JobList& jobs, cudaStream_t stream);
  // Records order_ behind all that is enqueued on stream_: the next stream, or a capture, waits for
  // it.
  void note_order();
  // What of a step can be captured, on `main` and on side_: all of it, or a phase.
  enum Part { kAll, kMeasure, kCompute, kApply, kParts };
  void enqueue(const StepView& view, cudaStream_t main, Part part);
  void enqueue_updates(const StepView& view, cudaStream_t main, Part part);
  void enqueue_matrices(const StepView& view, cudaStream_t main, Part part);
  void launch(Part part);
  void step_soap(JobList& jobs);
  void step_captured(JobList& jobs);
  void record_graph(Part part);
  void try_record_graph(Part part);

  int device_ = 0;
  bool batched_, phases_;
  CudaProducts products_;
  bool pageable_access_ = false;  // kernels can read any host memory
  cudaStream_t stream_;

  DeviceBuffer norm_;  // result, then partial sums
  PinnedBuffer norm_result_;

  std::unique_ptr<NewtonSchulz> newton_schulz_;  // null: no matrix has an iterate
  std::unique_ptr<JobTables> tables_;
  std::unique_ptr<AdafactorSteps> adafactor_;  // null: no job of Adafactor's
  std::unique_ptr<SoapSteps> soap_;            // null: none of SOAP's

  Stream record_, side_;
  Event fork_, join_, order_;
  GraphExec graphs_[kParts];
  bool plain_ = false;  // no graph could be made
  // Addresses that were found to be good. Asking CUDA takes a microsecond each, and gradients
  // come back at the same few addresses.
  std::unordered_set<const void*> checked_;
  bool adafactor_changed_ = false;
  bool stepped_ = false;
  // As the device has them.
  double multiplier_ = 1;
  bool refuse_all_ = true;
};

}  // namespace rode::cuda
