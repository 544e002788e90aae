// SPDX-License-Identifier: Apache-2.0
// The order of a step's launches, the graph that replays them, and what is checked and sent before.
//
//   measure, gate ---+- for each Newton-Schulz batch: form, iterate, write -+- finish
//                    +- element rules, Adafactor ---------------------------+
//
// SOAP, which waits for the host, follows the graph. In phases, a step is three graphs: measure;
// gate, form and iterate, element rules; write and finish. The iterates are kept from the second to
// the third.
#include <optional>
#include <string>

#include <fmt/format.h>

#include "backend/cuda/device/check.h"
#include "backend/cuda/passes/launches.h"
#include "backend/cuda/step/backend.h"
#include "rode/error.h"

namespace rode::cuda {

bool CudaBackend::capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  RODE_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// A kernel that is given host memory takes the whole process's CUDA down with it.
void CudaBackend::check_memory(const void* data, std::string_view kind,
                               std::optional<std::size_t> parameter) {
  if (data == nullptr || checked_.contains(data)) return;
  const std::string what = parameter ? fmt::format("{} of parameter {} (from 0)", kind, *parameter)
                                     : fmt::format("{} of a parameter", kind);
  cudaPointerAttributes found{};
  RODE_CUDA_CHECK(cudaPointerGetAttributes(&found, data));
  if (found.type == cudaMemoryTypeUnregistered && !pageable_access_) {
    throw Error(ErrorKind::invalid_argument, "cuda",
                fmt::format("{} lie in host memory; pass device memory, or use device cpu", what));
  }
  if (found.type == cudaMemoryTypeDevice && found.device != device_) {
    throw Error(ErrorKind::invalid_argument, "cuda",
                fmt::format("{} lie on device {}, but the optimizer was made on device {}; make "
                            "their device current first",
                            what, found.device, device_));
  }
  checked_.insert(data);
}

void CudaBackend::check_memory(const JobList& jobs) {
  jobs.for_each([&](const auto& job) {
    if (geometry_of(job).numel() == 0) return;  // any pointer will do
    check_memory(job.weight.data, "weights", job.parameter);
    check_memory(job.grad.data, "gradients", job.parameter);
  });
}

void CudaBackend::refresh(JobList& jobs) {
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  check_memory(jobs);
  tables_->refresh(jobs);
  adafactor_changed_ = adafactor_ != nullptr;
  if (capturing()) return;  // a copy would become part of the caller's graph; step() sends them
  send_tables(jobs, stream_);
  note_order();
}

void CudaBackend::send_tables(JobList& jobs, cudaStream_t stream) {
  tables_->upload(stream);
  if (adafactor_changed_) adafactor_->refresh(jobs.adafactor, stream);
  adafactor_changed_ = false;
}

void CudaBackend::note_order() { RODE_CUDA_CHECK(cudaEventRecord(order_.get(), stream_)); }

void CudaBackend::set_stream(void* stream) {
  const DeviceGuard guard(device_);
  auto* next = static_cast<cudaStream_t>(stream);
  if (next == stream_) return;
  if (capturing()) {
    throw Error(ErrorKind::invalid_argument, "set stream",
                "the stream of the steps so far is being captured; end the capture first");
  }
  if (capturing(next)) {
    // It cannot wait for what is outside of its capture; the host can.
    const RelaxedCapture relaxed;
    RODE_CUDA_CHECK(cudaEventSynchronize(order_.get()));
  } else {
    note_order();
    RODE_CUDA_CHECK(cudaStreamWaitEvent(next, order_.get(), 0));
  }
  stream_ = next;
}

void CudaBackend::send_wishes(double multiplier, bool refuse_all) {
  if (multiplier == multiplier_ && refuse_all == refuse_all_) return;
  launch_set_wishes(tables_->view().control, multiplier, refuse_all, stream_);
  multiplier_ = multiplier;
  refuse_all_ = refuse_all;
}

void CudaBackend::set_multiplier(double multiplier) {
  const DeviceGuard guard(device_);
  if (capturing()) {
    throw Error(ErrorKind::invalid_argument, "set multiplier",
                "the stream is being captured, and every replay would set it again; call it "
                "before or after the capture");
  }
  send_wishes(multiplier, refuse_all_);
  note_order();
}

void CudaBackend::set_step(std::int64_t step) {
  const DeviceGuard guard(device_);
  if (capturing()) {
    throw Error(ErrorKind::invalid_argument, "set steps done",
                "the stream is being captured, and every replay would set them again; call it "
                "before or after the capture");
  }
  launch_set_step(tables_->view().control, step, stream_);
  note_order();
}

void CudaBackend::enqueue_matrices(const StepView& view, cudaStream_t main, Part part) {
  float* start_scale = newton_schulz_ != nullptr ? newton_schulz_->start_scale() : nullptr;
  const rules::IterateSums* sums = newton_schulz_ != nullptr ? newton_schulz_->sums() : nullptr;
  if (part != kApply) launch_radii(view, tables_->matrices_with_radii(), main);
  for (const MatrixBatch& batch : tables_->batches()) {
    if (part != kApply) {
      launch_form(view, batch.slices_without_radii(), main);
      launch_form_radii(view, batch.slices[kRadiiOfRows], main);
      if (batch.ns_batch >= 0) {
        launch_start_scale(view, batch.all_matrices(), start_scale, main);
        newton_schulz_->run(static_cast<std::size_t>(batch.ns_batch), main);
      }
      launch_row_sums(view, batch.rows, main);
      launch_row_factors(view, batch.matrices[kNormalizedRows], start_scale, main);
      launch_row_coefficients(view, batch.matrices[kRadiiOfRows], start_scale, main);
      launch_coefficients(view, batch.matrices_without_radii(), start_scale, sums, main);
    }
    if (part == kCompute) continue;
    launch_write(view, batch.slices[kPlainRows], main);
    launch_write_rows(view, batch.slices[kNormalizedRows], main);
    launch_write_radii(view, batch.slices[kRadiiOfRows], main);
  }
}

void CudaBackend::enqueue(const StepView& view, cudaStream_t main, Part part) {
  if (part == kAll || part == kMeasure) {
    launch_measure(view, tables_->measured_slices(), main);
    launch_measure_rows(view, tables_->measured_rows(), main);
    launch_total(view, main);
  }
  if (part == kAll || part == kCompute) {
    launch_gate(view, main);
    enqueue_updates(view, main, part);
  }
  if (part == kApply) enqueue_matrices(view, main, part);
  if (part == kAll || part == kApply) launch_finish(view, main);
}

void CudaBackend::enqueue_updates(const StepView& view, cudaStream_t main, Part part) {
  // Element rules and matrices do not depend on each other: a branch each.
  const bool elements = view.element_count > 0 || adafactor_ != nullptr;
  const bool branch = elements && view.matrix_count > 0;
  cudaStream_t side = branch ? side_.get() : main;
  if (branch) {
    RODE_CUDA_CHECK(cudaEventRecord(fork_.get(), main));
    RODE_CUDA_CHECK(cudaStreamWaitEvent(side, fork_.get(), 0));
  }
  launch_element(view, tables_->element_slices(), side);
  if (adafactor_ != nullptr) {
    const std::int32_t first = tables_->adafactor_from();
    adafactor_->enqueue(view.control, view.jobs + first, view.results + first, side);
  }
  if (branch) RODE_CUDA_CHECK(cudaEventRecord(join_.get(), side));
  enqueue_matrices(view, main, part);
  if (branch) RODE_CUDA_CHECK(cudaStreamWaitEvent(main, join_.get(), 0));
}

void CudaBackend::record_graph(Part part) {
  RODE_CUDA_CHECK(cudaStreamBeginCapture(record_.get(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    enqueue(tables_->view(), record_.get(), part);
  } catch (...) {
    ignore(cudaStreamEndCapture(record_.get(), &graph));
    if (graph != nullptr) ignore(cudaGraphDestroy(graph));
    throw;
  }
  RODE_CUDA_CHECK(cudaStreamEndCapture(record_.get(), &graph));
  cudaGraphExec_t exec = nullptr;
  // The priorities of the two branches are those of the streams they were recorded on.
  const cudaError_t made =
      cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority);
  ignore(cudaGraphDestroy(graph));
  RODE_CUDA_CHECK(made);
  graphs_[part].reset(exec);
  // Its memory is taken now: later steps allocate nothing.
  RODE_CUDA_CHECK(cudaGraphUpload(exec, stream_));
}

// The step of which this is a part is on its way already: where no graph can be had (no memory
// left, say), later ones are launched kernel by kernel too.
void CudaBackend::try_record_graph(Part part) {
  try {
    record_graph(part);
  } catch (const Error&) {
    ignore(cudaGetLastError());
    plain_ = true;
  }
}

// The options go into the tables that all steps share: a step outside, or send_options, changes
// them for replays too. The tensors go into a table of the graph's own, because a framework
// allocates the gradients of a capture separately, and those of later steps lie elsewhere.
void CudaBackend::step_captured(JobList& jobs) {
  if (!stepped_) {
    throw Error(ErrorKind::invalid_argument, "step",
                "the stream is being captured, but no step was made before, so that kernels and "
                "memory are not ready; step once outside of the capture");
  }
  StepView view;
  {
    const RelaxedCapture relaxed;
    RODE_CUDA_CHECK(cudaEventSynchronize(order_.get()));  // steps on their way read the tables
    send_tables(jobs, record_.get());
    view = tables_->frozen(record_.get());
    RODE_CUDA_CHECK(cudaStreamSynchronize(record_.get()));
  }
  enqueue(view, stream_, kAll);
}

void CudaBackend::launch(Part part) {
  if (graphs_[part] != nullptr) {
    RODE_CUDA_CHECK(cudaGraphLaunch(graphs_[part].get(), stream_));
    return;
  }
  // The first step loads the kernels; only then are they recorded. Debugging keeps to plain
  // launches, which can be waited for one by one.
  enqueue(tables_->view(), stream_, part);
  if (!synchronises() && !plain_) try_record_graph(part);
}

void CudaBackend::step_soap(JobList& jobs) {
  if (soap_ == nullptr) return;
  const StepView& view = tables_->view();
  soap_->step(jobs.soap, view.control, view.results + tables_->soap_from(), stream_);
}

void CudaBackend::measure(JobList& jobs) {
  const DeviceGuard guard(device_);
  if (soap_ != nullptr) check_soap_stream(stream_);
  send_tables(jobs, stream_);
  launch(kMeasure);
  note_order();
}

void CudaBackend::compute(JobList&, const StepContext& context) {
  const DeviceGuard guard(device_);
  send_wishes(context.multiplier, context.refuse_all);
  launch(kCompute);
  note_order();
}

void CudaBackend::apply(JobList& jobs, const StepContext&) {
  const DeviceGuard guard(device_);
  launch(kApply);
  step_soap(jobs);
  tables_->keep_report(stream_);
  note_order();
  stepped_ = true;
}

void CudaBackend::step(JobList& jobs, const StepContext& context) {
  const DeviceGuard guard(device_);
  if (soap_ != nullptr) check_soap_stream(stream_);
  if (capturing()) {
    step_captured(jobs);
    return;
  }
  send_tables(jobs, stream_);  // only what a capture that was refused has left unsent
  send_wishes(context.multiplier, context.refuse_all);
  launch(kAll);
  step_soap(jobs);
  tables_->keep_report(stream_);
  note_order();
  stepped_ = true;
}

}  // namespace rode::cuda
