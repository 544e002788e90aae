// SPDX-License-Identifier: Apache-2.0
// SOAP's operations: launches on the device, factorizations on the host.
#include "backend/cuda/soap/soap_steps.h"

#include <algorithm>

#include <fmt/format.h>

#include "backend/cuda/device/check.h"
#include "backend/cuda/soap/sgemm.h"
#include "backend/cuda/tables/fill.h"
#include "backend/host/lapack.h"
#include "backend/host/soap_basis.h"
#include "rode/error.h"

namespace rode::cuda {
namespace {

// Indices of a product are 32 bits wide, with room for a tile past the end.
constexpr std::int64_t kMostLines = 0x7fffff00;

using host::element_count;
using host::Mode;
using host::ModeView;

std::int32_t index(std::int64_t value) { return static_cast<std::int32_t>(value); }

// All indices but the mode's, as one side of a matrix.
Axis rest_axis(const ModeView& mode) {
  if (mode.inner == 1) return {.stride = mode.extent};
  if (mode.outer == 1) return {.stride = 1};
  return {.stride = 1, .inner = index(mode.inner), .outer_stride = mode.extent * mode.inner};
}

// Y = X with the mode multiplied by Q^T (into the basis) or by Q (back).
void rotate_mode(const ModeView& mode, const float* q, bool into, const float* x, float* y,
                 cudaStream_t stream) {
  const Axis along{.stride = mode.inner}, rest = rest_axis(mode);
  const Axis fast{.stride = 1}, slow{.stride = mode.extent};
  SgemmArgs args;
  args.c = y;
  args.k = index(mode.extent);
  if (mode.inner == 1) {  // rows of X times Q or Q^T: the result is written along its rows
    args.m = index(mode.outer);
    args.n = index(mode.extent);
    args.a = x;
    args.a_row = args.c_row = rest;
    args.a_col = args.c_col = along;
    args.b = q;
    args.b_row = into ? slow : fast;
    args.b_col = into ? fast : slow;
  } else {
    args.m = index(mode.extent);
    args.n = index(mode.rest());
    args.a = q;
    args.a_row = into ? fast : slow;
    args.a_col = into ? slow : fast;
    args.b = x;
    args.b_row = args.c_row = along;
    args.b_col = args.c_col = rest;
  }
  sgemm(args, stream);
}

void to_host(std::vector<float>& host, const float* device, std::int64_t count,
             cudaStream_t stream) {
  RODE_CUDA_CHECK(cudaMemcpyAsync(host.data(), device,
                                  static_cast<std::size_t>(count) * sizeof(float),
                                  cudaMemcpyDeviceToHost, stream));
}

template <class T>
void to_device(T* device, const T* host, std::int64_t count, cudaStream_t stream) {
  RODE_CUDA_CHECK(cudaMemcpyAsync(device, host, static_cast<std::size_t>(count) * sizeof(T),
                                  cudaMemcpyHostToDevice, stream));
  // The host's array is filled again for the next mode.
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
}

class Operations {
 public:
  Operations(const SoapJob& job, const SoapMemory& space, SoapHost& host, const Control& control,
             cudaStream_t stream)
      : job_(job),
        space_(space),
        host_(host),
        control_(control),
        stream_(stream),
        coefficients_(rules::soap_coefficients(*job.constants)) {}

  const float* gradient() {
    if (job_.grad.dtype == DType::f32) return static_cast<const float*>(job_.grad.data);
    launch_soap_widen(static_cast<const std::uint16_t*>(job_.grad.data), space_.buffer,
                      element_count(job_), stream_);
    return space_.buffer;
  }

  void gram(const Mode& mode, const float* g, float* fresh) {
    const std::int64_t n = mode.extent;
    SgemmArgs args;
    args.a = args.b = g;
    args.a_row = args.b_col = {.stride = mode.inner};
    args.a_col = args.b_row = rest_axis(mode);
    args.c_row = {.stride = n};
    args.m = args.n = index(n);
    args.k = index(mode.rest());
    args.upper = args.wide = true;
    args.splits = gram_splits(n, mode.rest());
    args.split_stride = mode.square();
    args.c = args.splits == 1 ? fresh : space_.parts;
    sgemm(args, stream_);
    launch_soap_gram({mode.gram, args.c, fresh, n, args.split_stride, args.splits, coefficients_},
                     stream_);
  }

  bool first_basis(const Mode& mode, const float* gram, float* basis) {
    to_host(host_.gram, gram, mode.square(), stream_);
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (!host::eigenvectors(host_.gram.data(), mode.extent, host_.basis.data(), workspace())) {
      return false;
    }
    to_device(basis, host_.basis.data(), mode.square(), stream_);
    return true;
  }

  bool next_basis(const Mode& mode, const float* gram, float* basis, std::int32_t* order) {
    const std::int64_t n = mode.extent;
    // L is symmetric: multiplying by its transpose is multiplying by it.
    rotate_mode({1, n, n}, gram, true, mode.basis, space_.buffer, stream_);
    to_host(host_.gram, space_.buffer, mode.square(), stream_);
    to_host(host_.basis, mode.basis, mode.square(), stream_);
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (!host::next_basis(host_.basis.data(), host_.gram.data(), n, host_.basis.data(),
                          host_.order.data(), workspace())) {
      return false;
    }
    to_device(order, host_.order.data(), n, stream_);
    to_device(basis, host_.basis.data(), mode.square(), stream_);
    return true;
  }

  void rotate(const Mode& mode, bool into, const float* x, float* y) {
    rotate_mode(mode, mode.basis, into, x, y, stream_);
  }

  void permute(const Mode& mode, const std::int32_t* order, const float* x, float* y) {
    launch_soap_permute({x, y, order, element_count(job_), mode.extent, mode.inner}, stream_);
  }

  void copy(const float* from, float* to, std::int64_t count) {
    if (from == to) return;
    RODE_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(float),
                                    cudaMemcpyDeviceToDevice, stream_));
  }

  void moments(const float* g, float* direction) {
    launch_soap_moments(
        {g, job_.exp_avg, job_.exp_avg_sq, direction, element_count(job_), coefficients_}, stream_);
  }

  void write(const rules::SoapWrite& write, const float* direction) {
    launch_soap_write(
        {view_of(job_.weight), direction, element_count(job_), job_.place(), control_.step,
         static_cast<float>(write.w), static_cast<float>(write.n), space_.sums},
        stream_);
  }

 private:
  float* workspace() { return reinterpret_cast<float*>(host_.workspace.data()); }

  const SoapJob& job_;
  const SoapMemory& space_;
  SoapHost& host_;
  const Control& control_;
  cudaStream_t stream_;
  rules::SoapCoefficients coefficients_;
};

// Elements of each array of the workspace: the most that any job needs.
struct Sizes {
  std::int64_t squares = 0, lines = 0, buffer = 0, other = 0, parts = 0, slices = 0;
  std::int64_t side = 0;  // of the largest factor
  std::size_t lapack = 0;

  void admit(const SoapJob& job) {
    const std::int64_t count = element_count(job);
    std::int64_t own_squares = 0, own_lines = 0;
    host::for_modes(job, [&](const Mode& mode) {
      if (mode.rest() > kMostLines) {
        throw Error(ErrorKind::unsupported, "soap",
                    fmt::format("a tensor has {} elements beside a mode of {}; a product counts "
                                "at most {}; route it to the rest",
                                mode.rest(), mode.extent, kMostLines));
      }
      own_squares += mode.square();
      own_lines += mode.extent;
      side = std::max(side, mode.extent);
      buffer = std::max(buffer, mode.square());
      const std::int64_t splits = gram_splits(mode.extent, mode.rest());
      if (splits > 1) parts = std::max(parts, splits * mode.square());
      lapack = std::max({lapack, host::eigen_workspace_floats(mode.extent),
                         host::next_basis_floats(mode.extent)});
    });
    squares = std::max(squares, own_squares);
    lines = std::max(lines, own_lines);
    buffer = std::max(buffer, count);
    other = std::max(other, count);
    slices = std::max(slices, slice_count(count));
  }
};

}  // namespace

void check_soap_stream(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  RODE_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  if (status == cudaStreamCaptureStatusNone) return;
  throw Error(ErrorKind::unsupported, "soap",
              "the stream is being captured, and SOAP factorizes on the host; step it outside of "
              "the capture, or take another optimizer");
}

template <class T>
T* SoapSteps::reserve(std::int64_t count) {
  return memory_.emplace_back(static_cast<std::size_t>(count) * sizeof(T)).as<T>();
}

SoapSteps::SoapSteps(const std::deque<SoapJob>& jobs, cudaStream_t stream) : heads_(jobs.size()) {
  Sizes sizes;
  for (const SoapJob& job : jobs) sizes.admit(job);
  space_.grams = reserve<float>(sizes.squares);
  space_.bases = reserve<float>(sizes.squares);
  space_.orders = reserve<std::int32_t>(sizes.lines);
  space_.buffer = reserve<float>(sizes.buffer);
  space_.other = reserve<float>(sizes.other);
  space_.parts = reserve<float>(sizes.parts);
  space_.sums = reserve<double>(2 * sizes.slices);

  std::vector<const std::int64_t*> steps;
  for (const SoapJob& job : jobs) steps.push_back(job.step);
  steps_ = upload_table(steps, stream);
  device_heads_ = DeviceBuffer(jobs.size() * sizeof(SoapHead));

  const auto side = static_cast<std::size_t>(sizes.side);
  host_.gram.resize(side * side);
  host_.basis.resize(side * side);
  host_.order.resize(side);
  host_.workspace.resize((sizes.lapack + 1) / 2);
}

std::size_t SoapSteps::workspace_bytes() const {
  std::size_t bytes = steps_.bytes() + device_heads_.bytes();
  for (const DeviceBuffer& buffer : memory_) bytes += buffer.bytes();
  return bytes;
}

void SoapSteps::step(const std::deque<SoapJob>& jobs, Control* control, JobResult* results,
                     cudaStream_t stream) {
  if (jobs.empty()) return;
  check_soap_stream(stream);
  launch_soap_heads({steps_.as<const std::int64_t*>(), results, device_heads_.as<SoapHead>(),
                     static_cast<std::int32_t>(jobs.size())},
                    stream);
  Control now{};
  RODE_CUDA_CHECK(cudaMemcpyAsync(&now, control, sizeof(now), cudaMemcpyDeviceToHost, stream));
  RODE_CUDA_CHECK(cudaMemcpyAsync(heads_.data(), device_heads_.data(), device_heads_.bytes(),
                                  cudaMemcpyDeviceToHost, stream));
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
  if (now.refused != 0) return;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (heads_[i].live == 0) continue;
    const std::int64_t count = element_count(jobs[i]);
    bool done = true;
    if (count > 0) {
      Operations operations(jobs[i], space_, host_, now, stream);
      done = host::SoapStep(jobs[i], space_, operations)(heads_[i].step, now.multiplier);
    }
    launch_soap_report({space_.sums, slice_count(count), jobs[i].step, results + i, control,
                        static_cast<std::int32_t>(jobs[i].parameter), done ? 0 : 1},
                       stream);
  }
}

}  // namespace rode::cuda
