// SPDX-License-Identifier: Apache-2.0
// Construction, memory and results of the CUDA backend; graph.cpp has the step.
#include "backend/cuda/step/backend.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "backend/cuda/device/check.h"
#include "backend/cuda/passes/launches.h"
#include "backend/cuda/tables/fill.h"
#include "rode/error.h"
#include "rules/gate.h"

namespace rode::cuda {
namespace {

void check_device_present() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return;
  ignore(cudaGetLastError());
  throw Error(ErrorKind::unsupported, "cuda",
              fmt::format("no usable CUDA device: {}; use device cpu, or check the driver "
                          "(nvidia-smi) and CUDA_VISIBLE_DEVICES",
                          error == cudaSuccess ? "none is visible" : cudaGetErrorString(error)));
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  RODE_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

NormArgs norm_args(const WeightView& weight, const Geometry& geometry, const DeviceBuffer& memory,
                   float* out) {
  auto* doubles = memory.as<double>();
  return {weight, geometry.rows, geometry.cols, geometry.stride, doubles + 1, doubles, out};
}

}  // namespace

CudaBackend::CudaBackend(const BackendOptions& options)
    : batched_(options.batched),
      phases_(options.phases),
      products_(options.cuda_products),
      stream_(static_cast<cudaStream_t>(options.stream)) {
  check_device_present();
  RODE_CUDA_CHECK(cudaGetDevice(&device_));
  pageable_access_ = attribute(cudaDevAttrPageableMemoryAccess, device_) != 0;
  norm_ = DeviceBuffer((1 + kNormBlocks) * sizeof(double));
  norm_result_ = PinnedBuffer(sizeof(double));
  // Fails here, and not in the middle of a step, where no kernel was built for this device.
  launch_norm(norm_args({}, {}, norm_, nullptr), stream_);
  record_ = make_stream(true);
  side_ = make_stream(false);
  fork_ = make_event();
  join_ = make_event();
  order_ = make_event();
}

// Members free memory that steps in flight may still use. The caller's stream may be gone.
CudaBackend::~CudaBackend() {
  int current = device_;
  ignore(cudaGetDevice(&current));
  if (current != device_) ignore(cudaSetDevice(device_));
  ignore(cudaDeviceSynchronize());
  if (current != device_) ignore(cudaSetDevice(current));
}

std::unique_ptr<Buffer> CudaBackend::allocate(std::size_t bytes) {
  const DeviceGuard guard(device_);
  return std::make_unique<StateBuffer>(bytes, device_, &stream_);
}

std::unique_ptr<Buffer> CudaBackend::adopt(void* memory, std::size_t bytes) {
  const DeviceGuard guard(device_);
  check_memory(memory, "state", std::nullopt);
  return std::make_unique<StateBuffer>(memory, bytes, device_, &stream_);
}

void CudaBackend::store_norm(const Weights& weight, const Geometry& geometry, float* out) {
  const DeviceGuard guard(device_);
  check_memory(weight.data, "weights", std::nullopt);
  launch_norm(norm_args(view_of(weight), geometry, norm_, out), stream_);
}

double CudaBackend::squared_norm(const Weights& weight, const Geometry& geometry) {
  const DeviceGuard guard(device_);
  check_memory(weight.data, "weights", std::nullopt);
  launch_norm(norm_args(view_of(weight), geometry, norm_, nullptr), stream_);
  RODE_CUDA_CHECK(cudaMemcpyAsync(norm_result_.data(), norm_.data(), sizeof(double),
                                  cudaMemcpyDeviceToHost, stream_));
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return *norm_result_.as<double>();
}

void CudaBackend::prepare(JobList& jobs) {
  const DeviceGuard guard(device_);
  check_memory(jobs);
  const NsRequest request = request_newton_schulz(jobs);
  if (!request.matrices.empty()) {
    newton_schulz_ = std::make_unique<NewtonSchulz>(request.matrices, kWorkspaceLimit, batched_,
                                                    products_, phases_);
  }
  tables_ = std::make_unique<JobTables>(jobs, request, newton_schulz_.get(), stream_);
  if (!jobs.adafactor.empty()) {
    adafactor_ = std::make_unique<AdafactorSteps>(jobs.adafactor, stream_);
  }
  if (!jobs.soap.empty()) soap_ = std::make_unique<SoapSteps>(jobs.soap, stream_);
}

std::size_t CudaBackend::workspace_bytes() const {
  std::size_t bytes = norm_.bytes();
  if (newton_schulz_ != nullptr) bytes += newton_schulz_->workspace_bytes();
  if (tables_ != nullptr) bytes += tables_->bytes();
  if (adafactor_ != nullptr) bytes += adafactor_->workspace_bytes();
  if (soap_ != nullptr) bytes += soap_->workspace_bytes();
  return bytes;
}

void CudaBackend::fetch_measured(JobList& jobs) {
  const DeviceGuard guard(device_);
  const StepView& view = tables_->view();
  std::vector<rules::MatrixProducts> totals(static_cast<std::size_t>(view.job_count));
  RODE_CUDA_CHECK(cudaMemcpyAsync(totals.data(), view.totals,
                                  totals.size() * sizeof(rules::MatrixProducts),
                                  cudaMemcpyDeviceToHost, stream_));
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream_));
  const rules::MatrixProducts* next = totals.data();
  jobs.for_each([&](JobBase& job) {
    const rules::MatrixProducts& sums = *next++;
    if (!job.active) return;
    const rules::Verdict verdict = rules::judge(sums, job.most_gg);
    job.finite = verdict.finite;
    job.weight_finite = verdict.weight_finite;
    job.sums.gg = sums.gg;
  });
}

Fetched CudaBackend::fetch(JobList& jobs) {
  const DeviceGuard guard(device_);
  return take_over(jobs, tables_->report(stream_));
}

void CudaBackend::keep_results(std::size_t steps) {
  const DeviceGuard guard(device_);
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream_));  // copies on their way
  tables_->keep(steps);
}

void CudaBackend::visit_kept(JobList& jobs, const std::function<void(const Fetched&)>& visit) {
  const DeviceGuard guard(device_);
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream_));
  for (std::size_t i = 0; i < tables_->kept_count(); ++i) {
    jobs.for_each([](JobBase& job) { job.active = true; });  // where not, the report says so
    visit(take_over(jobs, tables_->kept_report(i)));
  }
  tables_->forget_kept();
}

Fetched CudaBackend::take_over(JobList& jobs, const JobTables::Report& report) const {
  const Control& control = *report.control;
  const bool refused = control.refused != 0;
  const bool spoiled = control.spoiled != kNoParameter;
  const Fetched fetched{refused,
                        control.done,
                        control.refused_steps,
                        control.refused_parameter,
                        control.spoiled_steps + (spoiled ? 1 : 0),
                        spoiled ? control.spoiled : control.spoiled_parameter};
  if (!stepped_) return fetched;

  const JobResult* next = report.results;
  jobs.for_each([&](JobBase& job) {
    const JobResult& result = *next++;
    job.finite = result.finite != 0;
    job.weight_finite = result.weight_finite != 0;
    job.sums = {result.ww, result.gg, result.dd};
    if (!refused && result.live == 0) job.active = false;
  });
  next = report.results;
  const MatrixStep* step = report.matrices;
  for (RodeJob& job : jobs.rode) {
    job.products = step->products;
    if (next->live != 0) {
      job.scalars = step->rode;
      job.write = step->write;
    }
    ++next;
    ++step;
  }
  for (MuonJob& job : jobs.muon) {
    job.products = step->products;
    job.held = next->held != 0;
    ++next;
    ++step;
  }
  for (SoapJob& job : jobs.soap) job.failed = (next++)->failed != 0;
  return fetched;
}

}  // namespace rode::cuda

namespace rode {

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  return std::make_unique<cuda::CudaBackend>(options);
}

}  // namespace rode
