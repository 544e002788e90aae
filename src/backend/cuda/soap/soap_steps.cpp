// SPDX-License-Identifier: Apache-2.0
// Order of a SOAP step: launches on the device, factorizations on the host.
//
// New Gram matrices and bases are made in the workspace first: what can fail, fails before
// any weight or state has moved.
#include "backend/cuda/soap/soap_steps.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "backend/cpu/lapack.h"
#include "backend/cuda/device/check.h"
#include "backend/cuda/soap/sgemm.h"
#include "rode/error.h"

namespace rode::cuda {
namespace {

// Indices of a product are 32 bits wide, with room for a tile past the end.
constexpr std::int64_t kMostLines = 0x7fffff00;

// The tensor as outer x extent x inner with a mode in the middle; `squares` and `lines` count
// the elements of the n x n and of the n-element arrays of the modes before it.
struct Mode {
  float *gram, *basis;
  std::int64_t outer, extent, inner, squares, lines;
  std::int64_t rest() const { return outer * inner; }
  std::int64_t square() const { return extent * extent; }
};

std::int64_t element_count(const SoapJob& job) { return geometry_of(job).numel(); }

// Calls f(mode) for every mode with a basis.
template <class F>
void for_modes(const SoapJob& job, F&& f) {
  std::int64_t outer = 1, inner = element_count(job), squares = 0, lines = 0;
  if (inner == 0) return;
  for (const SoapMode& mode : job.modes) {
    const std::int64_t n = mode.extent;
    inner /= n;
    if (mode.basis != nullptr) {
      f(Mode{mode.gram, mode.basis, outer, n, inner, squares, lines});
      squares += n * n;
      lines += n;
    }
    outer *= n;
  }
}

std::int32_t index(std::int64_t value) { return static_cast<std::int32_t>(value); }

// All indices but the mode's, as one side of a matrix.
Axis rest_axis(const Mode& mode) {
  if (mode.inner == 1) return {.stride = mode.extent};
  if (mode.outer == 1) return {.stride = 1};
  return {.stride = 1, .inner = index(mode.inner), .outer_stride = mode.extent * mode.inner};
}

// Y = X with the mode multiplied by Q^T (into the basis) or by Q (back).
void rotate(const Mode& mode, const float* q, bool into, const float* x, float* y,
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

// The gradient in fp32 without a copy where it is stored so.
const float* gradient(const SoapJob& job, const SoapSpace& space, cudaStream_t stream) {
  if (job.grad.dtype == DType::f32) return static_cast<const float*>(job.grad.data);
  launch_soap_widen(static_cast<const std::uint16_t*>(job.grad.data), space.buffer,
                    element_count(job), stream);
  return space.buffer;
}

void new_grams(const SoapJob& job, const SoapSpace& space, cudaStream_t stream) {
  const float* g = gradient(job, space, stream);
  const auto beta2 = static_cast<float>(job.constants->beta2),
             rest2 = static_cast<float>(1 - job.constants->beta2);
  for_modes(job, [&](const Mode& mode) {
    const std::int64_t n = mode.extent;
    float* fresh = space.grams + mode.squares;
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
    args.c = args.splits == 1 ? fresh : space.parts;
    sgemm(args, stream);
    launch_soap_gram({mode.gram, args.c, fresh, n, args.split_stride, args.splits, beta2, rest2},
                     stream);
  });
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

void copy(const float* from, float* to, std::int64_t count, cudaStream_t stream) {
  if (from == to) return;
  RODE_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(float),
                                  cudaMemcpyDeviceToDevice, stream));
}

bool first_bases(const SoapJob& job, const SoapSpace& space, SoapHost& host, cudaStream_t stream) {
  bool done = true;
  for_modes(job, [&](const Mode& mode) {
    to_host(host.gram, space.grams + mode.squares, mode.square(), stream);
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
    done = cpu::eigenvectors(host.gram.data(), mode.extent, host.basis.data(),
                             reinterpret_cast<float*>(host.workspace.data())) &&
           done;
    if (done) to_device(space.bases + mode.squares, host.basis.data(), mode.square(), stream);
  });
  return done;
}

// The columns of the n x n `product` = L Q, those of the largest of diag(Q^T L Q) first,
// become rows of `columns`; Q comes there and is overwritten.
void sort_columns(const std::vector<float>& product, std::int64_t n, SoapHost& host) {
  double* estimates = host.eigenvalues.data();
  std::int32_t* order = host.order.data();
  float* columns = host.basis.data();
  std::fill(estimates, estimates + n, 0.0);
  const float* p = product.data();
  for (std::int64_t at = 0, i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j, ++at) {
      estimates[j] += static_cast<double>(columns[at]) * static_cast<double>(p[at]);
    }
  }
  std::iota(order, order + n, 0);
  // Ties by index: stable, and without stable_sort's buffer.
  std::sort(order, order + n, [&](std::int32_t a, std::int32_t b) {
    return estimates[a] != estimates[b] ? estimates[a] > estimates[b] : a < b;
  });
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) columns[j * n + i] = p[i * n + order[j]];
  }
}

// Q <- qr(L Q) with the columns of Q in the order of diag(Q^T L Q), the largest first.
bool new_bases(const SoapJob& job, const SoapSpace& space, SoapHost& host, cudaStream_t stream) {
  bool done = true;
  for_modes(job, [&](const Mode& mode) {
    const std::int64_t n = mode.extent;
    // L is symmetric: multiplying by its transpose is multiplying by it.
    rotate({nullptr, nullptr, 1, n, n, 0, 0}, space.grams + mode.squares, true, mode.basis,
           space.buffer, stream);
    to_host(host.gram, space.buffer, mode.square(), stream);
    to_host(host.basis, mode.basis, mode.square(), stream);
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
    sort_columns(host.gram, n, host);
    float* columns = host.basis.data();
    done = cpu::orthonormalize(columns, n, reinterpret_cast<float*>(host.workspace.data())) && done;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = i + 1; j < n; ++j) std::swap(columns[i * n + j], columns[j * n + i]);
    }
    if (!done) return;
    to_device(space.orders + mode.lines, host.order.data(), n, stream);
    to_device(space.bases + mode.squares, columns, mode.square(), stream);
  });
  return done;
}

// Through every mode, into the bases or back; the result lies in x, buffer or other.
const float* rotate_all(const SoapJob& job, const SoapSpace& space, bool into, const float* x,
                        cudaStream_t stream) {
  for_modes(job, [&](const Mode& mode) {
    float* y = x == space.buffer ? space.other : space.buffer;
    rotate(mode, mode.basis, into, x, y, stream);
    x = y;
  });
  return x;
}

void keep_bases(const SoapJob& job, const SoapSpace& space, cudaStream_t stream) {
  for_modes(job, [&](const Mode& mode) {
    copy(space.bases + mode.squares, mode.basis, mode.square(), stream);
  });
}

// exp_avg goes from the old bases to the new ones, exp_avg_sq follows their order.
void change_bases(const SoapJob& job, const SoapSpace& space, cudaStream_t stream) {
  const std::int64_t count = element_count(job);
  const float* m = rotate_all(job, space, false, job.exp_avg, stream);
  keep_bases(job, space, stream);
  copy(rotate_all(job, space, true, m, stream), job.exp_avg, count, stream);

  const float* v = job.exp_avg_sq;
  for_modes(job, [&](const Mode& mode) {
    float* y = v == space.buffer ? space.other : space.buffer;
    launch_soap_permute({v, y, space.orders + mode.lines, count, mode.extent, mode.inner}, stream);
    v = y;
  });
  copy(v, job.exp_avg_sq, count, stream);
}

// W <- keep W + along N; N may be null.
void write_all(const SoapJob& job, const SoapSpace& space, const Control& control, double keep,
               double along, const float* direction, cudaStream_t stream) {
  const Weights& weight = job.weight;
  launch_soap_write({{weight.data, weight.low_bits, weight.stream,
                      weight.dtype == DType::bf16 ? 1 : 0, weight.rounding},
                     direction,
                     element_count(job),
                     job.offset,
                     control.step,
                     static_cast<float>(keep),
                     static_cast<float>(along),
                     space.sums},
                    stream);
}

void step_weights(const SoapJob& job, const SoapSpace& space, const Control& control,
                  std::int64_t k, cudaStream_t stream) {
  const rules::SoapConstants& c = *job.constants;
  const float* g = rotate_all(job, space, true, gradient(job, space, stream), stream);
  float* direction = g == space.buffer ? space.other : space.buffer;
  launch_soap_moments(
      {g, job.exp_avg, job.exp_avg_sq, direction, element_count(job), static_cast<float>(c.beta1),
       static_cast<float>(1 - c.beta1), static_cast<float>(c.beta2),
       static_cast<float>(1 - c.beta2), static_cast<float>(c.eps)},
      stream);
  const rules::SoapWrite out = rules::soap_write(c, control.multiplier, k);
  write_all(job, space, control, out.w, out.n, rotate_all(job, space, false, direction, stream),
            stream);
}

// Returns false, with nothing changed, where LAPACK could not decompose a factor.
bool update(const SoapJob& job, const SoapSpace& space, SoapHost& host, const Control& control,
            std::int64_t k, cudaStream_t stream) {
  const bool refresh = rules::soap_changes_basis(*job.constants, k);
  new_grams(job, space, stream);
  if (k == 0 && !first_bases(job, space, host, stream)) return false;
  if (refresh && !new_bases(job, space, host, stream)) return false;
  if (k == 0) {
    keep_bases(job, space, stream);
    write_all(job, space, control, 1, 0, nullptr, stream);
  } else {
    step_weights(job, space, control, k, stream);
    if (refresh) change_bases(job, space, stream);
  }
  for_modes(job, [&](const Mode& mode) {
    copy(space.grams + mode.squares, mode.gram, mode.square(), stream);
  });
  return true;
}

// Elements of each array of the workspace: the most that any job needs.
struct Sizes {
  std::int64_t squares = 0, lines = 0, buffer = 0, other = 0, parts = 0, slices = 0;
  std::int64_t side = 0;  // of the largest factor
  std::size_t lapack = 0;

  void admit(const SoapJob& job) {
    const std::int64_t count = element_count(job);
    std::int64_t own_squares = 0, own_lines = 0;
    for_modes(job, [&](const Mode& mode) {
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
      lapack = std::max({lapack, cpu::eigen_workspace_floats(mode.extent),
                         cpu::qr_workspace_floats(mode.extent)});
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
  host_.eigenvalues.resize(side);
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
    // Other parameters of the step have moved by now, so a failure leaves this one out
    // instead of throwing.
    const bool done = count == 0 || update(jobs[i], space_, host_, now, heads_[i].step, stream);
    launch_soap_report({space_.sums, slice_count(count), jobs[i].step, results + i, control,
                        static_cast<std::int32_t>(jobs[i].parameter), done ? 0 : 1},
                       stream);
  }
}

}  // namespace rode::cuda
