// SPDX-License-Identifier: Apache-2.0
// Timed on a CUDA device: whole steps, and the limits of the machine.
#include "bench/cuda.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "backend/backend.h"
#include "backend/cuda_check.h"
#include "bench/cublas.h"
#include "bench/products.h"
#include "products_option.h"
#include "rode/error.h"
#include "rode/optimizer.h"

namespace rode::cli {
namespace {

using cuda::check;

std::size_t free_memory() {
  std::size_t available = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return available;
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "waiting for the device"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Moments on a stream; the time between neighbours is a step's.
class Marks {
 public:
  explicit Marks(int count) : events_(static_cast<std::size_t>(count)) {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "event");
  }
  ~Marks() {
    for (cudaEvent_t event : events_) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void set(int i, cudaStream_t stream) {
    check(cudaEventRecord(events_[static_cast<std::size_t>(i)], stream), "event");
  }
  double ms(int from, int to) const {
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, events_[static_cast<std::size_t>(from)],
                               events_[static_cast<std::size_t>(to)]),
          "event");
    return static_cast<double>(elapsed);
  }

 private:
  std::vector<cudaEvent_t> events_;
};

DType dtype_of(const BenchArguments& arguments) {
  return arguments.dtype == "bf16" ? DType::bf16 : DType::f32;
}

// Normally distributed numbers on the device, from which tensors are filled. Longer than the
// largest matrix of the named models, so that no matrix repeats itself.
class Noise {
 public:
  Noise(Backend& backend, DType dtype)
      : element_(size_of(dtype)), memory_(backend.allocate(kCount * element_)) {
    const Buffer host(kCount * sizeof(float));
    fill_gaussian(host.floats(), kCount, 0.02f, 1);
    if (dtype == DType::bf16) narrow(host.floats());
    memory_->upload(host.data(), kCount * element_);
  }

  // `seed` chooses where it begins to read.
  void fill(void* tensor, std::size_t count, std::size_t seed, cudaStream_t stream) const {
    const auto* noise = static_cast<const std::byte*>(memory_->data());
    auto* to = static_cast<std::byte*>(tensor);
    std::size_t at = seed * 2654435761u % kCount;
    while (count > 0) {
      const std::size_t piece = std::min(count, kCount - at);
      check(cudaMemcpyAsync(to, noise + at * element_, piece * element_, cudaMemcpyDeviceToDevice,
                            stream),
            "filling tensors");
      to += piece * element_;
      count -= piece;
      at = 0;
    }
  }

 private:
  static constexpr std::size_t kCount = (std::size_t{1} << 24) + 4093;

  // Each number's upper half takes the place of the number.
  static void narrow(float* values) {
    auto* bytes = reinterpret_cast<std::byte*>(values);
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16);
      std::memcpy(bytes + i * sizeof(half), &half, sizeof(half));
    }
  }

  std::size_t element_;
  std::unique_ptr<rode::Buffer> memory_;
};

// One model's weights and gradients on the device, and the optimizer with its state.
struct Set {
  std::vector<std::unique_ptr<rode::Buffer>> memory;
  std::unique_ptr<Optimizer> optimizer;
};

Set make_set(Backend& backend, const Noise& noise, const BenchArguments& arguments,
             const Model& model, const Method& method, std::size_t seed, const Stream& stream) {
  Set set;
  std::vector<Parameter> parameters = model.parameters(dtype_of(arguments));
  const auto filled = [&](std::int64_t count) {
    const auto size = static_cast<std::size_t>(count);
    set.memory.push_back(backend.allocate(size * size_of(dtype_of(arguments))));
    noise.fill(set.memory.back()->data(), size, ++seed, stream.get());
    return set.memory.back()->data();
  };
  for (Parameter& parameter : parameters) {
    parameter.value.data = filled(parameter.value.numel());
    parameter.grad.data = filled(parameter.grad.numel());
  }
  stream.wait();
  EngineOptions engine;
  engine.device = Device::cuda;
  engine.stream = stream.get();
  engine.batched = !arguments.loop;
  engine.phases = arguments.phases;
  engine.cuda_products = cuda_products_of(arguments.products);
  set.optimizer =
      std::make_unique<Optimizer>(std::move(parameters), method, Routing{model.route, {}}, engine);
  return set;
}

// Enough sets that one is gone from the L2 cache when its turn comes again; a set of
// gigabytes sweeps the cache by itself.
int number_of_sets(const Model& model, const Method& method, DType dtype) {
  const std::vector<Parameter> parameters = model.parameters(dtype);
  std::size_t bytes = planned_state_bytes(parameters, method, Routing{model.route, {}});
  for (const Parameter& parameter : parameters) bytes += 2 * parameter.value.bytes();
  constexpr std::size_t kSweep = 512'000'000;  // ten times the L2 cache of the largest chips
  constexpr std::size_t kLarge = 1'000'000'000;
  const std::size_t wanted = bytes > 4 * kLarge ? 1
                             : bytes > kLarge   ? 2
                                                : std::clamp<std::size_t>(kSweep / bytes, 3, 16);
  // The workspace comes on top: a quarter is left for it.
  const std::size_t fitting = free_memory() / 4 * 3 / bytes;
  return static_cast<int>(std::max<std::size_t>(1, std::min(wanted, fitting)));
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// From "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release ...".
std::string driver_release() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    const bool digits = word.find_first_not_of("0123456789.") == std::string::npos;
    if (digits && word.find('.') != std::string::npos) return word;
  }
  return {};
}

double copy_tbps(Backend& backend, const Stream& stream) {
  const std::size_t bytes = std::min<std::size_t>(4'000'000'000, free_memory() / 4) & ~255UL;
  const auto from = backend.allocate(bytes);
  const auto to = backend.allocate(bytes);
  constexpr int kCopies = 20;
  Marks marks(kCopies + 1);
  Times times;
  for (int i = -2; i <= kCopies; ++i) {  // the first few warm up
    if (i >= 0) marks.set(i, stream.get());
    if (i == kCopies) break;
    check(cudaMemcpyAsync(to->data(), from->data(), bytes, cudaMemcpyDeviceToDevice, stream.get()),
          "copying on the device");
  }
  stream.wait();
  for (int i = 0; i < kCopies; ++i) times.ms.push_back(marks.ms(i, i + 1));
  return 2.0 * static_cast<double>(bytes) / (1e-3 * times.quantile(0.5)) * 1e-12;
}

// Random operands: zeros draw less power, and the chip would clock higher than it ever does.
std::optional<double> matmul_tflops(Backend& backend, const Stream& stream) {
  constexpr int kExtent = 8192;
  constexpr std::size_t kCount = std::size_t{kExtent} * kExtent;
  const Buffer values(kCount * sizeof(float));
  const Buffer halves(kCount * sizeof(std::uint16_t));
  fill_gaussian(values.floats(), kCount, 1.0f, 2);
  auto* half = static_cast<std::uint16_t*>(halves.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    half[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values.floats()[i]) >> 16);
  }
  constexpr std::size_t kBytes = kCount * sizeof(std::uint16_t);
  const auto a = backend.allocate(kBytes);
  const auto b = backend.allocate(kBytes);
  const auto c = backend.allocate(kBytes);
  a->upload(half, kBytes);
  std::reverse(half, half + kCount);
  b->upload(half, kBytes);
  return cublas_tflops(kExtent, a->data(), b->data(), c->data(), 50, stream.get());
}

}  // namespace

CudaMachine describe_cuda_machine() {
  (void)make_cuda_backend({});  // its error says what is missing
  int device = 0;
  int driver = 0;
  int runtime = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  CudaMachine machine;
  machine.device = properties.name;
  machine.capability = fmt::format("{}.{}", properties.major, properties.minor);
  machine.driver = driver_release();
  if (machine.driver.empty()) machine.driver = "CUDA " + version_text(driver);
  machine.runtime = version_text(runtime);
  machine.memory_bytes = properties.totalGlobalMem;
  return machine;
}

CudaCeilings measure_cuda_ceilings() {
  const Stream stream;
  const auto backend = make_cuda_backend({.stream = stream.get()});
  CudaCeilings ceilings;
  ceilings.copy_tbps = copy_tbps(*backend, stream);
  ceilings.matmul_tflops = matmul_tflops(*backend, stream);
  return ceilings;
}

CudaSteps time_cuda_steps(const BenchArguments& arguments, const Model& model,
                          const Method& method) {
  const Stream stream;
  const auto backend = make_cuda_backend({.stream = stream.get()});
  const Noise noise(*backend, dtype_of(arguments));
  CudaSteps result;
  result.sets = number_of_sets(model, method, dtype_of(arguments));
  std::vector<Set> sets;
  for (int i = 0; i < result.sets; ++i) {
    const auto seed = static_cast<std::size_t>(i) << 32;
    sets.push_back(make_set(*backend, noise, arguments, model, method, seed, stream));
  }
  const auto step = [&](int i) {
    step_as_asked(*sets[static_cast<std::size_t>(i % result.sets)].optimizer, arguments);
  };
  // Each set is past its first steps, which allocate and capture.
  const int warmup = std::max(arguments.warmup, 3 * result.sets);
  const int steps = warmup + arguments.repeat;
  for (int i = 0; i + 1 < warmup; ++i) step(i);
  stream.wait();
  Marks marks(arguments.repeat + 1);
  step(warmup - 1);  // the first measured step finds the device at work
  for (int i = 0; i < arguments.repeat; ++i) {
    marks.set(i, stream.get());
    step(warmup + i);
  }
  marks.set(arguments.repeat, stream.get());
  stream.wait();
  for (int i = 0; i < arguments.repeat; ++i) result.step.ms.push_back(marks.ms(i, i + 1));
  result.mean_ms = marks.ms(0, arguments.repeat) / arguments.repeat;

  std::int64_t done = 0;
  for (Set& set : sets) {
    set.optimizer->check();  // a refused step is fast and proves nothing
    done += set.optimizer->steps_done();
  }
  if (done != steps) {
    throw Error(ErrorKind::non_finite, "bench",
                fmt::format("{} of {} steps were performed; the measured times are meaningless",
                            done, steps));
  }
  result.state_bytes = sets.front().optimizer->state_bytes();
  result.workspace_bytes = sets.front().optimizer->workspace_bytes();
  return result;
}

}  // namespace rode::cli
